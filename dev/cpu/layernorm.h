// Layer normalisation over channels (Ba et al. 2016):
//   y = gain * (x - mean) * rstd + bias, rstd = 1 / sqrt(variance + epsilon).
//
// RMSNorm (Zhang and Sennrich 2019), y = gain * x / sqrt(mean(x^2) + epsilon), is the same with a
// mean of 0 and no bias: pass NULL for bias and dbias.
#ifndef CPU_LAYERNORM_H
#define CPU_LAYERNORM_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>

// y (M, C) is the input of the next product; x (M, C). mean and rstd (M) are kept for the backward
// pass.
void layernorm_forward(Matrix y, real *restrict mean, real *restrict rstd, const real *restrict x,
                       const real *restrict gain, const real *restrict bias, double epsilon,
                       size_t m, size_t channels);

// The same on the calling thread alone, so that each thread of a parallel region can have its own
// rows.
void layernorm_rows_forward(Matrix y, real *restrict mean, real *restrict rstd,
                            const real *restrict x, const real *restrict gain,
                            const real *restrict bias, double epsilon, size_t m, size_t channels);

// dx (M, C) += the gradient of x; if dx is dy, it is replaced by that gradient. dgain, dbias (C)
// +=. dy (M, C). Rows are summed in a fixed order for any number of threads.
void layernorm_backward(real *dx, real *restrict dgain, real *restrict dbias, const real *dy,
                        const real *restrict x, const real *restrict gain,
                        const real *restrict mean, const real *restrict rstd, size_t m,
                        size_t channels);

// One row, for decoding: y (C) as real.
void layernorm_row(real *restrict y, const real *restrict x, const real *restrict gain,
                   const real *restrict bias, double epsilon, size_t channels);

#endif
