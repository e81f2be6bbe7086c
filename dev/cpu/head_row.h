// A head's row (D) in plain C: products, sums, and its direction.
#ifndef CPU_HEAD_ROW_H
#define CPU_HEAD_ROW_H

#include "real.h"
#include <math.h>
#include <stddef.h>

static inline real dot(const real *restrict x, const real *restrict y, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < n; d++) sum += x[d] * y[d];
    return sum;
}

// y += a x
static inline void add_multiple(real *restrict y, real a, const real *restrict x, size_t n) {
    for (size_t d = 0; d < n; d++) y[d] += a * x[d];
}

// row /= |row|; returns 1 / |row|, 0 of a vector that is too short to have a direction.
static inline real normalise(real *row, size_t n) {
    const double length = sqrt((double)dot(row, row, n));
    const real scale = length < 1e-12 ? 0 : (real)(1 / length);
    for (size_t d = 0; d < n; d++) row[d] *= scale;
    return scale;
}

// The gradient to a row from `gradient` to the row normalised, in place; returns its part along the
// row.
static inline real differentiate_normalise(real *restrict gradient, const real *restrict row,
                                           real scale, size_t n) {
    const real along = dot(gradient, row, n);
    for (size_t d = 0; d < n; d++) gradient[d] = (gradient[d] - along * row[d]) * scale;
    return along;
}

#endif
