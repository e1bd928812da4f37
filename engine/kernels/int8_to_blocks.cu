// out = act(x w' * scales + bias) * factors in eight-bit integers again, rotated in blocks of 128 columns (rotation.cuh),
// with one scale for each row and block: the rows that int8_blocks.cu multiplies. A tile is a block wide, so the
// epilogue has whole blocks in registers.
//
// Layout: x int8 [rows, depth], w int8 [width, depth], scales of x's rows float32 [rows], columns [width], out int8 [rows,
//   width], scales of blocks float32 [width / 128, rows]; contiguous, width a multiple of 128, depth of 16. x, w and out
//   come as tensor maps, in boxes of [128, 128], [64, 128], [16, 128].
// Threads, shared memory and registers: as in wide_product.cu. A stage is 128 of the depth.
// Versions: measured on an H200, 16,384 x 768 to 3,072 with the GELU: 1. scales, bias and factors from three arrays, 132 us;
//   2. this, 109, with the exact GELU 124. The epilogue bounds it: int8_product.cu takes 88 with the GELU and 62 without.
//   Tried: two warpgroups of 64 rows each in a group, for twice as many warps in the epilogue: 108.

#ifndef ACTIVATION
#define ACTIVATION GeluNear
#endif

constexpr int STAGE_DEPTH = 128;
constexpr int OWN = BLOCK_COLUMNS / 4;  // values of a row in a thread

struct alignas(8) Column {
    float scale;
    scalar bias, factor;
};

// A row's activations in the thread's columns, 8 j + 2 (lane % 4) and the next for each j, times the factors. sums: from
// the row's first, in steps of 4. columns: of the tile.
__device__ __forceinline__ void activate_row(float (&values)[OWN], const int* sums, float scale,
                                             const Column* columns) {
#pragma unroll
    for (int j = 0; j < OWN / 2; ++j) {
        const uint4 two = *reinterpret_cast<const uint4*>(columns + 8 * j + 2 * (threadIdx.x % 4));
        const float2 low = to_float2(reinterpret_cast<const scalar2&>(two.y));
        const float2 high = to_float2(reinterpret_cast<const scalar2&>(two.w));
        const float one = fmaf(__int2float_rn(sums[4 * j]), scale * __uint_as_float(two.x), low.x);
        const float other = fmaf(__int2float_rn(sums[4 * j + 1]), scale * __uint_as_float(two.z), high.x);
        values[2 * j] = ACTIVATION::apply(one) * low.y;
        values[2 * j + 1] = ACTIVATION::apply(other) * high.y;
    }
}

// A row's 128 values in four lanes.
__device__ __forceinline__ void rotate_quad(float (&values)[OWN]) {
#pragma unroll
    for (int half = 1; half < OWN; half *= 2)
#pragma unroll
        for (int j = 0; j < OWN; ++j)
            if (!(j & half)) {
                const float one = values[j], other = values[j | half];
                values[j] = one + other;
                values[j | half] = one - other;
            }
#pragma unroll
    for (int half = 1; half < 4; half *= 2) {
        const float sign = threadIdx.x & half ? -1.f : 1.f;
#pragma unroll
        for (int j = 0; j < OWN; ++j) values[j] = fmaf(values[j], sign, __shfl_xor_sync(FULL_MASK, values[j], half));
    }
}

// The scale of a row's values in four lanes.
__device__ __forceinline__ float scale_of(const float (&values)[OWN]) {
    float largest = 0.f;
#pragma unroll
    for (int j = 0; j < OWN; ++j) largest = max_nan(largest, fabsf(values[j]));
#pragma unroll
    for (int half = 1; half < 4; half *= 2) largest = max_nan(largest, __shfl_xor_sync(FULL_MASK, largest, half));
    return int8_scale(largest);
}

// The place 16 t + 4 q + 2 s + b of out is column 16 t + 8 s + 2 q + b, as thread q has four of them. row: the warp's first
// row of out. of_block: scales of the tile's block.
__device__ __forceinline__ void finish(const TensorMap& out, float* of_block, const float* of_rows,
                                       const Column* columns, const Sums<int>& sums, OutBuffers& buffers, int row,
                                       int column, int rows) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < HALVES; ++m) {
        buffers.open();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = row + 64 * m + 8 * i + lane / 4;
            float values[OWN];
            activate_row(values, sums.part[m] + 2 * i, at < rows ? of_rows[at] : 0.f, columns + column);
            rotate_quad(values);
            const float scale = scale_of(values), factor = 1.f / scale;
            if (lane % 4 == 0 && at < rows) of_block[at] = scale;
            unsigned packed[OWN / 4];
#pragma unroll
            for (int t = 0; t < OWN / 4; ++t) {
                float rounded[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) rounded[k] = fmaf(values[4 * t + k], factor, ROUND);
                packed[t] = pack_bytes(rounded[0], rounded[1], rounded[2], rounded[3]);
            }
            buffers.put(packed, 8 * i);
        }
        buffers.close(out, column, row + 64 * m, rows);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    int8_to_blocks(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                   const __grid_constant__ TensorMap w, float* of_blocks, const float* of_rows, const Column* columns,
                   int rows, int width, int depth) {
    extern __shared__ unsigned char dynamic[];
    const unsigned base = (shared_address(dynamic) + 1023) & ~1023u;
    const unsigned group = __shfl_sync(FULL_MASK, threadIdx.x / (WARP * GROUP_WARPS), 0);
    const Tiles tiles = tiles_of<BLOCK_COLUMNS>(rows, width, depth, STAGE_DEPTH);
    begin(x, w, out, base);
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 2 * WARP * GROUP_WARPS) produce<BLOCK_COLUMNS, STAGE_DEPTH>(x, w, base, tiles, PART);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        OutBuffers buffers(base);
        consume<BLOCK_COLUMNS, int>(base, tiles, group, [&](const Sums<int>& sums, int row, int column) {
            float* of_block = of_blocks + (long long)(column / BLOCK_COLUMNS) * rows;
            finish(out, of_block, of_rows, columns, sums, buffers, row, column, rows);
        });
    }
    __syncwarp();
    cluster_sync();  // the other block may still signal this one's barriers
}
