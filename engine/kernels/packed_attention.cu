// Self-attention of packed sequences of any length, out_i = sum_j softmax_j(scale q_i k_j) v_j per sequence and head, in the
// tiles of packed_tile.cuh, which says how, and what its arguments are.
//
// Registers (ptxas 12.9 and NVRTC 13.2, sm_80 and sm_90, no spills) and shared memory, for 128 queries:
//   D = 32: 126, 32 KiB, four CTAs an SM; D = 64: 168, 64 KiB, three; D = 128: 187, 128 KiB, one of eight warps.
//
// Versions: 1. this. To try: all registers for two CTAs an SM (204 for D = 64, or 238 with 64 keys at a time); the
//   greatest weight instead of the greatest score as the sign that a reference must move (32 of the 250 instructions);
//   wgmma, which alone reaches the full rate of Hopper's tensor cores.

#define PACKED_ATTENTION(D, QUERIES, WARPS, CTAS)                                                      \
    extern "C" __global__ void __launch_bounds__(WARP * WARPS, CTAS) packed_attention_##D##_##QUERIES( \
        scalar* out, const scalar* qkv, const int2* plan, float log2_scale) {                          \
        wait_for_previous();                                                                           \
        start<D, WARPS, QUERIES>(out, qkv, plan, log2_scale, Plain{});                                 \
    }

FOR_EACH_TILE(PACKED_ATTENTION)
