// Common to the attention kernels in tiles; put before each of them as text. Self-attention of packed sequences of any
// length: FlashAttention-2's forward pass (Dao 2023, algorithm 1), for lengths that are no multiples of any tile.
//
// Layout: qkv [R, 3, heads, D] and out [R, heads, D], D = 32, 64 or 128, 16-byte aligned, heads = gridDim.x; queries and
//   keys are turned already where positions are rotary.
//   plan [gridDim.y] of {first token of the sequence, length | query tile << 16}, heaviest first; length 0: no work.
//
// Threads: one CTA per item and head has up to 64 or 128 queries of a sequence, 16 M a warp, and loops over the
//   sequence's keys in tiles of 64 that cp.async loads through a ring of three: two tiles are being loaded while one is
//   used, and 128 tokens are loaded all at once. A warp processes 32 keys of a tile at a time without a mask, and the
//   rest of the last tile 16 at a time with one. Warps whose queries are all after the end only help to load; which
//   warps rotates with the head, so that no quarter of a multiprocessor idles more than another.
//
// Reasons: ldmatrix reads 128 bytes a cycle. At 16 queries a warp the keys and values of 16 x 8 scores (D = 64) take 64
//   cycles in all four quarters of a multiprocessor, more than the 32 to 52 of its tensor cores; at 32 queries, half of
//   that. Each CTA reads its keys and values from L2: 64 queries at 300 TFLOP/s need 4.7 TB/s, the whole bandwidth of L2;
//   128 need half. CTAs of 64 queries are for batches that do not fill the device: twice as many, half the time each.
//   The bounds of an iteration of 32 x 32 scores a warp (D = 64) are some 256 to 410 cycles of a quarter's tensor core
//   for 64 mma, 256 of its exponentials, and 250 of its issue slots, so three warps a quarter take turns.
//
// Fragments of mma.m16n8k16 (g = lane / 4, t = lane % 4): A holds rows g, g + 8 and B column g, both at k = 2t, 2t + 1,
//   2t + 8, 2t + 9; C holds rows g, g + 8 at columns 2t, 2t + 1. C of the scores is A of weights times values as it
//   stands. Rows of D lie in shared memory with their 16-byte chunks permuted by the row, so that the eight rows that
//   ldmatrix reads at once are in different banks; chunk 2i + b is at chunk b's address exclusive-or 32 i.
//
// Softmax: fp32, base 2. A row's reference moves only when a score exceeds it by more than 8 in the exponent, as in
//   short_attention.cu. Rows after the sequence's end are zeros in shared memory: no other sequence is read, and a row's
//   bits depend only on its own sequence.
//
// Kind: a struct of what a kernel does beside: Plain nothing; in Biased, scores begin with a bias of their distance; in
//   Windowed, queries see the keys near or before them, and may share heads of keys.

constexpr int KEYS = 64;   // of a tile
constexpr int STEP = 32;   // keys at a time
constexpr int STAGES = 3;  // tiles in the ring
constexpr float LARGEST_LOG2_WEIGHT = 8.0f;
constexpr float LARGEST_OFFSET = 1e30f;  // finite: infinities could cancel to NaN
#define MINUS_INFINITY __int_as_float(0xff800000)

// Instructions

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The CTA's item of the plan, read again at each call: it is not kept in registers.
__device__ __forceinline__ int2 load_item(const int2* plan) {
    int2 item;
    asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(item.x), "=r"(item.y) : "l"(plan + blockIdx.y));
    return item;
}

// The thread's index, for what is computed of it again instead of being kept in registers.
__device__ __forceinline__ int thread_again() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

// Copies 16 bytes, or reads nothing and writes 16 zero bytes when `valid` is false.
__device__ __forceinline__ void copy_async(unsigned to, const scalar* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of copies but the latest `PENDING`.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// Shared memory

template <int D> constexpr int ROW_BYTES = D * 2;
template <int D> constexpr int TILE_BYTES = KEYS * ROW_BYTES<D>;

// Offset of a row's 16-byte chunk.
template <int D> __device__ __forceinline__ unsigned place(unsigned row, unsigned chunk) {
    constexpr unsigned CHUNKS = D / 8;
    const unsigned swizzle = CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS;
    return row * ROW_BYTES<D> + (chunk ^ swizzle) * 16;
}

// A thread's share of rows: a chunk of one row in AT_ONCE.
template <int D, int THREADS> struct Share {
    static constexpr int CHUNKS = D / 8, AT_ONCE = THREADS / CHUNKS;
    static_assert(AT_ONCE % 8 == 0, "whole passes of one swizzle");
    const int row, chunk;

    explicit __device__ __forceinline__ Share(int thread) : row(thread / CHUNKS), chunk(thread % CHUNKS) {}

    // Starts to copy ROWS rows, `stride` elements apart; zeros replace those after the first `count`.
    // from: this thread's chunk of its first row.
    template <int ROWS> __device__ __forceinline__ void fetch(
        unsigned to, const scalar* from, int stride, int count) const {
        static_assert(ROWS % AT_ONCE == 0, "whole passes");
        to += place<D>(row, chunk);
#pragma unroll
        for (int i = 0; i < ROWS; i += AT_ONCE)
            copy_async(to + i * ROW_BYTES<D>, from + i * stride, row + i < count);
    }
};

// Kinds

struct Plain {
    static constexpr bool IS_BIASED = false, IS_WINDOWED = false;
};

struct Biased {
    static constexpr bool IS_BIASED = true, IS_WINDOWED = false;
    const float* bias;  // [heads, 2 reach + 1], over scale, by key - query + reach; the first and last 63 are constant
    int reach;

    // Copies the head's biases to `table`, in shared memory.
    template <int THREADS> __device__ __forceinline__ void stage(float* table) const {
        const int width = 2 * reach + 1;
        for (int i = threadIdx.x; i < width; i += THREADS) table[i] = bias[blockIdx.x * width + i];
    }

    // What the scores of `attend` begin with. The biases of a block lie on its diagonals.
    template <int M, int N> __device__ __forceinline__ void begin(
        float (&s)[M][N][4], const float* table, int difference) const {
        constexpr int BEFORE = 2 * M - 1;
        const int lane = threadIdx.x % WARP, near = min(max(difference, 31 - reach), reach - 31);
        const float* at = table + reach + near + lane % 4 * 2 - lane / 4;
        float of[BEFORE + N][2];
#pragma unroll
        for (int i = 0; i < 2 * (BEFORE + N); ++i) of[i / 2][i % 2] = at[8 * (i / 2 - BEFORE) + i % 2];
#pragma unroll
        for (int i = 0; i < 4 * M * N; ++i) {
            const int m = i / 4 / N, n = i / 4 % N, r = i % 4;
            s[m][n][r] = of[BEFORE + n - 2 * m - r / 2][r % 2];
        }
    }
};

struct Windowed {
    static constexpr bool IS_BIASED = false, IS_WINDOWED = true;
    int before, after;     // a query sees keys from `before` tokens before it to `after` tokens after it
    int reach;             // before + after
    int sharing;           // heads of queries that share one of keys
    int key_width, width;  // elements of a row's keys, and of the row: arguments, which take no registers

    // Of `queries` queries and `keys` keys, of which the first key is `place` tokens after the first that the first query
    // sees.
    __device__ __forceinline__ bool all_see_all(int queries, int keys, int place) const {
        return place >= queries - 1 && place + keys - 1 <= reach;
    }
    __device__ __forceinline__ bool any_sees_any(int queries, int keys, int place) const {
        return place + keys > 0 && place - queries < reach;
    }
    __device__ __forceinline__ bool sees(int place) const {
        return static_cast<unsigned>(place) <= static_cast<unsigned>(reach);
    }
};

// Arithmetic of a warp: 16 M queries. `queries`, `keys` and `values` are addresses of the row that this
// lane points ldmatrix to, at its first chunk: of lanes 8i .. 8i + 7 come the rows of matrix i.

template <int D, int M> struct Rows {
    unsigned query[M][D / 16][4];
    float output[M][D / 8][4];  // unnormalised
    float offset[M][2];         // of rows g and g + 8: added to scores in the exponent, minus the reference
    float total[M][2];          // of the weights, this lane's part
};

template <int D, int M> __device__ __forceinline__ void begin(Rows<D, M>& rows, unsigned queries) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < D / 16; ++i)
            load_matrices(rows.query[m][i], (queries ^ (32 * i)) + 16 * m * ROW_BYTES<D>);
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            rows.output[m][n][0] = rows.output[m][n][1] = rows.output[m][n][2] = rows.output[m][n][3] = 0.0f;
        rows.offset[m][0] = rows.offset[m][1] = LARGEST_OFFSET;
        rows.total[m][0] = rows.total[m][1] = 0.0f;
    }
}

// s[m][n][2 * half + e]: the score of query row 16m + g + 8 * half with key 8n + 2t + e, before scale.
template <int D, int M, int N> __device__ __forceinline__ void score(
    float (&s)[M][N][4], const Rows<D, M>& rows, unsigned keys) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned b[4];
            load_matrices(b, (keys ^ (32 * i)) + 8 * n * ROW_BYTES<D>);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply_add(s[m][n], rows.query[m][i], b[0], b[1]);
                multiply_add(s[m][n + 1], rows.query[m][i], b[2], b[3]);
            }
        }
    }
}

// peak: of each row, this lane's part.
template <int D, int M> __device__ __forceinline__ void raise_references(
    Rows<D, M>& rows, float (&peak)[M][2], float log2_scale) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            peak[m][h] = fmaxf(peak[m][h], __shfl_xor_sync(FULL_MASK, peak[m][h], 1));
            peak[m][h] = fmaxf(peak[m][h], __shfl_xor_sync(FULL_MASK, peak[m][h], 2));
            const float lowered = fminf(-log2_scale * peak[m][h], rows.offset[m][h]);
            const float shrink = exp2_approx(lowered - rows.offset[m][h]);
            rows.offset[m][h] = lowered;
            rows.total[m][h] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                rows.output[m][n][2 * h] *= shrink;
                rows.output[m][n][2 * h + 1] *= shrink;
            }
        }
    }
}

// s: scores before scale in, weights 2^(log2_scale s + offset) out.
template <int D, int M, int N> __device__ __forceinline__ void exponentiate(
    float (&s)[M][N][4], Rows<D, M>& rows, float log2_scale) {
    float peak[M][2], excess = MINUS_INFINITY;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            peak[m][h] = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < N; ++n) peak[m][h] = fmaxf(peak[m][h], fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            excess = fmaxf(excess, fmaf(peak[m][h], log2_scale, rows.offset[m][h]));
        }
    }
    if (__any_sync(FULL_MASK, excess > LARGEST_LOG2_WEIGHT)) raise_references(rows, peak, log2_scale);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                s[m][n][r] = exp2_approx(fmaf(s[m][n][r], log2_scale, rows.offset[m][r / 2]));
                rows.total[m][r / 2] += s[m][n][r];
            }
        }
    }
}

template <int D, int M, int N> __device__ __forceinline__ void accumulate(
    Rows<D, M>& rows, const float (&p)[M][N][4], unsigned values) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int r = 0; r < 4; ++r) a[m][r] = pack_pair(p[m][n + r / 2][r % 2 * 2], p[m][n + r / 2][r % 2 * 2 + 1]);
        }
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
            unsigned b[4];
            load_matrices_transposed(b, (values ^ (32 * i)) + 8 * n * ROW_BYTES<D>);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply_add(rows.output[m][2 * i], a[m], b[0], b[1]);
                multiply_add(rows.output[m][2 * i + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// 8 N keys, of which the first `count` are of the sequence where they are MASKED, and all where not; a window, too, is
// looked at only where MASKED. difference: of the first key and the warp's first query; in a window, of the
// first key and the first that this query sees.
template <int N, bool MASKED, int D, int M, typename Kind> __device__ __forceinline__ void attend(
    Rows<D, M>& rows, unsigned keys, unsigned values, float log2_scale, int count, const Kind& kind, const float* table,
    int difference) {
    float s[M][N][4] = {};
    if constexpr (Kind::IS_BIASED) kind.begin(s, table, difference);
    score(s, rows, keys);
    if constexpr (MASKED) {
        const unsigned thread = Kind::IS_WINDOWED ? thread_again() : threadIdx.x;
        const int column = thread % 4 * 2;
        difference += column - static_cast<int>(thread % WARP / 4);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    bool is_hidden = column + 8 * n + r % 2 >= count;
                    if constexpr (Kind::IS_WINDOWED)
                        is_hidden |= !kind.sees(difference + 8 * n + r % 2 - 16 * m - r / 2 * 8);
                    if (is_hidden) s[m][n][r] = MINUS_INFINITY;
                }
            }
        }
    }
    exponentiate(s, rows, log2_scale);
    accumulate(rows, s, values);
}

// Normalises the rows and stores those before the sequence's end, by way of `staging`, which held the warp's queries.
// first_query: the warp's, in its sequence.
template <int D, int M> __device__ __forceinline__ void store(
    Rows<D, M>& rows, unsigned char* staging, scalar* out, int2 item, int first_query) {
    constexpr int CHUNKS = D / 8, AT_ONCE = WARP / CHUNKS;
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float total = rows.total[m][h];
            total += __shfl_xor_sync(FULL_MASK, total, 1);
            total += __shfl_xor_sync(FULL_MASK, total, 2);
            const float factor = __fdividef(1.0f, total);
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                const float(&o)[4] = rows.output[m][n];
                *reinterpret_cast<unsigned*>(staging + place<D>(16 * m + 8 * h + g, n) + 4 * t) =
                    pack_pair(o[2 * h] * factor, o[2 * h + 1] * factor);
            }
        }
    }
    __syncwarp();
    const int hidden = gridDim.x * D, row = lane / CHUNKS, chunk = lane % CHUNKS;
    const int count = (item.y & 0xffff) - first_query;
    scalar* to = out + (static_cast<size_t>(item.x) + first_query + row) * hidden + blockIdx.x * D + chunk * VECTOR;
#pragma unroll
    for (int i = 0; i < 16 * M; i += AT_ONCE) {
        const uint4 piece = *reinterpret_cast<const uint4*>(staging + place<D>(row + i, chunk));
        if (row + i < count) store_vector(to + i * hidden, piece);
    }
}

// The warp's first query in the CTA.
template <int M, int WARPS> __device__ __forceinline__ int own_query(unsigned thread) {
    return (thread / WARP + blockIdx.x) % WARPS * 16 * M;
}

// One CTA, of 16 M queries a warp. QUERIES: of a full tile.
template <int D, int M, int WARPS, int QUERIES, typename Kind> __device__ __forceinline__ void run(
    scalar* out, const scalar* qkv, const int2* plan, float log2_scale, const Kind& kind) {
    constexpr int ROWS = 16 * M * WARPS, THREADS = WARP * WARPS;
    constexpr unsigned STAGE_BYTES = 2 * TILE_BYTES<D>, LAST_STAGE = (STAGES - 1) * STAGE_BYTES;
    extern __shared__ __align__(1024) unsigned char memory[];  // queries, the ring: keys, values; keys, ..., and biases
    int2 item = load_item(plan);
    const int length = item.y & 0xffff, first_query = (item.y >> 16) * QUERIES;
    const int hidden = gridDim.x * D;
    int key_width = hidden, stride = 3 * hidden, to_keys = hidden;  // from the columns of queries to those of their keys
    if constexpr (Kind::IS_WINDOWED) {
        key_width = kind.key_width;
        stride = kind.width;
        to_keys += (static_cast<int>(blockIdx.x) / kind.sharing - static_cast<int>(blockIdx.x)) * D;
    }
    const Share<D, THREADS> share(threadIdx.x);
    const scalar* from = qkv + (static_cast<size_t>(item.x) + share.row) * stride;
    from += blockIdx.x * D + share.chunk * VECTOR;
    const unsigned queries = shared_address(memory), ring = queries + ROWS * ROW_BYTES<D>;
    float* table = reinterpret_cast<float*>(memory + ROWS * ROW_BYTES<D> + STAGES * STAGE_BYTES);

    int first = 0, end = length;  // keys of the CTA
    if constexpr (Kind::IS_WINDOWED) {
        first = max(first_query - kind.before, 0) / KEYS * KEYS;
        end = min(first_query + ROWS + kind.after, length);
    }
    share.template fetch<ROWS>(queries, from + first_query * stride, stride, length - first_query);
    from += to_keys + first * stride;  // keys; values come `key_width` later
    const auto fetch_tile = [&](unsigned to, int count) {
        if (count > 0) {
            int step = stride;
            if constexpr (Kind::IS_WINDOWED) asm volatile("" : "+r"(step));  // its multiples are not kept in registers
            share.template fetch<KEYS>(to, from, step, count);
            share.template fetch<KEYS>(to + TILE_BYTES<D>, from + key_width, step, count);
        }
        from += KEYS * stride;
        commit_copies();  // an empty group counts too
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) fetch_tile(ring + i * STAGE_BYTES, end - first - i * KEYS);

    const int own = own_query<M, WARPS>(threadIdx.x);
    const bool active = first_query + own < length;
    Rows<D, M> rows;
    if constexpr (Kind::IS_BIASED) kind.template stage<THREADS>(table);
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    begin(rows, queries + own * ROW_BYTES<D> + place<D>(threadIdx.x % 16, threadIdx.x % WARP / 16));
    unsigned stage = 0;
    for (int left = end - first; left > 0; left -= KEYS) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // this tile has landed, and the buffer of the one before it is free
        fetch_tile(ring + (stage == 0 ? LAST_STAGE : stage - STAGE_BYTES), left - (STAGES - 1) * KEYS);
        const int lane = thread_again() % WARP;
        unsigned keys = ring + stage + place<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        unsigned values = ring + stage + TILE_BYTES<D> + place<D>(lane % 16, lane / 16);
        stage = stage == LAST_STAGE ? 0 : stage + STAGE_BYTES;
        int count = active ? min(left, KEYS) : 0, difference = end - left - first_query;
        if constexpr (Kind::IS_WINDOWED)
            difference += kind.before - own_query<M, WARPS>(thread_again());
        else
            difference -= own;
        const auto pass = [&](int passed) {
            count -= passed;
            keys += passed * ROW_BYTES<D>;
            values += passed * ROW_BYTES<D>;
            difference += passed;
        };
#pragma unroll 1
        while (count >= STEP) {
            if constexpr (Kind::IS_WINDOWED)
                if (!kind.all_see_all(16 * M, STEP, difference)) break;
            attend<STEP / 8, false>(rows, keys, values, log2_scale, STEP, kind, table, difference);
            pass(STEP);
        }
#pragma unroll 1
        while (count > 0) {
            bool is_seen = true;
            if constexpr (Kind::IS_WINDOWED) is_seen = kind.any_sees_any(16 * M, 16, difference);
            if (is_seen) attend<2, true>(rows, keys, values, log2_scale, count, kind, table, difference);
            pass(16);
        }
    }
    if (!active) return;
    item = load_item(plan);
    store(rows, memory + own * ROW_BYTES<D>, out, item, (item.y >> 16) * QUERIES + own);
}

// A tile that is at most half full, the last of its sequence, is divided among all warps too: half as many queries
// each, and half the time.
template <int D, int WARPS, int QUERIES, typename Kind> __device__ __forceinline__ void start(
    scalar* out, const scalar* qkv, const int2* plan, float log2_scale, const Kind& kind) {
    constexpr int M = QUERIES / (16 * WARPS);
    const int2 item = load_item(plan);
    const int length = item.y & 0xffff;
    if (length == 0) return;
    if (M == 2 && length - (item.y >> 16) * QUERIES <= QUERIES / 2)
        run<D, 1, WARPS, QUERIES>(out, qkv, plan, log2_scale, kind);
    else
        run<D, M, WARPS, QUERIES>(out, qkv, plan, log2_scale, kind);
}

// CTAS: how many should fit on a multiprocessor, which bounds the registers. Each kernel has an entry for each of these.
#define FOR_EACH_TILE(ENTRY)                                                      \
    ENTRY(32, 64, 4, 4) ENTRY(32, 128, 4, 4) ENTRY(64, 64, 4, 4)                  \
    ENTRY(64, 128, 4, 3) ENTRY(128, 64, 4, 2) ENTRY(128, 128, 8, 1)
