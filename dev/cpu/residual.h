// The residual connection after a sublayer, with dropout of the sublayer's output.
#ifndef CPU_RESIDUAL_H
#define CPU_RESIDUAL_H

#include "dropout.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>

// out (M, C) = x + dropout(y + bias); bias (C) or NULL, dropout or NULL. out may be x. `first` is
// the index of row 0 among the rows of the update, from which dropout numbers elements.
void residual_forward(real *out, const real *x, const real *y, const real *bias,
                      const Dropout *dropout, uint64_t first, size_t m, size_t channels);

// The same on the calling thread alone, so that each thread of a parallel region can have its own
// rows.
void residual_rows_forward(real *out, const real *x, const real *y, const real *bias,
                           const Dropout *dropout, uint64_t first, size_t m, size_t channels);

// dy (M, C) = dropout'(dout), the input of the next products; dbias (C) += its sum over rows, or
// NULL. The gradient of x is dout itself.
void residual_backward(Matrix dy, real *dbias, const real *dout, const Dropout *dropout,
                       uint64_t first, size_t m, size_t channels);

#endif
