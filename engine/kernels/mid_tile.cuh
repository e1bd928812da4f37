// Tiles of mid_product.cu, which describes the layout, the threads and the ring: put before it as text.

#ifndef ACTIVATION
#define ACTIVATION Gelu
#endif

constexpr bool IS_GATED = HAS_GATE<ACTIVATION>;
constexpr int TURNED_DIM = DIM_OF<ACTIVATION>;  // 0: nothing is turned

constexpr int COLUMNS = 96, STAGE_DEPTH = 64;
constexpr int HALF = COLUMNS / 2, SIXTEENS = HALF / 16;
constexpr int OUT_COLUMNS = IS_GATED ? HALF : COLUMNS;
constexpr int BOXES = TURNED_DIM > 0 ? 2 * SIXTEENS : IS_GATED ? 2 : 1, BOX_ROWS = COLUMNS / BOXES;  // of w, of a stage
constexpr int ROW_BYTES = 2 * STAGE_DEPTH;
constexpr int GROUP_WARPS = 4, GROUP_ROWS = 64;
constexpr int OUT_PIECES = OUT_COLUMNS / VECTOR;      // of sixteen bytes, of a row of out
constexpr int OUT_PITCH = (OUT_PIECES | 1) * 16;  // odd, so that eight rows are in different banks
constexpr int OUT_BYTES = 16 * OUT_PITCH;         // of a warp

using Sums = float[COLUMNS / 2];

// The compiler may not move work on the sums across this.
__device__ __forceinline__ void pin(Sums& sums) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// A block's first row of out and its tile of columns, its first stage of the depth and how many it sums over.
struct Place {
    int row, tile;
    unsigned first, stages;
};

// Sixteen dimensions of a head's half, of which a tile has SIXTEENS.
struct Sixteen {
    static constexpr int OF_HALF = TURNED_DIM / 32;
    int head, first;

    __device__ __forceinline__ Sixteen(int tile, int i) {
        const int index = tile * SIXTEENS + i;
        head = index / max(OF_HALF, 1), first = 16 * (index % max(OF_HALF, 1));
    }
};

// The row of w that belongs to a tile's column: also the column of out, in the part of a tile that is stored. width: of
// out.
__device__ __forceinline__ int row_of(int tile, int column, int width) {
    const int half = column / HALF, rest = column % HALF;
    if constexpr (TURNED_DIM > 0) {
        const Sixteen sixteen(tile, rest / 16);
        return sixteen.head * TURNED_DIM + half * (TURNED_DIM / 2) + sixteen.first + rest % 16;
    }
    if constexpr (IS_GATED) return half * width + tile * HALF + rest;
    return tile * COLUMNS + column;
}

__device__ __forceinline__ void add_shift(Sums& sums, const scalar2* shift) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
        const float2 add = to_float2(shift[4 * j + threadIdx.x % 4]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * j + i] += i % 2 ? add.y : add.x;
    }
}

// Of each sum `value(index)` is written. staging: the warp's. row: the warp's first row of out.
template <typename Value>
__device__ __forceinline__ void store(scalar* out, unsigned char* staging, int row, int tile, int rows, int width,
                                      Value value) {
    const int lane = threadIdx.x % WARP;
    const unsigned to = shared_address(staging) + lane % 16 * OUT_PITCH + lane / 16 * 16;  // in a 16 x 16
#pragma unroll
    for (int j = 0; j < OUT_COLUMNS / 16; ++j) {
        unsigned packed[4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int i = 8 * j + 4 * k;
            packed[2 * k] = pack_pair(value(i), value(i + 1));
            packed[2 * k + 1] = pack_pair(value(i + 2), value(i + 3));
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(to + 32 * j), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3]) : "memory");
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * OUT_PIECES; i += WARP) {
        const int from_row = i / OUT_PIECES, piece = i % OUT_PIECES;
        const int at = row + from_row, left = row_of(tile, piece * VECTOR, width);
        const uint4 values = *reinterpret_cast<const uint4*>(staging + from_row * OUT_PITCH + piece * 16);
        if (at < rows && left < width) store_vector(out + (long long)at * width + left, values);
    }
}

template <int GROUPS, int STAGES> struct Tile {
    static constexpr int ROWS = GROUP_ROWS * GROUPS;
    static constexpr int X_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int WARPS = GROUPS * GROUP_WARPS;  // that multiply
    static constexpr int FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;
    static constexpr int BIAS_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static constexpr bool HAS_REGISTERS = GROUPS % 2;  // for more than the sums: see ENTRY's multiprocessors
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
                                                   const Place& at, int width, bool lets_next_late) {
        const auto load_w = [&](unsigned stage, unsigned i) {
            const unsigned full = base + FULL_OFFSET + 8 * stage, to = base + stage * STAGE_BYTES + X_BYTES;
            barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (int box = 0; box < BOXES; ++box)
                load_box(to + box * BOX_ROWS * ROW_BYTES, w, (at.first + i) * STAGE_DEPTH,
                         row_of(at.tile, box * BOX_ROWS, width), full);
        };
        for (unsigned i = 0; i < STAGES && i < at.stages; ++i) load_w(i, i);
#pragma unroll 1
        for (unsigned i = STAGES + blockIdx.y; i < at.stages; i += gridDim.y)
            for (int box = 0; box < BOXES; ++box)
                prefetch_box(w, (at.first + i) * STAGE_DEPTH, row_of(at.tile, box * BOX_ROWS, width));
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
