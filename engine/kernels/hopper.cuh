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

// To L2 alone.
__device__ __forceinline__ void prefetch_box(const TensorMap& map, int column, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(column), "r"(row)
                 : "memory");
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

// Operands of asm: values of an array that are read and written, and their names.
#define LIST_4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define LIST_16(x, i) LIST_4(x, i), LIST_4(x, i + 4), LIST_4(x, i + 8), LIST_4(x, i + 12)
#define LIST_32(x, i) LIST_16(x, i), LIST_16(x, i + 16)
#define LIST_48(x, i) LIST_32(x, i), LIST_16(x, i + 32)
#define LIST_64(x, i) LIST_32(x, i), LIST_32(x, i + 32)
#define NAMES_32                                                                                     \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 \
    NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums [64, 2 COUNT] += a [64, 16] b [2 COUNT, 16]', both in shared memory; with `add` 0 the sums are overwritten.
// A, B, ADD: the names of the operands after the sums.
#define MULTIPLY(COUNT, N, A, B, ADD, TYPES)                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                    \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPES " {" NAMES_##COUNT "}, " A   \
                 ", " B ", p, 1, 1, 0, 0;\n}\n"                                                      \
                 : LIST_##COUNT(sums, 0)                                                             \
                 : "l"(a), "l"(b), "r"(add))
#define MULTIPLIES(COUNT, N, A, B, ADD)                                                                        \
    __device__ __forceinline__ void multiply(float (&sums)[COUNT], unsigned long long a, unsigned long long b, \
                                             int add) {                                                        \
        if constexpr (IS_HALF<scalar>) MULTIPLY(COUNT, N, A, B, ADD, "f16.f16");                               \
        else MULTIPLY(COUNT, N, A, B, ADD, "bf16.bf16");                                                       \
    }
MULTIPLIES(48, "96", "%48", "%49", "%50")
MULTIPLIES(64, "128", "%64", "%65", "%66")

// As LIST_32, of integers.
#define INTEGERS_4(x, i) "+r"(x[i]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3])
#define INTEGERS_16(x, i) INTEGERS_4(x, i), INTEGERS_4(x, i + 4), INTEGERS_4(x, i + 8), INTEGERS_4(x, i + 12)
#define INTEGERS_32(x, i) INTEGERS_16(x, i), INTEGERS_16(x, i + 16)

// sums [64, 128] += a [64, 32] b [128, 32]', of int8.
__device__ __forceinline__ void multiply(int (&sums)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" NAMES_64 "}, %64, %65, p;\n}\n"
                 : INTEGERS_32(sums, 0), INTEGERS_32(sums, 32)
                 : "l"(a), "l"(b), "r"(add));
}
