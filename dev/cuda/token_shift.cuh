// Token shift on the GPU (dev/cpu/token_shift.h): the first channels of a layer's attention input
// are those of the previous token.
#ifndef CUDA_TOKEN_SHIFT_CUH
#define CUDA_TOKEN_SHIFT_CUH

#include "device.cuh"

// Shifts rows in the first `shifted` of every `channels` columns.
struct TokenShift {
    size_t shifted, channels, length;
    const uint8_t *mask; // (M) 0: hidden; or NULL
};

// to = from, with the shifted channels of the previous row, or of the next row if `up`.
template <typename T>
static __global__ void __launch_bounds__(256)
    token_shift_kernel(T *to, const T *from, TokenShift s, bool up, size_t columns, size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (i % columns % s.channels >= s.shifted) {
        to[i] = from[i];
        return;
    }
    const size_t second = i / columns + (up ? 1 : 0);
    const bool moves = second % s.length != 0 && (!s.mask || s.mask[second - 1]);
    to[i] = moves ? from[up ? i + columns : i - columns] : (T)0.0f;
}

// Shifts one token of each text. before (S, shifted) holds the channels of the previous token, and
// then those of this one. *count: number of previous tokens.
static __global__ void __launch_bounds__(256)
    token_shift_step_kernel(float *to, const float *from, float *before, TokenShift s,
                            const uint64_t *count, size_t numbers) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numbers) return;
    const size_t channel = i % s.channels;
    float x = from[i];
    if (channel < s.shifted) {
        float *kept = before + i / s.channels * s.shifted + channel;
        const float own = x;
        x = *count > 0 ? *kept : 0;
        *kept = own;
    }
    to[i] = x;
}

// Computes `to` (M, columns) from `from`; not in place.
static inline void token_shift_forward(const Device *d, Matrix to, Matrix from, const TokenShift &s,
                                       size_t m) {
    const size_t count = m * from.columns;
    WITH_TYPE(to, T,
              launch_early(d, token_shift_kernel<T>, dim3(blocks_of(count, 256)), dim3(256), 0,
                           (T *)to.data, (const T *)from.data, s, false, from.columns, count));
}

// Computes dx (M, C) from dy, the gradient of the result; not in place.
static inline void token_shift_backward(const Device *d, float *dx, const float *dy,
                                        const TokenShift &s, size_t m) {
    const size_t count = m * s.channels;
    launch_early(d, token_shift_kernel<float>, dim3(blocks_of(count, 256)), dim3(256), 0, dx, dy, s,
                 true, s.channels, count);
}

static inline void token_shift_step(const Device *d, float *to, const float *from, float *before,
                                    const TokenShift &s, const uint64_t *count, size_t streams) {
    const size_t numbers = streams * s.channels;
    launch_early(d, token_shift_step_kernel, dim3(blocks_of(numbers, 256)), dim3(256), 0, to, from,
                 before, s, count, numbers);
}

#endif
