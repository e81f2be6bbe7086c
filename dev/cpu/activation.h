// The activation between the products of a feed-forward network: GELU (Hendrycks and Gimpel 2016),
// exact, x Phi(x) with erf, or GPT-2's tanh approximation; ReLU, max(x, 0), whose slope at 0 is 0;
// its square (So et al., "Primer", 2021); and SiLU, x logistic(x) (Hendrycks and Gimpel 2016, too;
// "swish"). SwiGLU (Shazeer, "GLU variants improve Transformer", 2020) has two inputs for each
// output: SiLU(gate) * up. A row x of them is all gates, then all `up`, and so are bias and dx.
#ifndef CPU_ACTIVATION_H
#define CPU_ACTIVATION_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>

// What follows says N for both x's columns and y's; x, dx, bias and dbias have activation_inputs()
// times as many.

// y (M, N) = f(x + bias), f the kind's function; bias (N) or NULL.
void activation_forward(Matrix y, const real *restrict x, const real *restrict bias,
                        ActivationKind kind, size_t m, size_t n);

// dx (M, N) = dy * f'(x + bias), as the next products read it; dbias (N) += its sum over rows,
// where bias is given.
void activation_backward(Matrix dx, real *restrict dbias, const real *restrict dy,
                         const real *restrict x, const real *restrict bias, ActivationKind kind,
                         size_t m, size_t n);

// The same on the calling thread alone: each thread of a parallel region can have its own rows. The
// latter makes y again, too, unless y.data is NULL.
void activation_rows_forward(Matrix y, const real *restrict x, const real *restrict bias,
                             ActivationKind kind, size_t m, size_t n);
void activation_rows_backward(Matrix dx, Matrix y, real *restrict dbias, const real *restrict dy,
                              const real *restrict x, const real *restrict bias,
                              ActivationKind kind, size_t m, size_t n);

// Of a row of decoding: in place; SwiGLU: y (N) from gates x (N) and their `up` (N).
void swiglu_row(real *y, const real *x, const real *up, size_t n);
void activation_row(real *x, ActivationKind kind, size_t n);

#endif
