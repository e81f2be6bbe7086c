// GELU (Hendrycks and Gimpel 2016): exact, x Phi(x) with erf; and GPT-2's tanh approximation.
#ifndef CPU_GELU_H
#define CPU_GELU_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>

typedef enum { GELU_ERF, GELU_TANH } GeluKind;

// y (M, N) = gelu(x + bias); bias (N) or NULL.
void gelu_forward(GemmInput y, const real *restrict x, const real *restrict bias, GeluKind kind, size_t m,
                  size_t n);

// dx (M, N) = dy * gelu'(x + bias), as the next products read it; dbias (N) += its sum over rows, where bias
// is given.
void gelu_backward(GemmInput dx, real *restrict dbias, const real *restrict dy, const real *restrict x,
                   const real *restrict bias, GeluKind kind, size_t m, size_t n);

// In place on a row of decoding.
void gelu_row(real *x, GeluKind kind, size_t n);

#endif
