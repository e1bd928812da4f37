// Rows in eight-bit integers, for int8_product.cu: x * factors, rotated in blocks of 128 (rotation.cuh), with one scale a
// row. Of rows as they are, or of norm(x + bias + residual), which is written in 16 bits too.
//
// Layout: x, residual, out [rows, hidden], bias, factors and the norm's weights [hidden], integers [rows, hidden], scales
//   [rows]; contiguous, hidden a multiple of 128. bias and residual may be null. out may be x or residual.
// Threads: as in residual_norm, with its loop over rows.

struct Int8Rows {
    signed char* integers;
    float* scales;
    const scalar* factors;
};

// Maximum over a group of WARPS warps. A group of one is a warp; a larger one is the whole block.
template <int WARPS> __device__ __forceinline__ float group_max(float v) {
    v = warp_max(v);
    if constexpr (WARPS > 1) {
        __shared__ float of_warp[WARPS];
        if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = v;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WARPS; ++i) v = max_nan(v, of_warp[i]);
        __syncthreads();
    }
    return v;
}

template <int WARPS, int PER_THREAD> struct Quantiser {
    const Int8Rows to;
    uint4 factors[PER_THREAD];

    __device__ __forceinline__ Quantiser(const Int8Rows& to, int hidden) : to(to) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int column = (threadIdx.x % (WARP * WARPS) + i * WARP * WARPS) * VECTOR;
            factors[i] = column < hidden ? load_vector(to.factors + column) : make_uint4(0, 0, 0, 0);
        }
    }

    // start: the row's first element's index. Overwrites the values, which are zeros beyond `hidden`.
    __device__ __forceinline__ void store(long long start, float (&values)[PER_THREAD][VECTOR], int hidden) const {
        float largest = 0.f;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            multiply_vector(values[i], factors[i]);
            rotate_vector(values[i]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) largest = max_nan(largest, fabsf(values[i][j]));
        }
        const float scale = int8_scale(group_max<WARPS>(largest)), factor = 1.f / scale;
        const int lane = threadIdx.x % (WARP * WARPS);
        if (lane == 0) to.scales[start / hidden] = scale;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int column = (lane + i * WARP * WARPS) * VECTOR;
            float sums[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sums[j] = fmaf(values[i][j], factor, ROUND);
            if (column < hidden)
                *reinterpret_cast<uint2*>(to.integers + start + column) =
                    make_uint2(pack_bytes(sums[0], sums[1], sums[2], sums[3]),
                               pack_bytes(sums[4], sums[5], sums[6], sums[7]));
        }
    }
};

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void int8_rows(const scalar* x, const Int8Rows& to, long long rows, int hidden) {
    const Quantiser<WARPS, PER_THREAD> quantiser(to, hidden);
    wait_for_previous();
    const auto finish = [&](long long start, float(&values)[PER_THREAD][VECTOR], const uint4(&)[PER_THREAD]) {
        quantiser.store(start, values, hidden);
    };
    for_each_row<WARPS, PER_THREAD>(x, nullptr, rows, hidden, finish);
}

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void int8_norm(scalar* out, const scalar* x, const scalar* bias, const scalar* residual,
                                          const Norm& norm, const Int8Rows& to, long long rows, int hidden) {
    const NormWeights<WARPS, PER_THREAD> weights(bias, norm, hidden);
    const Quantiser<WARPS, PER_THREAD> quantiser(to, hidden);
    wait_for_previous();
    const auto finish = [&](long long start, float(&values)[PER_THREAD][VECTOR], const uint4(&other)[PER_THREAD]) {
        add_row(values, other);
        weights.finish(out + start, nullptr, values, hidden);
        quantiser.store(start, values, hidden);
    };
    for_each_row<WARPS, PER_THREAD>(x, residual, rows, hidden, finish);
}

#define ENTRY(WARPS, PER_THREAD, BLOCKS)                                                                               \
    extern "C" __global__ void ROW_BOUNDS(WARPS, BLOCKS)                                                               \
        int8_rows_w##WARPS##_v##PER_THREAD(const scalar* x, const Int8Rows to, long long rows, int hidden) {           \
        int8_rows<WARPS, PER_THREAD>(x, to, rows, hidden);                                                             \
    }                                                                                                                  \
    extern "C" __global__ void ROW_BOUNDS(WARPS, BLOCKS)                                                               \
        int8_norm_w##WARPS##_v##PER_THREAD(scalar* out, const scalar* x, const scalar* bias, const scalar* residual,   \
                                           const Norm norm, const Int8Rows to, long long rows, int hidden) {           \
        int8_norm<WARPS, PER_THREAD>(out, x, bias, residual, norm, to, rows, hidden);                                  \
    }
ROW_GEOMETRIES(ENTRY)
