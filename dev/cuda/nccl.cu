// Sums gradients with NCCL, between processes that MPI connects.
//
// NCCL's all-reduce sums gradients in place, bucket by bucket, on a separate stream. NCCL schedules
// the transfers. For a given number of processes on the same machines, it sums in the same order
// each time. With --reduce bf16, gradients and NCCL's partial sums are rounded to bf16.
#include "device_ranks.cuh"
#include "gemm.cuh"
#ifdef CUDA_ON_CPU
#include "nccl_on_cpu.h"
#else
#include <nccl.h>
#endif
extern "C" {
#include "transport.h"
}
#include <stdlib.h>

static constexpr size_t BUCKETS = 16,
                        BUCKET = (size_t)4 << 20; // minimum per model; most elements per bucket

static void nccl_check(ncclResult_t result, const char *what) {
    if (result != ncclSuccess)
        fail("NCCL: %s: %s; set NCCL_DEBUG=WARN for details", what, ncclGetErrorString(result));
}

// Waits until the stream's work is done. Exits with an error after the timeout or if NCCL fails.
static void wait_for(const Ranks *r, ncclComm_t comm, cudaStream_t stream, const char *what) {
    Deadline deadline = deadline_in(r->timeout);
    for (;;) {
        const bool late = deadline_passed(&deadline); // read first: the work may finish meanwhile
        const cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaSuccess) return;
        if (state != cudaErrorNotReady) CUDA_CHECK(state);
        ncclResult_t of_others = ncclSuccess;
        nccl_check(ncclCommGetAsyncError(comm, &of_others), what);
        nccl_check(of_others, what);
        if (late) fail("%s: waited %g s (--timeout) for the other processes", what, r->timeout);
        ranks_nap();
    }
}

// Creates the communicator with all processes, under the watchdog. Connections are made here, not
// by the first sum, because memory has already been planned by then.
static ncclComm_t connect(Ranks *r) {
    ncclComm_t comm;
    ncclUniqueId id;
    memset(&id, 0, sizeof(id));
    if (r->rank == 0) nccl_check(ncclGetUniqueId(&id), "start");
    ranks_broadcast(r, &id, sizeof(id));
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    Watchdog *watchdog = watchdog_start(r->timeout, "start of NCCL");
    nccl_check(ncclCommInitRank(&comm, r->size, id, r->rank), "start");
    watchdog_stop(watchdog);
    return comm;
}

struct DeviceReduction {
    Ranks *ranks;
    size_t count, bucket; // elements in total and per bucket
    ncclComm_t comm;
    Device device;                // the current GPU, and the stream for sums
    cudaEvent_t computed, summed; // gradients are ready to be summed; sums are ready
    bool begun;                   // sums are issued that no other stream waits for yet
    bf16 *rounded;                // (bucket) --reduce bf16
};

static __global__ void widen_kernel(float *to, const bf16 *from, size_t count) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = (float)from[i];
}

DeviceReduction *device_reduction_create(Ranks *ranks, const ReductionPlan *plan) {
    if (!ranks) return NULL;
    DeviceReduction *d = (DeviceReduction *)allocate(1, sizeof(*d), "reduction");
    d->ranks = ranks;
    d->count = plan->count;
    const size_t part = (plan->count / BUCKETS + RANKS_PIECE) / RANKS_PIECE * RANKS_PIECE;
    d->bucket = part < BUCKET ? part : BUCKET;
    d->comm = connect(ranks);
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&d->device.stream, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaEventCreateWithFlags(&d->computed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&d->summed, cudaEventDisableTiming));
    if (plan->bf16) CUDA_CHECK(cudaMalloc((void **)&d->rounded, d->bucket * sizeof(bf16)));
    return d;
}

void device_reduction_free(DeviceReduction *d) {
    if (!d) return;
    nccl_check(ncclCommDestroy(d->comm), "end");
    CUDA_CHECK(cudaEventDestroy(d->computed));
    CUDA_CHECK(cudaEventDestroy(d->summed));
    CUDA_CHECK(cudaStreamDestroy(d->device.stream));
    CUDA_CHECK(cudaFree(d->rounded));
    free(d);
}

static void sum(const DeviceReduction *d, float *gradients, size_t count) {
    const cudaStream_t stream = d->device.stream;
    if (!d->rounded) {
        nccl_check(ncclAllReduce(gradients, gradients, count, ncclFloat, ncclSum, d->comm, stream),
                   "sum of gradients");
        return;
    }
    round_to_bf16(&d->device, d->rounded, gradients, count);
    nccl_check(ncclAllReduce(d->rounded, d->rounded, count, ncclBfloat16, ncclSum, d->comm, stream),
               "sum of gradients");
    launch(&d->device, widen_kernel, dim3(blocks_of(count, 256)), dim3(256), 0, gradients,
           d->rounded, count);
}

// Sums the buckets that begin in from .. end-1, last one first.
void device_reduction_final(DeviceReduction *d, float *gradients, size_t from, size_t end,
                            cudaStream_t stream) {
    const size_t first = (from + d->bucket - 1) / d->bucket;
    size_t bucket = (end + d->bucket - 1) / d->bucket;
    if (bucket <= first) return;
    CUDA_CHECK(cudaEventRecord(d->computed, stream));
    CUDA_CHECK(cudaStreamWaitEvent(d->device.stream, d->computed, 0));
    d->begun = true;
    while (bucket-- > first) {
        const size_t begin = bucket * d->bucket, left = d->count - begin;
        sum(d, gradients + begin, left < d->bucket ? left : d->bucket);
    }
}

void device_reduction_join(DeviceReduction *d, cudaStream_t stream) {
    if (!d->begun) return;
    d->begun = false;
    CUDA_CHECK(cudaEventRecord(d->summed, d->device.stream));
    CUDA_CHECK(cudaStreamWaitEvent(stream, d->summed, 0));
}

void device_reduction_end(DeviceReduction *d, float *gradients, size_t end, cudaStream_t stream) {
    const double n = d->ranks->size;
    device_reduction_final(d, gradients, 0, end, stream);
    device_reduction_join(d, stream);
    d->ranks->report.bytes +=
        2 * (n - 1) / n * (double)d->count * (d->rounded ? sizeof(bf16) : sizeof(float));
}

void device_reduction_wait(DeviceReduction *d, cudaStream_t stream) {
    wait_for(d->ranks, d->comm, stream, "sum of gradients");
}
