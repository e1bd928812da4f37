// out = act(x w' + bias) for some hundred rows: a product for Hopper of one tile a block, with the activation in the
// epilogue, or in parts of the depth before a norm. A product of cuBLAS neither starts before the kernel before it has
// ended nor lets the next one start early, and an activation is a pass more.
//
// Layout: x [rows, depth], w [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. With partials, float [gridDim.z, rows, width], those are written instead: block z
//   sums over its own `slice` stages of the depth, and adds no bias (residual_norm.cu adds the partials).
//   x and w come as tensor maps (hopper.py), in boxes of [64 GROUPS, 64] and [COLUMNS, 64].
//
// Threads: each of GROUPS warpgroups multiplies (wgmma) 64 rows of the tile; a thread of one more warp starts the copies
//   of operands. The host takes as few groups as make tiles for all multiprocessors at once (mid_product.py).
//
// Shared memory: a ring of STAGES of 64 of the depth, x then w, rows of 128 bytes, swizzled by the copy engine; two
//   barriers a stage, full and empty; the tile's bias. Out takes the ring's place at last, to be written sixteen bytes a
//   thread.
//
// Programmatic launch: before the wait, the ring is filled with weights and the rest brought to L2, each block of a column
//   of tiles its share: when each brought all, a depth of 3,072 took 2 us more. The next kernel may start early too, or,
//   with `lets_next_late`, after the sums: attention that starts early is crowded on the few multiprocessors that this
//   product does not fill.
//
// Versions, on an H200, with the launch before or after it, us: 1. tiles of 64 x 64 to 256 x 128, with and without
//   clusters. 512 x 768 to 3,072 with the GELU: 10.8 with 128 x 128, cuBLAS and the pass 12.0. Clusters gained nothing
//   below 1,024 rows. 2. columns of 96, which divide the widths of most models so that 132 multiprocessors are nearly
//   full: 9.4. To try: x and w exchanged, for tiles of any multiple of eight rows.

#ifndef ACTIVATION
#define ACTIVATION Gelu
#endif

constexpr int COLUMNS = 96, STAGE_DEPTH = 64;
constexpr int ROW_BYTES = 2 * STAGE_DEPTH;
constexpr int GROUP_WARPS = 4, GROUP_ROWS = 64;
constexpr int OUT_PIECES = COLUMNS / VECTOR;      // of sixteen bytes, of a row of out
constexpr int OUT_PITCH = (OUT_PIECES | 1) * 16;  // odd, so that eight rows are in different banks
constexpr int OUT_BYTES = 16 * OUT_PITCH;         // of a warp

using Sums = float[COLUMNS / 2];

// The compiler may not move work on the sums across this.
__device__ __forceinline__ void pin(Sums& sums) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// A block's first row and column of out, its first stage of the depth and how many it sums over.
struct Place {
    int row, column;
    unsigned first, stages;
};

// staging: the warp's. row: the warp's first row of out.
__device__ __forceinline__ void finish(scalar* out, const scalar2* shift, const Sums& sums, unsigned char* staging,
                                       int row, int column, int rows, int width) {
    const int lane = threadIdx.x % WARP;
    const unsigned to = shared_address(staging) + lane % 16 * OUT_PITCH + lane / 16 * 16;  // in a 16 x 16
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j) {
        unsigned packed[4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float2 add = to_float2(shift[8 * j + 4 * k + lane % 4]);
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                v[i] = ACTIVATION::apply(sums[8 * j + 4 * k + i] + (i % 2 ? add.y : add.x));
            packed[2 * k] = pack_pair(v[0], v[1]);
            packed[2 * k + 1] = pack_pair(v[2], v[3]);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(to + 32 * j), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3]) : "memory");
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * OUT_PIECES; i += WARP) {
        const int from_row = i / OUT_PIECES, piece = i % OUT_PIECES;
        const int at = row + from_row, left = column + piece * VECTOR;
        const uint4 values = *reinterpret_cast<const uint4*>(staging + from_row * OUT_PITCH + piece * 16);
        if (at < rows && left < width) store_vector(out + (long long)at * width + left, values);
    }
}

// The sums as they are. row: the warp's first row of out.
__device__ __forceinline__ void store_parts(float* partials, const Sums& sums, int row, int column, int rows,
                                            int width) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half + lane / 4;
        if (at >= rows) break;
        float* to = partials + (long long)at * width + column + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
            if (column + 8 * j < width)
                *reinterpret_cast<float2*>(to + 8 * j) =
                    make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
    }
}

template <int GROUPS, int STAGES> struct Tile {
    static constexpr int ROWS = GROUP_ROWS * GROUPS;
    static constexpr int X_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int WARPS = GROUPS * GROUP_WARPS;  // that multiply
    static constexpr int FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;
    static constexpr int BIAS_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static_assert(WARPS * OUT_BYTES <= FULL_OFFSET, "out fits into the ring");

    // One thread.
    static __device__ __forceinline__ void init(unsigned base) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(base + FULL_OFFSET + 8 * i, 1);
            barrier_init(base + EMPTY_OFFSET + 8 * i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // One thread. See wait_for_previous in common.cuh.
    static __device__ __forceinline__ void produce(const TensorMap& x, const TensorMap& w, unsigned base,
                                                   const Place& at, bool lets_next_late) {
        const auto load_w = [&](unsigned stage, unsigned i) {
            const unsigned full = base + FULL_OFFSET + 8 * stage;
            barrier_expect(full, STAGE_BYTES);
            load_box(base + stage * STAGE_BYTES + X_BYTES, w, (at.first + i) * STAGE_DEPTH, at.column, full);
        };
        for (unsigned i = 0; i < STAGES && i < at.stages; ++i) load_w(i, i);
#pragma unroll 1
        for (unsigned i = STAGES + blockIdx.y; i < at.stages; i += gridDim.y)
            prefetch_box(w, (at.first + i) * STAGE_DEPTH, at.column);
        if (!lets_next_late) let_next_start();
        wait_for_end_of_previous();
        unsigned stage = 0, phase = 0;
#pragma unroll 1
        for (unsigned i = 0; i < at.stages; ++i) {
            if (i >= STAGES) {
                barrier_wait(base + EMPTY_OFFSET + 8 * stage, phase ^ 1);
                load_w(stage, i);
            }
            const unsigned full = base + FULL_OFFSET + 8 * stage;
            load_box(base + stage * STAGE_BYTES, x, (at.first + i) * STAGE_DEPTH, at.row, full);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }

    static __device__ __forceinline__ void accumulate(Sums& sums, unsigned base, unsigned stages, unsigned group) {
        const bool releases = threadIdx.x % WARP == 0;
        unsigned stage = 0, phase = 0, before = 0;
        pin(sums);
#pragma unroll 1
        for (unsigned i = 0; i < stages; ++i) {
            barrier_wait(base + FULL_OFFSET + 8 * stage, phase);
            const unsigned at = base + stage * STAGE_BYTES;
            const unsigned long long a = operand(at + group * (GROUP_ROWS * ROW_BYTES)), b = operand(at + X_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STAGE_DEPTH / 16; ++k) multiply(sums, a + k * 2, b + k * 2, i | k);
            wgmma_commit();
            wgmma_wait<1>();
            if (i > 0 && releases) barrier_arrive(base + EMPTY_OFFSET + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        pin(sums);
    }
};

template <typename Tile>
__device__ __forceinline__ void mid_product(const TensorMap& x, const TensorMap& w, scalar* out, float* partials,
                                            const scalar* bias, int rows, int width, int stages, int slice,
                                            bool lets_next_late) {
    extern __shared__ unsigned char dynamic[];
    const unsigned base = (shared_address(dynamic) + 1023) & ~1023u;
    unsigned char* ring = dynamic + (base - shared_address(dynamic));
    scalar* shift = reinterpret_cast<scalar*>(ring + Tile::BIAS_OFFSET);
    const unsigned first = blockIdx.z * slice;
    const Place at = {(int)blockIdx.y * Tile::ROWS, (int)blockIdx.x * COLUMNS, first, min(slice, stages - first)};
    const int thread = threadIdx.x, producer = WARP * Tile::WARPS;
    if (thread == producer) {
        prefetch_map(x);
        prefetch_map(w);
        Tile::init(base);
    }
    if (thread < COLUMNS)
        shift[thread] = bias != nullptr && at.column + thread < width ? bias[at.column + thread] : scalar(0.f);
    __syncthreads();
    if (thread >= producer) {
        if (thread == producer) Tile::produce(x, w, base, at, lets_next_late);
        return;
    }
    Sums sums;
    Tile::accumulate(sums, base, at.stages, __shfl_sync(FULL_MASK, thread / (WARP * GROUP_WARPS), 0));
    wait_for_end_of_previous();  // it has, for x has been read
    if (lets_next_late) let_next_start();
    const int warp = thread / WARP, row = at.row + warp * 16;
    if (partials != nullptr) {
        store_parts(partials + (long long)blockIdx.z * rows * width, sums, row, at.column, rows, width);
    } else {
        asm volatile("bar.sync 1, %0;" ::"n"(WARP * Tile::WARPS) : "memory");  // all warps have read the ring
        finish(out, reinterpret_cast<const scalar2*>(shift), sums, ring + warp * OUT_BYTES, row, at.column, rows,
               width);
    }
}

// BLOCKS: how many a multiprocessor holds.
#define ENTRY(GROUPS, STAGES, BLOCKS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARP*(GROUP_WARPS * GROUPS + 1), BLOCKS) mid_product_##GROUPS(        \
        const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, scalar* out, float* partials,        \
        const scalar* bias, int rows, int width, int stages, int slice, int lets_next_late) {                          \
        mid_product<Tile<GROUPS, STAGES>>(x, w, out, partials, bias, rows, width, stages, slice, lets_next_late != 0); \
    }
ENTRY(1, 10, 1)
ENTRY(2, 4, 2)
ENTRY(3, 5, 1)
ENTRY(4, 5, 1)
