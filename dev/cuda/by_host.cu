// Sums of gradients without NCCL: through host memory, after the backward pass.
#include "device_ranks.cuh"
#include <stdlib.h>

struct DeviceReduction {
    Reduction *by;
    size_t count;
    float *on_host; // (count)
};

DeviceReduction *device_reduction_create(Ranks *ranks, const ReductionPlan *plan) {
    if (ranks_size(ranks) == 1) return NULL;
    DeviceReduction *d = (DeviceReduction *)allocate(1, sizeof(*d), "reduction");
    d->by = reduction_create(ranks, plan);
    d->count = plan->count;
    d->on_host = (float *)allocate(plan->count, sizeof(float), "gradients");
    return d;
}

void device_reduction_free(DeviceReduction *d) {
    if (!d) return;
    reduction_free(d->by);
    free(d->on_host);
    free(d);
}

void device_reduction_final(DeviceReduction *, float *, size_t, size_t, cudaStream_t) {}

void device_reduction_join(DeviceReduction *, cudaStream_t) {}

void device_reduction_end(DeviceReduction *d, float *gradients, size_t, cudaStream_t stream) {
    const size_t bytes = d->count * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(d->on_host, gradients, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    reduction_end(d->by, d->on_host);
    CUDA_CHECK(cudaMemcpyAsync(gradients, d->on_host, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

void device_reduction_wait(DeviceReduction *, cudaStream_t stream) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
}
