// Attention of one query a row to the keys and values of its line of a page table.
//
// Layout: out [rows, heads * D]; query: row r begins at query + r * stride; cache [slots, 2, heads * D], key then value;
//   table int32 [lines, columns] of pages of 2^page_bits slots; lengths int32 [lines]; lines int32 [rows], the line of
//   each row, or null: row r has line r. bias [heads, 2 * reach + 1] or null: column reach + d is added to the score of a
//   key that is d positions after the last. With `fresh`, a row of query is query, key and value: its key and value are
//   those of the line's last position. They are written to the cache, and are not read from there. Rows of length 0 are
//   zero, and write nothing.
// Threads: a warp for each row and head. A key's head is D / 8 lanes of sixteen bytes, so a warp scores 32 / (D / 8) keys
//   at a time; each such group of lanes keeps a maximum, a sum and a context of its own, merged at the end. The keys and
//   values of four such sets of keys are in flight before the first is used, and the pages of the next four.
// Versions: 1. this.

constexpr int WARPS = 4;
constexpr int SETS = 4;
constexpr float LOG2_E = 1.442695040888963f;
constexpr float LOWEST = -3.0e38f;

struct Pages {
    const int* table;  // of this line
    int bits;

    __device__ __forceinline__ int slot(int position) const {
        return (table[position >> bits] << bits) + (position & ((1 << bits) - 1));
    }
};

// Of a group of lanes: the softmax so far of the keys that it has scored.
struct Softmax {
    float reference = LOWEST, total = 0.f, context[VECTOR] = {};

    __device__ __forceinline__ void raise(float to) {
        const float factor = exp2_approx(reference - to);
        reference = to;
        total *= factor;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) context[j] *= factor;
    }

    __device__ __forceinline__ void add(float score, uint4 value) {
        const float weight = exp2_approx(score - reference);
        total += weight;
        float values[VECTOR];
        unpack_vector(value, values);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) context[j] = fmaf(weight, values[j], context[j]);
    }
};

template <int LANES> __device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(FULL_MASK, v, offset);
    return v;
}

// Over the groups of a warp.
template <int LANES> __device__ __forceinline__ void merge(Softmax& own) {
    float most = own.reference;
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2)
        most = max_nan(most, __shfl_xor_sync(FULL_MASK, most, offset));
    own.raise(most);
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2) {
        own.total += __shfl_xor_sync(FULL_MASK, own.total, offset);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) own.context[j] += __shfl_xor_sync(FULL_MASK, own.context[j], offset);
    }
}

template <int D>
__device__ __forceinline__ void attend(scalar* out, const scalar* query, long long stride, scalar* cache,
                                       const int* table, int columns, int page_bits, const int* lengths,
                                       const int* lines, int rows, int heads, float scale, const scalar* bias,
                                       int reach, int fresh) {
    constexpr int LANES = D / VECTOR, KEYS = WARP / LANES;
    const long long task = (long long)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (task >= (long long)rows * heads) return;
    const int row = task / heads, head = task % heads;
    const int group = threadIdx.x % WARP / LANES, column = head * D + threadIdx.x % LANES * VECTOR;
    const int line = lines == nullptr ? row : lines[row];
    const int length = lengths[line], last = length - 1;
    const int width = heads * D;
    scalar* own_out = out + (long long)row * width + column;
    if (length <= 0) {
        if (group == 0) store_vector(own_out, make_uint4(0, 0, 0, 0));
        return;
    }
    const Pages pages{table + (long long)line * columns, page_bits};
    const scalar* asked = query + row * stride + column;
    const scalar* new_key = asked + width;  // its value is `width` behind it, as in the cache
    const auto in_cache = [&](int slot) { return cache + (long long)slot * 2 * width + column; };

    float q[VECTOR];
    unpack_vector(load_vector(asked), q);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) q[j] *= scale * LOG2_E;

    int slots[SETS];
    const auto load_slots = [&](int first) {
#pragma unroll
        for (int i = 0; i < SETS; ++i) slots[i] = pages.slot(min(first + i * KEYS + group, last));
    };
    load_slots(0);
    Softmax softmax;
    for (int first = 0; first < length; first += SETS * KEYS) {
        uint4 key[SETS], value[SETS];
#pragma unroll
        for (int i = 0; i < SETS; ++i) {
            const bool is_new = fresh && first + i * KEYS + group >= last;
            const scalar* from = is_new ? new_key : in_cache(slots[i]);
            key[i] = load_vector(from);
            value[i] = load_vector(from + width);
        }
        if (first + SETS * KEYS < length) load_slots(first + SETS * KEYS);
        float score[SETS], most = softmax.reference;
#pragma unroll
        for (int i = 0; i < SETS; ++i) {
            const int position = first + i * KEYS + group;
            float k[VECTOR], sum = 0.f;
            unpack_vector(key[i], k);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sum = fmaf(q[j], k[j], sum);
            score[i] = lanes_sum<LANES>(sum);
            if (bias != nullptr) {
                const int distance = min(max(position - last, -reach), 0);
                score[i] += LOG2_E * to_float(bias[head * (2 * reach + 1) + reach + distance]);
            }
            if (position > last) score[i] = minus_infinity();
            most = max_nan(most, score[i]);
        }
        softmax.raise(most);
#pragma unroll
        for (int i = 0; i < SETS; ++i) softmax.add(score[i], value[i]);
    }
    merge<LANES>(softmax);
    if (group != 0) return;
    const float inverse = __fdividef(1.f, softmax.total);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) softmax.context[j] *= inverse;
    store_vector(own_out, pack_vector(softmax.context));
    if (fresh) {
        scalar* to = in_cache(pages.slot(last));
        store_vector(to, load_vector(new_key));
        store_vector(to + width, load_vector(new_key + width));
    }
}

#define PAGED_ATTENTION(D)                                                                                           \
    extern "C" __global__ void __launch_bounds__(WARP* WARPS) paged_attention_##D(                                   \
        scalar* out, const scalar* query, long long stride, scalar* cache, const int* table, int columns,            \
        int page_bits, const int* lengths, const int* lines, int rows, int heads, float scale, const scalar* bias,   \
        int reach, int fresh) {                                                                                      \
        wait_for_previous();                                                                                         \
        attend<D>(out, query, stride, cache, table, columns, page_bits, lengths, lines, rows, heads, scale, bias,    \
                  reach, fresh);                                                                                     \
    }

PAGED_ATTENTION(32)
PAGED_ATTENTION(64)
PAGED_ATTENTION(128)
