// The activation between the two products of a feed-forward network: GELU (Hendrycks and Gimpel
// 2016), either exact, x Phi(x) with erf, or GPT-2's tanh approximation; ReLU, max(x, 0), with
// slope 0 at 0; its square (So et al., "Primer", 2021); and SiLU, x logistic(x) (also Hendrycks and
// Gimpel 2016; "swish"). SwiGLU (Shazeer, "GLU variants improve Transformer", 2020) has two inputs
// per output: SiLU(gate) * up. A row of x holds all gates, then all `up`; bias and dx have the same
// order.
#ifndef CPU_ACTIVATION_H
#define CPU_ACTIVATION_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>

// Below, N stands for the columns of y and of x alike. x, dx, bias and dbias have
// activation_inputs() times as many.

// y (M, N) = f(x + bias), where f is the function of the kind; bias (N) or NULL.
void activation_forward(Matrix y, const real *restrict x, const real *restrict bias,
                        ActivationKind kind, size_t m, size_t n);

// dx (M, N) = dy * f'(x + bias), stored for the next products; dbias (N) += its sum over rows, if
// bias is not NULL.
void activation_backward(Matrix dx, real *restrict dbias, const real *restrict dy,
                         const real *restrict x, const real *restrict bias, ActivationKind kind,
                         size_t m, size_t n);

// The same on the calling thread alone, so that each thread of a parallel region can process its
// own rows. The backward function also recomputes y, unless y.data is NULL.
void activation_rows_forward(Matrix y, const real *restrict x, const real *restrict bias,
                             ActivationKind kind, size_t m, size_t n);
void activation_rows_backward(Matrix dx, Matrix y, real *restrict dbias, const real *restrict dy,
                              const real *restrict x, const real *restrict bias,
                              ActivationKind kind, size_t m, size_t n);

// One row while decoding. swiglu_row(): y (N) from gates x (N) and their `up` (N).
// activation_row(): in place, for the other kinds.
void swiglu_row(real *y, const real *x, const real *up, size_t n);
void activation_row(real *x, ActivationKind kind, size_t n);

#endif
