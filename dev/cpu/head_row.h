// Functions on a head's row (D) in plain C: dot product, multiply-add, normalisation.
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

// row /= |row|. Returns 1 / |row|, or 0 if the row is too short to have a direction; it becomes 0
// then.
static inline real normalise(real *row, size_t n) {
    const double length = sqrt((double)dot(row, row, n));
    const real scale = length < 1e-12 ? 0 : (real)(1 / length);
    for (size_t d = 0; d < n; d++) row[d] *= scale;
    return scale;
}

// Turns `gradient`, that of the normalised row, into the gradient of the row before normalisation,
// in place. Returns its component along the row.
static inline real differentiate_normalise(real *restrict gradient, const real *restrict row,
                                           real scale, size_t n) {
    const real along = dot(gradient, row, n);
    for (size_t d = 0; d < n; d++) gradient[d] = (gradient[d] - along * row[d]) * scale;
    return along;
}

#endif
