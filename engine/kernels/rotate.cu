// Rotary positions (Su et al. 2021) of the heads of queries and keys, in place; before them, where there are weights, an
// RMSNorm of each head. So attention reads queries and keys that are turned.
//
// Layout: qkv [rows, queries + 2 keys, dim], of which the heads of values stay as they are; positions int32 [rows];
//   cosines and sines float32 [any, dim / 2]; the norms' weights [dim], null for both or for neither. Dimension i of a
//   head is paired with i + dim / 2; dim is a multiple of 16. The arithmetic is float, rounded once.
// Threads: a warp a row. LANES of them, the least power of two, hold a head: eight dimensions of its first half and their
//   partners each, and their angles in registers for all heads. Four passes of heads are loaded at once.
// Versions: 1. this, in place of turning keys in the attention kernel for each 128 queries, which took 1.3 to 1.4 times the
//   time of plain attention.

constexpr int PASSES = 4;  // of heads, loaded at once

__device__ __forceinline__ void load_floats(float (&to)[VECTOR], const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// A head's norm, of which this lane has eight values and their partners: gammas of the first ones.
template <int LANES>
__device__ __forceinline__ void norm_head(float (&x)[VECTOR], float (&y)[VECTOR], const scalar* gamma, int dim,
                                          float eps, bool has_values) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) squares = fmaf(x[i], x[i], fmaf(y[i], y[i], squares));
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(FULL_MASK, squares, offset);
    const float scale = rsqrtf(squares / dim + eps);
    if (!has_values) return;
    multiply_vector(x, load_vector(gamma));
    multiply_vector(y, load_vector(gamma + dim / 2));
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) x[i] *= scale, y[i] *= scale;
}

template <int LANES>
__device__ __forceinline__ void rotate(scalar* qkv, const int* positions, const float* cosines, const float* sines,
                                       const Norm& query_norm, const Norm& key_norm, int rows, int queries, int keys,
                                       int dim) {
    wait_for_previous();
    constexpr int AT_ONCE = WARP / LANES;
    const int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    const int own = threadIdx.x % WARP / LANES, column = threadIdx.x % LANES * VECTOR, half = dim / 2;
    scalar* const heads = qkv + (long long)row * (queries + 2 * keys) * dim + column;
    const bool has_columns = column < half;
    float cosine[VECTOR] = {}, sine[VECTOR] = {};
    if (has_columns) {
        const long long angles = (long long)positions[row] * half + column;
        load_floats(cosine, cosines + angles);
        load_floats(sine, sines + angles);
    }
    for (int first = own; first < queries + keys + own; first += PASSES * AT_ONCE) {
        uint4 low[PASSES], high[PASSES];
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int head = first + pass * AT_ONCE;
            low[pass] = high[pass] = make_uint4(0, 0, 0, 0);
            if (has_columns && head < queries + keys) {
                low[pass] = load_vector(heads + head * dim);
                high[pass] = load_vector(heads + head * dim + half);
            }
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int head = first + pass * AT_ONCE;
            const bool has_values = has_columns && head < queries + keys;
            float x[VECTOR], y[VECTOR], turned[VECTOR];
            unpack_vector(low[pass], x);
            unpack_vector(high[pass], y);
            if (query_norm.gamma != nullptr) {
                const scalar* gamma = head < queries ? query_norm.gamma : key_norm.gamma;
                const float eps = head < queries ? query_norm.eps : key_norm.eps;
                norm_head<LANES>(x, y, gamma + column, dim, eps, has_values);
            }
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                turned[i] = x[i] * cosine[i] - y[i] * sine[i];
                y[i] = y[i] * cosine[i] + x[i] * sine[i];
            }
            if (has_values) {
                store_vector(heads + head * dim, pack_vector(turned));
                store_vector(heads + head * dim + half, pack_vector(y));
            }
        }
    }
}

#define ENTRY(LANES)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) rotate_##LANES(                                             \
        scalar* qkv, const int* positions, const float* cosines, const float* sines, const Norm query_norm,       \
        const Norm key_norm, int rows, int queries, int keys, int dim) {                                          \
        rotate<LANES>(qkv, positions, cosines, sines, query_norm, key_norm, rows, queries, keys, dim);            \
    }
ENTRY(2)
ENTRY(4)
ENTRY(8)
ENTRY(16)
