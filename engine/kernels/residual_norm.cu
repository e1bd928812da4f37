// total = x + bias + residual; out = LayerNorm(total) * gamma + beta, in one pass over memory.
//
// Layout: out, total, x, residual [rows, hidden], bias, gamma, beta [hidden]; contiguous, hidden a multiple of 8.
//   total, bias, residual and beta may be null. out and total may each be x or residual: a thread reads all that it
//   needs of a row before it writes the same columns of the same row.
// Threads: up to 1,024 columns, a warp a row, rows independent: no shared memory, no barrier. Beyond, a block of eight
//   warps a row. Sixteen bytes a thread, the warp's 512 contiguous; x and residual are all in flight before the first
//   use. bias, gamma and beta come from L1 for all rows but a processor's first; what is read once is kept out of L1.
// Versions: 1. this. Tried: prefetching gamma and beta to L1 in every row, which made 64 rows 9 % faster and 17,000 rows
//   2.4 times slower on an H200; now one block brings them to L2 while the kernel before is still ending. To try: a
//   persistent grid whose warps load the next row before they reduce this one, and keep bias, gamma and beta in registers
//   (more registers, fewer warps in flight).

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void residual_norm(scalar* out, scalar* total, const scalar* x, const scalar* bias,
                                              const scalar* residual, const scalar* gamma, const scalar* beta,
                                              long long rows, int hidden, float eps) {
    const int groups = blockDim.x / (WARP * WARPS);
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / (WARP * WARPS);
    if (row >= rows) return;
    const int lane = threadIdx.x % (WARP * WARPS);
    const long long start = row * hidden;

    uint4 own[PER_THREAD], other[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (lane + i * WARP * WARPS) * VECTOR;
        own[i] = other[i] = make_uint4(0, 0, 0, 0);
        if (column < hidden) {
            own[i] = load_vector_once(x + start + column);
            if (residual != nullptr) other[i] = load_vector_once(residual + start + column);
        }
    }
    float values[PER_THREAD][VECTOR];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (lane + i * WARP * WARPS) * VECTOR;
        unpack_vector(own[i], values[i]);
        if (bias != nullptr && column < hidden) add_vector(values[i], load_vector(bias + column));
        add_vector(values[i], other[i]);
        if (total != nullptr && column < hidden) store_vector(total + start + column, pack_vector(values[i]));
    }
    normalize_row<WARPS, PER_THREAD>(out + start, values, gamma, beta, hidden, eps);
}

#define BOUNDS(WARPS) __launch_bounds__(WARPS == 1 ? 128 : 256, 2)
#define ENTRY(WARPS, PER_THREAD)                                                                                      \
    extern "C" __global__ void BOUNDS(WARPS) residual_norm_w##WARPS##_v##PER_THREAD(                                  \
        scalar* out, scalar* total, const scalar* x, const scalar* bias, const scalar* residual, const scalar* gamma, \
        const scalar* beta, long long rows, int hidden, float eps) {                                                  \
        if (blockIdx.x == 0) {                                                                                        \
            prefetch_weights(bias, hidden);                                                                           \
            prefetch_weights(gamma, hidden);                                                                          \
            prefetch_weights(beta, hidden);                                                                           \
        }                                                                                                             \
        wait_for_previous();                                                                                          \
        residual_norm<WARPS, PER_THREAD>(out, total, x, bias, residual, gamma, beta, rows, hidden, eps);              \
    }
ENTRY(1, 1)
ENTRY(1, 2)
ENTRY(1, 3)
ENTRY(1, 4)
ENTRY(8, 1)
ENTRY(8, 2)
ENTRY(8, 3)
ENTRY(8, 4)
