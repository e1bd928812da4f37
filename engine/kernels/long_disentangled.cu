// Disentangled self-attention of DeBERTa-v2/v3 over packed sequences for Hopper: disentangled_attention.cu's function (both
// position terms, D = 64) in long_attention.cu's shape, for sequences of some hundred tokens.
//
// Layout: qkv [R, 3H] and the relative embeddings kr and qr [P, H] as tensor maps in boxes of [64, 64], and out [R, H];
//   H = heads * D, 16-byte aligned. Row r of kr and qr is an eighth of the embedding of distance (query - key) r - P / 2,
//   P odd. Distances beyond have the embeddings of the last 64 rows on their side: a box further out reads those.
//   plan [items] of {first token of the sequence, length | query tile << 16}, heaviest first; length 0: no work, nor any
//   after it. A tile has 64 queries for each group that multiplies.
//
// Measured on an NVIDIA H200, float16, 12 heads, us, beside disentangled_attention: 16,384 tokens of 5-500 140 (215), of 512
//   157 (280), of 100-2,000 388 (719). Shares of the time, by leaving parts out, of 154 in a first version: c2p's way to the
//   scores 26, p2c's stores 30 and its loads 14. Slower or no faster: 128 queries a block; both p2c products as one of 128
//   columns; a sum of c2p and p2c in float16; all sixteen times eight columns of p2c stored; queries loaded a unit ahead and
//   p2c added before c2p is multiplied (147.6 us for 141.1 in one run). Out of registers: keys as left operands in registers,
//   p2c's product of the next tile during the softmax. Since then units come in the order of their cost, in rounds that run
//   backwards in turn: 135.7 us for 141.1 and 388 for 400 in one run, 5-500 and 100-2,000.
//
// Threads: a unit of work is an item and a head; blocks are persistent. Warpgroups 0 to GROUPS - 1 have 64 queries of the
//   tile each, and walk over the keys in tiles of 64, the first tile first. A thread of the last warpgroup starts the
//   copies, of the next unit too while one is finished.
//
// Distances: of 64 queries and 64 keys, both aligned, the distances are 127 of two boxes. Box b has 64 b - 63 to 64 b. With
//   a = (first query - first key) / 64 they are boxes a and a + 1, and the next tile of keys has a - 1 and a: each tile
//   brings one new box to each group, the lowest first to group 0. Column e in 0 to 127 of both boxes is distance
//   64 a - 63 + e, which queries i and keys j of the tile have where e = i - j + 63. Products of a group and a tile:
//     content [i, j] = Q K'; c2p [i, e] = Q Kr', of the new box alone, for the other was the tile's before; and
//     p2c [j, e] = K Qr', of both.
//   Columns of c2p move along their rows: within the four threads of a row by one shuffle each, of pairs of the rows g and
//   g + 8, whose distances agree eight keys on; which of the 128 columns a warp needs depends on its rows, so that there is
//   code for each of four warps. Columns of p2c are rows of the scores, so p2c goes through shared memory. Both terms are
//   rounded to float16, an eighth of them, as kr and qr are: the larger ones have room.
//
// Shared memory: a ring of boxes, each of kr and of qr; rings of keys and of values; a group's p2c. A copied row is 128 bytes,
//   swizzled. A barrier for each buffer that is full, and one for each that is empty: a box and the tile of keys and values
//   that comes with it are full together. Of a unit, the first GROUPS boxes come without keys.
//
// Fragments and softmax: as in long_attention.cu. Rows of keys beyond a sequence's end
//   are another's: their scores become minus infinity, and their values zero, since zero times NaN is NaN.

constexpr int D = 64, KEYS = 64, GROUPS = 3;
constexpr int BOXES = GROUPS + 4;  // GROUPS + 1 in use, and three to come
constexpr int STAGES = 3;          // of keys and values
constexpr int POSITION_ROW = 136;  // float16 of a key's row of p2c: eight rows begin four banks apart
constexpr float PART_OF_RELATIVE = 8.0f;  // of which kr and qr are one
constexpr float LARGEST_WEIGHT = 256.0f;  // two to the power of LARGEST_LOG2_WEIGHT

// A block's addresses in shared memory.
struct Block {
    static constexpr unsigned VALUES_AT = STAGES * BOX_BYTES, KR_AT = 2 * STAGES * BOX_BYTES;
    static constexpr unsigned QR_AT = KR_AT + BOXES * BOX_BYTES, POSITIONS_AT = QR_AT + BOXES * BOX_BYTES;
    static constexpr unsigned POSITION_BYTES = KEYS * POSITION_ROW * 2;
    static constexpr unsigned BARRIERS_AT = POSITIONS_AT + GROUPS * POSITION_BYTES;
    unsigned base;

    __device__ __forceinline__ unsigned keys(unsigned stage) const { return base + stage * BOX_BYTES; }
    __device__ __forceinline__ unsigned values(unsigned stage) const { return keys(stage) + VALUES_AT; }
    __device__ __forceinline__ unsigned kr(unsigned box) const { return base + KR_AT + box * BOX_BYTES; }
    __device__ __forceinline__ unsigned qr(unsigned box) const { return base + QR_AT + box * BOX_BYTES; }
    __device__ __forceinline__ unsigned full(unsigned box) const { return base + BARRIERS_AT + 8 * box; }
    __device__ __forceinline__ unsigned box_empty(unsigned box) const { return full(BOXES + box); }
    __device__ __forceinline__ unsigned tile_empty(unsigned stage) const { return full(2 * BOXES + stage); }
};

// Units of work, in rounds of gridDim.x, of which a block has one each. Every second round runs backwards: units come in the
// order of their cost, so that the first block would have the heaviest of every round.
struct Units {
    const int2* plan;
    unsigned count, heads;
    __device__ __forceinline__ int2 item(unsigned unit) const {
        return unit < count ? plan[unit / heads] : make_int2(0, 0);
    }
    // The block's.
    __device__ __forceinline__ unsigned of_round(unsigned round) const {
        return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
};

__device__ __forceinline__ void group_sync(unsigned group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP_THREADS) : "memory");
}

__device__ __forceinline__ void release(unsigned empty) {
    if (threadIdx.x % WARP == 0) barrier_arrive(empty);
}

// Releases the oldest box, and after the last tile all.
__device__ __forceinline__ void release_boxes(const Block& block, Ring<BOXES>& oldest, bool is_last) {
    const int count = is_last ? GROUPS + 1 : 1;
#pragma unroll 1
    for (int box = 0; box < count; ++box) {
        release(block.box_empty(oldest.buffer));
        oldest.advance();
    }
}

// Products

// sums [64, 64] += a [64, 16] b, b in shared memory: [64, 16]', or [16, 64] where TRANSPOSED is 1. With ADD 0 sums are
// overwritten.
#define MULTIPLY_64(TYPES, TRANSPOSED)                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" NAMES_32                          \
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, " #TRANSPOSED ";\n}\n"                             \
                 : LIST_32(sums, 0)                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define MULTIPLY_SHARED_64(TYPES)                                                                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" NAMES_32                          \
                 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                         \
                 : LIST_32(sums, 0)                                                                         \
                 : "l"(a), "l"(b), "r"(add))

__device__ __forceinline__ void multiply_rows(float (&sums)[32], const unsigned (&a)[4], unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY_64("f16.f16", 0);
    else MULTIPLY_64("bf16.bf16", 0);
}
__device__ __forceinline__ void multiply_columns(float (&sums)[32], const unsigned (&a)[4], unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY_64("f16.f16", 1);
    else MULTIPLY_64("bf16.bf16", 1);
}
__device__ __forceinline__ void multiply_shared(
    float (&sums)[32], unsigned long long a, unsigned long long b, int add) {
    if constexpr (IS_HALF<scalar>) MULTIPLY_SHARED_64("f16.f16");
    else MULTIPLY_SHARED_64("bf16.bf16");
}

// sums = queries [64, D] matrix [64, D]'.
__device__ __forceinline__ void issue_rows(float (&sums)[32], const unsigned (&queries)[D / 16][4], unsigned matrix) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) multiply_rows(sums, queries[k], operand(matrix) + k * 2, k);
}

// sums = a [64, D] b [64, D]'.
__device__ __forceinline__ void issue_shared(float (&sums)[32], unsigned a, unsigned b) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) multiply_shared(sums, operand(a) + k * 2, operand(b) + k * 2, k);
}

// sums += weights [64, KEYS] values [KEYS, D]. Sixteen rows of values are 2,048 bytes.
__device__ __forceinline__ void issue_sums(float (&sums)[32], const unsigned (&weights)[KEYS / 16][4], unsigned values) {
    const unsigned long long b = (operand(values) & ~(0x3fffull << 16)) | (1024ull >> 4) << 16;
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) multiply_columns(sums, weights[k], b + k * (16 * 128 >> 4), 1);
}

// Positions

__device__ __forceinline__ unsigned pack_halves(float low, float high) {
    const __half2 pair = __float22half2_rn(make_float2(low, high));
    return reinterpret_cast<const unsigned&>(pair);
}

// The skew of c2p, as each lane sees it. Element (g + 8 m, 8 n + 2 t + u) of a warp's scores, w the warp in its group, has
// column 8 (2 w + m - n + 7) + v of c2p with v = g - 2 t - u + 7: of eight columns, or the next eight ("carry") where v >= 8,
// number v % 8.
struct Skew {
    int source[2];   // by u: the lane that holds this lane's element
    bool carry[2];   // by u: whether the reader of this lane's element has a carry
    bool is_even;    // row g: the two columns of a lane go to their readers in the opposite order

    __device__ __forceinline__ Skew() {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        is_even = g % 2 == 0;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            source[u] = g * 4 + ((g - 2 * t - u + 7) & 7) / 2;
            const int own = 2 * t + ((g + u + 1) & 1);  // the column of this lane that readers with u want
            const int reader = ((g - u + 7 - own) >> 1) & 3;
            carry[u] = g - u + 7 - 2 * reader >= 8;
        }
    }
};

// Pairs of rows g and g + 8 at 64 distances: pairs[k][u] is the one of columns 8 k to 8 k + 7 that a reader with u wants.
struct Relations {
    unsigned pairs[8][2];

    __device__ __forceinline__ void set(const float (&sums)[32], const Skew& skew) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            unsigned word[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) word[e] = pack_halves(sums[4 * k + e], sums[4 * k + 2 + e]);
            pairs[k][0] = skew.is_even ? word[1] : word[0];
            pairs[k][1] = skew.is_even ? word[0] : word[1];
        }
    }
};

// Adds c2p to the scores of warp W of its group. low, high: of columns 0 to 63 and 64 to 127.
template <int W> __device__ __forceinline__ void add_c2p(
    float (&scores)[32], const Relations& low, const Relations& high, const Skew& skew) {
#pragma unroll
    for (int n = -1; n < 8; ++n) {
        const int plain = 2 * W - n + 7, next = plain + 1;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const unsigned near = plain < 8 ? low.pairs[plain % 8][u] : high.pairs[plain % 8][u];
            const unsigned far = next < 8 ? low.pairs[next % 8][u] : high.pairs[next % 8][u];
            const unsigned pair = __shfl_sync(FULL_MASK, skew.carry[u] ? far : near, skew.source[u]);
            const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
            if (n >= 0) scores[(n & 7) * 4 + u] = fmaf(both.x, PART_OF_RELATIVE, scores[(n & 7) * 4 + u]);
            if (n < 7) scores[(n + 1) * 4 + 2 + u] = fmaf(both.y, PART_OF_RELATIVE, scores[(n + 1) * 4 + 2 + u]);
        }
    }
}

// p2c of 64 distances, from box FIRST / 8 of the tile's on, to `to`: this thread's first key and distance. Warp W's keys need
// ten of the tile's sixteen times eight distances.
template <int W, int FIRST> __device__ __forceinline__ void store_p2c(__half* to, const float (&sums)[32]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        if (FIRST + k < 6 - 2 * W || FIRST + k > 15 - 2 * W) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *reinterpret_cast<unsigned*>(to + 8 * h * POSITION_ROW + 8 * (FIRST + k)) =
                pack_halves(sums[4 * k + 2 * h], sums[4 * k + 2 * h + 1]);
    }
}
template <int FIRST> __device__ __forceinline__ void store_p2c(__half* to, const float (&sums)[32], int warp) {
    switch (warp) {
        case 0: store_p2c<0, FIRST>(to, sums); break;
        case 1: store_p2c<1, FIRST>(to, sums); break;
        case 2: store_p2c<2, FIRST>(to, sums); break;
        default: store_p2c<3, FIRST>(to, sums);
    }
}

// from: p2c of this thread's first query and key.
__device__ __forceinline__ void add_p2c(float (&scores)[32], const __half* from) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int key = i / 4 * 8 + i % 2, query = i / 2 % 2 * 8;
        scores[i] = fmaf(__half2float(from[key * (POSITION_ROW - 1) + query]), PART_OF_RELATIVE, scores[i]);
    }
}

// Softmax

struct Softmax {
    float offset[2];  // of rows g and g + 8: added to scores in the exponent, minus the reference
    float total[2];   // of the weights, this thread's part
    float log2_scale;

    // The largest score of each row.
    static __device__ __forceinline__ void find_peaks(float (&peak)[2], const float (&scores)[32]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best[2] = {fmaxf(scores[2 * h], scores[2 * h + 1]), fmaxf(scores[4 + 2 * h], scores[5 + 2 * h])};
#pragma unroll
            for (int j = 2; j < 8; ++j)
                best[j % 2] = fmaxf(best[j % 2], fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
            peak[h] = fmaxf(best[0], best[1]);
        }
    }

    static __device__ __forceinline__ float of_row(float peak) {
        peak = fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 1));
        return fmaxf(peak, __shfl_xor_sync(FULL_MASK, peak, 2));
    }

    __device__ __forceinline__ void begin(const float (&scores)[32]) {
        float peak[2];
        find_peaks(peak, scores);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            offset[h] = -log2_scale * of_row(peak[h]);
            total[h] = 0.0f;
        }
    }

    // A row's reference moves, and what was summed with it, when a score exceeds it by too much.
    __device__ __forceinline__ void move(float (&sums)[32], const float (&scores)[32]) {
        float peak[2];
        find_peaks(peak, scores);
        const float excess = fmaxf(fmaf(peak[0], log2_scale, offset[0]), fmaf(peak[1], log2_scale, offset[1]));
        if (!__any_sync(FULL_MASK, excess > LARGEST_LOG2_WEIGHT)) return;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float top = of_row(peak[h]);
            const bool moves = fmaf(top, log2_scale, offset[h]) > LARGEST_LOG2_WEIGHT;
            const float lowered = moves ? -log2_scale * top : offset[h];
            const float shrink = exp2_approx(lowered - offset[h]);
            offset[h] = lowered;
            total[h] *= shrink;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                sums[4 * j + 2 * h] *= shrink;
                sums[4 * j + 2 * h + 1] *= shrink;
            }
        }
    }

    __device__ __forceinline__ void weigh(
        unsigned (&weights)[KEYS / 16][4], float (&part)[2], const float (&scores)[32]) const {
        float sum[2][2] = {};
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const int h = i / 2 % 2;
            const float first = exp2_approx(fmaf(scores[i], log2_scale, offset[h]));
            const float second = exp2_approx(fmaf(scores[i + 1], log2_scale, offset[h]));
            sum[h][0] += first;
            sum[h][1] += second;
            weights[i / 8][i / 2 % 4] = pack_pair(first, second);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) part[h] = sum[h][0] + sum[h][1];
    }
};

// Scores of keys from `count` on become minus infinity.
__device__ __forceinline__ void mask(float (&scores)[32], int count) {
    const int left = count - threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i)
        if (i / 4 * 8 + i % 2 >= left) scores[i] = MINUS_INFINITY;
}

// Rows of values from `count` on become zeros. By the threads of a group; other groups write the same.
__device__ __forceinline__ void clear(unsigned values, int count, unsigned group) {
    const int thread = threadIdx.x % GROUP_THREADS;
#pragma unroll 1
    for (int row = count + thread / 8; row < KEYS; row += GROUP_THREADS / 8)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(values + row * 128 + thread % 8 * 16), "r"(0)
                     : "memory");
    publish();
    group_sync(group);
}

// The copies of all units of a block, by one thread.
__device__ __forceinline__ void produce(
    const TensorMap& qkv, const TensorMap& kr, const TensorMap& qr, Block block, Units units, int distances) {
    const int hidden = units.heads * D;
    Ring<BOXES> boxes;
    Ring<STAGES> stages;
    int2 item = units.item(blockIdx.x);
#pragma unroll 1
    for (unsigned round = 0; length_of(item) != 0; ++round) {
        const unsigned unit = units.of_round(round);
        const int2 next = units.item(units.of_round(round + 1));
        const int column = unit % units.heads * D, tiles = (length_of(item) + KEYS - 1) / KEYS;
        const int length = length_of(item);
        for (int query = 0; query < GROUPS; ++query) {
            const int row = ((item.y >> 16) * GROUPS + query) * BOX;
            if (row < length) prefetch_box(qkv, column, item.x + row);
        }
        const int highest = (item.y >> 16) * GROUPS + GROUPS;  // box
#pragma unroll 1
        for (int load = 0; load < GROUPS + tiles; ++load) {
            const int tile = load - GROUPS;
            const unsigned full = block.full(boxes.buffer);
            barrier_wait(block.box_empty(boxes.buffer), boxes.parity ^ 1);
            barrier_expect(full, (tile < 0 ? 2 : 4) * BOX_BYTES);
            const int row = min(max((highest - load) * BOX - 63 + distances / 2, 0), distances - BOX);
            load_box(block.kr(boxes.buffer), kr, column, row, full);
            load_box(block.qr(boxes.buffer), qr, column, row, full);
            if (tile >= 0) {
                barrier_wait(block.tile_empty(stages.buffer), stages.parity ^ 1);
                const int first = item.x + tile * KEYS;
                load_box(block.keys(stages.buffer), qkv, hidden + column, first, full);
                load_box(block.values(stages.buffer), qkv, 2 * hidden + column, first, full);
                stages.advance();
            }
            boxes.advance();
        }
        item = next;
    }
}

// A warp's sixteen queries as left operands; zeros beyond the sequence. from: the first of them, of which `count` are.
__device__ __forceinline__ void load_queries(unsigned (&queries)[D / 16][4], const scalar* from, int count, int width) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int row = g + r % 2 * 8;
            const scalar* at = from + static_cast<size_t>(row) * width + k * 16 + t * 2 + r / 2 * 8;
            queries[k][r] = row < count ? *reinterpret_cast<const unsigned*>(at) : 0u;
        }
}

__device__ __forceinline__ void consume(
    scalar* out, const scalar* qkv, Block block, Units units, unsigned group, float log2_scale, unsigned char* dynamic) {
    const int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP % GROUP_WARPS, 0), lane = threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4, hidden = units.heads * D;
    const unsigned own = block.base + Block::POSITIONS_AT + group * Block::POSITION_BYTES;
    __half* const positions = reinterpret_cast<__half*>(dynamic + (own - shared_address(dynamic)));
    __half* const store_to = positions + (warp * 16 + g) * POSITION_ROW + 2 * t;
    const __half* const load_from = positions + 2 * t * (POSITION_ROW - 1) + warp * 16 + g + 63;
    const Skew skew;
    Relations low, high;
    float sums[32];
    unsigned queries[D / 16][4], weights[KEYS / 16][4];
    Softmax softmax;
    softmax.log2_scale = log2_scale;
    Ring<BOXES> newest, oldest;
    Ring<STAGES> stages;
    int2 item = units.item(blockIdx.x);
#pragma unroll 1
    for (unsigned round = 0; length_of(item) != 0; ++round) {
        const unsigned unit = units.of_round(round);
        const int2 next = units.item(units.of_round(round + 1));
        const int length = length_of(item), tiles = (length + KEYS - 1) / KEYS, column = unit % units.heads * D;
        const int first_query = ((item.y >> 16) * GROUPS + group) * BOX, row = first_query + warp * 16;
        const bool is_active = first_query < length;
        if (is_active)
            load_queries(queries, qkv + (static_cast<size_t>(item.x) + row) * 3 * hidden + column, length - row, 3 * hidden);
#pragma unroll 1
        for (int box = 0; box < GROUPS; ++box) {
            barrier_wait(block.full(newest.buffer), newest.parity);
            newest.advance();
        }
        if (is_active) {
            float relations[32];
            wgmma_fence();
            issue_rows(relations, queries, block.kr(newest.before(group + 1)));
            wgmma_commit();
            wgmma_wait<0>();
            pin(relations);
            low.set(relations, skew);
#pragma unroll
            for (int i = 0; i < 32; ++i) sums[i] = 0.0f;
        }
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            barrier_wait(block.full(newest.buffer), newest.parity);
            if (is_active) {
                const unsigned fresh = newest.before(group), last = newest.before(group + 1);
                const unsigned keys = block.keys(stages.buffer), values = block.values(stages.buffer);
                float near[32], far[32], relations[32], scores[32];
                high = low;
                wgmma_fence();
                issue_shared(far, keys, block.qr(last));
                wgmma_commit();
                group_sync(group);  // no warp reads the positions of the tile before
                wgmma_wait<0>();
                pin(sums);
                pin(far);
                if (tile != 0) release(block.tile_empty(stages.before(1)));
                wgmma_fence();
                issue_shared(near, keys, block.qr(fresh));
                wgmma_commit();
                store_p2c<8>(store_to, far, warp);
                wgmma_wait<0>();
                pin(near);
                wgmma_fence();
                issue_rows(scores, queries, keys);
                wgmma_commit();
                store_p2c<0>(store_to, near, warp);
                wgmma_fence();
                issue_rows(relations, queries, block.kr(fresh));
                wgmma_commit();
                group_sync(group);  // all positions are stored
                wgmma_wait<0>();
                pin(scores);
                pin(relations);
                release_boxes(block, oldest, tile + 1 == tiles);
                low.set(relations, skew);
                add_p2c(scores, load_from);
                switch (warp) {
                    case 0: add_c2p<0>(scores, low, high, skew); break;
                    case 1: add_c2p<1>(scores, low, high, skew); break;
                    case 2: add_c2p<2>(scores, low, high, skew); break;
                    default: add_c2p<3>(scores, low, high, skew);
                }
                const int count = length - tile * KEYS;
                if (count < KEYS) {
                    mask(scores, count);
                    clear(values, count, group);
                }
                if (tile == 0) softmax.begin(scores);
                float part[2];
                softmax.weigh(weights, part, scores);
                if (__any_sync(FULL_MASK, fmaxf(part[0], part[1]) > LARGEST_WEIGHT)) {
                    softmax.move(sums, scores);
                    softmax.weigh(weights, part, scores);
                }
                softmax.total[0] += part[0];
                softmax.total[1] += part[1];
                pin(sums);
                wgmma_fence();
                issue_sums(sums, weights, values);
                wgmma_commit();
            } else {
                release_boxes(block, oldest, tile + 1 == tiles);
                release(block.tile_empty(stages.buffer));
            }
            newest.advance();
            stages.advance();
        }
        if (is_active) {
            wgmma_wait<0>();
            pin(sums);
            release(block.tile_empty(stages.before(1)));
            group_sync(group);  // no warp reads positions any more
            store<D>(out, sums, softmax.total, own, item, row, column, hidden);
        }
        item = next;
    }
}

// distances: rows of kr and qr.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS*(GROUPS + 1), 1) long_disentangled(
    scalar* out, const scalar* from, const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap kr,
    const __grid_constant__ TensorMap qr, const int2* plan, unsigned items, unsigned heads, int distances,
    float log2_scale) {
    extern __shared__ unsigned char dynamic[];
    const Block block = {(shared_address(dynamic) + 1023) & ~1023u};
    const Units units = {plan, items * heads, heads};
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        prefetch_map(qkv);
        prefetch_map(kr);
        prefetch_map(qr);
        for (int i = 0; i < BOXES; ++i) {
            barrier_init(block.full(i), 1);
            barrier_init(block.box_empty(i), GROUPS * GROUP_WARPS);
        }
        for (int i = 0; i < STAGES; ++i) barrier_init(block.tile_empty(i), GROUPS * GROUP_WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == GROUPS * GROUP_THREADS) produce(qkv, kr, qr, block, units, distances);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        consume(out, from, block, units, group, log2_scale, dynamic);
    }
}
