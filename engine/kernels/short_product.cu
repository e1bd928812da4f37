// out = act(x w' + bias) for few rows, as in a forward of one request or a few. cuBLAS needs some five microseconds for
// such a product whatever its size, another launch for the activation, and one more if it splits the depth. Here weights
// are loaded before the previous kernel has ended, and the rest is in the epilogue.
//
// Layout: x [rows, depth], weight [width, depth], bias [width] or null, out [rows, width]; contiguous, 16-byte aligned,
//   width and depth multiples of 8. With partials, float [gridDim.z, rows, width], those are written instead: block z
//   sums over its own `slice` of the depth, a multiple of 128, and adds no bias (residual_norm.cu adds the partials).
//
// Tiles: short_tile.cuh. Out is written sixteen bytes a thread.
//
// Versions, 512 rows, 768 to 3,072 on an H200: 1. addresses computed for each stage, 18 us. 2. computed once, 13.7 us.
//   3. stages of 128 instead of 64, 5 to 10 % less for few rows. To try: x shared by a cluster, for more rows, whose
//   bound is L2.

template <typename Tile>
__device__ __forceinline__ void short_product(scalar* out, float* partials, const scalar* x, const scalar* weight,
                                              const scalar* bias, int rows, int width, int depth, int slice,
                                              int kind) {
    constexpr int VECTORS = Tile::COLUMNS / VECTOR;  // of a row of the tile
    const int begin = blockIdx.z * slice, length = min(slice, depth - begin);
    const int first_row = blockIdx.y * Tile::ROWS, first_column = blockIdx.x * Tile::COLUMNS;
    const int column = threadIdx.x % VECTORS * VECTOR, at_column = first_column + column;
    uint4 shift = make_uint4(0, 0, 0, 0);
    const auto load_shift = [&] {
        if (bias != nullptr && at_column < width) shift = load_vector(bias + at_column);
    };
    const float* sums = Tile::accumulate(x, weight, first_row, rows, first_column, width, depth, begin, length,
                                         load_shift, [] {});
    if (at_column >= width) return;
    for (int row = threadIdx.x / VECTORS; row < min(Tile::ROWS, rows - first_row); row += Tile::THREADS / VECTORS) {
        float values[VECTOR] = {};
        Tile::pick_up(values, sums, row, column);
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

#define ENTRY(BM, BN, WM, WN, WK, STAGES)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARP* WM* WN* WK) short_product_##BM##x##BN(                       \
        scalar* out, float* partials, const scalar* x, const scalar* weight, const scalar* bias, int rows, int width, \
        int depth, int slice, int kind) {                                                                           \
        using Block = Tile<BM, BN, WM, WN, WK, STAGES>;                                                             \
        short_product<Block>(out, partials, x, weight, bias, rows, width, depth, slice, kind);                      \
    }
ENTRY(32, 32, 2, 1, 4, 4)
ENTRY(64, 32, 2, 1, 4, 3)
ENTRY(64, 64, 2, 2, 2, 3)
