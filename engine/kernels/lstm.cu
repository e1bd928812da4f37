// The pointwise part of LSTM steps, for chains that join and leave a running batch. Each step is a product
//   gates = [input | h] w' and one launch of lstm_step. lstm_begin gathers the operand of a batch's first step.
//
// Layout: operand [rows, inputs + hidden]: each row's input, then its h. gates [rows, 4 * hidden] in the order of torch:
//   input, forget, cell, output. cells float [slots, hidden] and states [slots, hidden]: c and h of chains between
//   batches. read, write, steps, tokens int32 [rows]: slots, steps of the row in this batch, first token of the row or
//   next. words [vocabulary, inputs]. inputs and hidden are multiples of 8; matrices are contiguous.
//   lstm_step adds a row of addend [any, 4 * hidden] to the gates: the row of the token in addend_rows, or the first if
//   that is null. It writes h and, unless words is null, the embedding of the next token to `following`, the operand of the
//   next step; c, and at a row's last step h, to its slot; h to above, the next layer's operand, unless that is null.
//   A row with no step left writes nothing.
// Threads: y is the row, x a vector of eight columns, of h or, where it is wider, of the input.
// Versions: 1. this: two rounds of loads, those of the row's description and the gates, then those at its addresses.

extern "C" __global__ void lstm_begin(scalar* operand, const scalar* states, const int* read, const int* steps,
                                      const int* tokens, const scalar* words, int inputs, int hidden) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    const int row = blockIdx.y;
    wait_for_previous();
    if (column >= inputs + hidden || steps[row] == 0) return;
    const scalar* from;
    if (column >= inputs)
        from = states + (long long)read[row] * hidden + column - inputs;
    else if (words != nullptr)
        from = words + (long long)tokens[row] * inputs + column;
    else
        return;  // the layer below writes the input
    store_vector(operand + (long long)row * (inputs + hidden) + column, load_vector(from));
}

extern "C" __global__ void __launch_bounds__(128)
    lstm_step(const scalar* gates, const scalar* addend, const int* addend_rows, float* cells, scalar* states,
              const int* read, const int* write, const int* steps, int step, scalar* following, int inputs, int hidden,
              scalar* above, int above_width, const int* next_tokens, const scalar* words) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    const int row = blockIdx.y;
    const bool has_unit = column < hidden;
    wait_for_previous();

    uint4 raw[4], shift[4];
    const scalar* own = gates + (long long)row * 4 * hidden + column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (has_unit) raw[i] = load_vector(own + i * hidden);
    const int left = steps[row] - step;
    if (left <= 0) return;
    const int slot = write[row];
    const int from = step == 0 ? read[row] : slot;
    const int added = addend_rows == nullptr ? 0 : addend_rows[row];
    scalar* out = following + (long long)row * (inputs + hidden);

    if (words != nullptr && left > 1 && column < inputs)
        store_vector(out + column, load_vector(words + (long long)next_tokens[row] * inputs + column));
    if (!has_unit) return;

    const float4* old = reinterpret_cast<const float4*>(cells + (long long)from * hidden + column);
    const float4 low = old[0], high = old[1];
    const scalar* shifts = addend + (long long)added * 4 * hidden + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) shift[i] = load_vector(shifts + i * hidden);

    float gate[4][VECTOR], h[VECTOR];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unpack_vector(raw[i], gate[i]);
        add_vector(gate[i], shift[i]);
    }
    float c[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        c[i] = fmaf(sigmoid(gate[1][i]), c[i], sigmoid(gate[0][i]) * tanh_approx(gate[2][i]));
        h[i] = sigmoid(gate[3][i]) * tanh_approx(c[i]);
    }

    float4* kept = reinterpret_cast<float4*>(cells + (long long)slot * hidden + column);
    kept[0] = make_float4(c[0], c[1], c[2], c[3]);
    kept[1] = make_float4(c[4], c[5], c[6], c[7]);
    const uint4 packed = pack_vector(h);
    store_vector(out + inputs + column, packed);
    if (left == 1) store_vector(states + (long long)slot * hidden + column, packed);
    if (above != nullptr) store_vector(above + (long long)row * above_width + column, packed);
}
