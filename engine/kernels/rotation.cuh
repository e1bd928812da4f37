// Rows in eight-bit integers: rotated by a Hadamard matrix in blocks of 128, with one scale a row. As int8_linear.py does
// it on a CPU.

constexpr int ROTATED = 128;

// Sixteen lanes in a row have 128 columns, eight each. The factor 1 / sqrt(128) is left out.
__device__ __forceinline__ void rotate_vector(float (&values)[VECTOR]) {
#pragma unroll
    for (int half = 1; half < VECTOR; half *= 2)
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            if (!(j & half)) {
                const float one = values[j], other = values[j | half];
                values[j] = one + other;
                values[j | half] = one - other;
            }
#pragma unroll
    for (int half = 1; half < ROTATED / VECTOR; half *= 2) {
        const float sign = threadIdx.x & half ? -1.f : 1.f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            values[j] = fmaf(values[j], sign, __shfl_xor_sync(FULL_MASK, values[j], half));
    }
}

// The scale of values up to `largest`: 1 for zeros, NaN where a value is not finite, so that no result is.
__device__ __forceinline__ float int8_scale(float largest) {
    return largest == 0.f ? 1.f : largest <= 3.402823466e38f ? largest * (1.f / 127.f) : __int_as_float(0x7fffffff);
}

// 1.5 * 2^23: a small number added to it is rounded to even, in the lowest byte.
constexpr float ROUND = 12582912.f;

// The lowest bytes of four such sums, the first lowest.
__device__ __forceinline__ unsigned pack_bytes(float a, float b, float c, float d) {
    const unsigned low = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0040);
    const unsigned high = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0040);
    return __byte_perm(low, high, 0x5410);
}
