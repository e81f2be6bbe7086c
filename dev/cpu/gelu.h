// What lies between the products of a feed-forward network: GELU (Hendrycks and Gimpel 2016), exact, x Phi(x)
// with erf, or GPT-2's tanh approximation; and ReLU, max(x, 0), whose slope at 0 is 0.
#ifndef CPU_GELU_H
#define CPU_GELU_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>

typedef enum { GELU_ERF, GELU_TANH, RELU } GeluKind;

// y (M, N) = gelu(x + bias), or relu; bias (N) or NULL.
void gelu_forward(GemmInput y, const real *restrict x, const real *restrict bias, GeluKind kind, size_t m,
                  size_t n);

// dx (M, N) = dy * gelu'(x + bias), as the next products read it; dbias (N) += its sum over rows, where bias
// is given.
void gelu_backward(GemmInput dx, real *restrict dbias, const real *restrict dy, const real *restrict x,
                   const real *restrict bias, GeluKind kind, size_t m, size_t n);

// In place on a row of decoding.
void gelu_row(real *x, GeluKind kind, size_t n);

#endif
