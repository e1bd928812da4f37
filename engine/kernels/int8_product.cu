// out = act(x w' * scales of rows and columns + bias) of eight-bit integers, for many rows on Hopper: the product of
// wide_product.cu, with sums of integers, which are exact.
//
// Layout: x int8 [rows, depth], w int8 [width, depth], scales float32 [rows] and [width], bias [width] or null, out [rows,
//   width]; contiguous, width a multiple of 8, depth of 16. x, w and out come as tensor maps, in boxes of [128, 128],
//   [64, 128], [16, 64].
// Threads, shared memory and registers: as in wide_product.cu. A stage is 128 of the depth.
// Measured on an H200, 16,384 rows, beside cuBLAS in float16: 768 to 2,304 48 us (104), 3,072 to 768 53 us (107), 768 to
//   3,072 62 us (115), with the GELU 88 us (wide_product.cu: 129).

#ifndef ACTIVATION
#define ACTIVATION Gelu
#endif

constexpr int STAGE_DEPTH = 128;

struct Scales {
    const float* rows;
    const float* columns;
};

// row: the warp's first row of out.
__device__ __forceinline__ void finish(const TensorMap& out, const Scales& scales, const scalar* bias,
                                       const Sums<int>& sums, OutBuffers& buffers, int row, int column, int rows,
                                       int width) {
    const int lane = threadIdx.x % WARP;
    float of_row[2 * HALVES];
#pragma unroll
    for (int i = 0; i < 2 * HALVES; ++i) {
        const int at = row + 64 * (i / 2) + 8 * (i % 2) + lane / 4;
        of_row[i] = at < rows ? scales.rows[at] : 0.f;
    }
#pragma unroll
    for (int c = 0; c < BLOCK_COLUMNS / 64; ++c) {
        const int left = column + 64 * c;
        if (left >= width) break;
        float2 of_column[8];
        scalar2 shift[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int at = left + 8 * j + 2 * (lane % 4);
            of_column[j] = make_float2(0.f, 0.f);
            shift[j] = from_float2<scalar2>(of_column[j]);
            if (at < width) {
                of_column[j] = *reinterpret_cast<const float2*>(scales.columns + at);
                if (bias != nullptr) shift[j] = *reinterpret_cast<const scalar2*>(bias + at);
            }
        }
#pragma unroll
        for (int m = 0; m < HALVES; ++m) {
            unsigned packed[16];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float2 add = to_float2(shift[j]);
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float scale = of_row[2 * m + i / 2] * (i % 2 ? of_column[j].y : of_column[j].x);
                    v[i] = ACTIVATION::apply(
                        fmaf(__int2float_rn(sums.part[m][32 * c + 4 * j + i]), scale, i % 2 ? add.y : add.x));
                }
                packed[2 * j] = pack_pair(v[0], v[1]);
                packed[2 * j + 1] = pack_pair(v[2], v[3]);
            }
            buffers.store(out, packed, left, row + 64 * m, rows);
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    int8_product(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                 const __grid_constant__ TensorMap w, const Scales scales, const scalar* bias, int rows, int width,
                 int depth) {
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
            finish(out, scales, bias, sums, buffers, row, column, rows, width);
        });
    }
    __syncwarp();
    cluster_sync();  // the other block may still signal this one's barriers
}
