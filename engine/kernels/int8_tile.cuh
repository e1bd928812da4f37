// Scales of products of eight-bit integers on Hopper: common to int8_product.cu and int8_blocks.cu, put before each as
// text.

constexpr int STAGE_DEPTH = 128;

// Two columns of out. factor: that of the product that takes them.
struct alignas(16) ColumnPair {
    float2 scale;
    __half2 bias, factor;
};

struct Scales {
    const float* rows;  // of x, or of its blocks
    float* blocks;      // of out, or null
    const ColumnPair* columns;
};

// The values of two sums. of_row: the row's scale, or 1.
__device__ __forceinline__ float2 scaled(float one, float other, float of_row, const ColumnPair& pair) {
    const float2 bias = __half22float2(pair.bias);
    return make_float2(fmaf(one, of_row * pair.scale.x, bias.x), fmaf(other, of_row * pair.scale.y, bias.y));
}
