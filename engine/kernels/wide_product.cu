// out = act(x w' + bias) for many rows: a persistent product for Hopper with the activation in the epilogue. cuBLAS has
// no epilogue for the exact GELU and others, which then cost a pass over the widest intermediate of a layer. Here one
// half of a block computes the activation while the other multiplies.
//
// Layout: x [rows, depth], w [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. x, w and out come as tensor maps (tensor_map.py), in boxes
//   of [128, 64], [64, 64], [16, 64].
//   ACTIVATION: a type of activations.cuh or epilogues.cuh. With a gate a tile has 64 columns of out: 64 of w and as many
//   of g.
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

constexpr bool IS_GATED = HAS_GATE<ACTIVATION>;
constexpr int TURNED_DIM = DIM_OF<ACTIVATION>;  // 0: nothing is turned

constexpr int STAGE_DEPTH = 64;
constexpr int OUT_COLUMNS = IS_GATED ? PART : BLOCK_COLUMNS;

// sums += bias, then queries and keys are turned, in float. Dimension i of a head and its partner, i + DIM / 2, are in the
// same thread: it has columns 8 j + 2 (lane % 4) and the next of a tile. row: the warp's first row of out.
template <int DIM>
__device__ __forceinline__ void turn(Sums<float>& sums, const scalar* bias, const Rotary& rotary, int row, int column,
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

// row: the warp's first row of out.
__device__ __forceinline__ void finish(const TensorMap& out, const scalar* bias, const Sums<float>& sums,
                                       OutBuffers<>& buffers, int row, int column, int rows, int width) {
    const int lane = threadIdx.x % WARP;
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
            buffers.store(out, packed, left, row + 64 * m, rows);
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    wide_product(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                 const __grid_constant__ TensorMap w, const scalar* bias, const Rotary rotary, int rows, int width,
                 int depth) {
    const Tiles tiles = tiles_of<OUT_COLUMNS>(rows, width, depth, STAGE_DEPTH);
    const auto multiply = [&](unsigned base, Tiles own, unsigned group) {
        OutBuffers<> buffers(base);
        const auto end = [&](Sums<float>& sums, int row, int column) {
            if constexpr (TURNED_DIM > 0) turn<TURNED_DIM>(sums, bias, rotary, row, column, rows, width);
            finish(out, TURNED_DIM > 0 ? nullptr : bias, sums, buffers, row, column, rows, width);
        };
        consume<OUT_COLUMNS, float>(base, own, group, [](Sums<float>&, int, int) {}, end);
    };
    run_groups<OUT_COLUMNS, STAGE_DEPTH>(out, x, w, tiles, RELEASES, IS_GATED ? width : PART, multiply);
}
