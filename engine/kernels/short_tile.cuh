// Tiles of products of few rows, for kernels that differ in what they do with the sums: short_product.cu, short_lstm.cu.
// Put before each of them as text.
//
// Threads: a block computes a tile of BM rows and BN columns. Its depth comes in stages of 128 through a ring in shared
//   memory, filled by cp.async; a row of a stage is 256 bytes, whose sixteen-byte pieces are permuted by the row's last
//   four bits, so that ldmatrix finds eight rows in eight different banks. The warps are WM x WN x WK: WK of them share
//   a tile's depth, for the latency of one warp's loads and products dominates. Their sums are added in a fixed order in
//   shared memory.
//
// Programmatic launch: before the wait, a block loads its columns' weights: the first stages to shared memory, the rest
//   to L2. Most of a small product's time is loading weights, and no previous kernel writes those.

constexpr int STAGE_DEPTH = 128;
constexpr int ROW_BYTES = STAGE_DEPTH * sizeof(scalar);  // of a stage
constexpr int PIECE_BYTES = VECTOR * sizeof(scalar);
constexpr int PIECES = STAGE_DEPTH / VECTOR;  // of a row of a stage

// 16 bytes to shared memory; zeros, and nothing read, if not `inside`.
__device__ __forceinline__ void copy_async(unsigned to, const scalar* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(from) : "memory");
}

// Offset of a piece of a stage's row, in bytes.
__device__ __forceinline__ unsigned at(unsigned row, unsigned piece) {
    return row * ROW_BYTES + (piece ^ row % PIECES) * PIECE_BYTES;
}

// A thread's share of ROWS rows of a matrix [num_rows, depth], which go to shared memory stage by stage: one piece of a
// row, and of the rows THREADS / PIECES further each.
template <int ROWS, int THREADS> struct Share {
    static constexpr int STEP = THREADS / PIECES, COUNT = (ROWS + STEP - 1) / STEP;
    const scalar* from;  // of stage 0
    unsigned to;         // from the beginning of a stage, bytes
    int rows, depth, piece;

    // The rows from `first_row` on; stage 0 begins at column `begin`.
    __device__ __forceinline__ Share(const scalar* matrix, int first_row, int num_rows, int depth, int begin)
        : to(at(threadIdx.x / PIECES, threadIdx.x % PIECES)), depth(depth), piece(threadIdx.x % PIECES) {
        const int row = threadIdx.x / PIECES;
        from = matrix + (long long)(first_row + row) * depth + begin + piece * VECTOR;
        rows = min(ROWS, num_rows - first_row) - row;  // beyond the thread's first
    }

    // `length` columns from stage 0 on are there, and the rest is zero.
    __device__ __forceinline__ void load(unsigned stage, int i, int length) const {
        const bool inside = i * STAGE_DEPTH + piece * VECTOR < length;
#pragma unroll
        for (int p = 0; p < COUNT; ++p)
            if (ROWS % STEP == 0 || threadIdx.x / PIECES + p * STEP < ROWS)
                copy_async(stage + to + p * STEP * ROW_BYTES, from + (long long)(p * STEP) * depth + i * STAGE_DEPTH,
                           inside && p * STEP < rows);
    }

    // The same, only as far as L2.
    __device__ __forceinline__ void prefetch(int i, int length) const {
        if (piece % (PIECES / 2) != 0) return;  // a line has 128 bytes
        if (i * STAGE_DEPTH + piece * VECTOR >= length) return;
#pragma unroll
        for (int p = 0; p < COUNT; ++p)
            if (p * STEP < rows)
                asm volatile("prefetch.global.L2 [%0];"
                             : : "l"(from + (long long)(p * STEP) * depth + i * STAGE_DEPTH));
    }
};

template <int BM, int BN, int WM, int WN, int WK, int STAGES> struct Tile {
    static constexpr int ROWS = BM, COLUMNS = BN, PARTS = WK, THREADS = WARP * WM * WN * WK;
    static constexpr int TM = BM / WM, TN = BN / WN;  // of a warp
    static constexpr int STEPS = STAGE_DEPTH / 16 / WK;  // products of depth 16 that a warp does in a stage
    static constexpr unsigned STAGE = (BM + BN) * ROW_BYTES;  // rows of x, then of the weight
    static constexpr int PITCH = BN + 4;  // of the sums in shared memory, floats
    static_assert(TM % 16 == 0 && TN % 16 == 0 && STEPS > 0 && WK * BM * PITCH * 4 <= STAGES * STAGE);

    // Offsets of a warp's operands in a stage: by steps, for its first 16 rows and columns.
    struct Places {
        unsigned a[STEPS], b[STEPS];

        __device__ __forceinline__ Places() {
            const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
            const unsigned row = warp % WM * TM + lane % 16, column = warp / WM % WN * TN + lane % 8 + lane / 16 * 8;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                const unsigned piece = (warp / (WM * WN) * STEPS + i) * 2;
                a[i] = at(row, piece + lane / 16);
                b[i] = BM * ROW_BYTES + at(column, piece + lane / 8 % 2);
            }
        }
    };

    // sum [TM, TN] += x stage times weight stage, this warp's part.
    static __device__ __forceinline__ void multiply(float (&sum)[TM / 16][TN / 8][4], unsigned stage,
                                                    const Places& places) {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            unsigned a[TM / 16][4], b[TN / 16][4];
#pragma unroll
            for (int m = 0; m < TM / 16; ++m) load_matrices(a[m], stage + places.a[i] + m * 16 * ROW_BYTES);
#pragma unroll
            for (int n = 0; n < TN / 16; ++n) load_matrices(b[n], stage + places.b[i] + n * 16 * ROW_BYTES);
#pragma unroll
            for (int n = 0; n < TN / 16; ++n) {
#pragma unroll
                for (int m = 0; m < TM / 16; ++m) {
                    multiply_add(sum[m][2 * n], a[m], b[n][0], b[n][1]);
                    multiply_add(sum[m][2 * n + 1], a[m], b[n][2], b[n][3]);
                }
            }
        }
    }

    // Every warp's sums to shared memory, [WK, BM, PITCH].
    static __device__ __forceinline__ void lay_down(float* sums, const float (&sum)[TM / 16][TN / 8][4]) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const int row = warp / (WM * WN) * BM + warp % WM * TM + lane / 4;
        const int column = warp / WM % WN * TN + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < TM / 16; ++m) {
#pragma unroll
            for (int n = 0; n < TN / 8; ++n) {
                float* to = sums + (row + 16 * m) * PITCH + column + 8 * n;
                *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
                *reinterpret_cast<float2*>(to + 8 * PITCH) = make_float2(sum[m][n][2], sum[m][n][3]);
            }
        }
    }

    // Adds a vector of the tile's sums, over WK.
    static __device__ __forceinline__ void pick_up(float (&values)[VECTOR], const float* sums, int row, int column) {
#pragma unroll
        for (int k = 0; k < WK; ++k) {
            const float4* from = reinterpret_cast<const float4*>(sums + (k * BM + row) * PITCH + column);
            add_floats(values, from[0], from[1]);
        }
    }

    // The sums of the tile at `first_row` and `first_column`, over `length` columns of the depth from `begin` on, which
    // every warp leaves in shared memory: [WK, BM, PITCH]. `before` and `after` issue the epilogue's own loads before the
    // wait for the previous kernel, weights alone, and after it.
    template <typename Before, typename After>
    static __device__ __forceinline__ const float* accumulate(const scalar* x, const scalar* weight, int first_row,
                                                              int rows, int first_column, int width, int depth,
                                                              int begin, int length, Before before, After after) {
        extern __shared__ __align__(128) scalar shared[];
        const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        const int stages = (length + STAGE_DEPTH - 1) / STAGE_DEPTH;
        const Share<BN, THREADS> of_weight(weight, first_column, width, depth, begin);
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i)
            if (i < stages) of_weight.load(ring + i * STAGE + BM * ROW_BYTES, i, length);
        for (int i = STAGES - 1; i < stages; ++i) of_weight.prefetch(i, length);
        before();
        const Share<BM, THREADS> of_x(x, first_row, rows, depth, begin);
        const Places places;
        wait_for_previous();

#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            if (i < stages) of_x.load(ring + i * STAGE, i, length);
            commit();
        }
        after();
        float sum[TM / 16][TN / 8][4] = {};
        unsigned filled = ring + (STAGES - 1) * STAGE, used = ring;
        for (int i = 0; i < stages; ++i) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();
            if (i + STAGES - 1 < stages) {
                of_x.load(filled, i + STAGES - 1, length);
                of_weight.load(filled + BM * ROW_BYTES, i + STAGES - 1, length);
            }
            commit();
            multiply(sum, used, places);
            filled = used;
            used = used == ring + (STAGES - 1) * STAGE ? ring : used + STAGE;
        }
        __syncthreads();
        float* sums = reinterpret_cast<float*>(shared);
        lay_down(sums, sum);
        __syncthreads();
        return sums;
    }
};
