// out = LayerNorm(words[token] + positions[position] + types[type]) * gamma + beta: the front of an encoder.
//
// Layout: out [rows, hidden]; token_ids, positions, token_types int32 [rows]; the tables [any, hidden]; gamma, beta
//   [hidden]; contiguous, hidden a multiple of 8. position_table, type_table and beta may be null; token_types may be
//   null beside a type table: every row is then of type 0. Ids are not checked: the caller has.
// Threads: as in residual_norm: a warp a row up to 1,024 columns, else a block of eight warps.
// Versions: 1. this. The word rows are gathered in whole 512-byte pieces, so that this runs at the speed of a copy.

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void embed_norm(scalar* out, const int* token_ids, const int* positions,
                                           const int* token_types, const scalar* words, const scalar* position_table,
                                           const scalar* type_table, const scalar* gamma, const scalar* beta,
                                           long long rows, int hidden, float eps) {
    const int groups = blockDim.x / (WARP * WARPS);
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / (WARP * WARPS);
    if (row >= rows) return;
    const int lane = threadIdx.x % (WARP * WARPS);
    const scalar* word = words + (long long)token_ids[row] * hidden;
    const scalar* position = position_table == nullptr ? nullptr : position_table + (long long)positions[row] * hidden;
    const scalar* type = type_table;
    if (type_table != nullptr && token_types != nullptr) type += (long long)token_types[row] * hidden;

    float values[PER_THREAD][VECTOR];
    uint4 of_word[PER_THREAD], of_position[PER_THREAD], of_type[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int column = (lane + i * WARP * WARPS) * VECTOR;
        of_word[i] = of_position[i] = of_type[i] = make_uint4(0, 0, 0, 0);
        if (column < hidden) {
            of_word[i] = load_vector_once(word + column);
            if (position != nullptr) of_position[i] = load_vector(position + column);
            if (type != nullptr) of_type[i] = load_vector(type + column);
        }
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        unpack_vector(of_word[i], values[i]);
        add_vector(values[i], of_position[i]);
        add_vector(values[i], of_type[i]);
    }
    normalize_row<WARPS, PER_THREAD>(out + row * hidden, values, gamma, beta, hidden, eps);
}

#define BOUNDS(WARPS) __launch_bounds__(WARPS == 1 ? 128 : 256, 2)
#define ENTRY(WARPS, PER_THREAD)                                                                                 \
    extern "C" __global__ void BOUNDS(WARPS) embed_norm_w##WARPS##_v##PER_THREAD(                                \
        scalar* out, const int* token_ids, const int* positions, const int* token_types, const scalar* words,    \
        const scalar* position_table, const scalar* type_table, const scalar* gamma, const scalar* beta,         \
        long long rows, int hidden, float eps) {                                                                 \
        wait_for_previous();                                                                                     \
        embed_norm<WARPS, PER_THREAD>(out, token_ids, positions, token_types, words, position_table, type_table, \
                                      gamma, beta, rows, hidden, eps);                                           \
    }
ENTRY(1, 1)
ENTRY(1, 2)
ENTRY(1, 3)
ENTRY(1, 4)
ENTRY(8, 1)
ENTRY(8, 2)
ENTRY(8, 3)
ENTRY(8, 4)
