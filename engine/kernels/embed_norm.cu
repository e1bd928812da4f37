// out = norm(words[token] + positions[position] + types[type]), or the sum alone: the front of an encoder.
//
// Layout: out [rows, hidden]; token_ids, positions, token_types int32 [rows]; the tables [any, hidden]; the norm's weights
//   [hidden]; contiguous, hidden a multiple of 8. position_table, type_table and the weights may be null; token_types may
//   be null with a type table: every row is then of type 0. The caller has checked the ids.
// Threads: as in residual_norm, with its loop over rows. The ids are loaded one step before the rows they point to.
// Versions: 1. a row a warp, no loop. 2. this.

template <int WARPS, int PER_THREAD>
__device__ __forceinline__ void embed_norm(scalar* out, const int* token_ids, const int* positions,
                                           const int* token_types, const scalar* words, const scalar* position_table,
                                           const scalar* type_table, const Norm& norm, long long rows, int hidden) {
    const NormWeights<WARPS, PER_THREAD> weights(nullptr, norm, hidden);
    wait_for_previous();
    const int groups = blockDim.x / (WARP * WARPS), lane = threadIdx.x % (WARP * WARPS);
    const long long step = (long long)gridDim.x * groups;
    long long row = (long long)blockIdx.x * groups + threadIdx.x / (WARP * WARPS);
    if (row >= rows) return;

    int token, position = 0;
    const auto load_ids = [&](long long from) {
        token = token_ids[from];
        if (position_table != nullptr) position = positions[from];
    };
    uint4 of_word[PER_THREAD], of_position[PER_THREAD];
    const auto load_row = [&] {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int column = (lane + i * WARP * WARPS) * VECTOR;
            of_word[i] = of_position[i] = make_uint4(0, 0, 0, 0);
            if (column < hidden) {
                of_word[i] = load_vector_once(words + (long long)token * hidden + column);
                if (position_table != nullptr)
                    of_position[i] = load_vector(position_table + (long long)position * hidden + column);
            }
        }
    };
    load_ids(row);
    load_row();
    if (row + step < rows) load_ids(row + step);
    for (; row < rows; row += step) {
        float values[PER_THREAD][VECTOR];
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            unpack_vector(of_word[i], values[i]);
            add_vector(values[i], of_position[i]);
        }
        if (row + step < rows) load_row();
        if (row + 2 * step < rows) load_ids(row + 2 * step);
        if (type_table != nullptr) {
            const scalar* type = type_table + (token_types == nullptr ? 0 : (long long)token_types[row] * hidden);
#pragma unroll
            for (int i = 0; i < PER_THREAD; ++i) {
                const int column = (lane + i * WARP * WARPS) * VECTOR;
                if (column < hidden) add_vector(values[i], load_vector(type + column));
            }
        }
        if (norm.gamma != nullptr)
            weights.finish(out + row * hidden, nullptr, values, hidden);
        else
            store_row<WARPS, PER_THREAD>(out + row * hidden, values, hidden);
    }
}

#define ENTRY(WARPS, PER_THREAD, BLOCKS)                                                                         \
    extern "C" __global__ void ROW_BOUNDS(WARPS, BLOCKS)                                                         \
        embed_norm_w##WARPS##_v##PER_THREAD(                                                                     \
            scalar* out, const int* token_ids, const int* positions, const int* token_types,                     \
            const scalar* words, const scalar* position_table, const scalar* type_table, const Norm norm,        \
            long long rows, int hidden) {                                                                        \
        embed_norm<WARPS, PER_THREAD>(out, token_ids, positions, token_types, words, position_table, type_table, \
                                      norm, rows, hidden);                                                       \
    }
ROW_GEOMETRIES(ENTRY)
