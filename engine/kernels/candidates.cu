// The K greatest log-probabilities of each row of logits that are not banned, greatest first, and their tokens.
//
// Layout: values float, tokens int32 [rows, K]; logits [rows, stride], stride a multiple of 8, columns from `vocabulary`
//   on are not read as tokens; bans [any, stride / 8] bytes, bit j of byte i for token 8 i + j; ban_rows, renormalize
//   int32 [rows]. Where renormalize is not 0, probabilities are of the tokens that are not banned. A place without a
//   token has value -inf and token 0. All values of a row with a NaN are NaN.
// Threads: a block of eight warps a row, one pass over its logits. Each thread keeps the K greatest of its own. The lanes
//   of a warp are K groups; the least of the groups' greatest is a bound, for K values are not below it, so few are
//   inserted. Then K rounds find the greatest of all threads' first.
// Versions: 1. this. 2. The bound was the greatest of the lanes' K-th, which let six times as many through. Of equal
//   values the thread keeps the first.

constexpr int WARPS = 8;
constexpr float LOG2_E = 1.442695040888963f, LN_2 = 0.693147180559945f;
constexpr float LOWEST = -3.0e38f;

struct Candidate {
    float value;
    int token;

    __device__ __forceinline__ bool precedes(const Candidate& other) const {
        return value > other.value || (value == other.value && token < other.token);
    }
};

// Sum of 2^(x - reference), for a sum of exponentials that does not overflow.
struct LogSum {
    float reference = LOWEST, total = 0.f;

    __device__ __forceinline__ void add(const LogSum& other) {
        const float most = fmaxf(reference, other.reference);
        total = total * exp2_approx(reference - most) + other.total * exp2_approx(other.reference - most);
        reference = most;
    }
};

template <int K> struct Best {
    Candidate kept[K];

    __device__ __forceinline__ Best() {
#pragma unroll
        for (int i = 0; i < K; ++i) kept[i] = {minus_infinity(), 0};
    }

    // next: a later token than those that were inserted before.
    __device__ __forceinline__ void insert(Candidate next) {
#pragma unroll
        for (int i = 0; i < K; ++i) {
            if (next.precedes(kept[i])) {
                const Candidate moved = kept[i];
                kept[i] = next;
                next = moved;
            }
        }
    }

    __device__ __forceinline__ void drop_first() {
#pragma unroll
        for (int i = 0; i + 1 < K; ++i) kept[i] = kept[i + 1];
        kept[K - 1] = {minus_infinity(), 0};
    }
};

// A value of which the warp has found K that are not below it, by each lane's greatest. -inf while there are fewer.
template <int K> __device__ __forceinline__ float warp_bound(float greatest) {
#pragma unroll
    for (int offset = WARP / K / 2; offset > 0; offset /= 2)
        greatest = fmaxf(greatest, __shfl_xor_sync(FULL_MASK, greatest, offset));
#pragma unroll
    for (int offset = WARP / K; offset < WARP; offset *= 2)
        greatest = fminf(greatest, __shfl_xor_sync(FULL_MASK, greatest, offset));
    return greatest;
}

__device__ __forceinline__ Candidate block_first(Candidate own) {
    __shared__ Candidate of_warp[WARPS];
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const Candidate other{__shfl_xor_sync(FULL_MASK, own.value, offset),
                              __shfl_xor_sync(FULL_MASK, own.token, offset)};
        if (other.precedes(own)) own = other;
    }
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = own;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i)
        if (of_warp[i].precedes(own)) own = of_warp[i];
    __syncthreads();
    return own;
}

__device__ __forceinline__ LogSum block_sum(LogSum own) {
    __shared__ float references[WARPS], totals[WARPS];
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        LogSum other;
        other.reference = __shfl_xor_sync(FULL_MASK, own.reference, offset);
        other.total = __shfl_xor_sync(FULL_MASK, own.total, offset);
        own.add(other);
    }
    if (threadIdx.x % WARP == 0) {
        references[threadIdx.x / WARP] = own.reference;
        totals[threadIdx.x / WARP] = own.total;
    }
    __syncthreads();
    LogSum all;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        LogSum part;
        part.reference = references[i];
        part.total = totals[i];
        all.add(part);
    }
    return all;
}

template <int K>
__device__ __forceinline__ void find(float* values, int* tokens, const scalar* logits, int stride, int vocabulary,
                                     const unsigned char* bans, const int* ban_rows, const int* renormalize) {
    const long long row = blockIdx.x;
    const scalar* own = logits + row * stride;
    const unsigned char* banned = bans + (long long)ban_rows[row] * (stride / VECTOR);
    const bool skips_banned = renormalize[row] != 0;
    Best<K> best;
    LogSum sum;
    // All threads of a warp take as many turns: they share a bound.
    for (int start = 0; start < vocabulary; start += blockDim.x * VECTOR) {
        const int first = start + threadIdx.x * VECTOR;
        float x[VECTOR];
        unsigned out = 0xff, unsummed = 0xff;
        if (first < vocabulary) {
            unpack_vector(load_vector_once(own + first), x);
            const unsigned beyond = first + VECTOR <= vocabulary ? 0 : 0xff & (0xff << (vocabulary - first));
            out = banned[first / VECTOR] | beyond;
            unsummed = skips_banned ? out : beyond;
        }
        const float bound = warp_bound<K>(best.kept[0].value);
        LogSum part;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            if (!(unsummed >> j & 1)) part.reference = fmaxf(part.reference, x[j] * LOG2_E);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            if (!(unsummed >> j & 1)) part.total += exp2_approx(x[j] * LOG2_E - part.reference);
        sum.add(part);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            if (!(out >> j & 1) && x[j] > bound && x[j] > best.kept[K - 1].value) best.insert({x[j], first + j});
    }
    const LogSum all = block_sum(sum);
    const float log_sum = (all.reference + log2f(all.total)) * LN_2;
    for (int i = 0; i < K; ++i) {
        const Candidate found = block_first(best.kept[0]);
        const bool is_one = found.value > minus_infinity();
        if (is_one && best.kept[0].token == found.token && best.kept[0].value == found.value) best.drop_first();
        if (threadIdx.x == 0) {
            const bool is_number = all.total == all.total;
            values[row * K + i] = is_one || !is_number ? found.value - log_sum : minus_infinity();
            tokens[row * K + i] = is_one ? found.token : 0;
        }
    }
}

#define CANDIDATES(K)                                                                                                \
    extern "C" __global__ void __launch_bounds__(WARP* WARPS) candidates_##K(                                        \
        float* values, int* tokens, const scalar* logits, int stride, int vocabulary, const unsigned char* bans,     \
        const int* ban_rows, const int* renormalize) {                                                               \
        wait_for_previous();                                                                                         \
        find<K>(values, tokens, logits, stride, vocabulary, bans, ban_rows, renormalize);                            \
    }

CANDIDATES(1)
CANDIDATES(8)
CANDIDATES(16)
CANDIDATES(32)
