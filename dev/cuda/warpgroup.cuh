// sm_90 instructions for warp groups of 128 threads: products of tiles in shared memory, which run
// concurrently with the threads (PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions"), copies of whole tiles by one thread (9.7.9.27, "Tensor
// copy"), additions of sums in memory (9.7.9.25, "Bulk copy"), and the barriers that both sides
// wait for (9.7.13.15, "mbarrier"). The versions for the CPU are in warpgroup_on_cpu.h.
//
// A tile is a stack of panels of 64 columns; a row of a panel has 128 bytes. Its 16-byte pieces are
// swizzled: piece i of row r is at i ^ r % 8, so that accesses by row or by column have no bank
// conflicts. Copies write this layout and products read it. Tiles start at multiples of 1024 bytes.
#ifndef CUDA_WARPGROUP_CUH
#define CUDA_WARPGROUP_CUH

#include "tile.cuh"

#ifdef CUDA_ON_CPU
#include "warpgroup_on_cpu.h"
#else
#include <cuda.h>
#endif

// CUDA_WARPGROUPS: this build has code for sm_90a. Kernels have bodies there and in the compiler's
// host pass, which parses but does not run them.
#if defined(CUDA_ON_CPU) || defined(CUDA_WARPGROUPS)
static constexpr bool HAVE_WARP_GROUPS = true;
#else
static constexpr bool HAVE_WARP_GROUPS = false;
#endif
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARP_GROUP_CODE 1
#else
#define WARP_GROUP_CODE 0
#endif

static constexpr int WARPGROUP = 128, // threads
    PANEL = 64,                       // columns, and rows of one copy
    GROUP_ROWS = 64;                  // rows of a product

// A matrix of ROWS rows and SIZE columns, multiples of 64, stored as (SIZE / 64, ROWS, 64).
template <int ROWS_, int SIZE_> struct GroupTile {
    static constexpr int ROWS = ROWS_, SIZE = SIZE_, NUMBERS = ROWS * SIZE;
    static constexpr size_t BYTES = (size_t)NUMBERS * sizeof(bf16);
};

// ---- barriers and copies ----------------------------------------------------

#ifndef CUDA_ON_CPU

// A barrier in shared memory. Each phase ends when all expected threads and all expected bytes have
// arrived.
typedef uint64_t Barrier;

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_create(Barrier *b, int threads) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(threads)
                 : "memory");
}

// Makes barriers usable by copies. Called by the thread that created them, before a barrier of the
// block.
static __device__ __forceinline__ void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(Barrier *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// Arrives, and announces how many bytes copies will transfer in this phase.
static __device__ __forceinline__ void barrier_expect(Barrier *b, size_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"((uint32_t)bytes)
                 : "memory");
}

// Waits until the phase of this parity has ended. The first phase has parity 0; before it, parity 1
// counts as ended.
static __device__ __forceinline__ void barrier_wait(Barrier *b, uint32_t parity) {
    uint32_t ended;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    } while (!ended);
}

// A matrix of four dimensions in global memory, innermost first.
typedef CUtensorMap TensorMap;

// Copies 64 columns and 64 rows (third dimension) from the given coordinates on, with zeros beyond
// the ends. All bytes count for `full`.
static __device__ __forceinline__ void tensor_copy(bf16 *shared, const TensorMap *map,
                                                   Barrier *full, int column, int second, int row,
                                                   int fourth) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(column), "r"(second), "r"(row), "r"(fourth),
                 "r"(shared_address(full))
                 : "memory");
}

// Makes this thread's writes to shared memory visible to products and copies. Called before other
// threads are signalled.
static __device__ __forceinline__ void async_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stores sums from shared to global memory, or adds them there. Called by one thread. bytes and
// both addresses are multiples of 16.
static __device__ __forceinline__ void bulk_store(float *to, const float *shared, size_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(shared)), "r"((uint32_t)bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void bulk_add(float *to, const float *shared, size_t bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(shared_address(shared)), "r"((uint32_t)bytes)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores and additions have read shared memory, or until they are done.
static __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
static __device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Waits until a counter in global memory, which thread blocks pass on, is `turn`. Writes of the
// blocks before are then visible, also to copies. Called by one thread.
static __device__ __forceinline__ void turn_wait(const unsigned *counter, unsigned turn) {
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now != turn);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Sets the counter to `next`. Makes this thread's writes, and copies that it waited for, visible to
// the next block.
static __device__ __forceinline__ void turn_pass(unsigned *counter, unsigned next) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(next) : "memory");
}

// sizes (4); strides (3): distances in bytes along dimensions 1 to 3.
static inline TensorMap tensor_map(const bf16 *data, const size_t *sizes, const size_t *strides) {
    typedef CUresult Encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
        fail("the NVIDIA driver is too old: it lacks cuTensorMapEncodeTiled");
    const cuuint64_t dimensions[4] = {sizes[0], sizes[1], sizes[2], sizes[3]},
                     distances[3] = {strides[0], strides[1], strides[2]};
    const cuuint32_t box[4] = {PANEL, 1, PANEL, 1}, steps[4] = {1, 1, 1, 1};
    TensorMap map;
    const CUresult result = ((Encode *)encode)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, dimensions, distances, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail("cuTensorMapEncodeTiled: error %d for (%zu, %zu, %zu, %zu), %zu, %zu and %zu bytes "
             "apart",
             (int)result, sizes[3], sizes[2], sizes[1], sizes[0], strides[2], strides[1],
             strides[0]);
    return map;
}

// ---- products ---------------------------------------------------------------
// Called before products whose sums or left operands were accessed by threads.
static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Makes the products since the last call a group.
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all groups except the last PENDING are done.
template <int PENDING> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Compiler barrier: later reads of the sums see the results that were waited for.
template <int N> static __device__ __forceinline__ void sums_settle(Sums<1, N> &s) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(s.at[0][n][e])::"memory");
}

// Operands of asm: the sums from d[n] on, with constraint c, "+f" or "=f".
#define WGMMA_4(c, d, n) c(d[n][0]), c(d[n][1]), c(d[n][2]), c(d[n][3])
#define WGMMA_16(c, d, n)                                                                          \
    WGMMA_4(c, d, n), WGMMA_4(c, d, n + 1), WGMMA_4(c, d, n + 2), WGMMA_4(c, d, n + 3)
#define WGMMA_32(c, d, n) WGMMA_16(c, d, n), WGMMA_16(c, d, n + 4)
#define WGMMA_64(c, d, n) WGMMA_32(c, d, n), WGMMA_32(c, d, n + 8)
#define WGMMA_FIRST_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_ALL_64                                                                               \
    WGMMA_FIRST_32                                                                                 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// columns, registers of sums, registers of the other operands, and whether to add.
#define WGMMA(columns, sums, operands, add)                                                        \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                               \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" sums "}, " operands ";\n}"

// d (64, N) = a (64, 16) b (16, N), or += with ADD. N is 64 or 128. A lane holds d like Sums, for
// the 16 rows of its warp. Both operands have k in the columns of their tiles.
template <int N, bool ADD>
static __device__ __forceinline__ void wgmma_tiles(float (&d)[N / 8][4], uint64_t a, uint64_t b) {
    static_assert(N == 64 || N == 128, "");
    if constexpr (N == 64 && ADD)
        asm volatile(WGMMA("64", WGMMA_FIRST_32, "%32, %33, p, 1, 1, 0, 0", "1")
                     : WGMMA_32("+f", d, 0)
                     : "l"(a), "l"(b));
    else if constexpr (N == 64)
        asm volatile(WGMMA("64", WGMMA_FIRST_32, "%32, %33, p, 1, 1, 0, 0", "0")
                     : WGMMA_32("=f", d, 0)
                     : "l"(a), "l"(b));
    else if constexpr (ADD)
        asm volatile(WGMMA("128", WGMMA_ALL_64, "%64, %65, p, 1, 1, 0, 0", "1")
                     : WGMMA_64("+f", d, 0)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA("128", WGMMA_ALL_64, "%64, %65, p, 1, 1, 0, 0", "0")
                     : WGMMA_64("=f", d, 0)
                     : "l"(a), "l"(b));
}

// d (64, N) += a (64, 16) b (16, N). A lane holds a like the left operand of mma_m16n8k16, for the
// rows of its warp. b has k in the rows of its tile.
template <int N>
static __device__ __forceinline__ void wgmma_sums(float (*d)[4], const uint32_t a[4], uint64_t b) {
    static_assert(N == 64 || N == 128, "");
    if constexpr (N == 64)
        asm volatile(WGMMA("64", WGMMA_FIRST_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "1")
                     : WGMMA_32("+f", d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile(WGMMA("128", WGMMA_ALL_64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "1")
                     : WGMMA_64("+f", d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64, 64) = a^T b over 16 rows, or += with ADD. Both operands have k in the rows of their tiles.
template <bool ADD>
static __device__ __forceinline__ void wgmma_columns(float (&d)[PANEL / 8][4], uint64_t a,
                                                     uint64_t b) {
    if constexpr (ADD)
        asm volatile(WGMMA("64", WGMMA_FIRST_32, "%32, %33, p, 1, 1, 1, 1", "1")
                     : WGMMA_32("+f", d, 0)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA("64", WGMMA_FIRST_32, "%32, %33, p, 1, 1, 1, 1", "0")
                     : WGMMA_32("=f", d, 0)
                     : "l"(a), "l"(b));
}

// Changes the registers per thread of a warp group: a group that needs few releases the others,
// which the other groups take.
static __device__ __forceinline__ void registers_leave() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
static __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

#endif

// Descriptor of a tile for a product (9.7.15.5.1.2, "Shared Memory Matrix Layout"), swizzled by 128
// bytes. Bits 0-13: start address; 16-29: distance of panels (used if k is in the rows; otherwise
// each product is within one panel); 32-45: distance of groups of 8 rows. All are in units of 16
// bytes.
template <typename Tile>
static __device__ __forceinline__ uint64_t wgmma_descriptor(const bf16 *from) {
    return (uint64_t)((shared_address(from) & 0x3ffff) >> 4) |
           (uint64_t)(Tile::ROWS * PANEL * sizeof(bf16) >> 4) << 16 |
           (uint64_t)(8 * PANEL * sizeof(bf16) >> 4) << 32 | (uint64_t)1 << 62;
}

// sums (64, rows of b) = a b^T, or += with ADD, for rows row .. row+63 of a and all rows of b.
template <typename A, typename B, bool ADD = false>
static __device__ __forceinline__ void group_product_rows(Sums<1, B::ROWS> &sums, const bf16 *a,
                                                          int row, const bf16 *b) {
#pragma unroll
    for (int k = 0; k < A::SIZE; k += 16) {
        const uint64_t left = wgmma_descriptor<A>(a + k / PANEL * (A::ROWS * PANEL) + row * PANEL +
                                                  k % PANEL),
                       right = wgmma_descriptor<B>(b + k / PANEL * (B::ROWS * PANEL) + k % PANEL);
        if (k == 0 && !ADD)
            wgmma_tiles<B::ROWS, false>(sums.at[0], left, right);
        else
            wgmma_tiles<B::ROWS, true>(sums.at[0], left, right);
    }
}

// The left operands of group_product_sums(): sums (64, K) as bf16.
template <int K> struct GroupWeights { uint32_t at[K / 16][4]; };

template <int K>
static __device__ __forceinline__ GroupWeights<K> group_weights(const Sums<1, K> &w) {
    GroupWeights<K> weights;
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = w.at[0][2 * k + i / 2] + i % 2 * 2;
            weights.at[k][i] = pack_bf16(pair[0], pair[1]);
        }
    return weights;
}

// sums (64, columns of b) += w b.
template <typename B>
static __device__ __forceinline__ void
group_product_sums(Sums<1, B::SIZE> &sums, const GroupWeights<B::ROWS> &w, const bf16 *b) {
    constexpr int N = B::SIZE % (2 * PANEL) == 0 ? 2 * PANEL : PANEL; // columns of one product
#pragma unroll
    for (int k = 0; k < B::ROWS; k += 16)
#pragma unroll
        for (int column = 0; column < B::SIZE; column += N)
            wgmma_sums<N>(sums.at[0] + column / 8, w.at[k / 16],
                          wgmma_descriptor<B>(b + column * B::ROWS + k * PANEL));
}

// Stores w as rows row .. row+63 and 64 columns of a panel of a tile. Called by the group that
// holds w.
template <typename Tile>
static __device__ __forceinline__ void group_put(bf16 *tile, int panel, int row,
                                                 const GroupWeights<PANEL> &w) {
    const int lane = (int)lane_index(), warp = (int)threadIdx.x % WARPGROUP / WARP;
    bf16 *at = tile + (panel * Tile::ROWS + row + 16 * warp + lane / 4) * PANEL + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < PANEL / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint32_t *)(at + i % 2 * 8 * PANEL + ((2 * k + i / 2) ^ lane / 4) * 8) = w.at[k][i];
}

// sums (64, 64) = a^T b, for the columns of a panel of a and of a panel of b.
template <typename A, typename B>
static __device__ __forceinline__ void group_product_columns(Sums<1, PANEL> &sums, const bf16 *a,
                                                             int a_panel, const bf16 *b,
                                                             int b_panel) {
    static_assert(A::ROWS == B::ROWS, "");
#pragma unroll
    for (int k = 0; k < A::ROWS; k += 16) {
        const uint64_t left = wgmma_descriptor<A>(a + (a_panel * A::ROWS + k) * PANEL),
                       right = wgmma_descriptor<B>(b + (b_panel * B::ROWS + k) * PANEL);
        if (k == 0)
            wgmma_columns<false>(sums.at[0], left, right);
        else
            wgmma_columns<true>(sums.at[0], left, right);
    }
}

// Fills a tile with consecutive rows of a head. Called by one thread. Dimensions of the map:
// columns, heads, rows, batch.
template <typename Tile>
static __device__ __forceinline__ void group_copy(bf16 *tile, const TensorMap *map, Barrier *full,
                                                  int head, int row, int sequence) {
#pragma unroll
    for (int column = 0; column < Tile::SIZE; column += PANEL)
#pragma unroll
        for (int r = 0; r < Tile::ROWS; r += PANEL)
            tensor_copy(tile + column * Tile::ROWS + r * PANEL, map, full, column, head, row + r,
                        sequence);
}

#endif
