// out = act(x w' + bias) for up to 1,024 rows: a product for Hopper of one tile a block, with the activation in the
// epilogue, or in parts of the depth before a norm. A product of cuBLAS neither starts before the kernel before it has
// ended nor lets the next one start early, and an activation is a pass more.
//
// Layout: x [rows, depth], w [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. With partials, float [gridDim.z, rows, width], those are written instead: block z
//   sums over its own `slice` stages of the depth, and adds no bias (residual_norm.cu adds the partials).
//   x and w come as tensor maps (hopper.py), in boxes of [64 GROUPS, 64] and [BOX_ROWS, 64].
//   ACTIVATION: a type of activations.cuh or epilogues.cuh. The second half of a tile's columns are then the gates of
//   the first half, or its partners: dimensions i + DIM / 2 of sixteen i each. So both are in the same thread.
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
//   full: 9.4. 3. gates and rotary positions in the epilogue, in place of activation.cu's pass and rotate.cu's. A
//   ModernBERT of 50 tokens: 0.46 to 0.39 ms. To try: x and w exchanged, for tiles of any multiple of eight rows.

// The angles of a thread's sums, of both of its rows. row: the warp's first of out.
struct Angles {
    float2 cosine[2][HALF / 8], sine[2][HALF / 8];

    __device__ __forceinline__ Angles(const Rotary& rotary, int row, int tile, int rows) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = row + 8 * half + lane / 4;
            const long long angles = (long long)(at < rows ? rotary.positions[at] : 0) * (TURNED_DIM / 2);
#pragma unroll
            for (int j = 0; j < HALF / 8; ++j) {
                const long long from = angles + Sixteen(tile, j / 2).first + j % 2 * 8 + 2 * (lane % 4);
                cosine[half][j] = *reinterpret_cast<const float2*>(rotary.cosines + from);
                sine[half][j] = *reinterpret_cast<const float2*>(rotary.sines + from);
            }
        }
    }

    // Queries and keys are turned, in float.
    __device__ __forceinline__ void turn(Sums& sums, const Rotary& rotary, int tile) const {
#pragma unroll
        for (int j = 0; j < HALF / 8; ++j) {
            if (Sixteen(tile, j / 2).head * TURNED_DIM >= rotary.width) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 cosines = cosine[i / 2][j], sines = sine[i / 2][j];
                const float c = i % 2 ? cosines.y : cosines.x, s = i % 2 ? sines.y : sines.x;
                float &low = sums[4 * j + i], &high = sums[4 * j + COLUMNS / 4 + i];
                const float turned = low * c - high * s;
                high = high * c + low * s;
                low = turned;
            }
        }
    }
};

// The sums as they are. row: the warp's first row of out.
__device__ __forceinline__ void store_parts(float* partials, const Sums& sums, int row, int tile, int rows, int width) {
    const int lane = threadIdx.x % WARP, column = tile * COLUMNS;
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

template <typename Tile>
__device__ __forceinline__ void mid_product(const TensorMap& x, const TensorMap& w, scalar* out, float* partials,
                                            const scalar* bias, const Rotary& rotary, int rows, int width, int stages,
                                            int slice, bool lets_next_late) {
    extern __shared__ unsigned char dynamic[];
    const unsigned base = (shared_address(dynamic) + 1023) & ~1023u;
    unsigned char* ring = dynamic + (base - shared_address(dynamic));
    scalar* shift = reinterpret_cast<scalar*>(ring + Tile::BIAS_OFFSET);
    const unsigned first = blockIdx.z * slice;
    const Place at = {(int)blockIdx.y * Tile::ROWS, (int)blockIdx.x, first, min(slice, stages - first)};
    const int thread = threadIdx.x, producer = WARP * Tile::WARPS;
    if (thread == producer) {
        prefetch_map(x);
        prefetch_map(w);
        Tile::init(base);
    }
    if (thread < COLUMNS) {
        const int from = row_of(at.tile, thread, width);
        shift[thread] = bias != nullptr && from < (IS_GATED ? 2 : 1) * width ? bias[from] : scalar(0.f);
    }
    __syncthreads();
    if (thread >= producer) {
        if (thread == producer) Tile::produce(x, w, base, at, width, lets_next_late);
        return;
    }
    const int warp = thread / WARP, row = at.row + warp * 16;
    const unsigned group = __shfl_sync(FULL_MASK, thread / (WARP * GROUP_WARPS), 0);
    Sums sums;
    if constexpr (TURNED_DIM > 0 && Tile::HAS_REGISTERS) {
        wait_for_end_of_previous();
        const Angles angles(rotary, row, at.tile, rows);
        Tile::accumulate(sums, base, at.stages, group);
        add_shift(sums, reinterpret_cast<const scalar2*>(shift));
        angles.turn(sums, rotary, at.tile);
    } else {
        Tile::accumulate(sums, base, at.stages, group);
        wait_for_end_of_previous();  // it has, for x has been read
        if (partials == nullptr) add_shift(sums, reinterpret_cast<const scalar2*>(shift));
        if constexpr (TURNED_DIM > 0) Angles(rotary, row, at.tile, rows).turn(sums, rotary, at.tile);
    }
    if (lets_next_late) let_next_start();
    if (partials != nullptr) {
        store_parts(partials + (long long)blockIdx.z * rows * width, sums, row, at.tile, rows, width);
    } else {
        asm volatile("bar.sync 1, %0;" ::"n"(WARP * Tile::WARPS) : "memory");  // all warps have read the ring
        store(out, ring + warp * OUT_BYTES, row, at.tile, rows, width, [&](int i) {
            const float value = ACTIVATION::apply(sums[i]);
            return IS_GATED ? value * sums[i + COLUMNS / 4] : value;
        });
    }
}

// BLOCKS: how many a multiprocessor holds.
#define ENTRY(GROUPS, STAGES, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(WARP*(GROUP_WARPS * GROUPS + 1), BLOCKS) mid_product_##GROUPS(    \
        const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, scalar* out, float* partials,    \
        const scalar* bias, const Rotary rotary, int rows, int width, int stages, int slice, int lets_next_late) { \
        mid_product<Tile<GROUPS, STAGES>>(x, w, out, partials, bias, rotary, rows, width, stages, slice,           \
                                          lets_next_late != 0);                                                    \
    }
ENTRY(1, 10, 1)
ENTRY(2, 4, 2)
ENTRY(3, 5, 1)
ENTRY(4, 5, 1)
