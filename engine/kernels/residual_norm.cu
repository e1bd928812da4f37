// total = x + bias + residual; out = norm(total), in one pass over memory. Or total = inner(x) + residual, with a norm of
// what is added too.
//
// Layout: out, total, x, residual [rows, hidden], bias and the norms' weights [hidden]; contiguous, hidden a multiple of
//   8. total, bias and residual may be null. out and total may each be x or residual: a thread reads its columns of a row
//   before it writes them.
// Threads: up to 1,024 columns, a warp a row, without shared memory or barriers. Beyond, a block of eight warps a row.
//   Sixteen bytes a thread, the warp's 512 contiguous. As many blocks as the device holds loop over the rows: the next
//   row is loaded while this one is reduced. Data that is read once bypasses L1.
// Versions: 1. a warp for each row, no loop. Tried: prefetching gamma and beta to L1 in every row, which made 64 rows
//   9 % faster and 17,000 rows 2.4 times slower on an H200. 2. a block a row with its weights in registers before the
//   wait: 0.55 to 0.51 ms for a BERT-base of 500 rows. 3. this loop, with the same gain: 7.0 us after 7.2 at 4,096 rows,
//   but 3.2 after 2.9 at 1,024.

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void residual_norm(scalar* out, scalar* total, const scalar* x, const scalar* bias,
                                              const scalar* residual, const Norm& norm, long long rows, int hidden) {
    const NormWeights<WARPS, PER_THREAD> weights(bias, norm, hidden);
    wait_for_previous();
    const auto finish = [&](long long start, float(&values)[PER_THREAD][VECTOR], const uint4(&other)[PER_THREAD]) {
        add_row(values, other);
        weights.finish(out + start, total == nullptr ? nullptr : total + start, values, hidden);
    };
    for_each_row<WARPS, PER_THREAD>(x, residual, rows, hidden, finish);
}

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void inner_norm(scalar* out, scalar* total, const scalar* x, const Norm& inner,
                                           const scalar* residual, const Norm& norm, long long rows, int hidden) {
    const NormWeights<WARPS, PER_THREAD> weights(nullptr, norm, hidden);
    wait_for_previous();
    const auto finish = [&](long long start, float(&values)[PER_THREAD][VECTOR], const uint4(&other)[PER_THREAD]) {
        NormWeights<WARPS, PER_THREAD>(nullptr, inner, hidden).apply(values, hidden);  // registers hold one norm's alone
        add_row(values, other);
        weights.finish(out + start, total + start, values, hidden);
    };
    for_each_row<WARPS, PER_THREAD>(x, residual, rows, hidden, finish);
}

// As residual_norm for few rows, a block each: x is the sum of `splits` parts, float [splits, rows, hidden], of
// short_product.cu.
template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void split_norm(scalar* out, scalar* total, const float* parts, int splits,
                                           const scalar* bias, const scalar* residual, const Norm& norm, int hidden) {
    const NormWeights<WARPS, PER_THREAD> weights(bias, norm, hidden);
    wait_for_previous();
    const long long start = (long long)blockIdx.x * hidden, step = (long long)gridDim.x * hidden / 4;
    float values[PER_THREAD][VECTOR] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x + i * WARP * WARPS) * VECTOR;
        if (column >= hidden) continue;
        uint4 other = make_uint4(0, 0, 0, 0);
        if (residual != nullptr) other = load_vector_once(residual + start + column);
        const float4* part = reinterpret_cast<const float4*>(parts + start + column);
#pragma unroll 4
        for (int split = 0; split < splits; ++split, part += step) add_floats(values[i], part[0], part[1]);
        add_vector(values[i], other);
    }
    weights.finish(out + start, total == nullptr ? nullptr : total + start, values, hidden);
}

#define ENTRY(WARPS, PER_THREAD, BLOCKS)                                                                              \
    extern "C" __global__ void ROW_BOUNDS(WARPS, BLOCKS)                                                              \
        residual_norm_w##WARPS##_v##PER_THREAD(                                                                       \
            scalar* out, scalar* total, const scalar* x, const scalar* bias, const scalar* residual, const Norm norm, \
            long long rows, int hidden) {                                                                             \
        residual_norm<WARPS, PER_THREAD>(out, total, x, bias, residual, norm, rows, hidden);                          \
    }                                                                                                                 \
    extern "C" __global__ void ROW_BOUNDS(WARPS, BLOCKS)                                                              \
        inner_norm_w##WARPS##_v##PER_THREAD(                                                                          \
            scalar* out, scalar* total, const scalar* x, const Norm inner, const scalar* residual, const Norm norm,   \
            long long rows, int hidden) {                                                                             \
        inner_norm<WARPS, PER_THREAD>(out, total, x, inner, residual, norm, rows, hidden);                            \
    }
ROW_GEOMETRIES(ENTRY)

#define SPLIT_ENTRY(WARPS, PER_THREAD)                                                                                \
    extern "C" __global__ void __launch_bounds__(WARP* WARPS, 2) split_norm_w##WARPS##_v##PER_THREAD(                 \
        scalar* out, scalar* total, const float* parts, int splits, const scalar* bias,                               \
        const scalar* residual, const Norm norm, int hidden) {                                                        \
        split_norm<WARPS, PER_THREAD>(out, total, parts, splits, bias, residual, norm, hidden);                       \
    }
SPLIT_ENTRY(4, 1)
SPLIT_ENTRY(8, 1)
SPLIT_ENTRY(8, 2)
SPLIT_ENTRY(8, 3)
SPLIT_ENTRY(8, 4)
