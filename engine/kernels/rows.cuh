// Loops over rows that groups of warps hold in registers: common to residual_norm.cu and int8_rows.cu, put before each as
// text. residual_norm.cu describes the threads.

template <int PER_THREAD> struct Addends {
    uint4 own[PER_THREAD], other[PER_THREAD];
};

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void load_row(Addends<PER_THREAD>& row, const scalar* x, const scalar* residual,
                                         int hidden) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (threadIdx.x % (WARP * WARPS) + i * WARP * WARPS) * VECTOR;
        row.own[i] = row.other[i] = make_uint4(0, 0, 0, 0);
        if (column < hidden) {
            row.own[i] = load_vector_once(x + column);
            if (residual != nullptr) row.other[i] = load_vector_once(residual + column);
        }
    }
}

// Calls `finish` for each row of this thread's group: with its first element's index, x in float, and the residual.
template <int WARPS, int PER_THREAD, typename Finish>
__device__ __forceinline__ void for_each_row(const scalar* x, const scalar* residual, long long rows, int hidden,
                                             Finish finish) {
    const int groups = blockDim.x / (WARP * WARPS);
    const long long step = (long long)gridDim.x * groups;
    long long row = (long long)blockIdx.x * groups + threadIdx.x / (WARP * WARPS);
    if (row >= rows) return;
    const auto load = [&](Addends<PER_THREAD>& to, long long from) {
        load_row<WARPS, PER_THREAD>(to, x + from * hidden, residual == nullptr ? nullptr : residual + from * hidden,
                                    hidden);
    };
    Addends<PER_THREAD> next;
    load(next, row);
    for (; row < rows; row += step) {
        const Addends<PER_THREAD> now = next;
        if (row + step < rows) load(next, row + step);
        float values[PER_THREAD][VECTOR];
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) unpack_vector(now.own[i], values[i]);
        finish(row * hidden, values, now.other);
    }
}

template <int PER_THREAD>
__device__ __forceinline__ void add_row(float (&values)[PER_THREAD][VECTOR], const uint4 (&more)[PER_THREAD]) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) add_vector(values[i], more[i]);
}
