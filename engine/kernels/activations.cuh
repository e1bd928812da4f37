// The activations, one value at a time, in float.

// GELU(x) = x Phi(x) = max(x, 0) - t Phi(-t) with t = |x|: no cancellation for negative x, so the tail keeps its relative
// accuracy. log2 Phi(-t) is smooth on [0, 13.2], beyond which the result is zero in either type. This is its minimax
// polynomial, weighted by the resolution of half precision. It is within 1 ulp of the exact GELU for every half and
// bfloat16 value, except that results below 2^-122 may be 0.
struct Gelu {
    static __device__ __forceinline__ float apply(float x) {
        const float t = min_nan(fabsf(x), 13.2f);
        float log2_phi = -2.162036105701759e-09f;
        log2_phi = fmaf(log2_phi, t, 1.551860009385564e-07f);
        log2_phi = fmaf(log2_phi, t, -4.886070200882386e-06f);
        log2_phi = fmaf(log2_phi, t, 8.941019768826663e-05f);
        log2_phi = fmaf(log2_phi, t, -0.0010666047455742955f);
        log2_phi = fmaf(log2_phi, t, 0.008878285996615887f);
        log2_phi = fmaf(log2_phi, t, -0.054503485560417175f);
        log2_phi = fmaf(log2_phi, t, -0.45807889103889465f);
        log2_phi = fmaf(log2_phi, t, -1.1513527631759644f);
        log2_phi = fmaf(log2_phi, t, -0.9999909996986389f);
        return fmaf(-t, exp2_approx(log2_phi), max_nan(x, 0.f));
    }
};

// 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3); the constants carry -2 log2(e).
struct GeluTanh {
    static __device__ __forceinline__ float apply(float x) {
        return __fdividef(x, 1.f + exp2_approx(x * fmaf(-0.1029432397f, x * x, -2.302208198f)));
    }
};

struct Silu {
    static __device__ __forceinline__ float apply(float x) {
        return __fdividef(x, 1.f + exp2_approx(-1.442695041f * x));
    }
};

struct Relu {
    static __device__ __forceinline__ float apply(float x) { return max_nan(x, 0.f); }
};

struct Tanh {
    static __device__ __forceinline__ float apply(float x) { return tanhf(x); }
};

// x sigmoid(1.702 x)
struct QuickGelu {
    static __device__ __forceinline__ float apply(float x) {
        return __fdividef(x, 1.f + exp2_approx(-2.455466957f * x));
    }
};

// GELU within [-10, 10]; it is never below -0.17.
struct Gelu10 {
    static __device__ __forceinline__ float apply(float x) { return min_nan(Gelu::apply(x), 10.f); }
};

struct Identity {
    static __device__ __forceinline__ float apply(float x) { return x; }
};

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + exp2_approx(-1.442695041f * x)); }

// 1 - 2 / (e^2x + 1): an absolute error of some 1e-7.
__device__ __forceinline__ float tanh_approx(float x) {
    return 1.f - __fdividef(2.f, exp2_approx(2.885390082f * x) + 1.f);
}

template <typename Act> __device__ __forceinline__ void apply_to_all(float (&values)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values[i] = Act::apply(values[i]);
}

// By number, in the order of activation.py's KINDS: for kernels that are not compiled for each activation.
__device__ __forceinline__ void activate(int kind, float (&values)[VECTOR]) {
    switch (kind) {
        case 0: return apply_to_all<Gelu>(values);
        case 1: return apply_to_all<GeluTanh>(values);
        case 2: return apply_to_all<Relu>(values);
        case 3: return apply_to_all<Silu>(values);
        case 4: return apply_to_all<Tanh>(values);
        case 5: return apply_to_all<QuickGelu>(values);
        case 6: return apply_to_all<Gelu10>(values);
        default: return;  // identity
    }
}
