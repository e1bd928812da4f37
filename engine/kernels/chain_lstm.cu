// All steps of a quantum of LSTM chains in one launch, for few rows: the weight stays in registers, and after each step
// the blocks exchange h through global memory. The input's product is folded into the addend (lstm.cuh).
//
// Layout: weight [4 * hidden, hidden], its rows in the order [hidden / 8][gate][8]; addend [vocabulary, 4 * hidden] in
//   the order of torch; tokens int32 [quantum, rows]; cells, states, read, write and steps as in lstm.cu. exchange
//   [2, rows, hidden]: h of the step before, of even and of odd steps. arrivals [SLICES], zero before the first launch.
// Threads: a block computes the four gates of eight units of all rows. Its warps share the depth, each with a slice of
//   hidden / SLICES, and their sums are added in a fixed order in shared memory; then a thread has one unit of a row, or
//   several. Of 32 columns of the depth, lane i of a group of four has the eight from 8 i on, in both operands of the
//   product: a dot product does not depend on the order of its terms' numbers. So operands come from memory as vectors.
// Exchange: the h of slice w are of gridDim.x / SLICES blocks, which count up arrivals[w] once they are written. Warp w
//   of each block waits for that count alone. A block writes the h of a step only after all of its warps have waited for
//   those of the step before; so all blocks have then read the buffer that it writes to, and, from the second step on,
//   a row's first states. The counts go on from launch to launch.
// Launch: cooperative, for blocks wait for one another; of two steps at least.
// Versions: 1. this. On an H200, 32 steps of 1024 units take 2.9, 3.1, 3.8 and 5.3 us a step for 8, 16, 32 and 64 rows;
//   those of short_lstm.cu 5.6 to 5.8, or 8.1 for 64; a product and a launch behind it 6.0 to 6.7. Two processes under MPS
//   take turns. Programmatic dependent launch made no difference, so the launch is without.

constexpr int GATES = 4;
constexpr int COLUMNS = GATES * VECTOR;  // of a block
constexpr int SLICES = 8;                // warps of a block
constexpr int THREADS = SLICES * WARP;
constexpr int CHUNK = 4 * VECTOR;   // columns of the depth that two products of depth 16 take
constexpr int PITCH = COLUMNS + 8;  // of the sums: neither writing nor reading them has bank conflicts

using Count = unsigned long long;

__device__ __forceinline__ Count acquire(const Count* count) {
    Count value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(count) : "memory");
    return value;
}
__device__ __forceinline__ void count_up(Count* count) {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" : : "l"(count) : "memory");
}
// Lane 0 waits for all lanes.
__device__ __forceinline__ void wait_for_count(const Count* count, Count least) {
    if (threadIdx.x % WARP == 0)
        while (acquire(count) < least) {
        }
    __syncwarp();
}

// 16 bytes that other blocks have written during this launch: not from L1.
__device__ __forceinline__ uint4 load_exchanged(const scalar* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

// sum [16, 8] += a [16, CHUNK] b [CHUNK, 8]: of a the rows lane / 4 and 8 more, of b the column lane / 4.
__device__ __forceinline__ void multiply_chunk(float (&sum)[4], uint4 low, uint4 high, uint4 b) {
    const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    multiply_add(sum, first, b.x, b.y);
    multiply_add(sum, second, b.z, b.w);
}

template <int ROWS, int CHUNKS>
__device__ __forceinline__ void chain_lstm(const scalar* weight, const scalar* addend, const int* tokens, float* cells,
                                           scalar* states, const int* read, const int* write, const int* steps,
                                           int quantum, int rows, scalar* exchange, Count* arrivals) {
    constexpr int HIDDEN = CHUNKS * CHUNK * SLICES, TILES = ROWS / 16;
    constexpr int TOGETHER = TILES < 2 ? TILES : 2;  // tiles whose operands are in registers at the same time
    constexpr int UNITS = ROWS * VECTOR / THREADS > 0 ? ROWS * VECTOR / THREADS : 1;  // of a thread, each of another row
    extern __shared__ __align__(16) float sums[];                                     // [SLICES, ROWS, PITCH]
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4;
    const int depth = warp * CHUNKS * CHUNK + lane % 4 * VECTOR;  // this thread's first columns
    uint4 b[CHUNKS][GATES];
#pragma unroll
    for (int k = 0; k < CHUNKS; ++k)
#pragma unroll
        for (int i = 0; i < GATES; ++i)
            b[k][i] = load_vector(weight + (long long)(blockIdx.x * COLUMNS + i * VECTOR + group) * HIDDEN + depth +
                                  k * CHUNK);
    wait_for_previous();

    const int per_slice = gridDim.x / SLICES, slice = blockIdx.x / per_slice;
    Count base = acquire(arrivals + slice);  // this block has yet to arrive
    base -= base % per_slice;

    // The units of this thread, for the part of a step behind the product.
    const int unit = blockIdx.x * VECTOR + threadIdx.x % VECTOR, first_row = threadIdx.x / VECTOR;
    int left[UNITS], token[UNITS];
    float c[UNITS];
    scalar h[UNITS];
#pragma unroll
    for (int j = 0; j < UNITS; ++j) {
        const int row = first_row + j * (THREADS / VECTOR);
        left[j] = row < rows ? steps[row] : 0;
        if (left[j] == 0) continue;
        token[j] = tokens[row];
        c[j] = cells[(long long)read[row] * HIDDEN + unit];
    }

    // The rows of this thread's share of the product: their h of the first step, and where those of the next will be.
    const scalar* from[2 * TILES];
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
        const int row = i * 8 + group;
        const bool runs = row < rows && steps[row] > 0;
        from[i] = runs ? states + (long long)read[row] * HIDDEN + depth : nullptr;
    }

    for (int step = 0; step < quantum; ++step) {
        float shift[UNITS][GATES];
#pragma unroll
        for (int j = 0; j < UNITS; ++j) {
            if (left[j] <= step) continue;
            const scalar* added = addend + (long long)token[j] * GATES * HIDDEN + unit;
#pragma unroll
            for (int i = 0; i < GATES; ++i) shift[j][i] = to_float(added[i * HIDDEN]);
            if (left[j] > step + 1) token[j] = tokens[(step + 1) * rows + first_row + j * (THREADS / VECTOR)];
        }
        if (step > 0) wait_for_count(arrivals + warp, base + (Count)step * per_slice);

#pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            uint4 a[CHUNKS][2 * TOGETHER];
#pragma unroll
            for (int k = 0; k < CHUNKS; ++k)
#pragma unroll
                for (int i = 0; i < 2 * TOGETHER; ++i) {
                    const scalar* p = from[2 * first + i];
                    a[k][i] = p == nullptr ? make_uint4(0, 0, 0, 0) : load_exchanged(p + k * CHUNK);
                }
            float sum[TOGETHER][GATES][4] = {};
#pragma unroll
            for (int k = 0; k < CHUNKS; ++k)
#pragma unroll
                for (int m = 0; m < TOGETHER; ++m)
#pragma unroll
                    for (int i = 0; i < GATES; ++i) multiply_chunk(sum[m][i], a[k][2 * m], a[k][2 * m + 1], b[k][i]);
#pragma unroll
            for (int m = 0; m < TOGETHER; ++m) {
                float* to = sums + (warp * ROWS + (first + m) * 16 + group) * PITCH + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < GATES; ++i) {
                    *reinterpret_cast<float2*>(to + i * VECTOR) = make_float2(sum[m][i][0], sum[m][i][1]);
                    *reinterpret_cast<float2*>(to + i * VECTOR + 8 * PITCH) = make_float2(sum[m][i][2], sum[m][i][3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i)
            if (from[i] != nullptr) from[i] = exchange + (long long)(step % 2 * rows + i * 8 + group) * HIDDEN + depth;
        __syncthreads();

#pragma unroll
        for (int j = 0; j < UNITS; ++j) {
            if (left[j] <= step) continue;
            const int row = first_row + j * (THREADS / VECTOR);
            float gate[GATES];
#pragma unroll
            for (int i = 0; i < GATES; ++i) {
                gate[i] = shift[j][i];
#pragma unroll
                for (int w = 0; w < SLICES; ++w)
                    gate[i] += sums[(w * ROWS + row) * PITCH + i * VECTOR + threadIdx.x % VECTOR];
            }
            c[j] = fmaf(sigmoid(gate[1]), c[j], sigmoid(gate[0]) * tanh_approx(gate[2]));
            h[j] = from_float2<scalar2>(make_float2(sigmoid(gate[3]) * tanh_approx(c[j]), 0.f)).x;
            if (left[j] > step + 1) exchange[(long long)(step % 2 * rows + row) * HIDDEN + unit] = h[j];
        }
        __syncthreads();  // the sums are read, and h is written
        if (threadIdx.x == 0) count_up(arrivals + slice);
    }

#pragma unroll
    for (int j = 0; j < UNITS; ++j) {
        if (left[j] == 0) continue;
        const long long at = (long long)write[first_row + j * (THREADS / VECTOR)] * HIDDEN + unit;
        cells[at] = c[j];
        states[at] = h[j];
    }
}

#define ENTRY(ROWS, HIDDEN)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) chain_lstm_##ROWS##_##HIDDEN(                            \
        const scalar* weight, const scalar* addend, const int* tokens, float* cells, scalar* states, const int* read, \
        const int* write, const int* steps, int quantum, int rows, scalar* exchange, Count* arrivals) {               \
        chain_lstm<ROWS, HIDDEN / (CHUNK * SLICES)>(weight, addend, tokens, cells, states, read, write, steps,        \
                                                    quantum, rows, exchange, arrivals);                               \
    }
ENTRY(16, 256)
ENTRY(32, 256)
ENTRY(64, 256)
ENTRY(16, 512)
ENTRY(32, 512)
ENTRY(64, 512)
ENTRY(16, 1024)
ENTRY(32, 1024)
ENTRY(64, 1024)
