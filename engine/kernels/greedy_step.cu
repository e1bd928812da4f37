// One step of greedy search for each request: the token that was found is added, and the next pass is described.
//
// Layout: all [rows], and int32 where nothing else is said. ends [rows, MAX_ENDS], -1 in places of none; results [rows,
//   columns]: the status, and the tokens that were added, -1 for none; values float. values and tokens are null before
//   the first pass. A request that does not run keeps its state, and has neither keys nor a source in the next pass.
// Threads: one a row. Versions: 1. this.

constexpr int MAX_ENDS = 8;
constexpr int RUNNING = 0, FINISHED = 1, INVALID = 2;

extern "C" __global__ void __launch_bounds__(128)
    greedy_step(const int* max_new, const int* min_new, const int* forced_first, const int* forced_last,
                const int* bans, const int* source_length, const int* ends, int* status, int* length, int* last,
                int* positions, int* lengths, int* source_lengths, int* ban_rows, int* results, int columns,
                int column, const float* values, const int* tokens, int rows) {
    wait_for_previous();
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int own_status = status[row], own_length = length[row];
    if (values != nullptr) {
        float value = values[row];
        int token = tokens[row];
        const bool is_number = value == value;
        int forced = own_length == 0 ? forced_first[row] : -1;
        if (own_length == max_new[row] - 1 && forced_last[row] >= 0) forced = forced_last[row];
        if (forced >= 0) {
            value = 0.f;
            token = forced;
        }
        const bool is_valid = is_number && value > minus_infinity();
        bool is_end = own_length + 1 >= max_new[row];
#pragma unroll
        for (int i = 0; i < MAX_ENDS; ++i) is_end |= token == ends[row * MAX_ENDS + i];
        const bool grows = own_status == RUNNING && is_valid;
        if (own_status == RUNNING) own_status = !is_valid ? INVALID : is_end ? FINISHED : RUNNING;
        if (grows) {
            own_length += 1;
            last[row] = token;
        }
        status[row] = own_status;
        length[row] = own_length;
        results[row * columns + column] = grows ? token : -1;
    }
    const bool is_running = own_status == RUNNING;
    results[row * columns] = own_status;
    positions[row] = is_running ? own_length : 0;
    lengths[row] = is_running ? own_length + 1 : 0;
    source_lengths[row] = is_running ? source_length[row] : 0;
    ban_rows[row] = bans[row] + (own_length < min_new[row] ? 1 : 0);
}
