// Selected rows of a matrix, such as those with a prediction.
#ifndef CUDA_CHOSEN_ROWS_CUH
#define CUDA_CHOSEN_ROWS_CUH

#include "device.cuh"

template <typename T>
static __global__ void __launch_bounds__(256)
    gather_kernel(T *to, const T *from, const int32_t *rows, size_t channels, size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int32_t row = rows[i / channels];
    to[i] = row < 0 ? (T)0.0f : from[(size_t)row * channels + i % channels];
}

static __global__ void __launch_bounds__(256)
    scatter_kernel(float *to, const float *from, const int32_t *rows, size_t channels,
                   size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int32_t row = rows[i / channels];
    if (row >= 0) to[(size_t)row * channels + i % channels] = from[i];
}

// to (K, C) = rows (K) of from (M, C), 0 where a row is -1. Both have the same type.
static inline void rows_gather(const Device *d, Matrix to, Matrix from, const int32_t *rows,
                               size_t k) {
    const size_t C = to.columns;
    WITH_TYPE(to, T,
              launch_early(d, gather_kernel<T>, dim3(blocks_of(k * C, 256)), dim3(256), 0,
                           (T *)to.data, (const T *)from.data, rows, C, k * C));
}

// Sets those rows of to (M, C) to from (K, C) and all others to 0.
static inline void rows_scatter(const Device *d, float *to, const float *from, const int32_t *rows,
                                size_t k, size_t m, size_t channels) {
    CUDA_CHECK(cudaMemsetAsync(to, 0, m * channels * sizeof(float), d->stream));
    launch_early(d, scatter_kernel, dim3(blocks_of(k * channels, 256)), dim3(256), 0, to, from,
                 rows, channels, k * channels);
}

#endif
