// The subset of CUDA that our kernels and programs use, implemented on the CPU, so that they can be
// run and tested on every machine: g++ -x c++ -DCUDA_ON_CPU. Functions that device.cuh wraps
// (launches, tensor cores, asynchronous copies) keep the name of their wrapper; the others have
// CUDA's. Newly allocated memory holds NaN. Only collectives of whole warps are supported.
//
// Streams execute immediately and in order. While a stream is captured nothing runs: its operations
// are stored with their current arguments and run on each cudaGraphLaunch, as on a GPU.
#ifndef EMULATOR_CUDA_ON_CPU_H
#define EMULATOR_CUDA_ON_CPU_H

#include "cuda_fibers.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unistd.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __constant__ static
#define __grid_constant__
#undef __align__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (fiber_block->current->index)
#define blockIdx (fiber_block->index)
#define blockDim (fiber_block->block)
#define gridDim (fiber_block->grid)
static const int warpSize = 32;

// ---- vectors ----------------------------------------------------------------

#define CUDA_VECTORS(type, name)                                                                   \
    struct alignas(2 * sizeof(type)) name##2 {                                                     \
        type x, y;                                                                                 \
    };                                                                                             \
    struct alignas(4 * sizeof(type)) name##4 {                                                     \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y) {                                         \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                         \
        return {x, y, z, w};                                                                       \
    }
CUDA_VECTORS(float, float)
CUDA_VECTORS(int, int)
CUDA_VECTORS(unsigned, uint)
#undef CUDA_VECTORS

template <typename To, typename From> static inline To cuda_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
static inline unsigned __float_as_uint(float x) {
    return cuda_bits<unsigned>(x);
}
static inline int __float_as_int(float x) {
    return cuda_bits<int>(x);
}
static inline float __uint_as_float(unsigned x) {
    return cuda_bits<float>(x);
}
static inline float __int_as_float(int x) {
    return cuda_bits<float>(x);
}

// ---- bfloat16 ---------------------------------------------------------------
// The upper half of a float32, rounded to nearest, ties to even.
struct alignas(2) __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        const unsigned u = cuda_bits<unsigned>(x);
        bits = (uint16_t)((x == x ? u + 0x7fff + (u >> 16 & 1) : u | 0x400000) >> 16);
    }
    operator float() const {
        return cuda_bits<float>((unsigned)bits << 16);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __float2bfloat16(float x) {
    return __nv_bfloat16(x);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    return __nv_bfloat16(x);
}
static inline float __bfloat162float(__nv_bfloat16 x) {
    return (float)x;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
    return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return {(float)v.x, (float)v.y};
}

// ---- arithmetic -------------------------------------------------------------

using std::max;
using std::min;

#define __expf(x) expf(x) // glibc declares these names
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
static inline float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
static inline float __fdividef(float x, float y) {
    return x / y;
}
static inline float __frcp_rn(float x) {
    return 1 / x;
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline float __fmul_rn(float x, float y) {
    return x * y;
}
static inline float normcdff(float x) {
    return 0.5f * erfcf(-0.70710678f * x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
template <typename T> static inline T __ldg(const T *p) {
    return *p;
}
template <typename T> static inline T __ldcs(const T *p) {
    return *p;
}
template <typename T> static inline void __stcs(T *p, T x) {
    *p = x;
}

// For integers only: we do not use float sums in a varying order.
#define CUDA_ATOMICS(T)                                                                            \
    static inline T atomicAdd(T *p, T x) {                                                         \
        return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    static inline T atomicExch(T *p, T x) {                                                        \
        return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    static inline T atomicCAS(T *p, T expected, T x) {                                             \
        __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        return expected;                                                                           \
    }                                                                                              \
    static inline T atomicMax(T *p, T x) {                                                         \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                              \
        while (old < x && !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST,        \
                                                       __ATOMIC_SEQ_CST))                          \
            ;                                                                                      \
        return old;                                                                                \
    }
CUDA_ATOMICS(int)
CUDA_ATOMICS(unsigned)
CUDA_ATOMICS(unsigned long long)
#undef CUDA_ATOMICS

// ---- barriers and collectives -----------------------------------------------

#define CUDA_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block() {}
static inline void __syncthreads(CUDA_PLACE) {
    fiber_wait_block(file, line);
}
static inline int __syncthreads_count(int predicate, CUDA_PLACE) {
    Fiber *f = fiber_block->current;
    const unsigned turn = f->votes++ & 1;
    f->vote[turn] = predicate != 0;
    fiber_wait_block(file, line);
    int count = 0;
    for (unsigned i = 0; i < fiber_block->count; i++) count += fiber_block->fibers[i].vote[turn];
    return count;
}
static inline int __syncthreads_or(int predicate, CUDA_PLACE) {
    return __syncthreads_count(predicate, file, line) > 0;
}
static inline int __syncthreads_and(int predicate, CUDA_PLACE) {
    return __syncthreads_count(!predicate, file, line) == 0;
}

static inline unsigned cuda_lane() {
    return fiber_block->current->rank % FIBER_WARP;
}
static inline unsigned cuda_lanes() { // of this warp
    return std::min((unsigned)FIBER_WARP,
                    fiber_block->count - fiber_block->current->rank / FIBER_WARP * FIBER_WARP);
}
static inline void cuda_check_mask(unsigned mask) {
    if (mask != 0xffffffff)
        fiber_fault("a collective of a part of a warp", fiber_block->current, NULL);
}
static inline void __syncwarp(unsigned mask = 0xffffffff, CUDA_PLACE) {
    cuda_check_mask(mask);
    fiber_wait_warp(file, line);
}

// Returns the value of lane `from`, or the lane's own if that lane does not exist.
template <typename T>
static inline T cuda_shuffle(unsigned mask, T value, int from, bool there, const char *file,
                             int line) {
    static_assert(sizeof(T) <= FIBER_SLOT, "");
    cuda_check_mask(mask);
    const char *slots = fiber_exchange(&value, sizeof(T), file, line);
    if (there && (unsigned)from < cuda_lanes())
        memcpy(&value, slots + from * FIBER_SLOT, sizeof(T));
    return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, CUDA_PLACE) {
    const int base = (int)cuda_lane() / width * width;
    return cuda_shuffle(mask, value, base + (lane & (width - 1)), true, file, line);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDA_PLACE) {
    const int lane = (int)cuda_lane(), from = lane ^ bits;
    return cuda_shuffle(mask, value, from, from / width <= lane / width, file, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 CUDA_PLACE) {
    const int lane = (int)cuda_lane(), from = lane + (int)delta;
    return cuda_shuffle(mask, value, from, from / width == lane / width, file, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_PLACE) {
    const int lane = (int)cuda_lane(), from = lane - (int)delta;
    return cuda_shuffle(mask, value, from, from >= lane / width * width, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_PLACE) {
    cuda_check_mask(mask);
    const unsigned lanes = cuda_lanes();
    const char *slots = fiber_exchange(&predicate, sizeof(predicate), file, line);
    unsigned result = 0;
    for (unsigned i = 0; i < lanes; i++) {
        int other;
        memcpy(&other, slots + i * FIBER_SLOT, sizeof(other));
        result |= (unsigned)(other != 0) << i;
    }
    return result;
}
static inline int __any_sync(unsigned mask, int predicate, CUDA_PLACE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CUDA_PLACE) {
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

// ---- the start of a kernel, tensor cores and asynchronous copies, as device.cuh has them ----

inline uint64_t cuda_begun; // threads of a launch that called begin_kernel()

static inline void begin_kernel() {
    __atomic_fetch_add(&cuda_begun, 1, __ATOMIC_RELAXED);
}

static inline void cp_async16(void *shared, const void *global, bool valid = true) {
    if (((uintptr_t)shared | (uintptr_t)global) % 16)
        fiber_fault("cp_async16: not aligned", NULL, NULL);
    fiber_copy_start(shared, valid ? global : NULL);
}
static inline void cp_async_commit() {
    fiber_block->current->group++;
}
template <int PENDING> static inline void cp_async_wait() {
    fiber_copy_finish(PENDING);
}

// Lane i passes the address of row i % 8 of matrix i / 8. It receives elements 2 (i % 4) and the
// next of row i / 4 of each matrix, or with `trans` of column i / 4.
static inline void cuda_ldmatrix(uint32_t *r, int matrices, const void *row, bool trans,
                                 const char *file, int line) {
    if ((uintptr_t)row % 16) fiber_fault("ldmatrix: a row is not aligned", NULL, NULL);
    const char *slots = fiber_exchange(&row, sizeof(row), file, line);
    const unsigned lane = cuda_lane();
    for (int m = 0; m < matrices; m++) {
        uint16_t pair[2];
        for (unsigned e = 0; e < 2; e++) {
            const unsigned i = trans ? 2 * (lane % 4) + e : lane / 4,
                           j = trans ? lane / 4 : 2 * (lane % 4) + e;
            const uint16_t *address;
            memcpy(&address, slots + ((size_t)m * 8 + i) * FIBER_SLOT, sizeof(address));
            pair[e] = address[j];
        }
        memcpy(&r[m], pair, sizeof(pair));
    }
    fiber_wait_warp(file, line); // the rows have been read
}
static inline void ldmatrix_x4(uint32_t r[4], const void *row, CUDA_PLACE) {
    cuda_ldmatrix(r, 4, row, false, file, line);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row, CUDA_PLACE) {
    cuda_ldmatrix(r, 4, row, true, file, line);
}
static inline void ldmatrix_x2(uint32_t r[2], const void *row, CUDA_PLACE) {
    cuda_ldmatrix(r, 2, row, false, file, line);
}
static inline void ldmatrix_x2_trans(uint32_t r[2], const void *row, CUDA_PLACE) {
    cuda_ldmatrix(r, 2, row, true, file, line);
}

struct CudaFragments {
    uint32_t a[4], b[2];
};

// For the innermost loop of every product, which accesses only slots and the caller's sums.
#define CUDA_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

CUDA_UNCHECKED static inline float cuda_half_word(uint32_t word, unsigned upper) {
    word = upper ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &word, sizeof(x));
    return x;
}

typedef uint32_t CudaWords __attribute__((vector_size(32)));
typedef float CudaNumbers __attribute__((vector_size(32)));

// d (16, 8) += a (16, 16) b (16, 8): a lane's four elements, from the fragments in the slots of its
// warp. A word holds two factors. Products are summed in storage order.
CUDA_UNCHECKED static inline void cuda_mma_lane(float d[4], const char *slots, unsigned lane) {
    CudaWords rows[2], columns[2];
    for (unsigned place = 0; place < 4; place++) {
        const CudaFragments *left =
            (const CudaFragments *)(slots + (lane / 4 * 4 + place) * FIBER_SLOT);
        for (unsigned i = 0; i < 2; i++) {
            const CudaFragments *right =
                (const CudaFragments *)(slots + ((2 * (lane % 4) + i) * 4 + place) * FIBER_SLOT);
            for (unsigned high = 0; high < 2; high++) {
                rows[i][2 * place + high] = left->a[2 * high + i];
                columns[i][2 * place + high] = right->b[high];
            }
        }
    }
    for (unsigned e = 0; e < 4; e++) {
        const CudaWords x = rows[e / 2], y = columns[e % 2];
        const CudaNumbers sums = (CudaNumbers)(x << 16) * (CudaNumbers)(y << 16) +
                                 (CudaNumbers)(x & 0xffff0000u) * (CudaNumbers)(y & 0xffff0000u);
        d[e] += ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
}

// Lane i holds rows i / 4 and i / 4 + 8, columns 2 (i % 4) and 2 (i % 4) + 1 of the sums.
static inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], CUDA_PLACE) {
    const CudaFragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    cuda_mma_lane(d, fiber_exchange(&mine, sizeof(mine), file, line), cuda_lane());
}

// ---- the device and errors --------------------------------------------------

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
} cudaError_t;

static inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess                         ? "no error"
           : e == cudaErrorMemoryAllocation         ? "out of memory"
           : e == cudaErrorStreamCaptureUnsupported ? "not permitted when a stream is capturing"
           : e == cudaErrorStreamCaptureIsolation
               ? "a captured stream waits for one that is not captured"
           : e == cudaErrorStreamCaptureUnjoined
               ? "a stream that joined the capture has not come back"
               : "invalid argument";
}

static constexpr size_t CUDA_MEMORY = (size_t)8 << 30;
inline size_t cuda_available = CUDA_MEMORY; // reported as free; changed by tests
inline size_t cuda_used, cuda_most_used;    // allocated bytes; the most so far, changed by tests
inline std::map<void *, size_t> cuda_sizes; // of the allocations

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    cudaUUID_t uuid;
};
struct cudaFuncAttributes {
    int ptxVersion;
};
// Each process has its own GPU, unless CUDA_VISIBLE_DEVICES names GPUs, which all processes share.
static inline cudaError_t cudaGetDeviceCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = 1;
    for (; visible && *visible; visible++) *count += *visible == ',';
    return cudaSuccess;
}
static inline cudaError_t cudaGetDevice(int *device) {
    *device = 0; // all are alike
    return cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}
static inline cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    *p = {"CUDA on the CPU", 9, 0, 4, 4 << 20, CUDA_MEMORY, FIBER_SHARED, {}};
    const int number = getenv("CUDA_VISIBLE_DEVICES") ? device : (int)getpid();
    memcpy(p->uuid.bytes, &number, sizeof(number));
    return cudaSuccess;
}
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *) {
    a->ptxVersion = 80;
    return cudaSuccess;
}
static inline cudaError_t cudaGetLastError() {
    return cudaSuccess;
}

// ---- streams and graphs -----------------------------------------------------
// An operation of a captured stream.
struct CudaNode {
    void (*run)(void *arguments);
    void (*release)(void *arguments);
    void *arguments;
    CudaNode *next;
};
struct CudaStream;
struct CudaGraph {
    CudaNode *first, **last;
    CudaStream *origin,
        *joined; // while it is captured: the stream where capture began, and another stream or NULL
};
typedef CudaGraph *cudaGraph_t;
typedef CudaGraph *cudaGraphExec_t;
struct CudaStream {
    CudaGraph *capture; // NULL: operations run immediately
    bool away;          // captured operations are not yet waited for by the origin stream
};
typedef CudaStream *cudaStream_t;
struct CudaEvent {
    CudaStream *recorded; // the stream, if it is captured
};
typedef CudaEvent *cudaEvent_t;

typedef enum {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
} cudaStreamCaptureMode;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

// Runs a function object, or stores it in the captured graph.
template <typename F> static void cuda_submit(cudaStream_t stream, const F &f) {
    if (!stream || !stream->capture) {
        f();
        return;
    }
    CudaNode *node = new CudaNode{[](void *a) { (*(const F *)a)(); },
                                  [](void *a) { delete (F *)a; }, new F(f), NULL};
    *stream->capture->last = node;
    stream->capture->last = &node->next;
    stream->away = stream->capture->origin != stream;
}

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = new CudaStream{NULL, false};
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream && stream->capture ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
static inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return cudaStreamSynchronize(stream);
}
static inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    stream->capture = new CudaGraph{NULL, NULL, stream, NULL};
    stream->capture->last = &stream->capture->first;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    CudaStream *joined = stream->capture->joined;
    *graph = stream->capture;
    stream->capture = NULL;
    if (joined && joined->away) return cudaErrorStreamCaptureUnjoined;
    if (joined) joined->capture = NULL;
    return cudaSuccess;
}
// The graph itself serves as the executable one, so only the latter is destroyed.
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               unsigned long long) {
    *exec = graph;
    return cudaSuccess;
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
    return cudaSuccess;
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    for (CudaNode *node = graph->first; node;) {
        CudaNode *next = node->next;
        node->release(node->arguments);
        delete node;
        node = next;
    }
    delete graph;
    return cudaSuccess;
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
    for (const CudaNode *node = graph->first; node; node = node->next) node->run(node->arguments);
    return cudaSuccess;
}

// ---- events -----------------------------------------------------------------

static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new CudaEvent{NULL};
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->recorded = stream->capture ? stream : NULL;
    return cudaSuccess;
}
// A stream that waits for an event of a captured stream is captured too, until the origin stream
// waits for it.
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (!event->recorded) return stream->capture ? cudaErrorStreamCaptureIsolation : cudaSuccess;
    if (event->recorded == stream) return cudaSuccess;
    CudaGraph *graph = event->recorded->capture;
    if (graph->origin == stream) {
        event->recorded->away = false;
        return cudaSuccess;
    }
    stream->capture = graph;
    stream->away = true;
    graph->joined = stream;
    return cudaSuccess;
}

// ---- launches ---------------------------------------------------------------
// early: every thread calls begin_kernel(). together: see fiber_run_grid().
template <typename... P>
static void cuda_launch(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block,
                        size_t shared, const std::tuple<P...> &arguments, bool early,
                        int together) {
    struct Call {
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    };
    const Call call = {kernel, arguments};
    const uint64_t threads = (uint64_t)grid.x * grid.y * grid.z * block.x * block.y * block.z;
    cuda_submit(stream, [=] {
        cuda_begun = 0;
        fiber_run_grid(
            grid, block, shared,
            [](const void *c) {
                std::apply(((const Call *)c)->kernel, ((const Call *)c)->arguments);
            },
            &call, together);
        if (early && cuda_begun != threads) {
            fprintf(stderr,
                    "error: CUDA kernel: started early, but does not begin with begin_kernel()\n");
            abort();
        }
    });
}

// ---- memory -----------------------------------------------------------------

typedef enum {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
} cudaMemcpyKind;

static inline cudaError_t cudaMallocHost(void **p, size_t size) {
    *p = size > CUDA_MEMORY ? NULL : aligned_alloc(256, (size + 255) / 256 * 256);
    if (!*p) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, size);
    return cudaSuccess;
}
static inline cudaError_t cudaFreeHost(void *p) {
    free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaMalloc(void **p, size_t size) {
    const cudaError_t error = cudaMallocHost(p, size);
    if (error != cudaSuccess) return error;
    cuda_sizes[*p] = size;
    cuda_used += size;
    cuda_most_used = max(cuda_most_used, cuda_used);
    return cudaSuccess;
}
static inline cudaError_t cudaFree(void *p) {
    if (p) cuda_used -= cuda_sizes[p];
    cuda_sizes.erase(p);
    return cudaFreeHost(p);
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind,
                                          cudaStream_t stream) {
    cuda_submit(stream, [=] { memcpy(to, from, size); });
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                                            size_t from_pitch, size_t width, size_t rows,
                                            cudaMemcpyKind, cudaStream_t stream) {
    cuda_submit(stream, [=] {
        for (size_t i = 0; i < rows; i++)
            memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    cuda_submit(stream, [=] { memset(to, value, size); });
    return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = cuda_available;
    *total = CUDA_MEMORY;
    return cudaSuccess;
}

#endif
