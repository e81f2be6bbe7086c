// Additions to ranks.h for processes that train on GPUs: one GPU per process, and sums of gradients
// in GPU memory. Implemented by one of
//
//   nccl.cu     NCCL, on its own stream, during the backward pass
//   by_host.cu  ranks.h: through host memory, after the backward pass
#ifndef CUDA_DEVICE_RANKS_CUH
#define CUDA_DEVICE_RANKS_CUH

#include "device.cuh"
extern "C" {
#include "ranks.h"
}

// Writes a name that is unique to the GPU to text (64).
static inline void device_identity(int device, char *text) {
    cudaDeviceProp p;
    CUDA_CHECK(cudaGetDeviceProperties(&p, device));
    for (size_t i = 0; i < sizeof(p.uuid.bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned)(unsigned char)p.uuid.bytes[i]);
}

// Makes GPU number `place` of those visible to this process the current one, and writes its name to
// text (64). The number wraps around, as a launcher may make only one GPU visible to each process.
// Exits with an error if no GPU is available.
static inline int device_take(int place, char *text) {
    char why[512];
    const int count = device_count(why, sizeof(why));
    if (count == 0) fail("%s", why);
    CUDA_CHECK(
        cudaSetDevice(place % count)); // first, as querying a GPU already allocates memory on it
    if (!device_available(why, sizeof(why))) fail("%s", why);
    device_identity(place % count, text);
    return place % count;
}

// Assigns a different GPU to each process of a machine and makes it current. Exits with an error if
// there are more processes than GPUs.
static inline void device_choose(Ranks *ranks) {
    char name[64];
    if (!ranks) return;
    device_take(ranks_place_on_machine(ranks), name);
    ranks_refuse_same(ranks, name, "GPU");
}

// A flat array in device memory that is summed over all ranks, in buckets, from its end to its
// beginning. All ranks sum the same buckets in the same order, regardless of when they are final.
struct DeviceReduction;

// plan->early is not used here. Returns NULL for a single process.
DeviceReduction *device_reduction_create(Ranks *ranks, const ReductionPlan *plan);
void device_reduction_free(DeviceReduction *reduction);

// The gradients in `from` .. `end` - 1 are final after the work on the stream; those from `end` on
// are already being summed. The sums of the former may start from here on. Must not be captured:
// NCCL requires that all ranks capture a sum or none, and each rank sees other shapes.
void device_reduction_final(DeviceReduction *reduction, float *gradients, size_t from, size_t end,
                            cudaStream_t stream);

// Orders all sums started so far before later work on the stream.
void device_reduction_join(DeviceReduction *reduction, cudaStream_t stream);

// All gradients are final; those from `end` on were final before. Their sums are complete before
// later work on the stream.
void device_reduction_end(DeviceReduction *reduction, float *gradients, size_t end,
                          cudaStream_t stream);

// Waits for all work of the stream. Exits with an error if other ranks do not respond in time.
void device_reduction_wait(DeviceReduction *reduction, cudaStream_t stream);

#endif
