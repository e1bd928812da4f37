// Self-attention of packed sequences for Hopper, out_i = sum_j softmax_j(scale q_i k_j) v_j per sequence and head: the shape
// of FlashAttention-3 (Shah et al. 2024), for long sequences. packed_attention.cu is for the others.
//
// Layout: qkv [R, 3, heads, D] as a tensor map in boxes of [64, 64], and out [R, heads, D]; D = 64 or 128, 16-byte aligned.
//   plan [items] of {first token of the sequence, length | query tile << 16}, heaviest first; length 0: no work, nor any
//   after it. A tile has 64 queries for each group that multiplies.
//
// Threads: a unit of work is an item and a head; blocks are persistent, and their units gridDim.x apart. Warpgroups 0 to
//   GROUPS - 1 have 64 queries of the tile each, and walk over the sequence's keys in tiles of KEYS. A thread of the last
//   warpgroup starts the copies, of the next unit too while one is finished. In a group, the scores of the next tile
//   and the sums of weights times values of this one are multiplied at once; while these are still being summed the group
//   computes the next weights. Groups take turns to issue, so that one has the tensor cores while another has the
//   exponentials, of which a tile of D = 64 needs as many cycles (16 a cycle and multiprocessor) as of products.
//
// Shared memory: two buffers of queries, rings of keys and of values; rows of 64 columns are 128 bytes, swizzled by the
//   copy engine, and those of the next 64 columns follow as another matrix. A barrier for each buffer that is full, and
//   one for each that is empty. A buffer of queries is also where its output is staged.
//
// Fragments (g = lane / 4, t = lane % 4): of a product's sums [64, N], a warp has 16 rows, and a thread of these rows g
//   and g + 8 at columns 8j + 2t and the next: value 4j + 2h + e is of row g + 8h and column 8j + 2t + e. As a left operand
//   of 16 columns in registers the same values are in the same threads, so that weights are multiplied as they stand.
//   Values are the right operand with its rows along the sum, which the instruction transposes.
//
// Softmax: fp32, base 2. A row's reference moves only when a score exceeds it by more than 8 in the exponent: each row
//   decides for itself, because the rows after a sequence's end belong to others. The tile at the end of the sequence,
//   which may not be full, comes first: its scores after the end are minus infinity, and its values after the end become
//   zeros, since zero times NaN is NaN. A row's bits depend only on its own sequence.

#ifndef KEYS
#define KEYS 128
#endif
#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef LATE
#define LATE 1
#endif
#ifndef POLYNOMIAL
#define POLYNOMIAL 0
#endif

constexpr int BOX = 64, BOX_BYTES = BOX * 128;  // rows, and columns, of a box
constexpr int GROUP_WARPS = 4, GROUP_THREADS = GROUP_WARPS * WARP;
constexpr int QUERIES = BOX * GROUPS;
constexpr int QUERY_BUFFERS = 2;
constexpr int RELEASES = GROUPS * GROUP_WARPS;  // of a buffer, before it is filled again
constexpr float LARGEST_LOG2_WEIGHT = 8.0f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// A buffer of a ring, and the parity of its use.
template <int COUNT> struct Ring {
    unsigned buffer = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++buffer == COUNT) buffer = 0, parity ^= 1;
    }
};

// Addresses in shared memory.
template <int D> struct Memory {
    static constexpr int PARTS = D / BOX, COUNT = STAGES / PARTS;  // boxes of a row; tiles in a ring
    static constexpr unsigned QUERY_BYTES = PARTS * BOX_BYTES;  // of a group
    static constexpr unsigned TILE_BYTES = PARTS * KEYS * 128;
    static constexpr unsigned KEYS_AT = QUERY_BUFFERS * GROUPS * QUERY_BYTES, VALUES_AT = KEYS_AT + COUNT * TILE_BYTES;
    static constexpr unsigned BARRIERS_AT = VALUES_AT + COUNT * TILE_BYTES;
    unsigned base;

    __device__ __forceinline__ unsigned queries(unsigned buffer, unsigned group) const {
        return base + (buffer * GROUPS + group) * QUERY_BYTES;
    }
    __device__ __forceinline__ unsigned keys(unsigned buffer) const { return base + KEYS_AT + buffer * TILE_BYTES; }
    __device__ __forceinline__ unsigned values(unsigned buffer) const { return base + VALUES_AT + buffer * TILE_BYTES; }
    // Each: the barrier of a full buffer. That of an empty one follows.
    __device__ __forceinline__ unsigned queries_full(unsigned buffer) const { return base + BARRIERS_AT + 16 * buffer; }
    __device__ __forceinline__ unsigned keys_full(unsigned buffer) const { return queries_full(QUERY_BUFFERS + buffer); }
    __device__ __forceinline__ unsigned values_full(unsigned buffer) const { return keys_full(COUNT + buffer); }
    static constexpr int BARRIERS = QUERY_BUFFERS + 2 * COUNT;  // of full buffers
};

constexpr int EMPTY = 8;  // from the barrier of a full buffer to that of the same when it is empty

// A sequence's length, and the first of the tile's queries in it.
__device__ __forceinline__ int length_of(int2 item) { return item.y & 0xffff; }
__device__ __forceinline__ int first_query_of(int2 item) { return (item.y >> 16) * QUERIES; }

// Units of work of a block: first, first + step, ...
struct Units {
    const int2* plan;
    unsigned count, heads;
    __device__ __forceinline__ int2 item(unsigned unit) const {
        return unit < count ? plan[unit / heads] : make_int2(0, 0);
    }
};

// Turns of the groups to issue products: barrier 1 + g is group g's. Barrier 1 + GROUPS + g is for its threads alone.

__device__ __forceinline__ void take_turn(unsigned group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void give_turn(unsigned group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void group_sync(unsigned group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + GROUPS + group), "n"(GROUP_THREADS) : "memory");
}

// What is written to shared memory is seen by the tensor cores and the copy engine, after a barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products

#define LIST_4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define LIST_16(x, i) LIST_4(x, i), LIST_4(x, i + 4), LIST_4(x, i + 8), LIST_4(x, i + 12)
#define LIST_32(x, i) LIST_16(x, i), LIST_16(x, i + 16)
#define NAMES_32                                                                                     \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                       \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
             "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96                                                                                       \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
             "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"


#define WITH_ADD(ADD) "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"

// sums [64, N] += a [64, 16] b [N, 16]', both in shared memory; with `add` 0 the sums are overwritten.
#define MULTIPLY_128(TYPES)                                                                                      \
    asm volatile(WITH_ADD(66) "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " {" NAMES_64                 \
                              "}, %64, %65, p, 1, 1, 0, 0;\n}\n"                                                 \
                 : LIST_32(sums, 0), LIST_32(sums, 32)                                                           \
                 : "l"(a), "l"(b), "r"(add))
#define MULTIPLY_192(TYPES)                                                                                      \
    asm volatile(WITH_ADD(98) "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPES " {" NAMES_96                 \
                              "}, %96, %97, p, 1, 1, 0, 0;\n}\n"                                                 \
                 : LIST_32(sums, 0), LIST_32(sums, 32), LIST_32(sums, 64)                                        \
                 : "l"(a), "l"(b), "r"(add))

__device__ __forceinline__ void multiply(float (&sums)[64], unsigned long long a, unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY_128("f16.f16");
    else MULTIPLY_128("bf16.bf16");
}
__device__ __forceinline__ void multiply(float (&sums)[96], unsigned long long a, unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY_192("f16.f16");
    else MULTIPLY_192("bf16.bf16");
}

// sums [64, N] += a [64, 16] b [16, N], a in registers and b in shared memory.
#define ADD_64(TYPES)                                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" NAMES_32                               \
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                                                   \
                 : LIST_32(sums, 0)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define ADD_128(TYPES)                                                                                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " {" NAMES_64                              \
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"                                                   \
                 : LIST_32(sums, 0), LIST_32(sums, 32)                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

__device__ __forceinline__ void add_product(float (&sums)[32], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (IS_HALF<scalar>) ADD_64("f16.f16");
    else ADD_64("bf16.bf16");
}
__device__ __forceinline__ void add_product(float (&sums)[64], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (IS_HALF<scalar>) ADD_128("f16.f16");
    else ADD_128("bf16.bf16");
}

// The compiler may not move work on the sums across this.
template <int N> __device__ __forceinline__ void pin(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

template <int D> __device__ __forceinline__ void issue_scores(float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const unsigned long long a = operand(queries), b = operand(keys);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        multiply(scores, a + k / 4 * (BOX_BYTES >> 4) + k % 4 * 2, b + k / 4 * (KEYS * 128 >> 4) + k % 4 * 2, k);
    wgmma_commit();
}

// Sixteen weights of a row are a left operand's columns, and the values' rows, of which 16 are 2,048 bytes.
template <int D> __device__ __forceinline__ void issue_sums(
    float (&sums)[D / 2], const unsigned (&weights)[KEYS / 16][4], unsigned values) {
    // The descriptor has the offset of the next 64 columns too.
    const unsigned long long across = (D == BOX ? 1024 : KEYS * 128) >> 4;
    const unsigned long long b = (operand(values) & ~(0x3fffull << 16)) | across << 16;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) add_product(sums, weights[k], b + k * (16 * 128 >> 4));
    wgmma_commit();
}

// Softmax

#if POLYNOMIAL
// 2^x for x of at most 127 by FMAs, to 8e-5 of it: less than float16 weights are rounded by. NaN stays NaN.
__device__ __forceinline__ float exp2_polynomial(float x) {
    x = max_nan(x, -126.0f);
    const float shifted = x + 12582912.0f;  // 1.5 * 2^23: the nearest integer is in the low bits
    const float rest = x - (shifted - 12582912.0f);
    const float power = __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
    return power * fmaf(fmaf(fmaf(0.0551716737f, rest, 0.242611131f), rest, 0.69326099f), rest, 0.999928067f);
}
#endif

struct Softmax {
    float offset[2];  // of rows g and g + 8: added to scores in the exponent, minus the reference
    float total[2];   // of the weights, this thread's part
    float log2_scale;

    // The largest score of each row, this thread's part.
    static __device__ __forceinline__ void find_peaks(float (&peak)[2], const float (&scores)[KEYS / 2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best[2] = {fmaxf(scores[2 * h], scores[2 * h + 1]), fmaxf(scores[4 + 2 * h], scores[5 + 2 * h])};
#pragma unroll
            for (int j = 2; j < KEYS / 8; ++j)
                best[j % 2] = fmaxf(best[j % 2], fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
            peak[h] = fmaxf(best[0], best[1]);
        }
    }

    static __device__ __forceinline__ float of_row(float peak) {
        peak = fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 1));
        return fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 2));
    }

    __device__ __forceinline__ void begin(const float (&scores)[KEYS / 2]) {
        float peak[2];
        find_peaks(peak, scores);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            offset[h] = -log2_scale * of_row(peak[h]);
            total[h] = 0.0f;
        }
    }

    // Whether sums of the warp must be multiplied with `shrink`, because a reference has moved.
    __device__ __forceinline__ bool move(float (&shrink)[2], const float (&scores)[KEYS / 2]) {
        float peak[2];
        find_peaks(peak, scores);
        const float excess = fmaxf(fmaf(peak[0], log2_scale, offset[0]), fmaf(peak[1], log2_scale, offset[1]));
        shrink[0] = shrink[1] = 1.0f;
        if (!__any_sync(FULL_MASK, excess > LARGEST_LOG2_WEIGHT)) return false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float top = of_row(peak[h]);
            if (fmaf(top, log2_scale, offset[h]) > LARGEST_LOG2_WEIGHT) {
                const float lowered = -log2_scale * top;
                shrink[h] = exp2_approx(lowered - offset[h]);
                offset[h] = lowered;
                total[h] *= shrink[h];
            }
        }
        return true;
    }

    // Scores in, weights out.
    __device__ __forceinline__ void exponentiate(float (&scores)[KEYS / 2]) {
        float sum[2][2] = {};
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) {
            const int h = i / 2 % 2;
            const float power = fmaf(scores[i], log2_scale, offset[h]);
#if POLYNOMIAL
            scores[i] = i % POLYNOMIAL == POLYNOMIAL - 1 ? exp2_polynomial(power) : exp2_approx(power);
#else
            scores[i] = exp2_approx(power);
#endif
            sum[h][i % 2] += scores[i];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) total[h] += sum[h][0] + sum[h][1];
    }
};

__device__ __forceinline__ void pack(unsigned (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; ++i) weights[i / 4][i % 4] = pack_pair(scores[2 * i], scores[2 * i + 1]);
}

// Scores of keys from `count` on become minus infinity.
__device__ __forceinline__ void mask(float (&scores)[KEYS / 2], int count) {
    const int left = count - threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i)
        if (i / 4 * 8 + i % 2 >= left) scores[i] = MINUS_INFINITY;
}

// Rows of values from `count` on become zeros. By the threads of a group; where other groups do so too, they write the same.
template <int D> __device__ __forceinline__ void clear(unsigned values, int count, unsigned group) {
    const int thread = threadIdx.x % GROUP_THREADS;
#pragma unroll 1
    for (int row = count + thread / 8; row < KEYS; row += GROUP_THREADS / 8)
#pragma unroll
        for (int part = 0; part < D / BOX; ++part)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::
                         "r"(values + part * KEYS * 128 + row * 128 + thread % 8 * 16), "r"(0) : "memory");
    publish();
    group_sync(group);
}

// The copies of all units of a block, by one thread.
template <int D> __device__ __forceinline__ void produce(const TensorMap& qkv, Memory<D> memory, Units units) {
    constexpr int PARTS = D / BOX;
    const int hidden = units.heads * D;
    Ring<QUERY_BUFFERS> queries;
    Ring<Memory<D>::COUNT> ring;
    int2 item = units.item(blockIdx.x);
#pragma unroll 1
    for (unsigned unit = blockIdx.x; length_of(item) != 0; unit += gridDim.x) {
        const int2 next = units.item(unit + gridDim.x);
        const int column = unit % units.heads * D, length = length_of(item), first_query = first_query_of(item);
        const int groups = min((length - first_query + BOX - 1) / BOX, GROUPS);
        const unsigned queries_full = memory.queries_full(queries.buffer);
        barrier_wait(queries_full + EMPTY, queries.parity ^ 1);
        barrier_expect(queries_full, groups * Memory<D>::QUERY_BYTES);
#pragma unroll 1
        for (int group = 0; group < groups; ++group)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                load_box(memory.queries(queries.buffer, group) + part * BOX_BYTES, qkv, column + part * BOX,
                         item.x + first_query + group * BOX, queries_full);
        queries.advance();
#pragma unroll 1
        for (int first = (length - 1) / KEYS * KEYS; first >= 0; first -= KEYS) {
            const int boxes = min((length - first + BOX - 1) / BOX, KEYS / BOX);
            const unsigned keys = memory.keys(ring.buffer), values = memory.values(ring.buffer);
            const unsigned keys_full = memory.keys_full(ring.buffer), values_full = memory.values_full(ring.buffer);
            barrier_wait(keys_full + EMPTY, ring.parity ^ 1);
            barrier_expect(keys_full, boxes * PARTS * BOX_BYTES);
#pragma unroll 1
            for (int box = 0; box < boxes; ++box)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    load_box(keys + part * KEYS * 128 + box * BOX_BYTES, qkv, hidden + column + part * BOX,
                             item.x + first + box * BOX, keys_full);
            barrier_wait(values_full + EMPTY, ring.parity ^ 1);
            barrier_expect(values_full, boxes * PARTS * BOX_BYTES);
#pragma unroll 1
            for (int box = 0; box < boxes; ++box)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    load_box(values + part * KEYS * 128 + box * BOX_BYTES, qkv, 2 * hidden + column + part * BOX,
                             item.x + first + box * BOX, values_full);
            ring.advance();
        }
        item = next;
    }
}

// The warp's rows, normalised, by way of `staging`, which held the group's queries. first_query: the warp's, in its
// sequence.
template <int D> __device__ __forceinline__ void store(
    scalar* out, const float (&sums)[D / 2], const Softmax& softmax, unsigned staging, int2 item, int first_query,
    int column, int hidden) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    staging += threadIdx.x / WARP % GROUP_WARPS * 16 * 128;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = softmax.total[h];
        total += __shfl_xor_sync(FULL_MASK, total, 1);
        total += __shfl_xor_sync(FULL_MASK, total, 2);
        const float factor = __fdividef(1.0f, total);
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const unsigned to = staging + j / 8 * BOX_BYTES + (g + 8 * h) * 128 + ((j % 8 ^ g) * 16) + 4 * t;
            const unsigned pair = pack_pair(sums[4 * j + 2 * h] * factor, sums[4 * j + 2 * h + 1] * factor);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
        }
    }
    __syncwarp();
    const int row = lane / 8, chunk = lane % 8, count = length_of(item) - first_query;
    scalar* to = out + (static_cast<size_t>(item.x) + first_query + row) * hidden + column + chunk * VECTOR;
#pragma unroll
    for (int part = 0; part < D / BOX; ++part)
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const unsigned at = staging + part * BOX_BYTES + (row + i) * 128 + ((chunk ^ (row + i) % 8) * 16);
            uint4 piece;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w) : "r"(at) : "memory");
            if (row + i < count) store_vector(to + static_cast<size_t>(i) * hidden + part * BOX, piece);
        }
}

__device__ __forceinline__ void release(unsigned full) {
    if (threadIdx.x % WARP == 0) barrier_arrive(full + EMPTY);
}

template <int D> __device__ __forceinline__ void consume(
    scalar* out, Memory<D> memory, Units units, unsigned group, float log2_scale) {
    float scores[KEYS / 2], sums[D / 2];
    unsigned weights[KEYS / 16][4];
    Softmax softmax;
    softmax.log2_scale = log2_scale;
    Ring<QUERY_BUFFERS> queries;
    Ring<Memory<D>::COUNT> keys, values;
    int2 item = units.item(blockIdx.x);
    if (TURNS && group == GROUPS - 1) give_turn(0);
#pragma unroll 1
    for (unsigned unit = blockIdx.x; length_of(item) != 0; unit += gridDim.x) {
        const int2 next = units.item(unit + gridDim.x);
        const int length = length_of(item), first_query = first_query_of(item) + group * BOX;
        const int tiles = (length + KEYS - 1) / KEYS, count = length - (tiles - 1) * KEYS;
        const bool in_turns = TURNS && first_query_of(item) + (GROUPS - 1) * BOX < length;  // all groups have queries
        const unsigned queries_full = memory.queries_full(queries.buffer);
        barrier_wait(queries_full, queries.parity);
        if (first_query < length) {
            const unsigned own = memory.queries(queries.buffer, group);
            barrier_wait(memory.keys_full(keys.buffer), keys.parity);
            pin(scores);
            issue_scores<D>(scores, own, memory.keys(keys.buffer));
#pragma unroll
            for (int i = 0; i < D / 2; ++i) sums[i] = 0.0f;
            wgmma_wait<0>();
            pin(scores);
            release(memory.keys_full(keys.buffer));
            keys.advance();
            if (count < KEYS) mask(scores, count);
            softmax.begin(scores);
            softmax.exponentiate(scores);
            pack(weights, scores);
            if (count < KEYS) {
                barrier_wait(memory.values_full(values.buffer), values.parity);
                clear<D>(memory.values(values.buffer), count, group);
            }
            if (LATE && tiles > 1) barrier_wait(memory.keys_full(keys.buffer), keys.parity);
#pragma unroll 1
            for (int tile = 1; tile < tiles; ++tile) {
                if (in_turns) take_turn(group);
                if (!LATE) barrier_wait(memory.keys_full(keys.buffer), keys.parity);
                pin(scores);
                pin(sums);
                issue_scores<D>(scores, own, memory.keys(keys.buffer));
                barrier_wait(memory.values_full(values.buffer), values.parity);
                issue_sums<D>(sums, weights, memory.values(values.buffer));
                if (in_turns) give_turn(group + 1 == GROUPS ? 0 : group + 1);
                wgmma_wait<1>();
                pin(scores);
                release(memory.keys_full(keys.buffer));
                keys.advance();
                float shrink[2];
                const bool has_moved = softmax.move(shrink, scores);
                softmax.exponentiate(scores);
                if (LATE && tile + 1 < tiles) barrier_wait(memory.keys_full(keys.buffer), keys.parity);
                wgmma_wait<0>();
                pin(sums);
                release(memory.values_full(values.buffer));
                values.advance();
                if (has_moved) {
#pragma unroll
                    for (int i = 0; i < D / 2; ++i) sums[i] *= shrink[i / 2 % 2];
                }
                pack(weights, scores);
            }
            barrier_wait(memory.values_full(values.buffer), values.parity);
            pin(sums);
            issue_sums<D>(sums, weights, memory.values(values.buffer));
            wgmma_wait<0>();
            pin(sums);
            release(memory.values_full(values.buffer));
            values.advance();
            group_sync(group);  // no warp's products read the queries any more
            const int column = unit % units.heads * D, first = first_query + threadIdx.x / WARP % GROUP_WARPS * 16;
            store<D>(out, sums, softmax, own, item, first, column, units.heads * D);
            publish();
            __syncwarp();
        } else {  // the other groups' tiles pass by
#pragma unroll 1
            for (int tile = 0; tile < tiles; ++tile) {
                barrier_wait(memory.keys_full(keys.buffer), keys.parity);
                release(memory.keys_full(keys.buffer));
                keys.advance();
                barrier_wait(memory.values_full(values.buffer), values.parity);
                release(memory.values_full(values.buffer));
                values.advance();
            }
        }
        release(queries_full);
        queries.advance();
        item = next;
    }
}

template <int D> __device__ __forceinline__ void run(
    scalar* out, const TensorMap& qkv, const int2* plan, int items, int heads, float log2_scale, unsigned char* dynamic) {
    const Memory<D> memory = {(shared_address(dynamic) + 1023) & ~1023u};
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / GROUP_THREADS, 0);
    const Units units = {plan, static_cast<unsigned>(items) * heads, static_cast<unsigned>(heads)};
    if (threadIdx.x == 0) {
        prefetch_map(qkv);
        for (int i = 0; i < Memory<D>::BARRIERS; ++i) {
            barrier_init(memory.queries_full(i), 1);
            barrier_init(memory.queries_full(i) + EMPTY, RELEASES);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    if (group == GROUPS) {
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == GROUPS * GROUP_THREADS) produce<D>(qkv, memory, units);
    } else {
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume<D>(out, memory, units, group, log2_scale);
    }
}

#define LONG_ATTENTION(D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GROUP_THREADS*(GROUPS + 1), 1) long_attention_##D(                   \
        scalar* out, const __grid_constant__ TensorMap qkv, const int2* plan, int items, int heads, float log2_scale) { \
        extern __shared__ unsigned char dynamic[];                                                                    \
        run<D>(out, qkv, plan, items, heads, log2_scale, dynamic);                                                    \
    }

LONG_ATTENTION(64)
#if GROUPS == 2 && KEYS == 128
LONG_ATTENTION(128)
#endif
