// out = act(x w' + bias) for few rows, as in a forward of one request or a few. cuBLAS needs some five microseconds for
// such a product whatever its size, another launch for the activation, and one more if it splits the depth. Here weights
// are loaded before the previous kernel has ended, and the rest is in the epilogue.
//
// Layout: x [rows, depth], weight [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. With partials, float [gridDim.z, rows, width], those are written instead: block z
//   sums over its own `slice` of the depth, a multiple of 128, and adds no bias (residual_norm.cu adds the partials).
//
// Threads: a block computes a tile of BM rows and BN columns. Its depth comes in stages of 128 through a ring in shared
//   memory, filled by cp.async; a row of a stage is 256 bytes, whose sixteen-byte pieces are permuted by the row's last
//   four bits, so that ldmatrix finds eight rows in eight different banks. The warps are WM x WN x WK: WK of them share
//   a tile's depth, for the latency of one warp's loads and products dominates. Their sums are added in a fixed order in
//   shared memory, from which out is written sixteen bytes a thread.
//
// Programmatic launch: before the wait, a block loads its columns' weights: the first stages to shared memory, the rest
//   to L2. Most of a small product's time is loading weights, and no previous kernel writes those.
//
// Versions, 512 rows, 768 to 3,072 on an H200: 1. addresses computed for each stage, 18 us. 2. computed once, 13.7 us.
//   3. stages of 128 instead of 64, 5 to 10 % less for few rows. To try: x shared by a cluster, for more rows, whose
//   bound is L2.

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
    static constexpr int THREADS = WARP * WM * WN * WK;
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

    static __device__ __forceinline__ void run(scalar* out, float* partials, const scalar* x, const scalar* weight,
                                               const scalar* bias, int rows, int width, int depth, int slice,
                                               int kind) {
        extern __shared__ __align__(128) scalar shared[];
        const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        const int begin = blockIdx.z * slice, length = min(slice, depth - begin);
        const int stages = (length + STAGE_DEPTH - 1) / STAGE_DEPTH;
        const int first_row = blockIdx.y * BM, first_column = blockIdx.x * BN;
        const Share<BN, THREADS> of_weight(weight, first_column, width, depth, begin);
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i)
            if (i < stages) of_weight.load(ring + i * STAGE + BM * ROW_BYTES, i, length);
        for (int i = STAGES - 1; i < stages; ++i) of_weight.prefetch(i, length);
        const int column = threadIdx.x % (BN / VECTOR) * VECTOR, at_column = first_column + column;
        uint4 shift = make_uint4(0, 0, 0, 0);
        if (bias != nullptr && at_column < width) shift = load_vector(bias + at_column);
        const Share<BM, THREADS> of_x(x, first_row, rows, depth, begin);
        const Places places;
        wait_for_previous();

#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            if (i < stages) of_x.load(ring + i * STAGE, i, length);
            commit();
        }
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
        if (at_column >= width) return;
        for (int row = threadIdx.x / (BN / VECTOR); row < min(BM, rows - first_row); row += THREADS / (BN / VECTOR)) {
            float values[VECTOR] = {};
            pick_up(values, sums, row, column);
            const long long to = (long long)(first_row + row) * width + at_column;
            if (partials != nullptr) {
                float4* partial = reinterpret_cast<float4*>(partials + (long long)blockIdx.z * rows * width + to);
                partial[0] = make_float4(values[0], values[1], values[2], values[3]);
                partial[1] = make_float4(values[4], values[5], values[6], values[7]);
            } else {
                add_vector(values, shift);
                activate(kind, values);
                store_vector(out + to, pack_vector(values));
            }
        }
    }
};

#define ENTRY(BM, BN, WM, WN, WK, STAGES)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARP* WM* WN* WK) short_product_##BM##x##BN(                       \
        scalar* out, float* partials, const scalar* x, const scalar* weight, const scalar* bias, int rows, int width, \
        int depth, int slice, int kind) {                                                                           \
        Tile<BM, BN, WM, WN, WK, STAGES>::run(out, partials, x, weight, bias, rows, width, depth, slice, kind);     \
    }
ENTRY(32, 32, 2, 1, 4, 4)
ENTRY(64, 32, 2, 1, 4, 3)
ENTRY(64, 64, 2, 2, 2, 3)
