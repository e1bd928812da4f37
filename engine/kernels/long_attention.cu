// Self-attention of packed sequences for Hopper, out_i = sum_j softmax_j(scale q_i k_j) v_j per sequence and head, over all
// keys or those up to the query, which heads may share: the shape of FlashAttention-3 (Shah et al. 2024), for long
// sequences. packed_attention.cu and windowed_attention.cu are for the others.
//
// Layout: qkv [R, (heads + 2 heads / sharing) D] as a tensor map in boxes of [64, 64], and out [R, heads, D]; D = 64 or 128,
//   16-byte aligned.
//   plan [items] of {first token of the sequence, length | query tile << 16}, heaviest first; length 0: no work, nor any
//   after it. A tile has 64 queries for each group that multiplies: 192 for D = 64, 128 for D = 128 or where another kernel
//   follows the same plan.
//
// Measured on an NVIDIA H200, one run, TFLOP/s: float16, 16,384 tokens, sequences of
//                                        256    512   1,024   100-2,000   2,048   8,192
//   12 heads, D = 64, 192 queries        300    414     469         446     529     562   (571 where 3 share keys)
//   D = 64, 128 queries                  298    371     421         368     427     449
//   packed_attention                     251    295     321         319     319     326   (FlashAttention-2: 229 at 100-2,000)
//   12 heads, D = 128                    410    523     604         553     651     679
//   FlashAttention-2                     255    295     307         268     321     308   (packed: 286 at 100-2,000)
//   16 causal heads, D = 128, 8 of keys  231    347     462         475     547     635
//   windowed_attention                   162    218     261         261     269     277
// cuDNN, in an earlier run, for D = 64 and equal lengths of 2,048 and 8,192: 422 and 455. Slower variants: two groups of
// queries with D = 64, as above; tiles of 192 keys; every fourth exponential by a polynomial; groups that do not take turns;
// waits for the next keys before the sums of this tile are complete, and not in the turn. No faster: the next unit's first
// scores before this one's output is stored.
//
// The table is older than rounds that run backwards and first tiles of half the keys. Before, with the first, and with both,
// in turn on another H200, us: 16 heads, 192 queries, 100-2,000 229.5, 217.6, 213.3; 5-500 89.7, 87.6, 83.4; 12 heads, 128
// queries, 100-2,000 189.1, 183.2, 176.0. Of 8,192 tokens the halves cost 0.6 %.
//
// Threads: a unit of work is an item and a head; blocks are persistent. Warpgroups 0 to GROUPS - 1 have 64 queries of the
//   tile each, and walk over the keys in tiles of KEYS, the last tile first, of which half is left out where no key of the
//   sequence is in it. A thread of the last warpgroup starts the copies, of the next unit too while one is finished. In a
//   group, the scores of the next tile and the sums of weights times values of this one are multiplied at once; while these
//   are still being summed the group computes the next weights. Groups take turns to issue, so that one has the tensor cores while another has the
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
//   decides for itself, because the rows after a sequence's end belong to others. Of a group's tiles of keys only the first
//   may not be full: its scores after the end are minus infinity, and its values after the end become zeros, since zero
//   times NaN is NaN. Causal, it is also the only one with keys after a query: a group's 64 queries are in one tile, for
//   both are aligned. Tiles after that one, of later queries' groups, pass by. A row's bits depend only on its own sequence.

constexpr int KEYS = 128;  // of a tile
constexpr int QUERY_BUFFERS = 2;
constexpr int EMPTY = 8;  // from the barrier of a full buffer to that of the same when it is empty

// A kind of block, and its addresses in shared memory.
template <int HEAD_DIM, int GROUP_COUNT, bool IS_CAUSAL> struct Block {
    static constexpr int D = HEAD_DIM, GROUPS = GROUP_COUNT;
    static constexpr bool CAUSAL = IS_CAUSAL;
    static constexpr int PARTS = D / BOX;  // boxes of a row
    static constexpr int STAGES = D == 128 ? 2 : GROUPS == 3 ? 3 : 4;  // tiles in a ring
    static constexpr int QUERIES = BOX * GROUPS, RELEASES = GROUPS * GROUP_WARPS;  // releases of a buffer by its readers
    static constexpr unsigned QUERY_BYTES = PARTS * BOX_BYTES, TILE_BYTES = PARTS * KEYS * 128;  // a group's; a buffer's
    static constexpr unsigned KEYS_AT = QUERY_BUFFERS * GROUPS * QUERY_BYTES, VALUES_AT = KEYS_AT + STAGES * TILE_BYTES;
    static constexpr unsigned BARRIERS_AT = VALUES_AT + STAGES * TILE_BYTES;
    static constexpr int BARRIERS = QUERY_BUFFERS + 2 * STAGES;  // of full buffers
    unsigned base;

    __device__ __forceinline__ unsigned queries(unsigned buffer, unsigned group) const {
        return base + (buffer * GROUPS + group) * QUERY_BYTES;
    }
    __device__ __forceinline__ unsigned keys(unsigned buffer) const { return base + KEYS_AT + buffer * TILE_BYTES; }
    __device__ __forceinline__ unsigned values(unsigned buffer) const { return base + VALUES_AT + buffer * TILE_BYTES; }
    // Each: the barrier of a full buffer. That of an empty one follows.
    __device__ __forceinline__ unsigned queries_full(unsigned buffer) const { return base + BARRIERS_AT + 16 * buffer; }
    __device__ __forceinline__ unsigned keys_full(unsigned buffer) const { return queries_full(QUERY_BUFFERS + buffer); }
    __device__ __forceinline__ unsigned values_full(unsigned buffer) const { return keys_full(STAGES + buffer); }

    static __device__ __forceinline__ int first_query_of(int2 item) { return (item.y >> 16) * QUERIES; }
    // Of the sequence's keys, those that `count` queries from `first` on may see.
    static __device__ __forceinline__ int keys_seen(int length, int first, int count) {
        return CAUSAL ? min(length, first + count) : length;
    }
};

// Units of work, in rounds of gridDim.x, of which a block has one each. Every second round runs backwards: units come in the
// order of their cost, so that the first block would have the heaviest of every round.
struct Units {
    const int2* plan;
    unsigned count, heads, sharing;
    __device__ __forceinline__ int2 item(unsigned unit) const {
        return unit < count ? plan[unit / heads] : make_int2(0, 0);
    }
    // The block's.
    __device__ __forceinline__ unsigned of_round(unsigned round) const {
        return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
};

// Turns of the groups to issue products: barrier 1 + g is group g's. Barrier 4 + g is for its threads alone.

__device__ __forceinline__ void take_turn(unsigned group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void give_turn(unsigned group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void group_sync(unsigned group) {
    asm volatile("bar.sync %0, %1;" ::"r"(4 + group), "n"(GROUP_THREADS) : "memory");
}

// Products

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

// sums [64, 64] = a [64, 16] b [64, 16]', of the first half of the keys.
__device__ __forceinline__ void multiply_half(float (&sums)[KEYS / 2], unsigned long long a, unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY(32, "64", "%32", "%33", "%34", "f16.f16");
    else MULTIPLY(32, "64", "%32", "%33", "%34", "bf16.bf16");
}

// Of the tile's first COUNT keys: all, or half.
template <int D, int COUNT = KEYS> __device__ __forceinline__ void issue_scores(
    float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const unsigned long long a = operand(queries), b = operand(keys);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        const unsigned long long left = a + k / 4 * (BOX_BYTES >> 4) + k % 4 * 2;
        const unsigned long long right = b + k / 4 * (KEYS * 128 >> 4) + k % 4 * 2;
        if constexpr (COUNT == KEYS) multiply(scores, left, right, k);
        else multiply_half(scores, left, right, k);
    }
    wgmma_commit();
}

// Sixteen weights of a row are a left operand's columns, and the values' rows, of which 16 are 2,048 bytes.
template <int D, int COUNT = KEYS> __device__ __forceinline__ void issue_sums(
    float (&sums)[D / 2], const unsigned (&weights)[KEYS / 16][4], unsigned values) {
    // The descriptor has the offset of the next 64 columns too.
    const unsigned long long across = (D == BOX ? 1024 : KEYS * 128) >> 4;
    const unsigned long long b = (operand(values) & ~(0x3fffull << 16)) | across << 16;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < COUNT / 16; ++k) add_product(sums, weights[k], b + k * (16 * 128 >> 4));
    wgmma_commit();
}

// Softmax

struct Softmax {
    float offset[2];  // of rows g and g + 8: added to scores in the exponent, minus the reference
    float total[2];   // of the weights, this thread's part
    float log2_scale;

    // The largest score of each row, this thread's part.
    template <int COUNT = KEYS>
    static __device__ __forceinline__ void find_peaks(float (&peak)[2], const float (&scores)[KEYS / 2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best[2] = {fmaxf(scores[2 * h], scores[2 * h + 1]), fmaxf(scores[4 + 2 * h], scores[5 + 2 * h])};
#pragma unroll
            for (int j = 2; j < COUNT / 8; ++j)
                best[j % 2] = fmaxf(best[j % 2], fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
            peak[h] = fmaxf(best[0], best[1]);
        }
    }

    static __device__ __forceinline__ float of_row(float peak) {
        peak = fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 1));
        return fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 2));
    }

    template <int COUNT> __device__ __forceinline__ void begin(const float (&scores)[KEYS / 2]) {
        float peak[2];
        find_peaks<COUNT>(peak, scores);
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
    template <int COUNT = KEYS> __device__ __forceinline__ void exponentiate(float (&scores)[KEYS / 2]) {
        float sum[2][2] = {};
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const int h = i / 2 % 2;
            scores[i] = exp2_approx(fmaf(scores[i], log2_scale, offset[h]));
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

// Scores of keys that a row does not see become minus infinity. count: the tile's keys before the end; first: the group's
// first query, counted from the tile's first key.
template <bool CAUSAL, int COUNT> __device__ __forceinline__ void mask(float (&scores)[KEYS / 2], int count, int first) {
    const int lane = threadIdx.x % WARP, row = first + threadIdx.x / WARP % GROUP_WARPS * 16 + lane / 4;
    int left[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) left[h] = (CAUSAL ? min(count, row + 8 * h + 1) : count) - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i)
        if (i / 4 * 8 + i % 2 >= left[i / 2 % 2]) scores[i] = MINUS_INFINITY;
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

// The copies of a tile: rows `first` and on, as many boxes as its `count` rows reach into.
template <int PARTS> __device__ __forceinline__ void load_tile(
    unsigned to, const TensorMap& qkv, int column, int first, int count, unsigned full, unsigned parity) {
    const int boxes = min((count + BOX - 1) / BOX, KEYS / BOX);
    barrier_wait(full + EMPTY, parity ^ 1);
    barrier_expect(full, boxes * PARTS * BOX_BYTES);
#pragma unroll 1
    for (int box = 0; box < boxes; ++box)
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            load_box(to + part * KEYS * 128 + box * BOX_BYTES, qkv, column + part * BOX, first + box * BOX, full);
}

// The copies of all units of a block, by one thread.
template <class B> __device__ __forceinline__ void produce(const TensorMap& qkv, B block, Units units) {
    const int hidden = units.heads * B::D, key_width = units.heads / units.sharing * B::D;
    Ring<QUERY_BUFFERS> queries;
    Ring<B::STAGES> ring;
    int2 item = units.item(blockIdx.x);
#pragma unroll 1
    for (unsigned round = 0; length_of(item) != 0; ++round) {
        const unsigned unit = units.of_round(round);
        const int2 next = units.item(units.of_round(round + 1));
        const int head = unit % units.heads, length = length_of(item), first_query = B::first_query_of(item);
        const int groups = min((length - first_query + BOX - 1) / BOX, B::GROUPS);
        const unsigned queries_full = block.queries_full(queries.buffer);
        barrier_wait(queries_full + EMPTY, queries.parity ^ 1);
        barrier_expect(queries_full, groups * B::QUERY_BYTES);
#pragma unroll 1
        for (int group = 0; group < groups; ++group)
#pragma unroll
            for (int part = 0; part < B::PARTS; ++part)
                load_box(block.queries(queries.buffer, group) + part * BOX_BYTES, qkv, head * B::D + part * BOX,
                         item.x + first_query + group * BOX, queries_full);
        queries.advance();
        const int keys = B::keys_seen(length, first_query, B::QUERIES), column = hidden + head / units.sharing * B::D;
#pragma unroll 1
        for (int first = (keys - 1) / KEYS * KEYS; first >= 0; first -= KEYS) {
            load_tile<B::PARTS>(block.keys(ring.buffer), qkv, column, item.x + first, keys - first,
                                block.keys_full(ring.buffer), ring.parity);
            load_tile<B::PARTS>(block.values(ring.buffer), qkv, column + key_width, item.x + first, keys - first,
                                block.values_full(ring.buffer), ring.parity);
            ring.advance();
        }
        item = next;
    }
}

__device__ __forceinline__ void release(unsigned full) {
    if (threadIdx.x % WARP == 0) barrier_arrive(full + EMPTY);
}

// The weights of a group's first tile, of which its sequence has `count` keys, at most COUNT. Others are zero.
template <class B, int COUNT> __device__ __forceinline__ void begin(
    float (&scores)[KEYS / 2], Softmax& softmax, unsigned queries, unsigned keys, unsigned full, int count, int first) {
    pin(scores);
    issue_scores<B::D, COUNT>(scores, queries, keys);
    wgmma_wait<0>();
    pin(scores);
    release(full);
    if (B::CAUSAL || count < COUNT) mask<B::CAUSAL, COUNT>(scores, count, first);
    softmax.template begin<COUNT>(scores);
    softmax.template exponentiate<COUNT>(scores);
#pragma unroll
    for (int i = COUNT / 2; i < KEYS / 2; ++i) scores[i] = 0.0f;
}

template <class B> __device__ __forceinline__ void consume(
    scalar* out, B block, Units units, unsigned group, float log2_scale) {
    constexpr int D = B::D, GROUPS = B::GROUPS;
    constexpr bool HALVES = D == BOX && !B::CAUSAL;  // others have not the registers for a first tile of half the keys
    float scores[KEYS / 2], sums[D / 2];
    unsigned weights[KEYS / 16][4];
    Softmax softmax;
    softmax.log2_scale = log2_scale;
    Ring<QUERY_BUFFERS> queries;
    Ring<B::STAGES> keys, values;
    int2 item = units.item(blockIdx.x);
    if (group == GROUPS - 1) give_turn(0);
#pragma unroll 1
    for (unsigned round = 0; length_of(item) != 0; ++round) {
        const unsigned unit = units.of_round(round);
        const int2 next = units.item(units.of_round(round + 1));
        const int length = length_of(item), block_query = B::first_query_of(item), first_query = block_query + group * BOX;
        const int block_keys = B::keys_seen(length, block_query, B::QUERIES);
        const int block_tiles = (block_keys + KEYS - 1) / KEYS;
        // The last tiles of the block's may be of no query of this group's.
        const int tiles = first_query < length ? (B::keys_seen(length, first_query, BOX) + KEYS - 1) / KEYS : 0;
        const bool in_turns = block_query + (GROUPS - 1) * BOX < length;  // all groups have queries
        const unsigned queries_full = block.queries_full(queries.buffer);
        barrier_wait(queries_full, queries.parity);
#pragma unroll 1
        for (int tile = tiles; tile < block_tiles; ++tile) {
            if (in_turns) {  // each group has as many turns
                take_turn(group);
                give_turn(group + 1 == GROUPS ? 0 : group + 1);
            }
            barrier_wait(block.keys_full(keys.buffer), keys.parity);
            release(block.keys_full(keys.buffer));
            keys.advance();
            barrier_wait(block.values_full(values.buffer), values.parity);
            release(block.values_full(values.buffer));
            values.advance();
        }
        if (tiles) {
            const unsigned own = block.queries(queries.buffer, group);
            const int first_key = (tiles - 1) * KEYS, count = block_keys - first_key;  // in the sequence, and loaded
            const unsigned first_tile = block.keys(keys.buffer), full = block.keys_full(keys.buffer);
            const bool is_half = HALVES && count <= KEYS / 2;
            barrier_wait(full, keys.parity);
            if (is_half)
                begin<B, KEYS / 2>(scores, softmax, own, first_tile, full, count, first_query - first_key);
            else
                begin<B, KEYS>(scores, softmax, own, first_tile, full, count, first_query - first_key);
            keys.advance();
#pragma unroll
            for (int i = 0; i < D / 2; ++i) sums[i] = 0.0f;
            pack(weights, scores);
            if (count < KEYS) {
                barrier_wait(block.values_full(values.buffer), values.parity);
                clear<D>(block.values(values.buffer), count, group);
            }
#pragma unroll 1
            for (int tile = 1; tile < tiles; ++tile) {
                if (in_turns) take_turn(group);
                barrier_wait(block.keys_full(keys.buffer), keys.parity);
                pin(scores);
                pin(sums);
                issue_scores<D>(scores, own, block.keys(keys.buffer));
                barrier_wait(block.values_full(values.buffer), values.parity);
                if (is_half && tile == 1) issue_sums<D, KEYS / 2>(sums, weights, block.values(values.buffer));
                else issue_sums<D>(sums, weights, block.values(values.buffer));
                if (in_turns) give_turn(group + 1 == GROUPS ? 0 : group + 1);
                wgmma_wait<1>();
                pin(scores);
                release(block.keys_full(keys.buffer));
                keys.advance();
                float shrink[2];
                const bool has_moved = softmax.move(shrink, scores);
                softmax.exponentiate(scores);
                wgmma_wait<0>();
                pin(sums);
                release(block.values_full(values.buffer));
                values.advance();
                if (has_moved) {
#pragma unroll
                    for (int i = 0; i < D / 2; ++i) sums[i] *= shrink[i / 2 % 2];
                }
                pack(weights, scores);
            }
            barrier_wait(block.values_full(values.buffer), values.parity);
            pin(sums);
            if (is_half && tiles == 1) issue_sums<D, KEYS / 2>(sums, weights, block.values(values.buffer));
            else issue_sums<D>(sums, weights, block.values(values.buffer));
            wgmma_wait<0>();
            pin(sums);
            release(block.values_full(values.buffer));
            values.advance();
            group_sync(group);  // no warp's products read the queries any more
            const int column = unit % units.heads * D, first = first_query + threadIdx.x / WARP % GROUP_WARPS * 16;
            store<D>(out, sums, softmax.total, own, item, first, column, units.heads * D);
            publish();
            __syncwarp();
        }
        release(queries_full);
        queries.advance();
        item = next;
    }
}

template <class B> __device__ __forceinline__ void run(
    scalar* out, const TensorMap& qkv, const Units& units, float log2_scale, unsigned char* dynamic) {
    constexpr int GROUPS = B::GROUPS;
    const B block = {(shared_address(dynamic) + 1023) & ~1023u};
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        prefetch_map(qkv);
        for (int i = 0; i < B::BARRIERS; ++i) {
            barrier_init(block.queries_full(i), 1);
            barrier_init(block.queries_full(i) + EMPTY, B::RELEASES);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    if (group == GROUPS) {
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == GROUPS * GROUP_THREADS) produce(qkv, block, units);
    } else {
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(out, block, units, group, log2_scale);
    }
}

// sharing: heads that have the same keys.
#define LONG_ATTENTION(NAME, D, GROUPS, CAUSAL)                                                                   \
    extern "C" __global__ void __launch_bounds__(GROUP_THREADS*(GROUPS + 1), 1) NAME(                             \
        scalar* out, const __grid_constant__ TensorMap qkv, const int2* plan, unsigned items, unsigned heads,     \
        unsigned sharing, float log2_scale) {                                                                     \
        extern __shared__ unsigned char dynamic[];                                                                \
        run<Block<D, GROUPS, CAUSAL>>(out, qkv, {plan, items * heads, heads, sharing}, log2_scale, dynamic);      \
    }

LONG_ATTENTION(long_attention_64_128, 64, 2, false)
LONG_ATTENTION(long_attention_64_192, 64, 3, false)
LONG_ATTENTION(long_attention_128_128, 128, 2, false)
LONG_ATTENTION(causal_attention_64_128, 64, 2, true)
LONG_ATTENTION(causal_attention_128_128, 128, 2, true)
