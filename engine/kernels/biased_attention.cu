// Self-attention of packed sequences of any length with a bias for each distance (MPNet, T5; Shaw et al. 2018),
// out_i = sum_j softmax_j(scale q_i k_j + bias[j - i]) v_j per sequence and head, in the tiles of packed_tile.cuh.
//
// Layout: as there, and bias [heads, 2 reach + 1], float32, over scale: column reach + d is of a key d tokens after its
//   query; the first and the last 63 columns are constant. Distances beyond have the bias of the last.
//
// Threads: a CTA copies its head's biases to shared memory. A warp's block of scores begins with them, instead of zeros.
//   They lie on the block's diagonals: of 32 x 32 scores a lane has 32, and loads 14 floats. A warp's load is of 14
//   neighbours, in different banks. Blocks far from the diagonal read the constant columns, so no load is clamped.
//
// Registers (no spills) and shared memory are those of packed_attention.cu, and 4 (2 reach + 1) bytes.
//
// Versions: 1. this, in place of torch's attention for one sequence after another: 1.1 times the time of plain attention
//   (engine/gpu/choice.py).

#define BIASED_ATTENTION(D, QUERIES, WARPS, CTAS)                                                           \
    extern "C" __global__ void __launch_bounds__(WARP * WARPS, CTAS) biased_attention_##D##_##QUERIES(      \
        scalar* out, const scalar* qkv, const int2* plan, float log2_scale, const float* bias, int reach) { \
        wait_for_previous();                                                                                \
        start<D, WARPS, QUERIES>(out, qkv, plan, log2_scale, Biased{bias, reach});                          \
    }

FOR_EACH_TILE(BIASED_ATTENTION)
