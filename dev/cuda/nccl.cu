// NCCL: sums of gradients, and, where processes meet at a file and not through MPI, all that they
// tell each other.
//
// Gradients are summed in place, bucket by bucket on a stream of its own, by NCCL's all-reduce.
// Which bytes travel when is NCCL's affair; for one number of processes on the same machines its
// order of a sum is the same each time.
// --reduce bf16: numbers are rounded to bf16, and so is each of NCCL's partial sums.
#include "device_ranks.cuh"
#include "gemm.cuh"
#ifdef CUDA_ON_CPU
#include "nccl_on_cpu.h"
#else
#include <nccl.h>
#endif
extern "C" {
#include "rendezvous.h"
#include "transport.h"
}
#include <stdlib.h>

static constexpr size_t MOST = (size_t)64 << 20; // bytes of numbers on their way at a time
static constexpr size_t BUCKETS = 16,
                        BUCKET = (size_t)4 << 20; // at least so many of a model, elements at most

static void nccl_check(ncclResult_t result, const char *what) {
    if (result != ncclSuccess)
        fail("NCCL: %s: %s; NCCL_DEBUG=WARN tells more", what, ncclGetErrorString(result));
}

// Waits until what is on the stream is done.
static void wait_for(const Ranks *r, ncclComm_t comm, cudaStream_t stream, const char *what) {
    Deadline deadline = deadline_in(r->timeout);
    for (;;) {
        const bool late = deadline_passed(&deadline); // it may be done meanwhile
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

// All processes meet here, and connect here: not behind the watchdog, by the first sum, when memory
// is planned already.
static ncclComm_t connect(ncclUniqueId id, int rank, int size, double timeout) {
    ncclComm_t comm;
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    Watchdog *watchdog = watchdog_start(timeout, "start of NCCL");
    nccl_check(ncclCommInitRank(&comm, size, id, rank), "start");
    watchdog_stop(watchdog);
    return comm;
}

// ---- without MPI ------------------------------------------------------------

struct Engine {
    ncclComm_t comm;
    cudaStream_t stream;
    char *numbers; // on the device
    size_t room;   // bytes
};

// Room for so many bytes on the device.
static char *numbers_of(Engine *e, size_t bytes) {
    if (bytes <= e->room) return e->numbers;
    CUDA_CHECK(cudaFree(e->numbers));
    CUDA_CHECK(cudaMalloc((void **)&e->numbers, bytes));
    e->room = bytes;
    return e->numbers;
}

// To the host, once the others have answered: such a copy waits for all that the stream does, and
// knows no
// --timeout.
static void copy_back(const Engine *e, void *to, const char *from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, e->stream));
    CUDA_CHECK(cudaStreamSynchronize(e->stream));
}

static void broadcast(Ranks *r, void *data, size_t bytes) {
    Engine *e = (Engine *)r->engine;
    for (size_t at = 0; at < bytes; at += MOST) {
        const size_t part = bytes - at < MOST ? bytes - at : MOST;
        char *on_host = (char *)data + at, *numbers = numbers_of(e, part);
        CUDA_CHECK(cudaMemcpyAsync(numbers, on_host, part, cudaMemcpyHostToDevice, e->stream));
        nccl_check(ncclBroadcast(numbers, numbers, part, ncclChar, 0, e->comm, e->stream),
                   "broadcast");
        wait_for(r, e->comm, e->stream, "broadcast");
        copy_back(e, on_host, numbers, part);
    }
}

static void gather(Ranks *r, const void *data, size_t bytes, void *all, const char *what) {
    Engine *e = (Engine *)r->engine;
    const size_t size = (size_t)r->size;
    char *numbers = numbers_of(e, size * bytes), *mine = numbers + (size_t)r->rank * bytes;
    CUDA_CHECK(cudaMemcpyAsync(mine, data, bytes, cudaMemcpyHostToDevice, e->stream));
    nccl_check(ncclAllGather(mine, numbers, bytes, ncclChar, e->comm, e->stream), what);
    wait_for(r, e->comm, e->stream, what);
    if (r->rank == 0) copy_back(e, all, numbers, size * bytes);
}

static void leave(Ranks *r) {
    Engine *e = (Engine *)r->engine;
    nccl_check(ncclCommDestroy(e->comm), "end");
    CUDA_CHECK(cudaStreamDestroy(e->stream));
    CUDA_CHECK(cudaFree(e->numbers));
    free(e);
}

// There is no way to the others: they end when they have waited, or by their launcher.
static void abort_alone(const Ranks *, int) {}

Ranks *ranks_open_file(const char *file, double timeout) {
    static const Transport nccl = {broadcast, gather, leave, abort_alone};
    char name[64];
    ncclUniqueId id;
    const Place place = place_in_environment();
    const int device = device_take(place.local >= 0 ? place.local : place.rank, name);
    memset(&id, 0, sizeof(id));
    if (place.rank == 0) nccl_check(ncclGetUniqueId(&id), "start");
    rendezvous(file, &place, timeout, name, &id, sizeof(id));
    Engine *e = (Engine *)allocate(1, sizeof(*e), "ranks");
    e->comm = connect(id, place.rank, place.size, timeout);
    CUDA_CHECK(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking));
    Ranks *r = (Ranks *)allocate(1, sizeof(*r), "ranks");
    r->by = &nccl;
    r->engine = e;
    r->rank = place.rank;
    r->size = place.size;
    r->device = device;
    r->timeout = timeout;
    return ranks_join(r);
}

// ---- gradients --------------------------------------------------------------

struct DeviceReduction {
    Ranks *ranks;
    size_t count, bucket; // elements of all, and of a bucket
    ncclComm_t comm;
    bool own_comm;
    Device device;                // the current one, and the stream that sums
    cudaEvent_t computed, summed; // gradients are there to be summed; sums are there
    bool begun;                   // sums that no other stream waits for yet
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
    d->own_comm = ranks_device(ranks) < 0;
    if (d->own_comm) {
        ncclUniqueId id;
        memset(&id, 0, sizeof(id));
        if (ranks_rank(ranks) == 0) nccl_check(ncclGetUniqueId(&id), "start");
        ranks_broadcast(ranks, &id, sizeof(id));
        d->comm = connect(id, ranks->rank, ranks->size, ranks->timeout);
    } else {
        d->comm = ((const Engine *)ranks->engine)->comm;
    }
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
    if (d->own_comm) nccl_check(ncclCommDestroy(d->comm), "end");
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

// The buckets that begin in from .. end-1, the last one first.
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
