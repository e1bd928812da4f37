// From padded rows [B, S] with a mask to packed ones without padding, and back. The mask may have holes and padding on
// either side; tokens keep their order.
//
// Layout: mask Int [B, S], nonzero for tokens; cu_seqlens int32 [B + 1]; padded [B, S, width], packed [T, width], width
//   a multiple of 8; ids Int [B, S], packed ids int32 [T]. Contiguous. Int is int32 or int64.
// Threads: count_tokens: a warp a row of the mask. prefix_sum: one block of 1,024, consecutive counts a thread.
//   pack, unpack, pack_ids: a block of eight warps for TILE positions of a row: it counts the tokens before them, ranks
//   its own by ballot, and then each warp copies every eighth of them.
// Versions: 1. this.

constexpr int TILE = 64;
constexpr int SCAN_THREADS = 1024;

template <typename Int>
__device__ __forceinline__ void count_tokens(int* cu_seqlens, const Int* mask, int rows, int width) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    int count = 0;
    for (int i = lane; i < width; i += WARP) count += mask[(long long)row * width + i] != 0;
    count = __reduce_add_sync(FULL_MASK, count);
    if (lane == 0) cu_seqlens[row + 1] = count;
}

__device__ __forceinline__ int warp_inclusive_scan(int v) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int left = __shfl_up_sync(FULL_MASK, v, offset);
        if (lane >= offset) v += left;
    }
    return v;
}

// Counts in cu_seqlens[1:] become their prefix sum, in place; cu_seqlens[0] becomes 0.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) prefix_sum(int* cu_seqlens, int rows) {
    wait_for_previous();
    __shared__ int of_warp[WARP];
    const int per_thread = (rows + SCAN_THREADS - 1) / SCAN_THREADS;
    const int begin = min(rows, (int)threadIdx.x * per_thread), end = min(rows, begin + per_thread);
    int own = 0;
    for (int i = begin; i < end; ++i) own += cu_seqlens[i + 1];

    const int inclusive = warp_inclusive_scan(own), warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == WARP - 1) of_warp[warp] = inclusive;
    __syncthreads();
    if (warp == 0) of_warp[threadIdx.x] = warp_inclusive_scan(of_warp[threadIdx.x]);
    __syncthreads();

    int sum = inclusive - own + (warp > 0 ? of_warp[warp - 1] : 0);
    for (int i = begin; i < end; ++i) cu_seqlens[i + 1] = sum += cu_seqlens[i + 1];
    if (threadIdx.x == 0) cu_seqlens[0] = 0;
}

// Where each of the block's TILE positions lies in the packed rows, -1 for padding. The block is (row, tile).
template <typename Int>
__device__ __forceinline__ const int* find_places(const int* cu_seqlens, const Int* mask, int width) {
    static_assert(TILE == 2 * WARP, "two warps rank the tile");
    __shared__ int before, in_first_warp, places[TILE];
    mask += (long long)blockIdx.x * width;
    const int tile = blockIdx.y * TILE, position = tile + threadIdx.x;
    if (threadIdx.x == 0) before = cu_seqlens[blockIdx.x];
    __syncthreads();

    int count = 0;
    for (int i = threadIdx.x; i < tile; i += blockDim.x) count += mask[i] != 0;
    count = __reduce_add_sync(FULL_MASK, count);
    if (threadIdx.x % WARP == 0 && count > 0) atomicAdd(&before, count);  // integers: any order gives the same sum
    int rank = 0;
    bool is_token = false;
    if (threadIdx.x < TILE) {
        is_token = position < width && mask[position] != 0;
        const unsigned tokens = __ballot_sync(FULL_MASK, is_token);
        rank = __popc(tokens & ((1u << threadIdx.x % WARP) - 1));
        if (threadIdx.x == 0) in_first_warp = __popc(tokens);
    }
    __syncthreads();
    if (threadIdx.x < TILE) {
        rank += before + (threadIdx.x < WARP ? 0 : in_first_warp);
        places[threadIdx.x] = is_token ? rank : -1;
    }
    __syncthreads();
    return places;
}

template <typename Int>
__device__ __forceinline__ void pack(scalar* packed, const scalar* padded, const int* cu_seqlens, const Int* mask,
                                     int positions, int width) {
    const int* places = find_places(cu_seqlens, mask, positions);
    for (int i = threadIdx.x / WARP; i < TILE; i += blockDim.x / WARP) {
        if (places[i] < 0) continue;
        const scalar* source = padded + ((long long)blockIdx.x * positions + blockIdx.y * TILE + i) * width;
        scalar* target = packed + (long long)places[i] * width;
        for (int column = threadIdx.x % WARP * VECTOR; column < width; column += WARP * VECTOR)
            store_vector(target + column, load_vector_once(source + column));
    }
}

template <typename Int>
__device__ __forceinline__ void unpack(scalar* padded, const scalar* packed, const int* cu_seqlens, const Int* mask,
                                       int positions, int width) {
    const int* places = find_places(cu_seqlens, mask, positions);
    const int end = min(TILE, positions - (int)blockIdx.y * TILE);
    for (int i = threadIdx.x / WARP; i < end; i += blockDim.x / WARP) {
        const scalar* source = packed + (long long)places[i] * width;
        scalar* target = padded + ((long long)blockIdx.x * positions + blockIdx.y * TILE + i) * width;
        for (int column = threadIdx.x % WARP * VECTOR; column < width; column += WARP * VECTOR)
            store_vector(target + column, places[i] < 0 ? make_uint4(0, 0, 0, 0) : load_vector_once(source + column));
    }
}

template <typename Int>
__device__ __forceinline__ void pack_ids(int* packed, const Int* ids, const int* cu_seqlens, const Int* mask,
                                         int positions) {
    const int* places = find_places(cu_seqlens, mask, positions);
    if (threadIdx.x >= TILE || places[threadIdx.x] < 0) return;
    packed[places[threadIdx.x]] = (int)ids[(long long)blockIdx.x * positions + blockIdx.y * TILE + threadIdx.x];
}

#define ENTRIES(NAME, INT)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) count_tokens_##NAME(int* cu_seqlens, const INT* mask, int rows, \
                                                                          int positions) {                            \
        wait_for_previous();                                                                                          \
        count_tokens<INT>(cu_seqlens, mask, rows, positions);                                                         \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 4) pack_##NAME(                                                 \
        scalar* packed, const scalar* padded, const int* cu_seqlens, const INT* mask, int positions, int width) {     \
        wait_for_previous();                                                                                          \
        pack<INT>(packed, padded, cu_seqlens, mask, positions, width);                                                \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 4) unpack_##NAME(                                               \
        scalar* padded, const scalar* packed, const int* cu_seqlens, const INT* mask, int positions, int width) {     \
        wait_for_previous();                                                                                          \
        unpack<INT>(padded, packed, cu_seqlens, mask, positions, width);                                              \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) pack_ids_##NAME(                                                \
        int* packed, const INT* ids, const int* cu_seqlens, const INT* mask, int positions) {                         \
        wait_for_previous();                                                                                          \
        pack_ids<INT>(packed, ids, cu_seqlens, mask, positions);                                                      \
    }
ENTRIES(int32, int)
ENTRIES(int64, long long)
