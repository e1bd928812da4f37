// out = act(x w' * scales of rows and columns + bias) of eight-bit integers, for many rows on Hopper: the product of
// wide_product.cu, with sums of integers, which are exact. Or the same times the factors of the product that takes it, in
// eight bits again: rotated in blocks of 128 columns (rotation.cuh), with one scale for each row and block: the rows that
// int8_blocks.cu multiplies. A tile is a block wide, so the epilogue has whole blocks in registers.
//
// Layout: x int8 [rows, depth], w int8 [width, depth], scales of x's rows float32 [rows], columns [width / 2], out [rows,
//   width]; contiguous, width a multiple of 8, depth of 16. x, w and out come as tensor maps, in boxes of [128, 128],
//   [64, 128], [16, 64]. In eight bits: out int8, in boxes of [16, 128], scales of blocks float32 [width / 128, rows],
//   width a multiple of 128.
//   ACTIVATION: a type of activations.cuh, or Blocks<A> of one.
// Threads, registers and shared memory: as in wide_product.cu. A stage is 128 of the depth. For blocks the second buffers
//   of out are a Hadamard matrix [64, 64] in half precision.
// Blocks: activations are in half precision, whose error is far below that of eight bits. The sums and differences of a
//   row's halves are left operands of a product with the matrix, which the tensor cores compute while the group
//   activates its other 64 rows.
// Measured on an H200, 16,384 rows, beside cuBLAS in float16: 768 to 2,304 48 us (104), 3,072 to 768 53 us (107), 768 to
//   3,072 62 us (115), with the GELU 88 us (wide_product.cu: 129).
// Versions to blocks: 16,384 x 768 to 3,072 with the GELU: 1. scales, bias and factors from three arrays, 132 us; 2. one
//   array, 109. Together, on a slower device: 2. 123; 3. rotation by the tensor cores and activations in half precision,
//   93, one half of the rows after the other 94; 4. columns and rows' scales before the turn, 89, with no GELU 82.

#ifndef ACTIVATION
#define ACTIVATION Gelu
#endif

// The scales of the thread's rows, of the warp's from `row`; zeros beyond the last.
__device__ __forceinline__ void load_scales(float (&of_rows)[2 * HALVES], const float* scales, int row, int rows) {
#pragma unroll
    for (int i = 0; i < 2 * HALVES; ++i) {
        const int at = row + 64 * (i / 2) + 8 * (i % 2) + threadIdx.x % WARP / 4;
        of_rows[i] = at < rows ? scales[at] : 0.f;
    }
}

__device__ __forceinline__ float2 scaled(const int* sums, float of_row, const ColumnPair& pair) {
    return scaled(__int2float_rn(sums[0]), __int2float_rn(sums[1]), of_row, pair);
}

// Results in 16 bits. row: the warp's first row of out.
template <typename A> struct Epilogue {
    OutBuffers<> buffers;
    float of_rows[2 * HALVES];

    __device__ explicit Epilogue(unsigned base) : buffers(base) {}
    static __device__ __forceinline__ void begin() {}

    __device__ __forceinline__ void prepare(const Scales& scales, Sums<int>&, int row, int, int rows) {
        load_scales(of_rows, scales.rows, row, rows);
    }

    __device__ __forceinline__ void finish(const TensorMap& out, const Scales& scales, const Sums<int>& sums, int row,
                                           int column, int rows, int width) {
#pragma unroll
        for (int c = 0; c < BLOCK_COLUMNS / 64; ++c) {
            const int left = column + 64 * c;
            if (left >= width) break;
            ColumnPair pairs[8] = {};
#pragma unroll
            for (int j = 0; j < 8; ++j)
                if (left + 8 * j < width) pairs[j] = scales.columns[left / 2 + 4 * j + threadIdx.x % 4];
#pragma unroll
            for (int m = 0; m < HALVES; ++m) {
                unsigned packed[16];
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    const float2 v = scaled(sums.part[m] + 32 * c + 2 * j, of_rows[2 * m + j % 2], pairs[j / 2]);
                    packed[j] = pack_pair(A::apply(v.x), A::apply(v.y));
                }
                buffers.store(out, packed, left, row + 64 * m, rows);
            }
        }
    }
};

// Results in blocks

// The activations of two columns, times their factors.
template <typename A> __device__ __forceinline__ __half2 activated(float2 v, __half2 factor) {
    const float2 by = __half22float2(factor);
    return __floats2half2_rn(A::apply(v.x) * by.x, A::apply(v.y) * by.y);
}

// x (1 + tanh u) * factor / 2, where u / x is a polynomial of x^2. tanh.approx is within 5e-4.
__device__ __forceinline__ __half2 activated_by_tanh(float2 v, __half2 factor, float a, float b, float c) {
    const auto both = [](float value) { return __float2half2_rn(value); };
    const __half2 x = __float22half2_rn(v), square = __hmin2(__hmul2(x, x), both(36.f));
    const __half2 u = __hmul2(x, __hfma2(square, __hfma2(square, both(a), both(b)), both(c)));
    const __half2 half = __hmul2(x, __hmul2(factor, both(0.5f)));
    unsigned tanh;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(tanh) : "r"(reinterpret_cast<const unsigned&>(u)));
    return __hfma2(half, reinterpret_cast<const __half2&>(tanh), half);
}

template <> __device__ __forceinline__ __half2 activated<Gelu>(float2 v, __half2 factor) {
    return activated_by_tanh(v, factor, -3.51824666e-4f, 3.70075414e-2f, 0.797505801f);  // fitted to erf within 3e-5
}
template <> __device__ __forceinline__ __half2 activated<GeluTanh>(float2 v, __half2 factor) {
    return activated_by_tanh(v, factor, 0.f, 3.56774081e-2f, 0.797884561f);
}

// For all threads: the matrix, as an operand.
__device__ __forceinline__ void write_hadamard(unsigned to) {
    for (int chunk = threadIdx.x; chunk < 64 * 8; chunk += THREADS) {
        const int row = chunk / 8, column = chunk % 8 * VECTOR;
        unsigned ones[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned sign = __popc(row & (column + 2 * i)), next = __popc(row & (column + 2 * i + 1));
            ones[i] = 0x3c003c00u | (sign & 1) << 15 | next << 31;
        }
        const unsigned at = to + row * ROW_BYTES + ((chunk % 8 ^ row % 8) << 4);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                     ::"r"(at), "r"(ones[0]), "r"(ones[1]), "r"(ones[2]), "r"(ones[3]) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// sums [64, 64] += a [64, 16] b [64, 16]', a in registers, in half precision; with `add` 0 the sums are overwritten.
__device__ __forceinline__ void multiply(float (&sums)[32], const unsigned* a, unsigned long long b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
                 : LIST_32(sums, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ ColumnPair read_pair(unsigned from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return {make_float2(__uint_as_float(v.x), __uint_as_float(v.y)), reinterpret_cast<const __half2&>(v.z),
            reinterpret_cast<const __half2&>(v.w)};
}

// 64 rows of a block.
struct Rotation {
    __half2 values[2][16];  // of each half of the columns: pairs of rows lane / 4 and 8 beyond, for each eight columns
    float sums[2][32];

    __device__ __forceinline__ void pin() {
#pragma unroll
        for (int i = 0; i < 64; ++i) pin_value(sums[i / 32][i % 32]);
    }

    // columns: the thread's first, of eight each, in shared memory.
    template <typename A>
    __device__ __forceinline__ void activate(const int (&products)[64], const float* of_rows, unsigned columns) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const ColumnPair pair = read_pair(columns + 4 * j * sizeof(ColumnPair));
#pragma unroll
            for (int i = 0; i < 2; ++i)
                values[j / 8][j % 8 * 2 + i] = activated<A>(scaled(products + 4 * j + 2 * i, of_rows[i], pair), pair.factor);
        }
    }

    __device__ __forceinline__ void start(unsigned hadamard) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const __half2 low = values[0][i], high = values[1][i];
            values[0][i] = __hadd2(low, high);
            values[1][i] = __hsub2(low, high);
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i / 32][i % 32] = 0.f;  // as in `prepare`
        pin();
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                multiply(sums[half], reinterpret_cast<const unsigned*>(values[half] + 4 * k), operand(hadamard) + 2 * k, k);
        wgmma_commit();
    }

    __device__ __forceinline__ void wait() {
        wgmma_wait<0>();
        pin();
    }

    // The place 16 t + 4 q + 2 s + b of out is column 16 t + 8 s + 2 q + b, as thread q has four of them.
    __device__ __forceinline__ void store(const TensorMap& out, float* of_block, OutBuffers<1>& buffers, int row,
                                          int column, int rows) {
        const int lane = threadIdx.x % WARP;
        buffers.open();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float peaks[4] = {};
#pragma unroll
            for (int k = 0; k < 32; ++k)
                peaks[k % 4] = max_nan(peaks[k % 4], fabsf(sums[k / 16][k % 16 / 2 * 4 + 2 * i + k % 2]));
            float largest = max_nan(max_nan(peaks[0], peaks[1]), max_nan(peaks[2], peaks[3]));
#pragma unroll
            for (int step = 1; step < 4; step *= 2) largest = max_nan(largest, __shfl_xor_sync(FULL_MASK, largest, step));
            const float scale = int8_scale(largest), factor = 1.f / scale;
            const int at = row + 8 * i + lane / 4;
            if (lane % 4 == 0 && at < rows) of_block[at] = scale;
            unsigned packed[8];
#pragma unroll
            for (int t = 0; t < 8; ++t) {
                const float* v = sums[t / 4] + t % 4 * 8 + 2 * i;
                packed[t] = pack_bytes(fmaf(v[0], factor, ROUND), fmaf(v[1], factor, ROUND), fmaf(v[4], factor, ROUND),
                                       fmaf(v[5], factor, ROUND));
            }
            buffers.put(packed, 8 * i);
        }
        buffers.close(out, column, row, rows);
    }
};

template <typename A> struct Blocks {};
template <typename A> struct Epilogue<Blocks<A>> {
    OutBuffers<1> buffers;
    float of_rows[2 * HALVES];
    unsigned columns;  // of the warp's tile, in shared memory

    // In place of the second buffers of out.
    static __device__ __forceinline__ unsigned hadamard() {
        return ring_address() + OUT_OFFSET + 2 * GROUP_WARPS * OUT_BYTES;
    }
    static __device__ __forceinline__ void begin() { write_hadamard(hadamard()); }

    __device__ explicit Epilogue(unsigned base)
        : buffers(base), columns(hadamard() + 64 * ROW_BYTES + threadIdx.x / WARP * BLOCK_COLUMNS / 2 * sizeof(ColumnPair)) {}

    __device__ __forceinline__ void prepare(const Scales& scales, Sums<int>& sums, int row, int column, int rows) {
        sums = {};  // so that their registers are free once they are activated
        load_scales(of_rows, scales.rows, row, rows);
#pragma unroll
        for (int i = threadIdx.x % WARP; i < BLOCK_COLUMNS / 2; i += WARP)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(columns + i * (unsigned)sizeof(ColumnPair)), "l"(scales.columns + column / 2 + i) : "memory");
    }

    __device__ __forceinline__ void finish(const TensorMap& out, const Scales& scales, const Sums<int>& sums, int row,
                                           int column, int rows, int) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        float* of_block = scales.blocks + (long long)(column / BLOCK_COLUMNS) * rows;
        const unsigned own = columns + threadIdx.x % 4 * sizeof(ColumnPair);
        Rotation first, second;
        first.template activate<A>(sums.part[0], of_rows, own);
        first.start(hadamard());
        second.template activate<A>(sums.part[1], of_rows + 2, own);
        first.wait();
        second.start(hadamard());
        first.store(out, of_block, buffers, row, column, rows);
        second.wait();
        second.store(out, of_block, buffers, row + 64, column, rows);
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    int8_product(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                 const __grid_constant__ TensorMap w, const Scales scales, int rows, int width, int depth) {
    using Own = Epilogue<ACTIVATION>;
    Own::begin();
    const auto multiply = [&](unsigned base, Tiles tiles, unsigned group) {
        Own own(base);
        const auto prepare = [&](Sums<int>& sums, int row, int column) { own.prepare(scales, sums, row, column, rows); };
        const auto finish = [&](const Sums<int>& sums, int row, int column) {
            own.finish(out, scales, sums, row, column, rows, width);
        };
        consume<BLOCK_COLUMNS, int>(base, tiles, group, prepare, finish);
    };
    const Tiles tiles = tiles_of<BLOCK_COLUMNS>(rows, width, depth, STAGE_DEPTH);
    run_groups<BLOCK_COLUMNS, STAGE_DEPTH>(out, x, w, tiles, RELEASES, PART, multiply);
}
