// x = act(x + bias) in place, and out = act(x[:, :width]) * x[:, width:] (GeGLU, SwiGLU).
//
// Layout: x [rows, width], bias [width] or null; gated: out [rows, width], x [rows, 2 * width]. Contiguous, width a
//   multiple of 8.
// Threads: (x, y): x is a column vector of eight, kept with its bias in registers for all the rows of the thread; rows
//   are y, then a stride of the whole grid's rows. The loads of four rows are in flight before the first use.
// Versions: 1. this: some 16 float instructions an element for the exact GELU, hidden behind the memory accesses.
//   short_product.cu and wide_product.cu have the activation in the epilogue of a product.

constexpr int ROWS_IN_FLIGHT = 4;

template <typename Act>
__device__ __forceinline__ void bias_activation(scalar* x, const scalar* bias, long long rows, int width) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const uint4 shift = bias == nullptr ? make_uint4(0, 0, 0, 0) : load_vector(bias + column);
    const long long step = (long long)gridDim.y * blockDim.y;
    long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < rows; row += ROWS_IN_FLIGHT * step) {
        uint4 raw[ROWS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < ROWS_IN_FLIGHT; ++i)
            if (row + i * step < rows) raw[i] = load_vector(x + (row + i * step) * width + column);
#pragma unroll
        for (int i = 0; i < ROWS_IN_FLIGHT; ++i) {
            if (row + i * step < rows) {
                float values[VECTOR];
                unpack_vector(raw[i], values);
                add_vector(values, shift);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) values[j] = Act::apply(values[j]);
                store_vector(x + (row + i * step) * width + column, pack_vector(values));
            }
        }
    }
}

template <typename Act>
__device__ __forceinline__ void gated(scalar* out, const scalar* x, long long rows, int width) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const long long step = (long long)gridDim.y * blockDim.y;
    long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < rows; row += ROWS_IN_FLIGHT * step) {
        uint4 raw[ROWS_IN_FLIGHT], raw_gate[ROWS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < ROWS_IN_FLIGHT; ++i) {
            if (row + i * step < rows) {
                const scalar* source = x + (row + i * step) * 2 * width + column;
                raw[i] = load_vector_once(source);
                raw_gate[i] = load_vector_once(source + width);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS_IN_FLIGHT; ++i) {
            if (row + i * step < rows) {
                float values[VECTOR], gate[VECTOR];
                unpack_vector(raw[i], values);
                unpack_vector(raw_gate[i], gate);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) values[j] = Act::apply(values[j]) * gate[j];
                store_vector(out + (row + i * step) * width + column, pack_vector(values));
            }
        }
    }
}

#define ENTRIES(NAME, ACT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128) bias_activation_##NAME(scalar* x, const scalar* bias,      \
                                                                             long long rows, int width) {        \
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.y == 0) prefetch_weights(bias, width);               \
        wait_for_previous();                                                                                     \
        bias_activation<ACT>(x, bias, rows, width);                                                              \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) gated_##NAME(scalar* out, const scalar* x, long long rows, \
                                                                   int width) {                                  \
        wait_for_previous();                                                                                     \
        gated<ACT>(out, x, rows, width);                                                                         \
    }
ENTRIES(gelu, Gelu)
ENTRIES(gelu_tanh, GeluTanh)
ENTRIES(relu, Relu)
ENTRIES(silu, Silu)
ENTRIES(tanh, Tanh)
ENTRIES(quick_gelu, QuickGelu)
ENTRIES(gelu_10, Gelu10)
ENTRIES(identity, Identity)
