// What processes that train on GPUs need in addition to ranks.h: a GPU for each, and sums of
// gradients in its memory. It is implemented by one of
//
//   nccl.cu     NCCL, on a stream of its own, during the backward pass
//   by_host.cu  what ranks.h has: through the host's memory, after the backward pass
#ifndef CUDA_DEVICE_RANKS_CUH
#define CUDA_DEVICE_RANKS_CUH

#include "device.cuh"
extern "C" {
#include "ranks.h"
}

// A name that no other GPU has (text, 64).
static inline void device_identity(int device, char *text) {
    cudaDeviceProp p;
    CUDA_CHECK(cudaGetDeviceProperties(&p, device));
    for (size_t i = 0; i < sizeof(p.uuid.bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned)(unsigned char)p.uuid.bytes[i]);
}

// Makes GPU number `place` of those that this process sees (counted round, as a launcher may show
// each process one alone) the current one. Ends the program where there is none. Its name goes to
// text (64).
static inline int device_take(int place, char *text) {
    char why[512];
    const int count = device_count(why, sizeof(why));
    if (count == 0) fail("%s", why);
    CUDA_CHECK(
        cudaSetDevice(place % count)); // first: memory on a GPU is taken by the first look at it
    if (!device_available(why, sizeof(why))) fail("%s", why);
    device_identity(place % count, text);
    return place % count;
}

// Each process of a machine takes a GPU of its own, which is the current one from here on. Ends the
// program where there are more processes than GPUs.
static inline void device_choose(Ranks *ranks) {
    char name[64];
    if (!ranks) return;
    device_take(ranks_place_on_machine(ranks), name);
    ranks_refuse_same(ranks, name, "GPU");
}

// A flat array in device memory that is summed over all ranks, in buckets, from its end to its
// beginning. All ranks sum the same buckets in the same order, whatever is final when.
struct DeviceReduction;

// plan->early is of no use here. NULL for a process that is alone.
DeviceReduction *device_reduction_create(Ranks *ranks, const ReductionPlan *plan);
void device_reduction_free(DeviceReduction *reduction);

// `gradients` from `from` on are final after the work on the stream; those from `end` on were final
// before, and are taken care of. Their sums may be taken from here on. Not to be captured: NCCL
// wants a sum captured by all ranks or by none, and each meets other shapes.
void device_reduction_final(DeviceReduction *reduction, float *gradients, size_t from, size_t end,
                            cudaStream_t stream);

// What was begun so far is done before what comes next on the stream.
void device_reduction_join(DeviceReduction *reduction, cudaStream_t stream);

// All gradients are final, those from `end` on were before: they are sums before what comes next on
// the stream.
void device_reduction_end(DeviceReduction *reduction, float *gradients, size_t end,
                          cudaStream_t stream);

// Waits until all work of the stream is done; ends the program where others do not answer in time.
void device_reduction_wait(DeviceReduction *reduction, cudaStream_t stream);

#endif
