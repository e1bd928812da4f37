// One float vector a sequence from its hidden states: first, last, mean or maximum; then divided by its L2 norm.
//
// Layout: out float [N, hidden]; hidden states [rows, hidden]; cu_seqlens int32 [N + 1]. Contiguous, hidden a multiple
//   of 8. The first `left_out` tokens of a sequence are left out, but never its last one. An empty sequence gives
//   zeros. NaN stays within its sequence; the maximum propagates it.
// Threads: a block a sequence; (x, y): x is a column vector of eight, y a share of the tokens: every blockDim.y-th,
//   four loads in flight. The shares are added in shared memory in the order of y. The geometry depends on hidden only,
//   so a row's result does not depend on the other sequences.
// Shared memory: float [8 * threads] for the shares, then float [hidden] for the pooled row.
// Versions: 1. this, 10.9 us for 16,384 tokens of 2-100 on an H200. Tried: 768 threads, 10.6 us with 40 registers, which
//   spills on sm_80, and 12.6 us with all 58; 1,024 threads, and eight loads in flight: both faster for 4,096 tokens and
//   slower for 16,384. To try, for few very long sequences: a cluster of blocks a sequence.

constexpr int TOKENS_IN_FLIGHT = 4;

struct Sum {
    static constexpr bool is_mean = true;
    static __device__ __forceinline__ float start() { return 0.f; }
    static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};
struct Max {
    static constexpr bool is_mean = false;
    static __device__ __forceinline__ float start() { return minus_infinity(); }
    static __device__ __forceinline__ float join(float a, float b) { return max_nan(a, b); }
};

// This thread's share of tokens [begin, end), for the eight columns that `hidden` points at.
template <typename Join>
__device__ __forceinline__ void join_tokens(float (&joined)[VECTOR], const scalar* hidden, int begin, int end,
                                            int width) {
    for (int token = begin + threadIdx.y; token < end; token += TOKENS_IN_FLIGHT * blockDim.y) {
        uint4 raw[TOKENS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < TOKENS_IN_FLIGHT; ++i) {
            const int other = token + i * blockDim.y;
            if (other < end) raw[i] = load_vector(hidden + (long long)other * width);
        }
#pragma unroll
        for (int i = 0; i < TOKENS_IN_FLIGHT; ++i) {
            if (token + i * blockDim.y < end) {
                float values[VECTOR];
                unpack_vector(raw[i], values);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) joined[j] = Join::join(joined[j], values[j]);
            }
        }
    }
}

// The sum of `v` over all threads of the block, in a fixed order.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float of_warp[WARP];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    v = warp_sum(v);
    if (thread % WARP == 0) of_warp[thread / WARP] = v;
    __syncthreads();
    v = 0.f;
    for (int i = 0; i < blockDim.x * blockDim.y / WARP; ++i) v += of_warp[i];
    return v;
}

template <typename Join>
__device__ __forceinline__ void pool(float* out, const scalar* hidden, int begin, int end, int width, int normalize,
                                     float l2_eps) {
    extern __shared__ float shares[];  // [blockDim.y][8][blockDim.x]
    const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    float* pooled = shares + VECTOR * threads;  // [width]
    const int count = end - begin, vectors = width / VECTOR;

    for (int tile = 0; tile < vectors; tile += blockDim.x) {
        float joined[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) joined[j] = Join::start();
        const int vector = tile + threadIdx.x;
        if (vector < vectors) join_tokens<Join>(joined, hidden + vector * VECTOR, begin, end, width);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) shares[(threadIdx.y * VECTOR + j) * blockDim.x + threadIdx.x] = joined[j];
        __syncthreads();
        for (int i = thread; i < VECTOR * blockDim.x; i += threads) {
            const int column = (tile + i % blockDim.x) * VECTOR + i / blockDim.x;
            float whole = shares[i];
            for (int y = 1; y < blockDim.y; ++y) whole = Join::join(whole, shares[y * VECTOR * blockDim.x + i]);
            if (Join::is_mean) whole /= count;
            if (column < width) pooled[column] = count > 0 ? whole : 0.f;
        }
        __syncthreads();
    }

    float scale = 1.f;
    if (normalize) {
        float squares = 0.f;
        for (int i = thread; i < width; i += threads) squares = fmaf(pooled[i], pooled[i], squares);
        scale = 1.f / max_nan(sqrtf(block_sum(squares)), l2_eps);
    }
    for (int i = thread; i < width; i += threads) out[(long long)blockIdx.x * width + i] = pooled[i] * scale;
}

#define ENTRY(NAME, JOIN, BEGIN, END)                                                                      \
    extern "C" __global__ void __launch_bounds__(512) pool_##NAME(                                         \
        float* out, const scalar* hidden, const int* cu_seqlens, int width, int left_out, int normalize,   \
        float l2_eps) {                                                                                    \
        wait_for_previous();                                                                               \
        const int start = cu_seqlens[blockIdx.x], end = cu_seqlens[blockIdx.x + 1];                        \
        const int begin = min(start + left_out, max(start, end - 1));                                      \
        pool<JOIN>(out, hidden, BEGIN, END, width, normalize, l2_eps);                                     \
    }
ENTRY(cls, Sum, begin, min(begin + 1, end))
ENTRY(last, Sum, max(begin, end - 1), end)
ENTRY(mean, Sum, begin, end)
ENTRY(max, Max, begin, end)
