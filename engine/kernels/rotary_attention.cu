// Self-attention of packed sequences of any length with rotary positions (Su et al. 2021), over all tokens or a window,
// out_i = sum_j softmax_j(scale R_i q_i R_j k_j) v_j per sequence and head, in the tiles of packed_tile.cuh.
//
// Layout: as there, and cosines and sines [positions, D / 2], float32, a position's in its own sequence; dimension i of a
//   head is paired with i + D / 2. window: a query sees keys at most this far away.
//
// Threads: each thread turns what it has copied, two chunks of a row, in shared memory: the queries once, and each tile of
//   keys before the barrier that hands it to all warps. A CTA loads only the tiles that its queries see. Of those a warp
//   skips blocks that none of its queries sees, and looks at distances only in blocks that some see in part.
//
// Registers (no spills) and shared memory are those of packed_attention.cu.
//
// Versions: 1. this, in place of torch's passes over queries and keys and its FlashAttention-2: 1.3 to 1.4 times the time
//   of plain attention (engine/gpu/choice.py), as the instructions that turn keys for each 128 queries. To try: keys of
//   long sequences turned once, in memory.

#define ROTARY_ATTENTION(D, QUERIES, WARPS, CTAS)                                                       \
    extern "C" __global__ void __launch_bounds__(WARP * WARPS, CTAS) rotary_attention_##D##_##QUERIES(  \
        scalar* out, const scalar* qkv, const int2* plan, float log2_scale, const float* cosines,       \
        const float* sines, int window) {                                                               \
        wait_for_previous();                                                                            \
        start<D, WARPS, QUERIES>(out, qkv, plan, log2_scale, Rotary{cosines, sines, window});           \
    }

FOR_EACH_TILE(ROTARY_ATTENTION)
