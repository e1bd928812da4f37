// out = x w' * scales + bias of eight-bit integers, where x has a scale for each row and each 128 of the depth: as
// int8_product.cu with Blocks<> gives it. Sums of 128 products are exact; those of blocks are added in float, in order.
//
// Layout: x int8 [rows, depth], w int8 [width, depth], scales of blocks float32 [depth / 128, rows], columns
//   [width / 2], out [rows, width]; contiguous, width a multiple of 8, depth of 128. x, w and out come as tensor maps,
//   in boxes of [128, 128], [64, 128], [16, 64].
// Threads and shared memory: as in wide_product.cu, but warpgroups 0 and 1 multiply 64 rows each of the same tile: each
//   adds a block to its sums while the tensor cores compute the next.
// Versions: measured on an H200, 16,384 x 3,072 to 768: 1. one set of parts, 91 us; 2. two, 75. Without scales of blocks
//   int8_product.cu takes 53, and the pass that makes its rows 70.
//   Tried, together (2. then took 78, without adding 63): scales one block ahead 81; tiles of 128 x 192 with one set 87;
//   three groups of 64 rows with one set 82; sums from 1.5 * 2^23, for no conversion, 114; no epilogue 80.

constexpr int VALUES = BLOCK_COLUMNS / 2;  // of a thread

// row: the warp's first row of out.
__device__ __forceinline__ void finish(const TensorMap& out, const ColumnPair* columns, const float (&sums)[VALUES],
                                       OutBuffers<>& buffers, int row, int column, int rows, int width) {
#pragma unroll
    for (int c = 0; c < BLOCK_COLUMNS / 64; ++c) {
        const int left = column + 64 * c;
        if (left >= width) break;
        unsigned packed[16];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const ColumnPair pair = left + 8 * j < width ? columns[left / 2 + 4 * j + threadIdx.x % 4] : ColumnPair{};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float* v = sums + 32 * c + 4 * j + 2 * i;
                const float2 values = scaled(v[0], v[1], 1.f, pair);
                packed[2 * j + i] = pack_pair(values.x, values.y);
            }
        }
        buffers.store(out, packed, left, row, rows);
    }
}

// A block's products in 64 rows, and the scales of the thread's two rows.
struct Part {
    int sums[VALUES];
    float first, second;
    unsigned stage;
};

__device__ __forceinline__ void pin_part(Part& part) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) pin_value(part.sums[i]);
}

// A warpgroup's place in the ring, and its rows of a tile.
struct Reader {
    const float* of_blocks;
    unsigned base, empty, group;
    int rows, first, second;  // of x, and the thread's two of them
    unsigned stage = 0, phase = 0;

    __device__ __forceinline__ void start(Part& part, unsigned block) {
        const float* of_block = of_blocks + (long long)block * rows;
        part.first = of_block[first];
        part.second = of_block[second];
        part.stage = stage;
        barrier_wait(base + FULL_OFFSET + 8 * stage, phase);
        const unsigned at = base + stage * STAGE_BYTES;
        const unsigned long long a = operand(at + group * 64 * ROW_BYTES), b = operand(at + X_BYTES);
        pin_part(part);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; ++k) multiply(part.sums, a + k * 2, b + k * 2, k);
        wgmma_commit();
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    // PENDING: parts that were started after this one.
    template <int PENDING> __device__ __forceinline__ void add(float (&sums)[VALUES], Part& part) {
        wgmma_wait<PENDING>();
        pin_part(part);
        if (threadIdx.x % WARP < CLUSTER) barrier_arrive_in(empty + 8 * part.stage);
#pragma unroll
        for (int i = 0; i < VALUES; ++i)
            sums[i] = fmaf(__int2float_rn(part.sums[i]), i & 2 ? part.second : part.first, sums[i]);
    }
};

__device__ __forceinline__ void consume_blocks(const TensorMap& out, const float* of_blocks, const ColumnPair* columns,
                                               unsigned base, Tiles tiles, unsigned group, int rows, int width) {
    const int lane = threadIdx.x % WARP;
    const unsigned empty = lane < CLUSTER ? address_in(base + EMPTY_OFFSET, lane) : 0;  // the lane's block's
    Reader reader{of_blocks, base, empty, group, rows, 0, 0};
    OutBuffers<> buffers(base);
#pragma unroll 1
    for (unsigned tile = tiles.first(); tile < tiles.count; tile += tiles.step()) {
        const int row = tiles.row(tile) + threadIdx.x / WARP * 16;
        reader.first = min(row + lane / 4, rows - 1);
        reader.second = min(row + lane / 4 + 8, rows - 1);
        float sums[VALUES] = {};
        Part even, odd;
        reader.start(even, 0);
#pragma unroll 1
        for (unsigned block = 1; block + 1 < tiles.blocks; block += 2) {
            reader.start(odd, block);
            reader.add<1>(sums, even);
            reader.start(even, block + 1);
            reader.add<1>(sums, odd);
        }
        if (tiles.blocks % 2 == 0) {
            reader.start(odd, tiles.blocks - 1);
            reader.add<1>(sums, even);
            reader.add<0>(sums, odd);
        } else {
            reader.add<0>(sums, even);
        }
        finish(out, columns, sums, buffers, row, tiles.column<BLOCK_COLUMNS>(tile), rows, width);
    }
    if (lane == 0) store_wait_read<0>();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    int8_blocks(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap x,
                const __grid_constant__ TensorMap w, const Scales scales, int rows, int width, int depth) {
    const auto multiply = [&](unsigned base, Tiles tiles, unsigned group) {
        consume_blocks(out, scales.rows, scales.columns, base, tiles, group, rows, width);
    };
    const Tiles tiles = tiles_of<BLOCK_COLUMNS>(rows, width, depth, STAGE_DEPTH);
    run_groups<BLOCK_COLUMNS, STAGE_DEPTH>(out, x, w, tiles, 2 * RELEASES, PART, multiply);
}
