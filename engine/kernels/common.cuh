// Common to all kernels; put before each of them as text. `scalar` is __half or __nv_bfloat16.
//
// Values are read and written sixteen bytes (eight scalars, a "vector") at a time; arithmetic is float. Declarations
// say which pointers may be null. Compiled with -ftz=true: subnormal floats count as zero.

constexpr int WARP = 32;
constexpr int VECTOR = 8;
constexpr unsigned FULL_MASK = 0xffffffffu;

template <typename T> struct PairOf;
template <> struct PairOf<__half> { using type = __half2; };
template <> struct PairOf<__nv_bfloat16> { using type = __nv_bfloat162; };
using scalar2 = typename PairOf<scalar>::type;

__device__ __forceinline__ float2 to_float2(__half2 v) { return __half22float2(v); }
__device__ __forceinline__ float2 to_float2(__nv_bfloat162 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> __device__ __forceinline__ T from_float2(float2 v);
template <> __device__ __forceinline__ __half2 from_float2<__half2>(float2 v) { return __float22half2_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat162 from_float2<__nv_bfloat162>(float2 v) {
    return __float22bfloat162_rn(v);
}

// p is aligned to sixteen bytes.
__device__ __forceinline__ uint4 load_vector(const scalar* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ void store_vector(scalar* p, uint4 v) { *reinterpret_cast<uint4*>(p) = v; }

// For data that is read once: it does not evict from L1 the data that every row needs.
__device__ __forceinline__ uint4 load_vector_once(const scalar* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

// Called first in every kernel. A kernel is launched while the one before it still runs (launch.py); before that one has
// ended it may neither read its results nor write its inputs. Only weights may be loaded earlier. For the same reason
// only weights are read through the read-only cache (__ldg): the compiler could move such a load above the wait. The
// next kernel may start once all blocks of this one are here, and waits in turn. A kernel ends only after its own wait,
// so waiting for it is waiting for all kernels before it.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_end_of_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
    let_next_start();
    wait_for_end_of_previous();
}

// Brings `count` weights to L2. p may be null. For one block of a grid.
__device__ __forceinline__ void prefetch_weights(const scalar* p, int count) {
    if (p == nullptr) return;
    for (int i = threadIdx.x * 64; i < count; i += blockDim.x * 64)
        asm volatile("prefetch.global.L2 [%0];" : : "l"(p + i));
}

__device__ __forceinline__ void unpack_vector(uint4 v, float (&values)[VECTOR]) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = to_float2(reinterpret_cast<const scalar2&>(words[i]));
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ uint4 pack_vector(const float (&values)[VECTOR]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const scalar2 pair = from_float2<scalar2>(make_float2(values[2 * i], values[2 * i + 1]));
        words[i] = reinterpret_cast<const unsigned&>(pair);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ void add_vector(float (&values)[VECTOR], uint4 v) {
    float more[VECTOR];
    unpack_vector(v, more);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values[i] += more[i];
}

__device__ __forceinline__ void add_floats(float (&values)[VECTOR], float4 low, float4 high) {
    const float more[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values[i] += more[i];
}

// fmaxf and fminf drop NaN; these propagate it.
__device__ __forceinline__ float max_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
__device__ __forceinline__ float min_nan(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// 2^x, relative error below 2^-22.
__device__ __forceinline__ float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// All lanes of the warp take part and get the result.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(FULL_MASK, v, offset);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) v = max_nan(v, __shfl_xor_sync(FULL_MASK, v, offset));
    return v;
}

// Sum over a group of WARPS warps, in a fixed order. A group of one is a warp; a larger one is the whole block.
template <int WARPS> __device__ __forceinline__ float group_sum(float v) {
    v = warp_sum(v);
    if constexpr (WARPS > 1) {
        __shared__ float of_warp[WARPS];
        if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = v;
        __syncthreads();
        v = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) v += of_warp[i];
        __syncthreads();
    }
    return v;
}

// A norm, as library.py packs it: LayerNorm, or RMSNorm, which does not subtract the mean. beta may be null, and gamma
// where there is no norm.
struct Norm {
    const scalar* gamma;
    const scalar* beta;
    float eps;
    int subtracts_mean;
};

// A row that a group of WARPS warps holds in registers, less its mean and over its deviation: vector `i` of thread
// `lane` of the group is the columns from 8 * (lane + i * 32 * WARPS), and zero beyond `hidden`. The variance is that of
// the differences from the mean. The mean is a division, not a product with a reciprocal: constant rows then have a
// variance of exactly zero. Of RMSNorm the mean counts as zero.
template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void standardize_row(float (&values)[PER_THREAD][VECTOR], int hidden, const Norm& norm) {
    const int lane = threadIdx.x % (WARP * WARPS);
    float mean = 0.f;
    if (norm.subtracts_mean) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sum += values[i][j];
        mean = group_sum<WARPS>(sum) / hidden;
    }

    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        if ((lane + i * WARP * WARPS) * VECTOR < hidden) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[i][j] -= mean;
                squares = fmaf(values[i][j], values[i][j], squares);
            }
        }
    }
    const float scale = rsqrtf(group_sum<WARPS>(squares) / hidden + norm.eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) values[i][j] *= scale;
}

__device__ __forceinline__ void multiply_vector(float (&values)[VECTOR], uint4 v) {
    float factors[VECTOR];
    unpack_vector(v, factors);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values[i] *= factors[i];
}

// The kernels that loop over rows: warps a row, vectors a thread, and blocks a multiprocessor, as in library.py.
#define ROW_GEOMETRIES(ENTRY)                                   \
    ENTRY(1, 1, 6) ENTRY(1, 2, 4) ENTRY(1, 3, 3) ENTRY(1, 4, 2) \
    ENTRY(8, 1, 3) ENTRY(8, 2, 2) ENTRY(8, 3, 1) ENTRY(8, 4, 1)
#define ROW_BOUNDS(WARPS, BLOCKS) __launch_bounds__(WARPS == 1 ? 128 : 256, BLOCKS)

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void store_row(scalar* out, const float (&values)[PER_THREAD][VECTOR], int hidden) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x % (WARP * WARPS) + i * WARP * WARPS) * VECTOR;
        if (column < hidden) store_vector(out + column, pack_vector(values[i]));
    }
}

// A norm's weights for the columns of one thread of a group, in registers: loaded before the wait, once for all rows.
// Null pointers count as zeros.
template <int WARPS, int PER_THREAD> struct NormWeights {
    const Norm norm;
    uint4 shift[PER_THREAD], gamma[PER_THREAD], beta[PER_THREAD];

    __device__ __forceinline__ NormWeights(const scalar* bias, const Norm& norm, int hidden) : norm(norm) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int column = (threadIdx.x % (WARP * WARPS) + i * WARP * WARPS) * VECTOR;
            shift[i] = gamma[i] = beta[i] = make_uint4(0, 0, 0, 0);
            if (column < hidden) {
                if (bias != nullptr) shift[i] = load_vector(bias + column);
                if (norm.gamma != nullptr) gamma[i] = load_vector(norm.gamma + column);
                if (norm.beta != nullptr) beta[i] = load_vector(norm.beta + column);
            }
        }
    }

    // The norm of one row, in its place.
    __device__ __forceinline__ void apply(float (&values)[PER_THREAD][VECTOR], int hidden) const {
        standardize_row<WARPS, PER_THREAD>(values, hidden, norm);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            multiply_vector(values[i], gamma[i]);
            add_vector(values[i], beta[i]);
        }
    }

    // total = values + bias, then its norm, of one row. total may be null.
    __device__ __forceinline__ void finish(scalar* out, scalar* total, float (&values)[PER_THREAD][VECTOR],
                                           int hidden) const {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) add_vector(values[i], shift[i]);
        if (total != nullptr) store_row<WARPS, PER_THREAD>(total, values, hidden);
        apply(values, hidden);
        store_row<WARPS, PER_THREAD>(out, values, hidden);
    }
};

// Tensor cores

template <typename T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<__half> = true;

// sum [16, 8] += a [16, 16] b [16, 8]; the headers of the attention kernels describe which thread holds which part.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (IS_HALF<scalar>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned pack_pair(float low, float high) {
    const scalar2 pair = from_float2<scalar2>(make_float2(low, high));
    return reinterpret_cast<const unsigned&>(pair);
}
