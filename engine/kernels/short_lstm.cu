// A whole LSTM step for few rows, in one launch: the product [input | h] w', and in its epilogue what lstm.cu's lstm_step
// does. A block's columns are the four gates of eight units, so that no other block needs its sums.
//
// Layout: as in lstm.cu, but the rows of weight [4 * hidden, inputs + hidden] are in the order [hidden / 8][gate][8]. h and
//   the next input go to `next`, another matrix than operand, which other blocks still read. addend keeps torch's order.
// Tiles: short_tile.cuh. In the epilogue a thread has two units of a row. Its loads, of c and of the addend, are issued
//   before the product.
// Versions: 1. this.

constexpr int GATES = 4;
constexpr int UNITS = 2;  // of a thread
constexpr int THREADS_A_ROW = VECTOR / UNITS;

struct Chain {
    int left = 0, slot, next_token;  // steps, that of this launch included; where c and h are kept
    float2 c;
    scalar2 shift[GATES];
};

template <typename Tile>
__device__ __forceinline__ void short_lstm(scalar* next, const scalar* operand, const scalar* weight,
                                           const scalar* addend, const int* addend_rows, float* cells, scalar* states,
                                           const int* read, const int* write, const int* steps, int step, int rows,
                                           int inputs, int hidden, scalar* above, int above_width,
                                           const int* next_tokens, const scalar* words) {
    static_assert(Tile::COLUMNS == GATES * VECTOR && Tile::ROWS * THREADS_A_ROW <= Tile::THREADS);
    const int first_row = blockIdx.y * Tile::ROWS, depth = inputs + hidden;
    const int tile_row = threadIdx.x / THREADS_A_ROW, row = first_row + tile_row;
    const int tile_unit = threadIdx.x % THREADS_A_ROW * UNITS, unit = blockIdx.x * VECTOR + tile_unit;
    Chain chain;
    const auto load_chain = [&] {
        if (tile_row >= Tile::ROWS || row >= rows) return;
        chain.left = steps[row] - step;
        if (chain.left <= 0) return;
        chain.slot = write[row];
        const int from = step == 0 ? read[row] : chain.slot;
        const int added = addend_rows == nullptr ? 0 : addend_rows[row];
        if (words != nullptr && chain.left > 1) chain.next_token = next_tokens[row];
        chain.c = *reinterpret_cast<const float2*>(cells + (long long)from * hidden + unit);
        const scalar* shifts = addend + (long long)added * GATES * hidden + unit;
#pragma unroll
        for (int i = 0; i < GATES; ++i) chain.shift[i] = *reinterpret_cast<const scalar2*>(shifts + i * hidden);
    };
    const float* sums = Tile::accumulate(operand, weight, first_row, rows, blockIdx.x * Tile::COLUMNS, GATES * hidden,
                                         depth, 0, depth, [] {}, load_chain);
    if (chain.left <= 0) return;

    float2 gate[GATES];
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
        gate[i] = to_float2(chain.shift[i]);
#pragma unroll
        for (int k = 0; k < Tile::PARTS; ++k) {
            const float* sum = sums + (k * Tile::ROWS + tile_row) * Tile::PITCH + i * VECTOR + tile_unit;
            gate[i].x += sum[0];
            gate[i].y += sum[1];
        }
    }
    float2 c, h;
    c.x = fmaf(sigmoid(gate[1].x), chain.c.x, sigmoid(gate[0].x) * tanh_approx(gate[2].x));
    c.y = fmaf(sigmoid(gate[1].y), chain.c.y, sigmoid(gate[0].y) * tanh_approx(gate[2].y));
    h.x = sigmoid(gate[3].x) * tanh_approx(c.x);
    h.y = sigmoid(gate[3].y) * tanh_approx(c.y);

    *reinterpret_cast<float2*>(cells + (long long)chain.slot * hidden + unit) = c;
    const scalar2 packed = from_float2<scalar2>(h);
    scalar* out = next + (long long)row * depth;
    *reinterpret_cast<scalar2*>(out + inputs + unit) = packed;
    if (chain.left == 1) *reinterpret_cast<scalar2*>(states + (long long)chain.slot * hidden + unit) = packed;
    if (above != nullptr) *reinterpret_cast<scalar2*>(above + (long long)row * above_width + unit) = packed;
    if (words == nullptr || chain.left == 1 || tile_unit != 0) return;
    const scalar* embedding = words + (long long)chain.next_token * inputs;
    for (int column = blockIdx.x * VECTOR; column < inputs; column += gridDim.x * VECTOR)
        store_vector(out + column, load_vector(embedding + column));
}

#define ENTRY(BM, WM, WN, WK, STAGES)                                                                                 \
    extern "C" __global__ void __launch_bounds__(WARP* WM* WN* WK) short_lstm_##BM(                                   \
        scalar* next, const scalar* operand, const scalar* weight, const scalar* addend, const int* addend_rows,      \
        float* cells, scalar* states, const int* read, const int* write, const int* steps, int step, int rows,        \
        int inputs, int hidden, scalar* above, int above_width, const int* next_tokens, const scalar* words) {        \
        short_lstm<Tile<BM, GATES * VECTOR, WM, WN, WK, STAGES>>(                                                     \
            next, operand, weight, addend, addend_rows, cells, states, read, write, steps, step, rows, inputs, hidden, \
            above, above_width, next_tokens, words);                                                                  \
    }
ENTRY(32, 2, 1, 4, 4)
ENTRY(64, 2, 1, 4, 3)
