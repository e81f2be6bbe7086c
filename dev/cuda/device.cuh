// Used by all CUDA code: errors, the device, its memory, launches, and instructions without a C++
// equivalent. Built for the CPU (CUDA_ON_CPU), the same sources run in an emulator (cuda_on_cpu.h).
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#ifdef CUDA_ON_CPU
#include "cuda_on_cpu.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
extern "C" {
#include "error.h"
#include "gemm.h"
#include "memory.h"
}

typedef __nv_bfloat16 bf16;

// ---- errors -----------------------------------------------------------------

static inline void cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error != cudaSuccess)
        fail("CUDA: %s (%s:%d: %s); run compute-sanitizer for details", cudaGetErrorString(error),
             file, line, call);
}

// Exits with an error if a CUDA call fails.
#define CUDA_CHECK(call) cuda_check(call, #call, __FILE__, __LINE__)

// ---- the device -------------------------------------------------------------

struct Device {
    cudaStream_t stream;             // all work, in order
    int sms;                         // streaming multiprocessors
    int capability;                  // 80, 90, 100
    bool overlaps;                   // kernels may start before the kernel they wait for has ended
    size_t l2, memory, shared_limit; // bytes; the last: dynamic shared memory per block
    char name[256];
};

static __global__ void device_probe_kernel() {}

// Returns the number of GPUs; if 0, writes the reason to why (size bytes). Initializes no GPU.
static inline int device_count(char *why, size_t size) {
    int count = 0, driver = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    if (found == cudaErrorInsufficientDriver && driver == 0) {
        snprintf(why, size, "no GPU: the NVIDIA driver is missing");
    } else if (found == cudaErrorInsufficientDriver) {
        snprintf(why, size,
                 "the NVIDIA driver is too old: it knows CUDA %d.%d; install a newer driver, or "
                 "build with "
                 "that CUDA",
                 driver / 1000, driver % 1000 / 10);
    } else if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
        snprintf(why, size, "no GPU (is CUDA_VISIBLE_DEVICES empty?)");
    } else if (found != cudaSuccess) {
        snprintf(why, size, "no GPU can be used: %s", cudaGetErrorString(found));
    } else {
        return count;
    }
    return 0;
}

// Returns whether this build has code for the current GPU; if not, writes the reason to why (size
// bytes). Also true if that GPU is full or out of order, which device_create() reports.
static inline bool device_available(char *why, size_t size) {
    if (device_count(why, size) == 0) return false;
    cudaDeviceProp p;
    cudaFuncAttributes attributes;
    int current = 0;
    CUDA_CHECK(cudaGetDevice(&current));
    CUDA_CHECK(cudaGetDeviceProperties(&p, current));
    const cudaError_t found = cudaFuncGetAttributes(&attributes, (const void *)device_probe_kernel);
    (void)cudaGetLastError();
    if (found != cudaErrorNoKernelImageForDevice && found != cudaErrorInvalidDeviceFunction &&
        found != cudaErrorUnsupportedPtxVersion)
        return true;
    snprintf(
        why, size,
        "%s is sm_%d%d, for which this build has no code; build with CUDA_ARCHS=%d%d (80 at least)",
        p.name, p.major, p.minor, p.major, p.minor);
    return false;
}

// Opens the current GPU. Exits with an error if this build cannot use it.
static inline Device device_create() {
    char why[512];
    if (!device_available(why, sizeof(why))) fail("%s", why);
    Device d = {};
    cudaDeviceProp p;
    int current = 0;
    CUDA_CHECK(cudaGetDevice(&current));
    CUDA_CHECK(cudaGetDeviceProperties(&p, current));
    d.sms = p.multiProcessorCount;
    d.capability = 10 * p.major + p.minor;
    d.l2 = (size_t)p.l2CacheSize;
    d.memory = p.totalGlobalMem;
    d.shared_limit = p.sharedMemPerBlockOptin;
    snprintf(d.name, sizeof(d.name), "%s", p.name);
    cudaFuncAttributes attributes; // PTX for an older GPU lacks begin_kernel()
    const cudaError_t found = cudaFuncGetAttributes(&attributes, (const void *)device_probe_kernel);
    if (found != cudaSuccess) fail("%s cannot be used: %s", d.name, cudaGetErrorString(found));
    int driver = 0; // graphs support such launches since 12.3
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    d.overlaps = d.capability >= 90 && attributes.ptxVersion >= 90 && driver >= 12030;
    CUDA_CHECK(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking));
    return d;
}

static inline void device_destroy(Device *d) {
    CUDA_CHECK(cudaStreamDestroy(d->stream));
}

static inline void device_synchronize(const Device *d) {
    CUDA_CHECK(cudaStreamSynchronize(d->stream));
}

// ---- memory -----------------------------------------------------------------
// One block of device memory, carved into arrays. The carving code runs twice: first without
// memory, to compute the sizes, then with it.
static constexpr size_t ARENA_ALIGNMENT = 256;
static constexpr int ARENA_PURPOSES = 24;

struct DeviceArena {
    char *memory; // NULL: only counting
    size_t used;
    struct {
        const char *name;
        size_t bytes;
    } purposes[ARENA_PURPOSES]; // its uses, for the report
    int purpose_count;
};

// Returns `count` uninitialised elements of `size` bytes; not to be accessed while only counting.
// `purpose` is a constant string.
static inline void *arena_carve(DeviceArena *a, size_t count, size_t size, const char *purpose) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 4 - a->used)
        fail("%s: %zu x %zu bytes do not fit in any memory", purpose, count, size);
    bytes = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    int i = 0;
    while (i < a->purpose_count && strcmp(a->purposes[i].name, purpose) != 0) i++;
    if (i == ARENA_PURPOSES) fail("arena: more than %d purposes", ARENA_PURPOSES);
    if (i == a->purpose_count) a->purposes[a->purpose_count++].name = purpose;
    a->purposes[i].bytes += bytes;
    void *start = a->memory ? a->memory + a->used : NULL;
    a->used += bytes;
    return start;
}

template <typename T>
static inline T *arena_array(DeviceArena *a, size_t count, const char *purpose) {
    return (T *)arena_carve(a, count, sizeof(T), purpose);
}

// A matrix in device memory, tagged with its type as on the CPU (gemm.h).
static inline Matrix arena_matrix(DeviceArena *a, size_t rows, size_t columns, bool in_bf16,
                                  const char *purpose) {
    size_t count;
    if (__builtin_mul_overflow(rows, columns, &count))
        fail("%s: %zu x %zu numbers do not fit in any memory", purpose, rows, columns);
    Matrix matrix;
    matrix.data = arena_carve(a, count, in_bf16 ? sizeof(bf16) : sizeof(float), purpose);
    matrix.columns = columns;
    matrix.bf16 = in_bf16;
    return matrix;
}

static inline Matrix float_matrix(float *data, size_t columns) {
    Matrix matrix;
    matrix.data = data;
    matrix.columns = columns;
    matrix.bf16 = false;
    return matrix;
}

// The columns from part * channels on.
static inline Matrix matrix_part(Matrix x, size_t part, size_t channels) {
    const size_t size = x.bf16 ? sizeof(bf16) : sizeof(float);
    x.data = (char *)x.data + part * channels * size;
    return x;
}

// Runs statements with T as the type of a tagged matrix.
#define WITH_TYPE(matrix, T, ...)                                                                  \
    do {                                                                                           \
        if ((matrix).bf16) {                                                                       \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// Allocates the counted memory; the same carving follows. `advice`: which options to lower.
static inline void arena_allocate(DeviceArena *a, const char *advice) {
    const size_t size = a->used;
    size_t available = 0, total = 0;
    void *memory = NULL;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    if (cudaMalloc(&memory, size ? size : 1) != cudaSuccess)
        fail("out of GPU memory: %.1f MiB are needed, %.1f of %.1f MiB are free; %s",
             (double)size / 1048576, (double)available / 1048576, (double)total / 1048576, advice);
    *a = DeviceArena();
    a->memory = (char *)memory;
}

static inline void arena_free(DeviceArena *a) {
    CUDA_CHECK(cudaFree(a->memory));
    *a = DeviceArena();
}

// ---- launches ---------------------------------------------------------------

static constexpr unsigned MOST_BLOCKS = 65535; // along y and z; blocks_of() limits x

#ifndef CUDA_ON_CPU
// Raises the kernel's limit of dynamic shared memory to `shared`, but never lowers it: the limit
// belongs to the kernel, not to the launch, and a graph that is being captured may contain launches
// of it that need more.
static inline void allow_shared(const Device *d, const void *kernel, size_t shared) {
    cudaFuncAttributes now;
    CUDA_CHECK(cudaFuncGetAttributes(&now, kernel));
    if (shared <= (size_t)now.maxDynamicSharedSizeBytes) return;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error == cudaErrorInvalidValue && shared > d->shared_limit)
        fail("%s has %zu KiB of shared memory per block, of which %zu would be needed: use smaller "
             "heads "
             "(a larger --heads), or -p bf16",
             d->name, d->shared_limit / 1024, (shared + 1023) / 1024);
    CUDA_CHECK(error);
}
#endif

// Launches kernel(arguments) on the device's stream. shared: bytes of dynamic shared memory. early:
// the kernel calls begin_kernel() first. together: its blocks wait for each other.
template <typename... P, typename... A>
static inline void launch_kernel(const Device *d, bool early, bool together, void (*kernel)(P...),
                                 dim3 grid, dim3 block, size_t shared, A... arguments) {
    if (grid.y > MOST_BLOCKS || grid.z > MOST_BLOCKS)
        fail("a grid of %u x %u x %u blocks is too large; lower --seq-len", grid.x, grid.y, grid.z);
#ifdef CUDA_ON_CPU
    cuda_launch(d->stream, kernel, grid, block, shared, std::tuple<P...>((P)arguments...), early,
                together ? d->sms : 0);
#else
    (void)together; // not needed on a GPU
    // Up to 48 KiB need no permission, but that includes fixed-size arrays.
    if (shared > 32 * 1024) allow_shared(d, (const void *)kernel, shared);
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = d->stream;
    config.attrs = &overlap;
    config.numAttrs = early && d->overlaps;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, (P)arguments...));
#endif
}

template <typename... P, typename... A>
static inline void launch(const Device *d, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t shared, A... arguments) {
    launch_kernel(d, false, false, kernel, grid, block, shared, arguments...);
}

// The same for a kernel that calls begin_kernel() first: its blocks may start while earlier kernels
// end (programmatic dependent launch, sm_90 and later).
template <typename... P, typename... A>
static inline void launch_early(const Device *d, void (*kernel)(P...), dim3 grid, dim3 block,
                                size_t shared, A... arguments) {
    launch_kernel(d, true, false, kernel, grid, block, shared, arguments...);
}

// The same for a kernel whose blocks wait for each other. They start in any order and may not run
// concurrently, so each takes work from a counter and waits only for earlier work.
template <typename... P, typename... A>
static inline void launch_together(const Device *d, void (*kernel)(P...), dim3 grid, dim3 block,
                                   size_t shared, A... arguments) {
    launch_kernel(d, true, true, kernel, grid, block, shared, arguments...);
}

// Captures a graph of what `work` starts on the device's stream. `work` must not synchronize.
template <typename Work>
static inline cudaGraphExec_t device_capture(const Device *d, const Work &work) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA_CHECK(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    work();
    CUDA_CHECK(cudaStreamEndCapture(d->stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return executable;
}

// Number of blocks of `size` that cover n.
static inline unsigned blocks_of(size_t n, size_t size) {
    const size_t blocks = (n + size - 1) / size;
    if (blocks > INT32_MAX)
        fail("a grid of %zu blocks is too large; lower --batch or --seq-len", blocks);
    return (unsigned)blocks;
}

// The block's dynamic shared memory.
template <typename T> static __device__ __forceinline__ T *shared_memory() {
#ifdef CUDA_ON_CPU
    return (T *)fiber_block->shared;
#else
    extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
    return (T *)dynamic_shared_memory;
#endif
}

// Values that change between passes. They are in device memory, where the kernels of a captured
// graph read them.
struct StepParameters {
    uint32_t dropout_key[2]; // from seed and update: dropout_create() of dev/cpu
    uint64_t first_row;      // index of the batch's row 0 among the update's rows
    float scale;             // scale of the gradient of the summed loss
    uint64_t position;       // of the first token of each sequence; decoding: of the only token
    uint64_t count;          // decoding: tokens before it
};

// ---- the warp and the block -------------------------------------------------

static constexpr int WARP = 32;

static __device__ __forceinline__ unsigned lane_index() {
    return threadIdx.x % WARP;
}

// The sum over the warp's lanes, in every lane, in a fixed order.
template <typename T> static __device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(0xffffffff, x, bits);
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bits));
    return x;
}

// The sum over a one-dimensional block of whole warps, in every thread, in a fixed order. `partial`
// (32): shared memory, free again after the next barrier.
template <typename T> static __device__ __forceinline__ T block_sum(T x, T *partial) {
    x = warp_sum(x);
    __syncthreads(); // partial may still be read from an earlier sum
    if (lane_index() == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    T sum = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) sum += partial[w];
    return sum;
}

// 2^x in one instruction, relative error 2e-7; denormals are flushed to 0.
static __device__ __forceinline__ float exp2_fast(float x) {
#ifdef CUDA_ON_CPU
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// ---- 16-byte accesses -------------------------------------------------------
// Loads N elements from p, aligned to 8 bytes if that is their size, else to 16.
template <int N> static __device__ __forceinline__ void load_numbers(float *out, const float *p) {
    static_assert(N % 4 == 0, "");
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 v = *(const float4 *)(p + i);
        out[i] = v.x;
        out[i + 1] = v.y;
        out[i + 2] = v.z;
        out[i + 3] = v.w;
    }
}

static __device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Packs two numbers as bf16, x in the lower half.
static __device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    uint32_t pair;
    memcpy(&pair, &v, sizeof(pair));
    return pair;
}

template <int N> static __device__ __forceinline__ void load_numbers(float *out, const bf16 *p) {
    static_assert(N == 4 || N % 8 == 0, "");
    if constexpr (N == 4) {
        const uint2 v = *(const uint2 *)p;
        const float2 a = unpack_bf16(v.x), b = unpack_bf16(v.y);
        out[0] = a.x;
        out[1] = a.y;
        out[2] = b.x;
        out[3] = b.y;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            const uint4 v = *(const uint4 *)(p + i);
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float2 a = unpack_bf16(words[w]);
                out[i + 2 * w] = a.x;
                out[i + 2 * w + 1] = a.y;
            }
        }
    }
}

template <int N> static __device__ __forceinline__ void store_numbers(float *p, const float *in) {
    static_assert(N % 4 == 0, "");
#pragma unroll
    for (int i = 0; i < N; i += 4)
        *(float4 *)(p + i) = make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]);
}

template <int N> static __device__ __forceinline__ void store_numbers(bf16 *p, const float *in) {
    static_assert(N == 4 || N % 8 == 0, "");
    if constexpr (N == 4) {
        *(uint2 *)p = make_uint2(pack_bf16(in[0], in[1]), pack_bf16(in[2], in[3]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8)
            *(uint4 *)(p + i) =
                make_uint4(pack_bf16(in[i], in[i + 1]), pack_bf16(in[i + 2], in[i + 3]),
                           pack_bf16(in[i + 4], in[i + 5]), pack_bf16(in[i + 6], in[i + 7]));
    }
}

// ---- the start of a kernel, tensor cores and asynchronous copies ------------

#ifndef CUDA_ON_CPU

// The first statement of a kernel of launch_early(), in every thread. After it, all earlier work on
// the stream has ended and its writes are visible. The next kernel may then start, and waits in the
// same way, so that each waits for all kernels before it and not only the previous one. Pointers
// that a kernel reads must not be __restrict__, or the compiler might read before this.
static __device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// d (16, 8) += a (16, 16) b (16, 8), bf16 inputs, float32 sums. With group = lane / 4, place = 2
// (lane % 4): a: (group, place), (group + 8, place), (group, place + 8), (group + 8, place + 8),
// each with its right neighbour; b: (place, group), (place + 8, group), each with the element
// below; d: (group, place), its right neighbour, and the same of row group + 8.
static __device__ __forceinline__ void mma_m16n8k16(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads 8x8 matrices of bf16 from shared memory. Lane i passes the address of row i % 8 of matrix i
// / 8, and receives in r[m] elements 2 (i % 4) and the next of row i / 4 (trans: of column i / 4)
// of matrix m.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix_x2(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix_x2_trans(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

// Copies 16 bytes from global to shared memory, or zeros if not valid, without reading. The copy is
// complete after cp_async_wait<N>, which leaves the last N committed groups pending, and a barrier.
static __device__ __forceinline__ void cp_async16(void *shared, const void *global,
                                                  bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
#endif
