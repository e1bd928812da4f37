// Disentangled self-attention of DeBERTa-v2/v3 over packed sequences, without padding and without an [L, L] matrix.
//
// For each sequence of length L and each head, with d = i - j and c(d) the clamped bucket of a distance:
//     score[i, j] = (q_i . k_j  +  q_i . kr[c(d)]  +  k_j . qr[c(d)]) * scale
//     out[i]      = sum_j softmax_j(score[i, j]) v_j
// (He et al., DeBERTa, ICLR 2021, equation 4. Buckets are odd in d, so "content to position" and "position to content"
// read the same row.) Scores, softmax and sums are float32; operands of the tensor cores are `scalar`.
//
// Layout, all row-major and 16-byte aligned; H = heads * D, heads = gridDim.y:
//     qkv [R, 3H] (queries, keys, values), out [R, H], kr and qr [2 * span, H] (projected relative embeddings),
//     cu_seqlens int32 [N + 1], table int32 [2 * reach - 1] with table[d + reach - 1] = c(d), reach >= longest L.
//     Rows outside the N sequences are neither read nor written. A sequence of length zero is skipped.
//
// Threads: one CTA of four warps per (64 queries, head, sequence), sixteen queries a warp; keys come 32 at a time, double
// buffered by cp.async. A warp works on blocks of 16 queries x 16 keys. In a block, d spans 31 values: with
// z = j - i + 15 relative to the block's corner, column e in 0..30 of two 16-row slices of the relative embeddings. Rows
// are staged per distance (the table is read only while staging, so nothing is assumed of it) in a ring of 128 rows,
// slot = z mod 128; a CTA's window is 96 rows and each key tile brings 32 new ones.
//     content:   S[i, j] = Q K^T                                      8 mma a block
//     c2p:       C[i, e] = Q Kr^T, the next 16 distances only         8 mma (the other 16 are the previous block's)
//     p2c:       P[e, j] = Qr K^T, with K's fragments of S           16 mma (Qr's are kept for the next block)
// C must be skewed along its rows and P along its columns to meet S. A row of C lives in the four lanes of a quad, a
// column of P in the eight lanes that share lane % 4, and within those lanes the skew is a permutation, so each
// element moves by one warp shuffle: nothing goes through shared memory.
//
// Determinism: a row's arithmetic depends on its own sequence only, not on its neighbours, the grid or N.
//
// Version ladder
//     v1  this file. Not built: (a) c2p and p2c by two batched GEMMs into a workspace and a gathering kernel: 2 * R *
//         2 * span values a head written and read again; (b) C and P skewed through shared memory: 56 instead of 16
//         wavefronts a block, and a barrier.
//     next: 32 queries a warp (a quarter fewer shared-memory wavefronts, p2c 12 instead of 16 mma a block; about 220
//         registers); 128 queries a CTA (half the L2 reads); wgmma for content and values.

namespace disentangled {

constexpr int kThreads = 128;
constexpr int kQueries = 64;  // a CTA
constexpr int kKeys = 32;     // a tile
constexpr int kRing = 128;    // distances staged: a window of 96 and the 32 that the next tile adds
constexpr unsigned kWarp = 0xffffffffu;

// Instructions

__device__ __forceinline__ unsigned shared_address(const scalar* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes 16 zero bytes when `valid` is false.
__device__ __forceinline__ void copy_async(scalar* to, const scalar* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;\n" ::: "memory"); }

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const scalar* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const scalar* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#define PENSTOCK_MMA(TYPE)                                                                                      \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                                         \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                        \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// sum [16, 8] += a [16, 16] b [16, 8]; the last argument only names the operands' type.
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
    PENSTOCK_MMA("f16");
}

__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                         __nv_bfloat16) {
    PENSTOCK_MMA("bf16");
}

#undef PENSTOCK_MMA

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned pair(float low, float high, __half) {
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<unsigned*>(&both);
}

__device__ __forceinline__ unsigned pair(float low, float high, __nv_bfloat16) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned*>(&both);
}

// Shared memory

// Offset of a row's 16-byte chunk; the swizzle spreads the eight rows that ldmatrix reads at once over all banks.
template <int D>
__device__ __forceinline__ int place(int row, int chunk) {
    constexpr int kChunks = D / 8;
    int swizzle = kChunks >= 8 ? row & 7 : (row / (8 / kChunks)) & (kChunks - 1);
    return row * D + (chunk ^ swizzle) * 8;
}

template <int D, bool C2P, bool P2C>
struct Shared {
    scalar keys[2][kKeys * D];
    scalar values[2][kKeys * D];
    scalar kr[C2P ? kRing * D : 8];
    scalar qr[P2C ? kRing * D : 8];
};

struct Problem {
    scalar* out;
    const scalar* qkv;
    const scalar* kr;
    const scalar* qr;
    const int* table;
    int reach;
    float scale;  // times log2(e)
};

// What a CTA works on. Pointers are at the sequence's first row and the head's first column.
struct Item {
    const scalar* qkv;
    const scalar* kr;
    const scalar* qr;
    int hidden;
    int length;
    int first_query;
};

// Stages the relative embeddings of `count` distances, from slot z of the ring on: slot z holds distance 15 - z.
template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void stage_distances(Shared<D, C2P, P2C>& shared, const Problem& problem, const Item& item,
                                                int z, int count) {
    constexpr int kChunks = D / 8;
    int chunk = threadIdx.x % kChunks;
    for (int row = threadIdx.x / kChunks; row < count; row += kThreads / kChunks) {
        int distance = min(max(15 - (z + row), 1 - problem.reach), problem.reach - 1);
        int from = __ldg(problem.table + distance + problem.reach - 1) * item.hidden + chunk * 8;
        int to = place<D>((z + row) & (kRing - 1), chunk);
        if (C2P) copy_async(shared.kr + to, item.kr + from, true);
        if (P2C) copy_async(shared.qr + to, item.qr + from, true);
    }
}

// Stages a key tile: keys, values (zeros beyond the sequence: a neighbour's rows may hold anything) and new distances.
template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void stage_tile(Shared<D, C2P, P2C>& shared, const Problem& problem, const Item& item,
                                           int tile) {
    constexpr int kChunks = D / 8;
    int chunk = threadIdx.x % kChunks;
#pragma unroll
    for (int pass = 0; pass < kKeys * kChunks / kThreads; ++pass) {
        int row = threadIdx.x / kChunks + pass * (kThreads / kChunks);
        int key = tile * kKeys + row;
        bool valid = key < item.length;
        const scalar* from = item.qkv + (valid ? key : 0) * 3 * item.hidden + item.hidden + chunk * 8;
        copy_async(shared.keys[tile & 1] + place<D>(row, chunk), from, valid);
        copy_async(shared.values[tile & 1] + place<D>(row, chunk), from + item.hidden, valid);
    }
    stage_distances(shared, problem, item, tile * kKeys - item.first_query + 16, kKeys);
    commit_copies();
}

// The skew, as each lane sees it

// Element (row, column) = (g + 8m, 8n + 2t + u) of a block, lane = 4g + t, needs e = 8(n + 1 - m) + v with
// v = 2t + u + 7 - g: tile n + 1 - m, or the next one when v >= 8 ("carry"), at offset v & 7.
struct Skew {
    int c2p_lane[2];      // by u: the lane that holds this lane's element of C
    int p2c_lane[2];      // by u: and of P
    bool c2p_carry[2];    // by u: whether the element this lane gives away is its reader's second tile
    bool p2c_carry[2];
    bool even_row;        // the two columns a lane holds go to its readers in the opposite order
};

__device__ __forceinline__ Skew make_skew() {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Skew skew;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        int rotation = (u + 7 - g) / 2;  // of a quad, for rows of C
        skew.c2p_lane[u] = g * 4 + ((t + rotation) & 3);
        skew.c2p_carry[u] = t < rotation;
        skew.p2c_lane[u] = ((2 * t + u + 7 - g) & 7) * 4 + t;
        skew.p2c_carry[u] = g < 2 * t + u;
    }
    skew.even_row = g % 2 == 0;
    return skew;
}

// Sixteen distances of C, each lane's pairs in the order its readers want: block[tile][2m + u].
template <int D>
__device__ __forceinline__ void order_pairs(float (&block)[2][4], const Skew& skew) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            float first = block[tile][2 * m], second = block[tile][2 * m + 1];
            block[tile][2 * m] = skew.even_row ? second : first;
            block[tile][2 * m + 1] = skew.even_row ? first : second;
        }
    }
}

__device__ __forceinline__ void add_c2p(float (&scores)[2][4], const float (&left)[2][4], const float (&right)[2][4],
                                        const Skew& skew) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            int m = r / 2, u = r % 2, tile = n + 1 - m;
            float near = tile < 2 ? left[tile & 1][r] : right[tile & 1][r];
            float far = tile + 1 < 2 ? left[(tile + 1) & 1][r] : right[(tile + 1) & 1][r];
            scores[n][r] += __shfl_sync(kWarp, skew.c2p_carry[u] ? far : near, skew.c2p_lane[u]);
        }
    }
}

// P as accumulators: position[e / 16][key tile], rows e % 16.
__device__ __forceinline__ void add_p2c(float (&scores)[2][4], const float (&position)[2][2][4], const Skew& skew) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            int m = r / 2, u = r % 2, tile = n + 1 - m;
            float near = position[tile / 2][n][tile % 2 * 2 + u];
            float far = position[(tile + 1) / 2][n][(tile + 1) % 2 * 2 + u];
            scores[n][r] += __shfl_sync(kWarp, skew.p2c_carry[u] ? far : near, skew.p2c_lane[u]);
        }
    }
}

// The attention of one warp: 16 queries

template <int D, bool C2P, bool P2C>
struct Warp {
    static constexpr int kSteps = D / 16;
    unsigned query[kSteps][4];
    float context[D / 8][4];
    float maximum[2];           // of rows g and g + 8, unscaled
    float denominator[2];       // this lane's part
    float left[2][4];           // C of the block's first 16 distances, in order
    unsigned near[kSteps][4];   // Qr's fragments of the block's first 16 distances
    Skew skew;

    __device__ __forceinline__ void load_queries(const Item& item, int row) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                int query_row = row + lane / 4 + r % 2 * 8;
                int column = step * 16 + lane % 4 * 2 + r / 2 * 8;
                const scalar* from = item.qkv + query_row * 3 * item.hidden + column;
                query[step][r] = query_row < item.length ? *reinterpret_cast<const unsigned*>(from) : 0u;
            }
        }
    }

    // C of the 16 distances from slot z on, in order.
    __device__ __forceinline__ void relate(float (&block)[2][4], const Shared<D, C2P, P2C>& shared, int z) {
        int lane = threadIdx.x % 32;
        int row = (z + lane / 16 * 8 + lane % 8) & (kRing - 1);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned b[4];
            load_matrices(b, shared.kr + place<D>(row, step * 2 + lane / 8 % 2));
            multiply(block[0], query[step], b[0], b[1], scalar());
            multiply(block[1], query[step], b[2], b[3], scalar());
        }
        order_pairs<D>(block, skew);
    }

    __device__ __forceinline__ void load_relative_queries(unsigned (&to)[4], const Shared<D, C2P, P2C>& shared, int z,
                                                          int step) {
        int lane = threadIdx.x % 32;
        load_matrices(to, shared.qr + place<D>((z + lane % 16) & (kRing - 1), step * 2 + lane / 16));
    }

    __device__ __forceinline__ void start(const Shared<D, C2P, P2C>& shared, const Item& item, int row) {
        skew = make_skew();
        load_queries(item, row);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) context[n][r] = 0.0f;
        }
        maximum[0] = maximum[1] = -INFINITY;
        denominator[0] = denominator[1] = 0.0f;
        if (C2P) {
#pragma unroll
            for (int r = 0; r < 8; ++r) left[r / 4][r % 4] = 0.0f;
            relate(left, shared, -row);
        }
        if (P2C) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) load_relative_queries(near[step], shared, -row, step);
        }
    }

    // Unscaled scores of 16 keys, the `key`-th of the buffer on; z is the ring slot of the block's first distance.
    __device__ __forceinline__ void score(float (&scores)[2][4], const Shared<D, C2P, P2C>& shared, const scalar* keys,
                                          int key, int z) {
        int lane = threadIdx.x % 32;
        if (C2P) {
            float right[2][4] = {};
            relate(right, shared, z + 16);
            add_c2p(scores, left, right, skew);
#pragma unroll
            for (int r = 0; r < 8; ++r) left[r / 4][r % 4] = right[r / 4][r % 4];
        }
        float position[2][2][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned b[4];
            load_matrices(b, keys + place<D>(key + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            multiply(scores[0], query[step], b[0], b[1], scalar());
            multiply(scores[1], query[step], b[2], b[3], scalar());
            if (P2C) {
                unsigned far[4];
                load_relative_queries(far, shared, z + 16, step);
                multiply(position[0][0], near[step], b[0], b[1], scalar());
                multiply(position[0][1], near[step], b[2], b[3], scalar());
                multiply(position[1][0], far, b[0], b[1], scalar());
                multiply(position[1][1], far, b[2], b[3], scalar());
#pragma unroll
                for (int r = 0; r < 4; ++r) near[step][r] = far[r];
            }
        }
        if (P2C) add_p2c(scores, position, skew);
    }

    // Online softmax: scores become weights, and what was summed before is brought to the new maximum.
    __device__ __forceinline__ void weigh(float (&scores)[kKeys / 8][4], float scale) {
        float before[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) maximum[r / 2] = fmaxf(maximum[r / 2], scores[n][r]);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            maximum[m] = fmaxf(maximum[m], __shfl_xor_sync(kWarp, maximum[m], 1));
            maximum[m] = fmaxf(maximum[m], __shfl_xor_sync(kWarp, maximum[m], 2));
        }
        if (__any_sync(kWarp, maximum[0] > before[0] || maximum[1] > before[1])) {
            float factor[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                factor[m] = power_of_two((before[m] - maximum[m]) * scale);
                denominator[m] *= factor[m];
            }
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) context[n][r] *= factor[r / 2];
            }
        }
        float offset[2] = {maximum[0] * scale, maximum[1] * scale};
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                scores[n][r] = power_of_two(fmaf(scores[n][r], scale, -offset[r / 2]));
                denominator[r / 2] += scores[n][r];
            }
        }
    }

    __device__ __forceinline__ void accumulate(const float (&weights)[kKeys / 8][4], const scalar* values) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
            unsigned a[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float(&tile)[4] = weights[step * 2 + r / 2];
                a[r] = pair(tile[r % 2 * 2], tile[r % 2 * 2 + 1], scalar());
            }
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                unsigned b[4];
                load_matrices_transposed(b, values + place<D>(step * 16 + lane % 16, n * 2 + lane / 16));
                multiply(context[n * 2], a, b[0], b[1], scalar());
                multiply(context[n * 2 + 1], a, b[2], b[3], scalar());
            }
        }
    }

    __device__ __forceinline__ void attend(const Shared<D, C2P, P2C>& shared, const Problem& problem, const Item& item,
                                           int row, int tile) {
        int first_key = tile * kKeys, column = first_key + threadIdx.x % 4 * 2;
        float scores[kKeys / 8][4] = {};
#pragma unroll
        for (int block = 0; block < kKeys / 16; ++block) {
            float(&pairs)[2][4] = *reinterpret_cast<float(*)[2][4]>(&scores[block * 2]);
            score(pairs, shared, shared.keys[tile & 1], block * 16, first_key + block * 16 - row);
        }
        if (first_key + kKeys > item.length) {
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    if (column + n * 8 + r % 2 >= item.length) scores[n][r] = -INFINITY;
                }
            }
        }
        weigh(scores, problem.scale);
        accumulate(scores, shared.values[tile & 1]);
    }

    __device__ __forceinline__ void store(scalar* out, const Item& item, int row) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            float total = denominator[m] + __shfl_xor_sync(kWarp, denominator[m], 1);
            total += __shfl_xor_sync(kWarp, total, 2);
            float inverse = 1.0f / total;
            int query_row = row + lane / 4 + m * 8;
            if (query_row >= item.length) continue;
            scalar* to = out + query_row * item.hidden + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                unsigned both = pair(context[n][m * 2] * inverse, context[n][m * 2 + 1] * inverse, scalar());
                *reinterpret_cast<unsigned*>(to + n * 8) = both;
            }
        }
    }
};

template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void run(const Problem& problem, const int* cu_seqlens) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<D, C2P, P2C>*>(memory);

    int start = cu_seqlens[blockIdx.z];
    int hidden = gridDim.y * D, head_column = blockIdx.y * D;
    Item item;
    item.length = cu_seqlens[blockIdx.z + 1] - start;
    item.first_query = blockIdx.x * kQueries;
    if (item.first_query >= item.length) return;
    item.hidden = hidden;
    item.qkv = problem.qkv + start * 3LL * hidden + head_column;
    item.kr = problem.kr + head_column;
    item.qr = problem.qr + head_column;

    int row = item.first_query + threadIdx.x / 32 * 16;
    bool active = row < item.length;  // the same for a whole warp
    int tiles = (item.length + kKeys - 1) / kKeys;
    Warp<D, C2P, P2C> warp;

    stage_distances(shared, problem, item, -item.first_query - 48, 64);
    stage_tile(shared, problem, item, 0);
    for (int tile = 0; tile < tiles; ++tile) {
        wait_for_copies();
        __syncthreads();  // this tile has landed, and the buffers of the one before are free
        if (tile + 1 < tiles) stage_tile(shared, problem, item, tile + 1);
        if (!active) continue;
        if (tile == 0) warp.start(shared, item, row);
        warp.attend(shared, problem, item, row, tile);
    }
    if (active) warp.store(problem.out + static_cast<long long>(start) * hidden + head_column, item, row);
}

}  // namespace disentangled

// CTAS: how many should fit on a multiprocessor, which bounds the registers.
#define PENSTOCK_DISENTANGLED(NAME, D, C2P, P2C, CTAS)                                                              \
    extern "C" __global__ void __launch_bounds__(disentangled::kThreads, CTAS) disentangled_attention_##NAME##_##D( \
        scalar* out, const scalar* qkv, const int* cu_seqlens, const scalar* kr, const scalar* qr, const int* table, \
        int reach, float scale_log2e) {                                                                             \
        disentangled::Problem problem{out, qkv, kr, qr, table, reach, scale_log2e};                                 \
        disentangled::run<D, C2P, P2C>(problem, cu_seqlens);                                                        \
    }

PENSTOCK_DISENTANGLED(c2p_p2c, 32, true, true, 3)
PENSTOCK_DISENTANGLED(c2p_p2c, 64, true, true, 3)
PENSTOCK_DISENTANGLED(c2p, 32, true, false, 3)
PENSTOCK_DISENTANGLED(c2p, 64, true, false, 3)
PENSTOCK_DISENTANGLED(p2c, 32, false, true, 3)
PENSTOCK_DISENTANGLED(p2c, 64, false, true, 3)

#undef PENSTOCK_DISENTANGLED
