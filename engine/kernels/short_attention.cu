// Self-attention of short packed sequences, out_i = sum_j softmax_j(scale q_i k_j + bias[j - i]) v_j per sequence and head.
// FlashAttention-2's arithmetic (Dao 2023, algorithm 1: unnormalised output, one division at the end), for sequences of
// at most 128 tokens, whose cost is latency and half-empty tiles rather than arithmetic.
//
// Layout: qkv [R, 3, heads, D] and out [R, heads, D], D = 32, 64 or 128, 16-byte aligned; bias null, or as
//   biased_attention.cu has it, reach >= 127. plan [gridDim.y * WARPS] of {first token of the sequence, length | query tile << 16}; length 0: no work.
//
// Threads: one warp owns one item, 16 queries of one sequence and one head (blockIdx.x), and loops over that sequence's
//   keys in tiles of 16, so that its work follows the length. There is no shared memory and no barrier: the plan puts
//   the warps of a sequence into one CTA if it can, where they share L1. The loop starts at the warp's own tile and
//   wraps around: at first the warps of a sequence load different tiles at once, and later find the others' tiles in L1.
//   The order depends only on the sequence, and so do the result's bits. The next tile's keys are loaded as soon as the
//   scores are computed, its values as soon as this tile's are used.
//
// Fragments of mma.m16n8k16 (g = lane / 4, t = lane % 4): A holds rows g, g + 8 and B column g, both at k = 2t, 2t + 1,
//   2t + 8, 2t + 9; C holds rows g, g + 8 at columns 2t, 2t + 1. The order of k is free as long as A and B agree, and
//   so is the order of columns. With both, every operand is loaded from global memory, 16 bytes of a row at a time:
//   - q k': k runs over the head. Lane t takes d = 32s + 8t .. + 7 of its row: one load, two steps of k; 8 rows x 64 B.
//   - p v: k runs over keys, and C of the scores is A of this product as it stands. Column g of product n is
//     d = chunk(g) + n (+ 64s): lane (g, t) loads chunk(g) of keys 2t, 2t + 1, 2t + 8, 2t + 9, 4 rows x 128 B, and a
//     byte permutation makes each pair of keys. chunk(2t) = 8t and chunk(2t + 1) = 8t + 32: a lane's outputs are whole
//     pieces of 16 bytes, and the lanes of a row store 64 bytes together. (D = 32: pieces of 8 bytes, chunk(g) = 4g.)
//
// Softmax: fp32, base 2. A row's reference moves only when a score exceeds it by more than 8 in the exponent: weights
//   up to 256 are as exact in half precision as weights up to 1, and the output is rescaled once, not at each tile.
//   Rows after a sequence's end are replaced by its last row, so that no other sequence is read.
//
// Registers (ptxas 12.9 and NVRTC 13.2, sm_80 and sm_90, no spills): D = 32: 80; D = 64: 126 to 128, two CTAs an SM;
//   D = 128: 204 to 243, one CTA. An iteration of D = 64 is some 115 instructions, 16 of them mma.
//
// Versions: 1. this. To try: 32 queries a warp (half the loads and permutations a product, 168 registers); keys and
//   values through cp.async and ldmatrix (no permutations, more bytes in flight, but barriers).

constexpr int TILE = 16;
constexpr int WARPS = 8;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LARGEST_LOG2_WEIGHT = 8.0f;
constexpr float LOWEST = -1e30f;  // finite: -inf less -inf would be NaN
#define MINUS_INFINITY __int_as_float(0xff800000)

// Pieces of 16 bytes (of 8 where there are but two words), `spacing` bytes apart.
template <int WORDS> __device__ __forceinline__ void load(unsigned (&words)[WORDS], const char* from, int spacing) {
    if constexpr (WORDS == 2) {
        const uint2 piece = *reinterpret_cast<const uint2*>(from);
        words[0] = piece.x;
        words[1] = piece.y;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            const uint4 piece = *reinterpret_cast<const uint4*>(from + spacing * (i / 4));
            words[i] = piece.x;
            words[i + 1] = piece.y;
            words[i + 2] = piece.z;
            words[i + 3] = piece.w;
        }
    }
}

// One row of the output: half 0 is row g of the accumulators, half 1 row g + 8.
template <int D> __device__ __forceinline__ void store_row(
    scalar* row, const float (&o)[D / 8][4], int half, float factor, int t) {
    constexpr int SPAN = D == 32 ? 4 : 8;  // products whose columns lie side by side in a row
#pragma unroll
    for (int n = 0; n < D / 8; n += SPAN) {
        unsigned piece[SPAN];
#pragma unroll
        for (int i = 0; i < SPAN; ++i) {
            const int column = 2 * i / SPAN, j = n + 2 * i % SPAN;
            piece[i] = pack_pair(o[j][2 * half + column] * factor, o[j + 1][2 * half + column] * factor);
        }
        uint4* to = reinterpret_cast<uint4*>(row + 8 * n + 8 * t);
        to[0] = make_uint4(piece[0], piece[1], piece[2], piece[3]);
        if constexpr (D != 32) to[4] = make_uint4(piece[4], piece[5], piece[6], piece[7]);
    }
}

// s[n][2 * half + e]: the score of query row g + 8 * half with key 16 * tile + 8n + 2t + e, before scale.
template <int D> __device__ __forceinline__ void score(
    float (&s)[2][4], const unsigned (&q)[2][D / 8], const unsigned (&k)[2][D / 8]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            const unsigned a[4] = {q[0][i], q[1][i], q[0][i + 1], q[1][i + 1]};
            multiply_add(s[n], a, k[n][i], k[n][i + 1]);
        }
    }
}

template <int D> __device__ __forceinline__ void accumulate(
    float (&o)[D / 8][4], const float (&p)[2][4], const unsigned (&v)[4][D / 16]) {
    const unsigned a[4] = {
        pack_pair(p[0][0], p[0][1]), pack_pair(p[0][2], p[0][3]),
        pack_pair(p[1][0], p[1][1]), pack_pair(p[1][2], p[1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        const unsigned halves = n % 2 ? 0x7632 : 0x5410;  // the upper or the lower halves of two words
        const int w = n / 2;
        multiply_add(o[n], a, __byte_perm(v[0][w], v[1][w], halves), __byte_perm(v[2][w], v[3][w], halves));
    }
}

// s: scores before scale in, weights 2^(log2_scale s - reference) out. total: a lane's share of its rows' sums.
template <int D> __device__ __forceinline__ void exponentiate(
    float (&s)[2][4], float (&reference)[2], float (&total)[2], float (&o)[D / 8][4], float log2_scale) {
    float peak[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
        peak[h] = fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1]));
    const float excess = fmaxf(fmaf(peak[0], log2_scale, -reference[0]), fmaf(peak[1], log2_scale, -reference[1]));
    if (__any_sync(FULL_MASK, excess > LARGEST_LOG2_WEIGHT)) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            peak[h] = fmaxf(peak[h], __shfl_xor_sync(FULL_MASK, peak[h], 1));
            peak[h] = fmaxf(peak[h], __shfl_xor_sync(FULL_MASK, peak[h], 2));
            const float raised = fmaxf(peak[h] * log2_scale, reference[h]);
            const float shrink = exp2_approx(reference[h] - raised);
            reference[h] = raised;
            total[h] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                o[n][2 * h] *= shrink;
                o[n][2 * h + 1] *= shrink;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& weight = s[i / 2][2 * h + i % 2];
            weight = exp2_approx(fmaf(weight, log2_scale, -reference[h]));
            total[h] += weight;
        }
    }
}

// Addresses of a lane's data in a row of its sequence, never beyond the last row.
__device__ __forceinline__ const char* at_row(const char* base, unsigned row_bytes, int row, int last) {
    return base + static_cast<unsigned long long>(row_bytes) * static_cast<unsigned>(min(row, last));
}

// bias: of the lane's first key and first query. Those of a tile lie on its diagonals.
__device__ __forceinline__ void add_bias(float (&s)[2][4], const float* bias) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int n = i / 4, h = i / 2 % 2, e = i % 2;
        s[n][2 * h + e] += bias[8 * (n - h) + e];
    }
}

// Keys from `key` on that are after the last one get no weight.
__device__ __forceinline__ void mask_keys(float (&s)[2][4], int key, int last) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (key + 8 * (i / 4) + i % 2 > last) s[i / 4][i % 4] = MINUS_INFINITY;
}

// out: this head of the sequence's first token.
template <int D> __device__ __forceinline__ void store_rows(
    scalar* out, const float (&o)[D / 8][4], float (&total)[2], const int (&row)[2], int last, int hidden) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        total[h] += __shfl_xor_sync(FULL_MASK, total[h], 1);
        total[h] += __shfl_xor_sync(FULL_MASK, total[h], 2);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (row[h] <= last) store_row<D>(out + row[h] * hidden, o, h, __fdividef(1.0f, total[h]), threadIdx.x % 4);
}

template <int D, bool BIASED> __device__ __forceinline__ void attend(
    scalar* out, const scalar* qkv, const int2* plan, float scale, const float* bias, int reach) {
    const int2 item = plan[blockIdx.y * WARPS + threadIdx.x / WARP];
    const int length = item.y & 0xffff;
    if (length == 0) return;
    const int query_tile = item.y >> 16, last = length - 1;
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int hidden = gridDim.x * D;
    const unsigned row_bytes = 3 * hidden * sizeof(scalar);
    const int chunk = D == 32 ? 4 * g : 8 * (g / 2) + 32 * (g % 2);
    const scalar* head = qkv + static_cast<size_t>(item.x) * 3 * hidden + blockIdx.x * D;
    const char* queries = reinterpret_cast<const char*>(head + 8 * t);
    const char* keys = reinterpret_cast<const char*>(head + hidden + 8 * t);
    const char* values = reinterpret_cast<const char*>(head + 2 * hidden + chunk);
    const int row[2] = {TILE * query_tile + g, TILE * query_tile + g + 8};

    unsigned q[2][D / 8], k[2][D / 8], v[4][D / 16];
    const auto load_keys = [&](int first) {
#pragma unroll
        for (int n = 0; n < 2; ++n) load(k[n], at_row(keys, row_bytes, first + 8 * n + g, last), 64);
    };
    const auto load_values = [&](int first) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            load(v[i], at_row(values, row_bytes, first + 2 * t + i % 2 + i / 2 * 8, last), 128);
    };
    float o[D / 8][4] = {}, s[2][4], reference[2] = {LOWEST, LOWEST}, total[2] = {0.0f, 0.0f};
    int first = TILE * query_tile;
#pragma unroll
    for (int h = 0; h < 2; ++h) load(q[h], at_row(queries, row_bytes, row[h], last), 64);
    load_keys(first);
    load_values(first);
    for (int tiles = (length + TILE - 1) / TILE;;) {
        score<D>(s, q, k);
        const int next = first + TILE < length ? first + TILE : 0;
        if (--tiles) load_keys(next);
        const int key = first + 2 * t;
        if constexpr (BIASED) add_bias(s, bias + blockIdx.x * (2 * reach + 1) + reach + key - row[0]);
        if (first + TILE > length) mask_keys(s, key, last);
        exponentiate<D>(s, reference, total, o, scale * LOG2_E);
        accumulate<D>(o, s, v);
        if (!tiles) break;
        load_values(next);
        first = next;
    }
    store_rows<D>(out + static_cast<size_t>(item.x) * hidden + blockIdx.x * D, o, total, row, last, hidden);
}

#define SHORT_ATTENTION(ENTRY, D, BIASED, CTAS)                                                        \
    extern "C" __global__ void __launch_bounds__(WARP * WARPS, CTAS) ENTRY(                            \
        scalar* out, const scalar* qkv, const int2* plan, float scale, const float* bias, int reach) { \
        wait_for_previous();                                                                           \
        attend<D, BIASED>(out, qkv, plan, scale, bias, reach);                                         \
    }

SHORT_ATTENTION(short_attention_32, 32, false, 3)
SHORT_ATTENTION(short_attention_64, 64, false, 2)
SHORT_ATTENTION(short_attention_128, 128, false, 1)
SHORT_ATTENTION(short_attention_biased_32, 32, true, 3)
SHORT_ATTENTION(short_attention_biased_64, 64, true, 2)
SHORT_ATTENTION(short_attention_biased_128, 128, true, 1)
