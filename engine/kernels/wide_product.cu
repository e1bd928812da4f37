// out = act(x w' + bias) for many rows: a persistent product for Hopper with the activation in the epilogue. cuBLAS has
// no epilogue for the exact GELU and others, which then cost a pass over the widest intermediate of a layer. Here one
// half of a block computes the activation while the other multiplies.
//
// Layout: x [rows, depth], w [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. x, w and out come as tensor maps (tensor_map.py), in boxes
//   of [128, 64], [64, 64], [16, 64].
//   ACTIVATION: a type of activations.cuh; or Gated<A> of one: out = A(x w' + bias) * (x g' + more), where g and `more`
//   follow w and bias in memory, as many rows again. A tile then has 64 columns of out: 64 of w and as many of g.
//   Or Turned<DIM>: heads of DIM columns, of which those of queries and keys are turned by their rows' angles.
//
// Threads: warpgroups 0 and 1 multiply (wgmma) tiles of 128 x 128 of their own, in turn: while one finishes its tile
//   (bias, activation, store) the other has the tensor cores. A thread of warpgroup 2 starts the copies of operands.
//   Two blocks of a cluster have adjacent tiles of the same columns and share w: each loads half of it for both. Tiles
//   are ordered columns first, so that x is read from memory once, and w stays in L2.
//
// Shared memory: a ring of stages of 64 of the depth, x then w, rows of 128 bytes, swizzled by the copy engine; two
//   buffers of [16, 64] of out for each warp that multiplies; two barriers a stage: full and empty.
//
// Registers (NVRTC and ptxas 12.9 and 13.0): 168 by the launch bound; setmaxnreg gives 240 to the warps that multiply
//   and 24 to the others; no spills. The eight products of a stage are issued in one batch.
//
// Versions: measured together on an H200, 16,384 x 768 to 3,072 with the GELU: 1. this, 143 us; 2. tiles of 128 x 192,
//   five stages, 150, without a cluster 144; 3. 64 x 256, 147; 4. both groups on one tile of 128 x 256, 171. cuBLAS and
//   the pass: 185; cuBLAS alone 129, this without the GELU 117. (On a warmer device cuBLAS alone takes 135 and this 153.)
//   To try: fewer instructions in the GELU, which is not entirely hidden. 5. gates, in place of activation.cu's pass.
//   6. rotary positions, in place of rotate.cu's.

#ifndef ACTIVATION
#define ACTIVATION Gelu
#endif

template <typename A> struct Gated : A {};
template <typename A> constexpr bool HAS_GATE = false;
template <typename A> constexpr bool HAS_GATE<Gated<A>> = true;

template <int DIM> struct Turned : Identity {};
template <typename A> constexpr int DIM_OF = 0;
template <int DIM> constexpr int DIM_OF<Turned<DIM>> = DIM;

constexpr bool IS_GATED = HAS_GATE<ACTIVATION>;
constexpr int TURNED_DIM = DIM_OF<ACTIVATION>;  // 0: nothing is turned

// Rotary positions, as in rotate.cu; nulls where nothing is turned. The first `width` columns of out are those of queries
// and keys.
struct Rotary {
    const int* positions;
    const float* cosines;
    const float* sines;
    int width;
};

constexpr int CLUSTER = 2;
constexpr int BLOCK_ROWS = 128, BLOCK_COLUMNS = 128, STAGE_DEPTH = 64, STAGES = 6;
constexpr int ROW_BYTES = 2 * STAGE_DEPTH;
constexpr int HALVES = BLOCK_ROWS / 64;  // products of 64 rows in a tile
constexpr int X_BYTES = BLOCK_ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + BLOCK_COLUMNS * ROW_BYTES;
constexpr int PART = BLOCK_COLUMNS / CLUSTER;  // rows of w that a block asks for; the second block's are of a gate
constexpr int OUT_COLUMNS = IS_GATED ? PART : BLOCK_COLUMNS;
constexpr int GROUP_WARPS = 4;
constexpr int RELEASES = GROUP_WARPS * CLUSTER;  // of a stage, before it is filled again
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

struct Sums {
    float part[HALVES][BLOCK_COLUMNS / 2];
};

// The compiler may not move work on the sums across this.
__device__ __forceinline__ void pin(Sums& sums) {
#pragma unroll
    for (int m = 0; m < HALVES; ++m)
#pragma unroll
        for (int i = 0; i < BLOCK_COLUMNS / 2; ++i) asm volatile("" : "+f"(sums.part[m][i])::"memory");
}

// A cluster's tiles are first, first + step, ...: columns of out first, so that rows of x are read once.
struct Tiles {
    unsigned count, across, blocks;  // in all; in a row of tiles; stages of the depth in each
    __device__ unsigned first() const { return blockIdx.x / CLUSTER; }
    __device__ unsigned step() const { return gridDim.x / CLUSTER; }
};

__device__ __forceinline__ void produce(const TensorMap& x, const TensorMap& w, unsigned base, Tiles tiles, int width) {
    unsigned stage = 0, phase = 0;
#pragma unroll 1
    for (unsigned tile = tiles.first(); tile < tiles.count; tile += tiles.step()) {
        const int row = (tile / tiles.across * CLUSTER + cluster_rank()) * BLOCK_ROWS;
        const int column = tile % tiles.across * OUT_COLUMNS + cluster_rank() * (IS_GATED ? width : PART);
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

// sums += bias, then queries and keys are turned, in float. Dimension i of a head and its partner, i + DIM / 2, are in the
// same thread: it has columns 8 j + 2 (lane % 4) and the next of a tile. row: the warp's first row of out.
template <int DIM>
__device__ __forceinline__ void turn(Sums& sums, const scalar* bias, const Rotary& rotary, int row, int column,
                                     int rows, int width) {
    static_assert(BLOCK_COLUMNS % DIM == 0 && DIM % 16 == 0, "heads are not divided");
    constexpr int STEPS = BLOCK_COLUMNS / 8, PAIRS = DIM / 16;  // of eight columns: of a tile, and of half a head
    const int lane = threadIdx.x % WARP, own = 2 * (lane % 4);
    if (bias != nullptr) {
        scalar2 shift[STEPS];  // loaded all at once
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            shift[j] = from_float2<scalar2>(make_float2(0.f, 0.f));
            if (column + 8 * j < width) shift[j] = *reinterpret_cast<const scalar2*>(bias + column + 8 * j + own);
        }
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const float2 add = to_float2(shift[j]);
#pragma unroll
            for (int i = 0; i < 4 * HALVES; ++i) sums.part[i / 4][4 * j + i % 4] += i % 2 ? add.y : add.x;
        }
    }
    if (column >= rotary.width) return;
#pragma unroll
    for (int i = 0; i < 2 * HALVES; ++i) {
        const int m = i / 2, pair = i % 2 * 2, at = row + 64 * m + 8 * (i % 2) + lane / 4;
        const long long angles = (long long)(at < rows ? rotary.positions[at] : 0) * (DIM / 2) + own;
        float2 cosine[PAIRS], sine[PAIRS];
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            cosine[j] = *reinterpret_cast<const float2*>(rotary.cosines + angles + 8 * j);
            sine[j] = *reinterpret_cast<const float2*>(rotary.sines + angles + 8 * j);
        }
#pragma unroll
        for (int first = 0; first < STEPS; first += 2 * PAIRS) {
            if (column + 8 * first >= rotary.width) break;
#pragma unroll
            for (int j = 0; j < 2 * PAIRS; ++j) {
                const float c = j % 2 ? cosine[j / 2].y : cosine[j / 2].x, s = j % 2 ? sine[j / 2].y : sine[j / 2].x;
                float& low = sums.part[m][4 * (first + j / 2) + pair + j % 2];
                float& high = sums.part[m][4 * (first + PAIRS + j / 2) + pair + j % 2];
                const float turned = low * c - high * s;
                high = high * c + low * s;
                low = turned;
            }
        }
    }
}

// out_shared: the warp's. row: the warp's first row of out.
__device__ __forceinline__ void finish(const TensorMap& out, const scalar* bias, Sums& sums, unsigned out_shared,
                                       int row, int column, int rows, int width, unsigned& buffer) {
    const int lane = threadIdx.x % WARP;
    const unsigned from = out_shared + (lane % 16) * ROW_BYTES;  // of a 16 x 16, to whose row it points
#pragma unroll
    for (int c = 0; c < OUT_COLUMNS / 64; ++c) {
        const int left = column + 64 * c;
        if (left >= width) break;
        scalar2 shift[8], gate_shift[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int at = left + 8 * j;
            shift[j] = gate_shift[j] = from_float2<scalar2>(make_float2(0.f, 0.f));
            if (bias != nullptr && at < width) {
                const scalar* own = bias + at + 2 * (lane % 4);
                shift[j] = *reinterpret_cast<const scalar2*>(own);
                if (IS_GATED) gate_shift[j] = *reinterpret_cast<const scalar2*>(own + width);
            }
        }
#pragma unroll
        for (int m = 0; m < HALVES; ++m) {
            unsigned packed[16];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 add = to_float2(shift[j]), more = to_float2(gate_shift[j]);
                    v[i] = ACTIVATION::apply(sums.part[m][32 * c + 4 * j + i] + (i % 2 ? add.y : add.x));
                    if (IS_GATED) v[i] *= sums.part[m][32 + 4 * j + i] + (i % 2 ? more.y : more.x);
                }
                packed[2 * j] = pack_pair(v[0], v[1]);
                packed[2 * j + 1] = pack_pair(v[2], v[3]);
            }
            if (lane == 0) store_wait_read<OUT_BUFFERS - 1>();
            __syncwarp();
            const unsigned offset = buffer * OUT_BYTES;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned to = from + offset + (((2 * j + lane / 16) ^ (lane % 8)) << 4);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                             "r"(packed[4 * j]), "r"(packed[4 * j + 1]), "r"(packed[4 * j + 2]), "r"(packed[4 * j + 3])
                             : "memory");
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
                if (row + 64 * m < rows) store_box(out, left, row + 64 * m, out_shared + offset);
                store_commit();
            }
            buffer = buffer + 1 == OUT_BUFFERS ? 0 : buffer + 1;
        }
    }
}

__device__ __forceinline__ void consume(const TensorMap& out, const scalar* bias, const Rotary& rotary, unsigned base,
                                        Tiles tiles, unsigned group, int rows, int width) {
    const int lane = threadIdx.x % WARP;
    const unsigned warp = threadIdx.x / WARP;
    const unsigned out_shared = base + OUT_OFFSET + warp * (OUT_BUFFERS * OUT_BYTES);
    const unsigned empty = lane < CLUSTER ? address_in(base + EMPTY_OFFSET, lane) : 0;  // the lane's block's
    Sums sums;
    unsigned buffer = 0;
    unsigned stage = 0, phase = 0;
    if (group == 1) {
        give_turn(0);
        skip(stage, phase, tiles.blocks);
    }
#pragma unroll 1
    for (unsigned tile = tiles.first() + group * tiles.step(); tile < tiles.count; tile += 2 * tiles.step()) {
        unsigned before = 0;
        take_turn(group);
        pin(sums);
#pragma unroll 1
        for (unsigned block = 0; block < tiles.blocks; ++block) {
            barrier_wait(base + FULL_OFFSET + 8 * stage, phase);
            const unsigned at = base + stage * STAGE_BYTES;
            const unsigned long long a = operand(at), b = operand(at + X_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STAGE_DEPTH / 16; ++k)
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
        const int row = (tile / tiles.across * CLUSTER + cluster_rank()) * BLOCK_ROWS + warp % GROUP_WARPS * 16;
        const int column = tile % tiles.across * OUT_COLUMNS;
        if constexpr (TURNED_DIM > 0) {
            turn<TURNED_DIM>(sums, bias, rotary, row, column, rows, width);
            finish(out, nullptr, sums, out_shared, row, column, rows, width, buffer);
        } else {
            finish(out, bias, sums, out_shared, row, column, rows, width, buffer);
        }
    }
    if (lane == 0) store_wait_read<0>();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    wide_product(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                 const __grid_constant__ TensorMap w, const scalar* bias, const Rotary rotary, int rows, int width,
                 int depth) {
    extern __shared__ unsigned char dynamic[];
    const unsigned base = (shared_address(dynamic) + 1023) & ~1023u;
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / (WARP * GROUP_WARPS), 0);
    const unsigned across = (width + OUT_COLUMNS - 1) / OUT_COLUMNS;
    constexpr int CLUSTER_ROWS = BLOCK_ROWS * CLUSTER;
    const unsigned down = (rows + CLUSTER_ROWS - 1) / CLUSTER_ROWS;
    const Tiles tiles = {down * across, across, (depth + STAGE_DEPTH - 1u) / STAGE_DEPTH};
    if (threadIdx.x == 0) {
        prefetch_map(x);
        prefetch_map(w);
        prefetch_map(out);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(base + FULL_OFFSET + 8 * i, 1);
            barrier_init(base + EMPTY_OFFSET + 8 * i, RELEASES);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    wait_for_previous();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 2 * WARP * GROUP_WARPS) produce(x, w, base, tiles, width);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(out, bias, rotary, base, tiles, group, rows, width);
    }
    __syncwarp();
    cluster_sync();  // the other block may still signal this one's barriers
}
