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
// Determinism: a row's arithmetic depends only on its own sequence, not on other sequences, the grid or N.
//
// Softmax is online, base 2; a row's reference moves only when a score of its warp exceeds it by more than 8 in the
// exponent, as in short_attention.cu.
//
// Registers and shared memory (ptxas 12.9, both types, no spills; three CTAs an SM, which is 48 KiB each at D = 64):
//     D = 64: c2p_p2c 168, c2p 138, p2c 166; D = 32: 138, 96, 122 (sm_90; sm_80 at most as many).
//
// Versions. Measured only inside DeBERTa-v3-base: at least 7 times as fast as transformers' forward on an H200
// (ops/bench/results/gpu/nvidia-h200); 16,384 tokens of 5-500, 12 heads of 64: 216 us. Not timed against the alternatives below.
//     v1  this file. Not built: (a) c2p and p2c by two batched GEMMs into a workspace and a gathering kernel: 2 * R *
//         2 * span values a head written and read again; (b) C and P skewed through shared memory: 56 instead of 16
//         wavefronts a block, and a barrier. Tried in the compiler only: reading Qr's fragments twice instead of
//         keeping them gives 128 registers and so four CTAs an SM, for 16 wavefronts more a block; D = 128 spills.
//     On Hopper, long_disentangled.cu for sequences of more than 128 tokens. Next: 32 queries a warp (a quarter fewer
//         shared-memory wavefronts, p2c 12 instead of 16 mma a block; about 220 registers).

constexpr int THREADS = 128;
constexpr int QUERIES = 64;  // of a CTA
constexpr int KEYS = 32;     // of a tile
constexpr int RING = 128;    // distances staged: a window of 96, and the 32 that the next tile adds
constexpr float LARGEST_LOG2_WEIGHT = 8.0f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// Instructions

__device__ __forceinline__ unsigned shared_address(const scalar* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes 16 zero bytes when `valid` is false.
__device__ __forceinline__ void copy_async(scalar* to, const scalar* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const scalar* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const scalar* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Shared memory

// Offset of a row's 16-byte chunk; the swizzle spreads the eight rows that ldmatrix reads at once over all banks.
template <int D>
__device__ __forceinline__ int place(int row, int chunk) {
    constexpr int CHUNKS = D / 8;
    int swizzle = CHUNKS >= 8 ? row & 7 : (row / (8 / CHUNKS)) & (CHUNKS - 1);
    return row * D + (chunk ^ swizzle) * 8;
}

template <int D, bool C2P, bool P2C>
struct Shared {
    scalar keys[2][KEYS * D];
    scalar values[2][KEYS * D];
    scalar kr[C2P ? RING * D : 8];
    scalar qr[P2C ? RING * D : 8];
};

// The work of a CTA. Pointers are at the sequence's first row and the head's first column.
struct Item {
    scalar* out;
    const scalar* qkv;
    const scalar* kr;
    const scalar* qr;
    const int* table;  // at distance zero
    int reach;
    int hidden;
    int length;
    int first_query;
    float scale_log2e;
};

// Stages the relative embeddings of `count` distances, from slot z of the ring on: slot z holds distance 15 - z. No pair
// of the sequence has a distance beyond the table; any row replaces those.
template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void stage_distances(Shared<D, C2P, P2C>& shared, const Item& item, int z, int count) {
    constexpr int CHUNKS = D / 8;
    const int chunk = threadIdx.x % CHUNKS;
    for (int row = threadIdx.x / CHUNKS; row < count; row += THREADS / CHUNKS) {
        const int distance = min(max(15 - (z + row), 1 - item.reach), item.reach - 1);
        const int from = __ldg(item.table + distance) * item.hidden + chunk * 8;
        const int to = place<D>((z + row) & (RING - 1), chunk);
        if (C2P) copy_async(shared.kr + to, item.kr + from, true);
        if (P2C) copy_async(shared.qr + to, item.qr + from, true);
    }
}

// Stages a tile: keys and values (zeros beyond the sequence), and new distances.
template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void stage_tile(Shared<D, C2P, P2C>& shared, const Item& item, int tile) {
    constexpr int CHUNKS = D / 8;
    const int chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int pass = 0; pass < KEYS * CHUNKS / THREADS; ++pass) {
        const int row = threadIdx.x / CHUNKS + pass * (THREADS / CHUNKS);
        const int key = tile * KEYS + row;
        const bool valid = key < item.length;
        const scalar* from = item.qkv + (valid ? key : 0) * 3 * item.hidden + item.hidden + chunk * 8;
        copy_async(shared.keys[tile & 1] + place<D>(row, chunk), from, valid);
        copy_async(shared.values[tile & 1] + place<D>(row, chunk), from + item.hidden, valid);
    }
    stage_distances(shared, item, tile * KEYS - item.first_query + 16, KEYS);
}

// The skew, as each lane sees it. Element (row, column) = (g + 8m, 8n + 2t + u) of a block, lane = 4g + t, needs distance
// e = 8(n + 1 - m) + v with v = 2t + u + 7 - g: eight distances from 8(n + 1 - m) on, or the next eight ("carry") when
// v >= 8, and of them number v & 7.
struct Skew {
    int c2p_lane[2];    // by u: the lane that holds this lane's element of C
    int p2c_lane[2];    // and of P
    bool c2p_carry[2];  // by u: whether the reader of this lane's element of C has a carry
    bool p2c_carry[2];  // and of P
    bool even_row;      // the two columns of C that a lane holds go to its readers in the opposite order
};

__device__ __forceinline__ Skew make_skew() {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    Skew skew;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int rotation = (u + 7 - g) / 2;  // of a quad
        skew.c2p_lane[u] = g * 4 + ((t + rotation) & 3);
        skew.c2p_carry[u] = t < rotation;
        skew.p2c_lane[u] = ((2 * t + u + 7 - g) & 7) * 4 + t;
        skew.p2c_carry[u] = g < 2 * t + u;
    }
    skew.even_row = g % 2 == 0;
    return skew;
}

// block[i][2m + u]: rows g + 8m of C at eight distances, each lane's two in the order of its readers.
__device__ __forceinline__ void order_pairs(float (&block)[2][4], const Skew& skew) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const float first = block[i][2 * m], second = block[i][2 * m + 1];
            block[i][2 * m] = skew.even_row ? second : first;
            block[i][2 * m + 1] = skew.even_row ? first : second;
        }
    }
}

// near and far: sixteen distances each, as order_pairs leaves them.
__device__ __forceinline__ void add_c2p(
    float (&scores)[2][4], const float (&near)[2][4], const float (&far)[2][4], const Skew& skew) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int m = r / 2, u = r % 2, i = n + 1 - m;
            const float plain = i < 2 ? near[i % 2][r] : far[i % 2][r];
            const float carry = i < 1 ? near[1][r] : far[(i + 1) % 2][r];
            scores[n][r] += __shfl_sync(FULL_MASK, skew.c2p_carry[u] ? carry : plain, skew.c2p_lane[u]);
        }
    }
}

// position[i][n]: sixteen distances and eight keys of P.
__device__ __forceinline__ void add_p2c(float (&scores)[2][4], const float (&position)[2][2][4], const Skew& skew) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int m = r / 2, u = r % 2, i = n + 1 - m;
            const float plain = position[i / 2][n][i % 2 * 2 + u];
            const float carry = position[(i + 1) / 2][n][(i + 1) % 2 * 2 + u];
            scores[n][r] += __shfl_sync(FULL_MASK, skew.p2c_carry[u] ? carry : plain, skew.p2c_lane[u]);
        }
    }
}

// One warp's attention: sixteen queries, `row` the first of them in the sequence.
template <int D, bool C2P, bool P2C>
struct Attention {
    static constexpr int STEPS = D / 16;

    const Shared<D, C2P, P2C>& shared;
    const Item& item;
    const int row;
    const int lane;
    const Skew skew;
    unsigned query[STEPS][4];
    unsigned position_query[STEPS][4];  // Qr at the first 16 distances of the next block
    float content[2][4];                // C at the first 16 distances of the next block
    float context[D / 8][4];            // unnormalised
    float reference[2];                 // of rows g and g + 8: what scores are taken relative to, unscaled
    float total[2];                     // of the weights, this lane's part

    __device__ __forceinline__ Attention(const Shared<D, C2P, P2C>& staged, const Item& work)
        : shared(staged),
          item(work),
          row(work.first_query + threadIdx.x / WARP * 16),
          lane(threadIdx.x % WARP),
          skew(make_skew()),
          content{},
          context{},
          reference{MINUS_INFINITY, MINUS_INFINITY},
          total{} {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int query_row = row + lane / 4 + r % 2 * 8;
                const int column = step * 16 + lane % 4 * 2 + r / 2 * 8;
                const scalar* from = item.qkv + query_row * 3 * item.hidden + column;
                query[step][r] = query_row < item.length ? *reinterpret_cast<const unsigned*>(from) : 0u;
            }
        }
    }

    // The operands of 16 rows of a row-major matrix in shared memory, as the second factor transposed: columns n = row.
    __device__ __forceinline__ void load_columns(unsigned (&b)[4], const scalar* matrix, int first, int step) {
        load_matrices(b, matrix + place<D>(first + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    }

    __device__ __forceinline__ void load_position_queries(unsigned (&a)[4], int z, int step) {
        load_matrices(a, shared.qr + place<D>((z & (RING - 1)) + lane % 16, step * 2 + lane / 16));
    }

    // C at the 16 distances from slot z on.
    __device__ __forceinline__ void relate(float (&block)[2][4], int z) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned b[4];
            load_columns(b, shared.kr, z & (RING - 1), step);
            multiply_add(block[0], query[step], b[0], b[1]);
            multiply_add(block[1], query[step], b[2], b[3]);
        }
        order_pairs(block, skew);
    }

    // State that the first block expects of a block before it. The first distances have landed.
    __device__ __forceinline__ void begin() {
        if (C2P) relate(content, -row);
        if (P2C) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) load_position_queries(position_query[step], -row, step);
        }
    }

    // Adds the c2p terms of a block, whose first distance is in slot z.
    __device__ __forceinline__ void add_content_to_position(float (&scores)[2][4], int z) {
        float next[2][4] = {};
        relate(next, z + 16);
        add_c2p(scores, content, next, skew);
#pragma unroll
        for (int r = 0; r < 8; ++r) content[r / 4][r % 4] = next[r / 4][r % 4];
    }

    // Adds the other terms: content with content, and p2c with the same fragments of the keys.
    __device__ __forceinline__ void add_key_terms(float (&scores)[2][4], const scalar* keys, int key, int z) {
        float position[2][2][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned b[4], next[4];
            load_columns(b, keys, key, step);
            multiply_add(scores[0], query[step], b[0], b[1]);
            multiply_add(scores[1], query[step], b[2], b[3]);
            if (P2C) {
                load_position_queries(next, z + 16, step);
                multiply_add(position[0][0], position_query[step], b[0], b[1]);
                multiply_add(position[0][1], position_query[step], b[2], b[3]);
                multiply_add(position[1][0], next, b[0], b[1]);
                multiply_add(position[1][1], next, b[2], b[3]);
#pragma unroll
                for (int r = 0; r < 4; ++r) position_query[step][r] = next[r];
            }
        }
        if (P2C) add_p2c(scores, position, skew);
    }

    // The reference moves, and what was summed with it, when a score of the warp exceeds it by too much.
    __device__ __forceinline__ void move_reference(const float (&scores)[KEYS / 8][4]) {
        float largest[2] = {reference[0], reference[1]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) largest[r / 2] = fmaxf(largest[r / 2], scores[n][r]);
        }
        bool exceeds = false;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            largest[m] = fmaxf(largest[m], __shfl_xor_sync(FULL_MASK, largest[m], 1));
            largest[m] = fmaxf(largest[m], __shfl_xor_sync(FULL_MASK, largest[m], 2));
            exceeds = exceeds || (largest[m] - reference[m]) * item.scale_log2e > LARGEST_LOG2_WEIGHT;
        }
        if (!__any_sync(FULL_MASK, exceeds)) return;
        float factor[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            factor[m] = exp2_approx((reference[m] - largest[m]) * item.scale_log2e);
            total[m] *= factor[m];
            reference[m] = largest[m];
        }
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) context[n][r] *= factor[r / 2];
        }
    }

    // Scores become weights.
    __device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4]) {
        const float offset[2] = {reference[0] * item.scale_log2e, reference[1] * item.scale_log2e};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                scores[n][r] = exp2_approx(fmaf(scores[n][r], item.scale_log2e, -offset[r / 2]));
                total[r / 2] += scores[n][r];
            }
        }
    }

    __device__ __forceinline__ void accumulate(const float (&weights)[KEYS / 8][4], const scalar* values) {
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step) {
            const float(&left)[4] = weights[step * 2], (&right)[4] = weights[step * 2 + 1];
            const unsigned a[4] = {
                pack_pair(left[0], left[1]), pack_pair(left[2], left[3]),
                pack_pair(right[0], right[1]), pack_pair(right[2], right[3])};
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                unsigned b[4];
                load_matrices_transposed(b, values + place<D>(step * 16 + lane % 16, n * 2 + lane / 16));
                multiply_add(context[n * 2], a, b[0], b[1]);
                multiply_add(context[n * 2 + 1], a, b[2], b[3]);
            }
        }
    }

    // The tile has landed.
    __device__ __forceinline__ void attend(int tile) {
        const int first_key = tile * KEYS, column = first_key + lane % 4 * 2;
        float scores[KEYS / 8][4] = {};
#pragma unroll
        for (int block = 0; block < KEYS / 16; ++block) {
            float(&of_block)[2][4] = reinterpret_cast<float(&)[2][4]>(scores[block * 2]);
            const int z = first_key + block * 16 - row;
            if (C2P) add_content_to_position(of_block, z);
            add_key_terms(of_block, shared.keys[tile & 1], block * 16, z);
        }
        if (first_key + KEYS > item.length) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    if (column + n * 8 + r % 2 >= item.length) scores[n][r] = MINUS_INFINITY;
                }
            }
        }
        move_reference(scores);
        weigh(scores);
        accumulate(scores, shared.values[tile & 1]);
    }

    __device__ __forceinline__ void store() {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            total[m] += __shfl_xor_sync(FULL_MASK, total[m], 1);
            total[m] += __shfl_xor_sync(FULL_MASK, total[m], 2);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const int query_row = row + lane / 4 + m * 8;
            const float factor = 1.0f / total[m];
            scalar* to = item.out + query_row * item.hidden + lane % 4 * 2;
            if (query_row < item.length) {
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    const unsigned pair = pack_pair(context[n][m * 2] * factor, context[n][m * 2 + 1] * factor);
                    *reinterpret_cast<unsigned*>(to + n * 8) = pair;
                }
            }
        }
    }
};

template <int D, bool C2P, bool P2C>
__device__ __forceinline__ void run(const Item& item) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<D, C2P, P2C>*>(memory);

    stage_distances(shared, item, -item.first_query - 48, 64);
    stage_tile(shared, item, 0);
    Attention<D, C2P, P2C> warp(shared, item);
    const bool active = warp.row < item.length;  // the same for all lanes
    const int tiles = (item.length + KEYS - 1) / KEYS;
    for (int tile = 0; tile < tiles; ++tile) {
        wait_for_copies();
        __syncthreads();  // this tile has landed, and the buffers of the one before it are free
        if (tile + 1 < tiles) stage_tile(shared, item, tile + 1);
        if (!active) continue;
        if (tile == 0) warp.begin();
        warp.attend(tile);
    }
    if (active) warp.store();
}

// CTAS: how many should fit on a multiprocessor, which bounds the registers.
#define DISENTANGLED_ATTENTION(TERMS, D, C2P, P2C, CTAS)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, CTAS) disentangled_attention_##TERMS##_##D(                \
        scalar* out, const scalar* qkv, const int* cu_seqlens, const scalar* kr, const scalar* qr, const int* table, \
        int reach, float scale_log2e) {                                                                              \
        wait_for_previous();                                                                                         \
        const int hidden = gridDim.y * D, column = blockIdx.y * D, first_query = blockIdx.x * QUERIES;               \
        const long long start = cu_seqlens[blockIdx.z];                                                              \
        const int length = cu_seqlens[blockIdx.z + 1] - static_cast<int>(start);                                     \
        if (first_query >= length) return;                                                                           \
        run<D, C2P, P2C>(                                                                                            \
            {out + start * hidden + column, qkv + start * 3 * hidden + column, kr + column, qr + column,             \
             table + reach - 1, reach, hidden, length, first_query, scale_log2e});                                   \
    }

DISENTANGLED_ATTENTION(c2p_p2c, 32, true, true, 3)
DISENTANGLED_ATTENTION(c2p_p2c, 64, true, true, 3)
DISENTANGLED_ATTENTION(c2p, 32, true, false, 3)
DISENTANGLED_ATTENTION(c2p, 64, true, false, 3)
DISENTANGLED_ATTENTION(p2c, 32, false, true, 3)
DISENTANGLED_ATTENTION(p2c, 64, false, true, 3)
