// The activations of dev/cpu/activation.h: GELU, both exact, x Phi(x) with erf, and in GPT-2's tanh
// approximation; ReLU and its square; SiLU, x s(x) with the logistic function s; and SwiGLU,
// SiLU(gate) * up, on rows that hold the gates followed by `up`.
#ifndef CUDA_ACTIVATION_CUH
#define CUDA_ACTIVATION_CUH

#include "device.cuh"
extern "C" {
#include "activation.h"
}

// The tanh form is x s(2u) with the logistic function s and 2u = sqrt(8 / pi) (x + 0.044715 x^3).
static constexpr float GELU_SLOPE = 1.5957691216057308f, GELU_CUBE = 0.044715f;

// s and 1 - s. The smaller one is computed first, so that neither loses digits.
struct Logistic {
    float value, rest;
};

static __device__ __forceinline__ Logistic logistic(float x) {
    const float tail = __fdividef(1.0f, 1.0f + __expf(fabsf(x)));
    return x < 0 ? Logistic{tail, 1 - tail} : Logistic{1 - tail, tail};
}

template <ActivationKind KIND> static __device__ __forceinline__ float activation_value(float x) {
    if (KIND == RELU) return fmaxf(x, 0);
    if (KIND == RELU2) return fmaxf(x, 0) * fmaxf(x, 0);
    if (KIND == SILU) return x * logistic(x).value;
    if (KIND == GELU_ERF) return x * normcdff(x);
    return x * logistic(GELU_SLOPE * x * (1 + GELU_CUBE * x * x)).value;
}

template <ActivationKind KIND> static __device__ __forceinline__ float activation_slope(float x) {
    const float square = x * x;
    if (KIND == RELU) return x > 0;
    if (KIND == RELU2) return 2 * fmaxf(x, 0);
    if (KIND == SILU) {
        const Logistic s = logistic(x);
        return s.value + x * s.value * s.rest;
    }
    if (KIND == GELU_ERF) return normcdff(x) + x * 0.398942280f * __expf(-0.5f * square);
    if (square > 1000) return x > 0; // s is 0 or 1 and the square may be infinite
    const Logistic s = logistic(GELU_SLOPE * x * (1 + GELU_CUBE * square));
    return s.value + x * s.value * s.rest * (GELU_SLOPE * (1 + 3 * GELU_CUBE * square));
}

static constexpr int ACTIVATION_VEC = 8;

// Eight elements per thread; the last thread handles the remainder. kept: a copy of x, or NULL.
template <typename Y, typename K, typename X, ActivationKind KIND>
static __global__ void __launch_bounds__(256)
    activation_forward_kernel(Y *y, K *kept, const X *x, size_t count) {
    begin_kernel();
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * ACTIVATION_VEC;
    if (first + ACTIVATION_VEC <= count) {
        float v[ACTIVATION_VEC];
        load_numbers<ACTIVATION_VEC>(v, x + first);
        if (kept) store_numbers<ACTIVATION_VEC>(kept + first, v);
#pragma unroll
        for (int i = 0; i < ACTIVATION_VEC; i++) v[i] = activation_value<KIND>(v[i]);
        store_numbers<ACTIVATION_VEC>(y + first, v);
    } else {
        for (size_t i = first; i < count; i++) {
            const float v = (float)x[i];
            if (kept) kept[i] = (K)v;
            y[i] = (Y)activation_value<KIND>(v);
        }
    }
}

template <typename Y, typename D, typename X, ActivationKind KIND>
static __global__ void __launch_bounds__(256)
    activation_backward_kernel(Y *dx, const D *dy, const X *x, size_t count) {
    begin_kernel();
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * ACTIVATION_VEC;
    if (first + ACTIVATION_VEC <= count) {
        float v[ACTIVATION_VEC], gradient[ACTIVATION_VEC];
        load_numbers<ACTIVATION_VEC>(v, x + first);
        load_numbers<ACTIVATION_VEC>(gradient, dy + first);
#pragma unroll
        for (int i = 0; i < ACTIVATION_VEC; i++) v[i] = gradient[i] * activation_slope<KIND>(v[i]);
        store_numbers<ACTIVATION_VEC>(dx + first, v);
    } else {
        for (size_t i = first; i < count; i++)
            dx[i] = (Y)((float)dy[i] * activation_slope<KIND>((float)x[i]));
    }
}

// One output per thread.
template <typename Y, typename K, typename X>
static __global__ void __launch_bounds__(256)
    swiglu_forward_kernel(Y *y, K *kept, const X *x, size_t count, unsigned n) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, at = i + i / n * n;
    if (i >= count) return;
    const float gate = (float)x[at], up = (float)x[at + n];
    if (kept) kept[at] = (K)gate;
    if (kept) kept[at + n] = (K)up;
    y[i] = (Y)(activation_value<SILU>(gate) * up);
}

template <typename Y, typename D, typename X>
static __global__ void __launch_bounds__(256)
    swiglu_backward_kernel(Y *dx, const D *dy, const X *x, size_t count, unsigned n) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, at = i + i / n * n;
    if (i >= count) return;
    const float gate = (float)x[at], up = (float)x[at + n], g = (float)dy[i];
    dx[at] = (Y)(g * up * activation_slope<SILU>(gate));
    dx[at + n] = (Y)(g * activation_value<SILU>(gate));
}

// Runs statements with KIND as a constant.
#define WITH_ACTIVATION(kind, KIND, ...)                                                           \
    do {                                                                                           \
        if ((kind) == GELU_ERF) {                                                                  \
            constexpr ActivationKind KIND = GELU_ERF;                                              \
            __VA_ARGS__;                                                                           \
        } else if ((kind) == GELU_TANH) {                                                          \
            constexpr ActivationKind KIND = GELU_TANH;                                             \
            __VA_ARGS__;                                                                           \
        } else if ((kind) == RELU) {                                                               \
            constexpr ActivationKind KIND = RELU;                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((kind) == RELU2) {                                                              \
            constexpr ActivationKind KIND = RELU2;                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr ActivationKind KIND = SILU;                                                  \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// y (M, N) = f(x) with the activation function f; kept (M, N) = x as the backward pass reads it,
// which may be x itself. SwiGLU: x and kept are (M, 2N).
static inline void activation_forward(const Device *d, Matrix y, Matrix kept, Matrix x,
                                      ActivationKind kind, size_t m, size_t n) {
    const dim3 grid(blocks_of(m * n, 256 * ACTIVATION_VEC)), block(256);
    void *const copy = kept.data == x.data ? NULL : kept.data;
    if (kind == SWIGLU) {
        WITH_TYPE(y, Y, WITH_TYPE(kept, K, WITH_TYPE(x, X, {
                                      launch_early(d, swiglu_forward_kernel<Y, K, X>,
                                                   dim3(blocks_of(m * n, 256)), block, 0,
                                                   (Y *)y.data, (K *)copy, (const X *)x.data, m * n,
                                                   (unsigned)n);
                                  })));
        return;
    }
    WITH_ACTIVATION(kind, KIND,
                    WITH_TYPE(y, Y, WITH_TYPE(kept, K, WITH_TYPE(x, X, {
                                                  launch_early(
                                                      d, activation_forward_kernel<Y, K, X, KIND>,
                                                      grid, block, 0, (Y *)y.data, (K *)copy,
                                                      (const X *)x.data, m * n);
                                              }))));
}

// dx (M, N) = dy f'(x). dx may alias dy, except with SwiGLU, where x and dx are (M, 2N).
static inline void activation_backward(const Device *d, Matrix dx, Matrix dy, Matrix x,
                                       ActivationKind kind, size_t m, size_t n) {
    const dim3 grid(blocks_of(m * n, 256 * ACTIVATION_VEC)), block(256);
    if (kind == SWIGLU) {
        WITH_TYPE(dx, Y, WITH_TYPE(dy, D, WITH_TYPE(x, X, {
                                       launch_early(d, swiglu_backward_kernel<Y, D, X>,
                                                    dim3(blocks_of(m * n, 256)), block, 0,
                                                    (Y *)dx.data, (const D *)dy.data,
                                                    (const X *)x.data, m * n, (unsigned)n);
                                   })));
        return;
    }
    WITH_ACTIVATION(
        kind, KIND,
        WITH_TYPE(dx, Y, WITH_TYPE(dy, D, WITH_TYPE(x, X, {
                                       launch_early(d, activation_backward_kernel<Y, D, X, KIND>,
                                                    grid, block, 0, (Y *)dx.data,
                                                    (const D *)dy.data, (const X *)x.data, m * n);
                                   }))));
}

#endif
