// Instructions of Hopper (sm_90a) common to kernels for it alone: barriers in shared memory, the copy engine (TMA), and
// products of warpgroups. Put before each of them as text.

struct alignas(64) TensorMap { unsigned char bytes[128]; };

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Barriers in shared memory

__device__ __forceinline__ void barrier_init(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra AGAIN;\n"
        "DONE:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The copy engine

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// Tensor cores

// Rows of 128 bytes, swizzled; groups of eight rows follow each other.
__device__ __forceinline__ unsigned long long operand(unsigned address) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
