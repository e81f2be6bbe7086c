// GELU (Hendrycks and Gimpel 2016): exact, x Phi(x) with erf; and GPT-2's tanh approximation.
#ifndef CUDA_GELU_CUH
#define CUDA_GELU_CUH

#include "device.cuh"
extern "C" {
#include "gelu.h"
}

// The tanh form is x s(2u), s the logistic function, with 2u = sqrt(8 / pi) (x + 0.044715 x^3).
static constexpr float GELU_SLOPE = 1.5957691216057308f, GELU_CUBE = 0.044715f;

static __device__ __forceinline__ float gelu_logistic(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

template <GeluKind KIND> static __device__ __forceinline__ float gelu_value(float x) {
    if (KIND == GELU_ERF) return x * normcdff(x);
    return x * gelu_logistic(GELU_SLOPE * x * (1 + GELU_CUBE * x * x));
}

template <GeluKind KIND> static __device__ __forceinline__ float gelu_slope(float x) {
    const float square = x * x;
    if (KIND == GELU_ERF) return normcdff(x) + x * 0.398942280f * __expf(-0.5f * square);
    if (square > 1000) return x > 0; // s is 0 or 1 and the square may be infinite
    const float s = gelu_logistic(GELU_SLOPE * x * (1 + GELU_CUBE * square));
    return s + x * s * (1 - s) * (GELU_SLOPE * (1 + 3 * GELU_CUBE * square));
}

static constexpr int GELU_VEC = 8;

// y = gelu(x), or dx = dy gelu'(x) where BACKWARD (y is dx). Eight elements a thread; the last one takes what
// is left.
template <typename Y, typename D, typename X, GeluKind KIND, bool BACKWARD>
static __global__ void __launch_bounds__(256) gelu_kernel(Y *y, const D *dy, const X *x, size_t count) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * GELU_VEC;
    if (first + GELU_VEC <= count) {
        float v[GELU_VEC], gradient[GELU_VEC];
        load_numbers<GELU_VEC>(v, x + first);
        if (BACKWARD) load_numbers<GELU_VEC>(gradient, dy + first);
#pragma unroll
        for (int i = 0; i < GELU_VEC; i++)
            v[i] = BACKWARD ? gradient[i] * gelu_slope<KIND>(v[i]) : gelu_value<KIND>(v[i]);
        store_numbers<GELU_VEC>(y + first, v);
    } else {
        for (size_t i = first; i < count; i++)
            y[i] =
                (Y)(BACKWARD ? (float)dy[i] * gelu_slope<KIND>((float)x[i]) : gelu_value<KIND>((float)x[i]));
    }
}

// dy: not looked at in the forward pass.
template <bool BACKWARD>
static inline void gelu_launch(const Device *d, GemmInput y, GemmInput dy, GemmInput x, GeluKind kind,
                               size_t count) {
    const dim3 grid(blocks_of(count, 256 * GELU_VEC)), block(256);
    WITH_TYPE(y, Y, WITH_TYPE(dy, D, WITH_TYPE(x, X, {
                                  if (kind == GELU_ERF)
                                      launch(d, gelu_kernel<Y, D, X, GELU_ERF, BACKWARD>, grid, block, 0,
                                             (Y *)y.data, (const D *)dy.data, (const X *)x.data, count);
                                  else
                                      launch(d, gelu_kernel<Y, D, X, GELU_TANH, BACKWARD>, grid, block, 0,
                                             (Y *)y.data, (const D *)dy.data, (const X *)x.data, count);
                              })));
}

// y (M, N) = gelu(x)
static inline void gelu_forward(const Device *d, GemmInput y, GemmInput x, GeluKind kind, size_t m,
                                size_t n) {
    gelu_launch<false>(d, y, x, x, kind, m * n);
}

// dx (M, N) = dy gelu'(x). dx may be dy.
static inline void gelu_backward(const Device *d, GemmInput dx, GemmInput dy, GemmInput x, GeluKind kind,
                                 size_t m, size_t n) {
    gelu_launch<true>(d, dx, dy, x, kind, m * n);
}

#endif
