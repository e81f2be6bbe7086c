// GELU (Hendrycks and Gimpel 2016): exact, x Phi(x) with erf; and GPT-2's tanh approximation.
#ifndef CUDA_GELU_CUH
#define CUDA_GELU_CUH

#include "device.cuh"
extern "C" {
#include "activation.h"
}

// The tanh form is x s(2u), s the logistic function, with 2u = sqrt(8 / pi) (x + 0.044715 x^3).
static constexpr float GELU_SLOPE = 1.5957691216057308f, GELU_CUBE = 0.044715f;

// s and 1 - s: the smaller one is computed, so that neither loses its digits to the other.
struct Logistic {
    float value, rest;
};

static __device__ __forceinline__ Logistic gelu_logistic(float x) {
    const float tail = __fdividef(1.0f, 1.0f + __expf(fabsf(x)));
    return x < 0 ? Logistic{tail, 1 - tail} : Logistic{1 - tail, tail};
}

template <ActivationKind KIND> static __device__ __forceinline__ float gelu_value(float x) {
    if (KIND == GELU_ERF) return x * normcdff(x);
    return x * gelu_logistic(GELU_SLOPE * x * (1 + GELU_CUBE * x * x)).value;
}

template <ActivationKind KIND> static __device__ __forceinline__ float gelu_slope(float x) {
    const float square = x * x;
    if (KIND == GELU_ERF) return normcdff(x) + x * 0.398942280f * __expf(-0.5f * square);
    if (square > 1000) return x > 0; // s is 0 or 1 and the square may be infinite
    const Logistic s = gelu_logistic(GELU_SLOPE * x * (1 + GELU_CUBE * square));
    return s.value + x * s.value * s.rest * (GELU_SLOPE * (1 + 3 * GELU_CUBE * square));
}

static constexpr int GELU_VEC = 8;

// Eight elements a thread; the last one takes what is left. kept: a copy of x, or NULL.
template <typename Y, typename K, typename X, ActivationKind KIND>
static __global__ void __launch_bounds__(256) gelu_forward_kernel(Y *y, K *kept, const X *x, size_t count) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * GELU_VEC;
    if (first + GELU_VEC <= count) {
        float v[GELU_VEC];
        load_numbers<GELU_VEC>(v, x + first);
        if (kept) store_numbers<GELU_VEC>(kept + first, v);
#pragma unroll
        for (int i = 0; i < GELU_VEC; i++) v[i] = gelu_value<KIND>(v[i]);
        store_numbers<GELU_VEC>(y + first, v);
    } else {
        for (size_t i = first; i < count; i++) {
            const float v = (float)x[i];
            if (kept) kept[i] = (K)v;
            y[i] = (Y)gelu_value<KIND>(v);
        }
    }
}

template <typename Y, typename D, typename X, ActivationKind KIND>
static __global__ void __launch_bounds__(256)
    gelu_backward_kernel(Y *dx, const D *dy, const X *x, size_t count) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * GELU_VEC;
    if (first + GELU_VEC <= count) {
        float v[GELU_VEC], gradient[GELU_VEC];
        load_numbers<GELU_VEC>(v, x + first);
        load_numbers<GELU_VEC>(gradient, dy + first);
#pragma unroll
        for (int i = 0; i < GELU_VEC; i++) v[i] = gradient[i] * gelu_slope<KIND>(v[i]);
        store_numbers<GELU_VEC>(dx + first, v);
    } else {
        for (size_t i = first; i < count; i++) dx[i] = (Y)((float)dy[i] * gelu_slope<KIND>((float)x[i]));
    }
}

// Runs statements with KIND as a constant.
#define WITH_GELU(kind, KIND, ...)                                                                           \
    do {                                                                                                     \
        if ((kind) == GELU_ERF) {                                                                            \
            constexpr ActivationKind KIND = GELU_ERF;                                                        \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            constexpr ActivationKind KIND = GELU_TANH;                                                       \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

// y (M, N) = gelu(x); kept (M, N) = x as the backward pass reads it, which may be x itself.
static inline void gelu_forward(const Device *d, GemmInput y, GemmInput kept, GemmInput x,
                                ActivationKind kind, size_t m, size_t n) {
    const dim3 grid(blocks_of(m * n, 256 * GELU_VEC)), block(256);
    void *const copy = kept.data == x.data ? NULL : kept.data;
    WITH_GELU(kind, KIND, WITH_TYPE(y, Y, WITH_TYPE(kept, K, WITH_TYPE(x, X, {
                                                        launch(d, gelu_forward_kernel<Y, K, X, KIND>, grid,
                                                               block, 0, (Y *)y.data, (K *)copy,
                                                               (const X *)x.data, m * n);
                                                    }))));
}

// dx (M, N) = dy gelu'(x). dx may be dy.
static inline void gelu_backward(const Device *d, GemmInput dx, GemmInput dy, GemmInput x,
                                 ActivationKind kind, size_t m, size_t n) {
    const dim3 grid(blocks_of(m * n, 256 * GELU_VEC)), block(256);
    WITH_GELU(kind, KIND, WITH_TYPE(dx, Y, WITH_TYPE(dy, D, WITH_TYPE(x, X, {
                                                         launch(d, gelu_backward_kernel<Y, D, X, KIND>, grid,
                                                                block, 0, (Y *)dx.data, (const D *)dy.data,
                                                                (const X *)x.data, m * n);
                                                     }))));
}

#endif
