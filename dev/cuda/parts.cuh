// Products of float32 matrices on bf16 tensor cores, where bf16 alone is too coarse. Each number is
// split into two bf16 numbers, high and low, whose sum holds 16 of its 24 bits. Of the four
// products of parts, the three significant ones are computed as one product with three times the
// columns:
//
//     x w^T = [high(x) | low(x) | high(x)] [high(w) | high(w) | low(w)]^T, except low(x) low(w)^T
//
// Part of layernorm.cuh, which writes x in this form.
#ifndef CUDA_PARTS_CUH
#define CUDA_PARTS_CUH

#include "device.cuh"

static constexpr size_t PARTS_COLUMNS = 3; // times the columns of the operands

static __device__ __forceinline__ float rounding_rest(float x) {
    return x - (float)(bf16)x;
}

// Block (x, i) splits a part of matrix i, which has `count` elements in rows of `columns`.
static __global__ void __launch_bounds__(256)
    weight_parts_kernel(bf16 *to, const float *from, size_t step, size_t columns, size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float x = from[blockIdx.y * step + i];
    bf16 *const parts =
        to + PARTS_COLUMNS * (blockIdx.y * count + i / columns * columns) + i % columns;
    parts[0] = parts[columns] = (bf16)x;
    parts[2 * columns] = (bf16)rounding_rest(x);
}

// to (matrices, N, 3K) or (matrices, 3K, N) = the parts of weights (N, K) or (K, N), which start
// `step` elements apart.
static inline void weight_parts(const Device *d, bf16 *to, const float *from, size_t step,
                                size_t matrices, const LinearShape *shape) {
    const size_t count = shape->outputs * shape->inputs,
                 columns = shape->layout == WEIGHT_OUT_IN ? shape->inputs : count;
    launch_early(d, weight_parts_kernel, dim3(blocks_of(count, 256), (unsigned)matrices), dim3(256),
                 0, to, from, step, columns, count);
}

#endif
