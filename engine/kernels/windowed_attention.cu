// Self-attention of packed sequences of any length in which a query sees the keys near it or before it, and in which heads
// of queries may share heads of keys and values (Ainslie et al. 2023), in the tiles of packed_tile.cuh.
//
// Layout: as there, but qkv [R, heads + 2 heads / sharing, D]: `sharing` heads of queries in a row have one head of keys.
//
// Threads: a CTA loads only the tiles that its queries see. Of those a warp skips blocks that none of its queries sees, and
//   looks at distances only in blocks that some see in part.
//
// Registers (no spills) and shared memory are those of packed_attention.cu.
//
// Versions: 1. this.

#define WINDOWED_ATTENTION(D, QUERIES, WARPS, CTAS)                                                                    \
    extern "C" __global__ void __launch_bounds__(WARP * WARPS, CTAS) windowed_attention_##D##_##QUERIES(               \
        scalar* out, const scalar* qkv, const int2* plan, float log2_scale, const Windowed windowed) {                 \
        wait_for_previous();                                                                                           \
        start<D, WARPS, QUERIES>(out, qkv, plan, log2_scale, windowed);                                                \
    }

FOR_EACH_TILE(WINDOWED_ATTENTION)
