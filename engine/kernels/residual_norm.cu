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

// The same for few rows, where time is latency and not bytes: a row has a block of its own, whose weights are in registers
// before the wait. x may be null: then it is the sum of `splits` parts, float [splits, rows, hidden], as short_product.cu
// leaves them.
template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void short_norm(scalar* out, scalar* total, const scalar* x, const float* parts, int splits,
                                           const scalar* bias, const scalar* residual, const scalar* gamma,
                                           const scalar* beta, int hidden, float eps) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 shift[PER_THREAD], factor[PER_THREAD], offset[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x + i * WARP * WARPS) * VECTOR;
        const bool inside = column < hidden;
        shift[i] = inside && bias != nullptr ? load_vector(bias + column) : zero;
        factor[i] = inside ? load_vector(gamma + column) : zero;
        offset[i] = inside && beta != nullptr ? load_vector(beta + column) : zero;
    }
    wait_for_previous();

    const long long start = (long long)blockIdx.x * hidden, step = (long long)gridDim.x * hidden / 4;
    float values[PER_THREAD][VECTOR] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x + i * WARP * WARPS) * VECTOR;
        if (column >= hidden) continue;
        const uint4 other = residual == nullptr ? zero : load_vector_once(residual + start + column);
        if (x != nullptr) {
            unpack_vector(load_vector_once(x + start + column), values[i]);
        } else {
            const float4* part = reinterpret_cast<const float4*>(parts + start + column);
#pragma unroll 4
            for (int split = 0; split < splits; ++split, part += step) add_floats(values[i], part[0], part[1]);
        }
        add_vector(values[i], shift[i]);
        add_vector(values[i], other);
        if (total != nullptr) store_vector(total + start + column, pack_vector(values[i]));
    }
    standardize_row<WARPS, PER_THREAD>(values, hidden, eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x + i * WARP * WARPS) * VECTOR;
        if (column >= hidden) continue;
        multiply_vector(values[i], factor[i]);
        add_vector(values[i], offset[i]);
        store_vector(out + start + column, pack_vector(values[i]));
    }
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

#define SHORT_ENTRY(WARPS, PER_THREAD)                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARP* WARPS) short_norm_w##WARPS##_v##PER_THREAD(                      \
        scalar* out, scalar* total, const scalar* x, const float* parts, int splits, const scalar* bias,                \
        const scalar* residual, const scalar* gamma, const scalar* beta, int hidden, float eps) {                       \
        short_norm<WARPS, PER_THREAD>(out, total, x, parts, splits, bias, residual, gamma, beta, hidden, eps);          \
    }
SHORT_ENTRY(4, 1)
SHORT_ENTRY(8, 1)
SHORT_ENTRY(8, 2)
SHORT_ENTRY(8, 3)
SHORT_ENTRY(8, 4)
