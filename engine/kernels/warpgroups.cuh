// Common to attention of long sequences on Hopper, whose warpgroups have 64 queries each and hold a product's sums as
// long_attention.cu says. Put before each of them as text.

constexpr int BOX = 64, BOX_BYTES = BOX * 128;  // rows, and columns, of a box
constexpr int GROUP_WARPS = 4, GROUP_THREADS = GROUP_WARPS * WARP;
constexpr float LARGEST_LOG2_WEIGHT = 8.0f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// A buffer of a ring, and the parity of its use.
template <int COUNT> struct Ring {
    unsigned buffer = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++buffer == COUNT) buffer = 0, parity ^= 1;
    }
    // The buffer `count` uses ago, fewer than COUNT.
    __device__ __forceinline__ unsigned before(unsigned count) const {
        return buffer >= count ? buffer - count : buffer + COUNT - count;
    }
};

// A sequence's length, of an item of the plan.
__device__ __forceinline__ int length_of(int2 item) { return item.y & 0xffff; }

// What is written to shared memory is seen by the tensor cores and the copy engine, after a barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The compiler may not move work on the sums across this.
template <int N> __device__ __forceinline__ void pin(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The warp's rows, normalised, by way of `staging`, which held the group's queries. first_query: the warp's, in its
// sequence.
template <int D> __device__ __forceinline__ void store(
    scalar* out, const float (&sums)[D / 2], const float (&totals)[2], unsigned staging, int2 item, int first_query,
    int column, int hidden) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    staging += threadIdx.x / WARP % GROUP_WARPS * 16 * 128;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = totals[h];
        total += __shfl_xor_sync(FULL_MASK, total, 1);
        total += __shfl_xor_sync(FULL_MASK, total, 2);
        const float factor = __fdividef(1.0f, total);
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const unsigned to = staging + j / 8 * BOX_BYTES + (g + 8 * h) * 128 + ((j % 8 ^ g) * 16) + 4 * t;
            const unsigned pair = pack_pair(sums[4 * j + 2 * h] * factor, sums[4 * j + 2 * h + 1] * factor);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
        }
    }
    __syncwarp();
    const int row = lane / 8, chunk = lane % 8, count = length_of(item) - first_query;
    scalar* to = out + (static_cast<size_t>(item.x) + first_query + row) * hidden + column + chunk * VECTOR;
#pragma unroll
    for (int part = 0; part < D / BOX; ++part)
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const unsigned at = staging + part * BOX_BYTES + (row + i) * 128 + ((chunk ^ (row + i) % 8) * 16);
            uint4 piece;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w) : "r"(at) : "memory");
            if (row + i < count) store_vector(to + static_cast<size_t>(i) * hidden + part * BOX, piece);
        }
}
