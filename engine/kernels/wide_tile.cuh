// Tiles of products of many rows, for Hopper alone: common to the persistent kernels of wide_product.cu and int8_*.cu.
// wide_product.cu describes the threads, the ring and the turns. Put before each of them as text.
//
// Operands are rows of 128 bytes, swizzled: 64 of the depth in float16 and bfloat16, 128 in int8.

constexpr int CLUSTER = 2;
constexpr int BLOCK_ROWS = 128, BLOCK_COLUMNS = 128, STAGES = 6;
constexpr int ROW_BYTES = 128;
constexpr int HALVES = BLOCK_ROWS / 64;  // products of 64 rows in a tile
constexpr int X_BYTES = BLOCK_ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + BLOCK_COLUMNS * ROW_BYTES;
constexpr int PART = BLOCK_COLUMNS / CLUSTER;  // rows of w that a block asks for
constexpr int GROUP_WARPS = 4, THREADS = 3 * WARP * GROUP_WARPS;
constexpr int RELEASES = GROUP_WARPS * CLUSTER;  // of a stage that one group reads in each block
constexpr int OUT_BYTES = 16 * ROW_BYTES, OUT_BUFFERS = 2;
constexpr int OUT_OFFSET = STAGES * STAGE_BYTES;
constexpr int FULL_OFFSET = OUT_OFFSET + 2 * GROUP_WARPS * OUT_BUFFERS * OUT_BYTES;
constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;

__device__ __forceinline__ unsigned address_in(unsigned address, unsigned rank) {
    unsigned result;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
    return result;
}

// `barrier`: an address in the cluster's window.
__device__ __forceinline__ void barrier_arrive_in(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A block's rank in its cluster.
__device__ __forceinline__ unsigned cluster_rank() { return blockIdx.x % CLUSTER; }

// All threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The turns of two groups to multiply: barrier 1 + g is group g's. A group misses the phases of the ring's barriers in
// the other's turn, and parity alone does not distinguish a phase from the one two before.

__device__ __forceinline__ void take_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void give_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}

// The copy engine

// To the same offset in every block of the cluster, signalled to the same barrier there.
__device__ __forceinline__ void load_box_for_all(unsigned to, const TensorMap& map, int column, int row,
                                                 unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
        : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int column, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(column), "r"(row), "r"(from) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Tensor cores

// Of float, or of int.
template <typename Sum> struct Sums {
    Sum part[HALVES][BLOCK_COLUMNS / 2];
};

// The compiler may not move work on the sums across these.
__device__ __forceinline__ void pin_value(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ __forceinline__ void pin_value(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }
template <typename Sum> __device__ __forceinline__ void pin(Sums<Sum>& sums) {
#pragma unroll
    for (int m = 0; m < HALVES; ++m)
#pragma unroll
        for (int i = 0; i < BLOCK_COLUMNS / 2; ++i) pin_value(sums.part[m][i]);
}

// A cluster's tiles are first, first + step, ...: columns of out first, so that rows of x are read once.
struct Tiles {
    unsigned count, across, blocks;  // in all; in a row of tiles; stages of the depth in each
    __device__ unsigned first() const { return blockIdx.x / CLUSTER; }
    __device__ unsigned step() const { return gridDim.x / CLUSTER; }
    // The first row and column of a tile of this block.
    __device__ int row(unsigned tile) const { return (tile / across * CLUSTER + cluster_rank()) * BLOCK_ROWS; }
    template <int COLUMNS> __device__ int column(unsigned tile) const { return tile % across * COLUMNS; }
};

// The tiles of products of `rows` rows to `width` columns.
template <int COLUMNS> __device__ __forceinline__ Tiles tiles_of(int rows, int width, int depth, int stage_depth) {
    constexpr int CLUSTER_ROWS = BLOCK_ROWS * CLUSTER;
    const unsigned across = (width + COLUMNS - 1) / COLUMNS;
    const unsigned down = (rows + CLUSTER_ROWS - 1) / CLUSTER_ROWS;
    return {down * across, across, (depth + stage_depth - 1u) / stage_depth};
}

// Where the ring begins.
__device__ __forceinline__ unsigned ring_address() {
    extern __shared__ unsigned char dynamic[];
    return (shared_address(dynamic) + 1023) & ~1023u;
}

// For all threads of the cluster, before anything else. releases: of a stage, before it is filled again.
__device__ __forceinline__ void begin(const TensorMap& x, const TensorMap& w, const TensorMap& out, unsigned base,
                                      int releases) {
    if (threadIdx.x == 0) {
        prefetch_map(x);
        prefetch_map(w);
        prefetch_map(out);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(base + FULL_OFFSET + 8 * i, 1);
            barrier_init(base + EMPTY_OFFSET + 8 * i, releases);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    wait_for_previous();
}

// One thread's. second: the row of w, of a tile of columns from 0, that the second block of a cluster begins with.
template <int COLUMNS, int STAGE_DEPTH>
__device__ __forceinline__ void produce(const TensorMap& x, const TensorMap& w, unsigned base, Tiles tiles, int second) {
    unsigned stage = 0, phase = 0;
#pragma unroll 1
    for (unsigned tile = tiles.first(); tile < tiles.count; tile += tiles.step()) {
        const int row = tiles.row(tile);
        const int column = tiles.column<COLUMNS>(tile) + cluster_rank() * second;
#pragma unroll 1
        for (unsigned block = 0; block < tiles.blocks; ++block) {
            const unsigned to = base + stage * STAGE_BYTES;
            const unsigned full = base + FULL_OFFSET + 8 * stage;
            barrier_wait(base + EMPTY_OFFSET + 8 * stage, phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
            load_box(to, x, block * STAGE_DEPTH, row, full);
            load_box_for_all(to + X_BYTES + cluster_rank() * PART * ROW_BYTES, w, block * STAGE_DEPTH, column, full);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

// The ring, `blocks` steps on.
__device__ __forceinline__ void skip(unsigned& stage, unsigned& phase, unsigned blocks) {
    const unsigned position = stage + blocks;
    stage = position % STAGES;
    phase ^= position / STAGES & 1;
}

// A group's tiles: prepare(sums, row, column), multiplied in its turn, then finish(sums, row, column): the warp's first row
// of out and the tile's first column. What `prepare` leaves in the sums does not count.
template <int COLUMNS, typename Sum, typename Prepare, typename Finish>
__device__ __forceinline__ void consume(unsigned base, Tiles tiles, unsigned group, Prepare prepare, Finish finish) {
    const int lane = threadIdx.x % WARP;
    const unsigned warp = threadIdx.x / WARP;
    const unsigned empty = lane < CLUSTER ? address_in(base + EMPTY_OFFSET, lane) : 0;  // the lane's block's
    Sums<Sum> sums;
    unsigned stage = 0, phase = 0;
    if (group == 1) {
        give_turn(0);
        skip(stage, phase, tiles.blocks);
    }
#pragma unroll 1
    for (unsigned tile = tiles.first() + group * tiles.step(); tile < tiles.count; tile += 2 * tiles.step()) {
        const int row = tiles.row(tile) + warp % GROUP_WARPS * 16, column = tiles.column<COLUMNS>(tile);
        unsigned before = 0;
        prepare(sums, row, column);
        take_turn(group);
        pin(sums);
#pragma unroll 1
        for (unsigned block = 0; block < tiles.blocks; ++block) {
            barrier_wait(base + FULL_OFFSET + 8 * stage, phase);
            const unsigned at = base + stage * STAGE_BYTES;
            const unsigned long long a = operand(at), b = operand(at + X_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < ROW_BYTES / 32; ++k)
#pragma unroll
                for (int m = 0; m < HALVES; ++m)
                    multiply(sums.part[m], a + m * (64 * ROW_BYTES >> 4) + k * 2, b + k * 2, block | k);
            wgmma_commit();
            wgmma_wait<1>();
            if (block > 0 && lane < CLUSTER) barrier_arrive_in(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        if (tile + tiles.step() < tiles.count) give_turn(1 - group);
        skip(stage, phase, tiles.blocks);  // the other group's
        wgmma_wait<0>();
        pin(sums);
        if (lane < CLUSTER) barrier_arrive_in(empty + 8 * before);
        finish(sums, row, column);
    }
    if (lane == 0) store_wait_read<0>();
}

// The COUNT buffers of a warp's 16 rows of 128 bytes of out, used in turn.
template <int COUNT = OUT_BUFFERS> struct OutBuffers {
    unsigned address;  // of the first, in shared memory
    unsigned next = 0;

    __device__ explicit OutBuffers(unsigned base)
        : address(base + OUT_OFFSET + threadIdx.x / WARP * (COUNT * OUT_BYTES)) {}

    // packed: matrices of 8 x 16 bytes of a warp, as stmatrix takes them: 16 rows, then the next 16 bytes of each.
    __device__ __forceinline__ void store(const TensorMap& out, const unsigned (&packed)[16], int column, int row,
                                          int rows) {
        const int lane = threadIdx.x % WARP;
        open();
        const unsigned offset = next * OUT_BYTES;
        const unsigned from = address + (lane % 16) * ROW_BYTES;  // of a 16 x 16, to whose row it points
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned to = from + offset + (((2 * j + lane / 16) ^ (lane % 8)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                         "r"(packed[4 * j]), "r"(packed[4 * j + 1]), "r"(packed[4 * j + 2]), "r"(packed[4 * j + 3])
                         : "memory");
        }
        close(out, column, row, rows);
    }

    // For a warp's 16 rows in other parts: `open`, then `put` eight rows at a time, then `close`.
    __device__ __forceinline__ void open() {
        if (threadIdx.x % WARP == 0) store_wait_read<COUNT - 1>();
        __syncwarp();
    }

    // packed: eight matrices of 8 x 16 bytes, side by side. first: 0 or 8.
    __device__ __forceinline__ void put(const unsigned (&packed)[8], int first) {
        const int lane = threadIdx.x % WARP;
        const unsigned from = address + next * OUT_BYTES + (first + lane % 8) * ROW_BYTES;
#pragma unroll
        for (int t = 0; t < 8; t += 4) {
            const unsigned to = from + (((t + lane / 8) ^ (lane % 8)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[t]),
                         "r"(packed[t + 1]), "r"(packed[t + 2]), "r"(packed[t + 3])
                         : "memory");
        }
    }

    __device__ __forceinline__ void close(const TensorMap& out, int column, int row, int rows) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % WARP == 0) {
            if (row < rows) store_box(out, column, row, address + next * OUT_BYTES);
            store_commit();
        }
        next = next + 1 == COUNT ? 0 : next + 1;
    }
};

// A kernel: multiply(base, tiles, group) is called by the two groups that multiply. releases: as in `begin`. second: as in
// `produce`.
template <int COLUMNS, int STAGE_DEPTH, typename Multiply>
__device__ __forceinline__ void run_groups(const TensorMap& out, const TensorMap& x, const TensorMap& w, Tiles tiles,
                                           int releases, int second, Multiply multiply) {
    const unsigned base = ring_address();
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / (WARP * GROUP_WARPS), 0);
    begin(x, w, out, base, releases);
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 2 * WARP * GROUP_WARPS) produce<COLUMNS, STAGE_DEPTH>(x, w, base, tiles, second);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply(base, tiles, group);
    }
    __syncwarp();
    cluster_sync();  // the other block may still signal this one's barriers
}
