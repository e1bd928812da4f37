// The ends of classifier and pooler heads; the dense layers between them are GEMMs and bias_activation.
//
// gather_rows: out [N, hidden] = the first or last row of each sequence in hidden states [rows, hidden], by cu_seqlens
//   int32 [N + 1]; zeros for an empty sequence. hidden is a multiple of 8. A warp a row.
// softmax_rows: out float [N, classes] from logits [N, classes]; any number of classes. A warp a row.
// Both: blocks of four warps. Versions: 1. these; they are too small to matter beyond their launches.

extern "C" __global__ void __launch_bounds__(128) gather_rows(scalar* out, const scalar* hidden, const int* cu_seqlens,
                                                              int count, int width, int last) {
    wait_for_previous();
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= count) return;
    const int begin = cu_seqlens[row], end = cu_seqlens[row + 1];
    const scalar* source = hidden + (long long)(last ? end - 1 : begin) * width;
    for (int column = threadIdx.x % WARP * VECTOR; column < width; column += WARP * VECTOR) {
        const uint4 v = begin < end ? load_vector(source + column) : make_uint4(0, 0, 0, 0);
        store_vector(out + (long long)row * width + column, v);
    }
}

struct Raw {
    static __device__ __forceinline__ float apply(float x) { return x; }
};
struct Sigmoid {
    static __device__ __forceinline__ float apply(float x) { return 1.f / (1.f + expf(-x)); }
};

template <typename Score>
__device__ __forceinline__ void score_rows(float* out, const scalar* logits, int count, int classes) {
    const long long total = (long long)count * classes;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x)
        out[i] = Score::apply(to_float(logits[i]));
}

extern "C" __global__ void __launch_bounds__(128) scores_raw(float* out, const scalar* logits, int count,
                                                             int classes) {
    wait_for_previous();
    score_rows<Raw>(out, logits, count, classes);
}

extern "C" __global__ void __launch_bounds__(128) scores_sigmoid(float* out, const scalar* logits, int count,
                                                                 int classes) {
    wait_for_previous();
    score_rows<Sigmoid>(out, logits, count, classes);
}

extern "C" __global__ void __launch_bounds__(128) scores_softmax(float* out, const scalar* logits, int count,
                                                                 int classes) {
    wait_for_previous();
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= count) return;
    logits += (long long)row * classes;
    out += (long long)row * classes;
    float highest = minus_infinity();
    for (int i = lane; i < classes; i += WARP) highest = max_nan(highest, to_float(logits[i]));
    highest = warp_max(highest);
    float sum = 0.f;
    for (int i = lane; i < classes; i += WARP) sum += expf(to_float(logits[i]) - highest);
    sum = warp_sum(sum);
    for (int i = lane; i < classes; i += WARP) out[i] = expf(to_float(logits[i]) - highest) / sum;
}
