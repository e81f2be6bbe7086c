// Vector operations (tile.h) on short rows. Compilers unroll a loop over a few numbers before they
// vectorise it and then add the numbers one by one, and they spend more time on checks for
// overlapping arrays than on the computation; these functions avoid both. A row may have any
// length: its last vector is padded with 0.
#ifndef CPU_ROWS_H
#define CPU_ROWS_H

#include "tile.h"

// Loads the vector of x (n) that starts at element i. Whole vectors have their own branch, as
// compilers copy byte by byte if the number of bytes is unknown.
TILE_INLINE TileVector row_get(const real *x, size_t i, size_t n) {
    TileVector v = {0};
    if (n - i >= TILE_LANES)
        memcpy(&v, x + i, sizeof(v));
    else
        memcpy(&v, x + i, (n - i) * sizeof(real));
    return v;
}

TILE_INLINE void row_put(real *x, size_t i, size_t n, TileVector v) {
    if (n - i >= TILE_LANES)
        memcpy(x + i, &v, sizeof(v));
    else
        memcpy(x + i, &v, (n - i) * sizeof(real));
}

// sum of x (n)
TILE_INLINE real row_sum(const real *x, size_t n) {
    TileVector lanes = {0};
    for (size_t i = 0; i < n; i += TILE_LANES) lanes += row_get(x, i, n);
    return tile_sum_of_lanes(lanes);
}

// dot product of x and y (n)
TILE_INLINE real row_dot(const real *x, const real *y, size_t n) {
    TileVector lanes = {0};
    for (size_t i = 0; i < n; i += TILE_LANES) lanes += row_get(x, i, n) * row_get(y, i, n);
    return tile_sum_of_lanes(lanes);
}

// Inlined if n is a compile-time constant. Otherwise all callers share one copy, as the unrolled
// loops over rows of any length are large and slow to compile.
#define ROWS_OUTLINE static __attribute__((noinline, unused))

TILE_INLINE void rows_sum_inlined(real *sums, const real *x, size_t stride, size_t rows, size_t n) {
    size_t r = 0;
    for (; r + TILE_LANES <= rows; r += TILE_LANES) {
        TileVector lanes[TILE_LANES];
        TILE_UNROLL
        for (size_t l = 0; l < TILE_LANES; l++) {
            lanes[l] = row_get(x + (r + l) * stride, 0, n);
            for (size_t i = TILE_LANES; i < n; i += TILE_LANES)
                lanes[l] += row_get(x + (r + l) * stride, i, n);
        }
        row_put(sums + r, 0, TILE_LANES, tile_sums_of_lanes(lanes));
    }
    for (; r < rows; r++) sums[r] = row_sum(x + r * stride, n);
}

TILE_INLINE void rows_dot_inlined(real *sums, const real *x, size_t x_stride, const real *y,
                                  size_t y_stride, size_t rows, size_t n) {
    size_t r = 0;
    for (; r + TILE_LANES <= rows; r += TILE_LANES) {
        TileVector lanes[TILE_LANES];
        TILE_UNROLL
        for (size_t l = 0; l < TILE_LANES; l++) {
            const real *x_row = x + (r + l) * x_stride, *y_row = y + (r + l) * y_stride;
            lanes[l] = row_get(x_row, 0, n) * row_get(y_row, 0, n);
            for (size_t i = TILE_LANES; i < n; i += TILE_LANES)
                lanes[l] += row_get(x_row, i, n) * row_get(y_row, i, n);
        }
        row_put(sums + r, 0, TILE_LANES, tile_sums_of_lanes(lanes));
    }
    for (; r < rows; r++) sums[r] = row_dot(x + r * x_stride, y + r * y_stride, n);
}

ROWS_OUTLINE void rows_sum_outlined(real *sums, const real *x, size_t stride, size_t rows,
                                    size_t n) {
    rows_sum_inlined(sums, x, stride, rows, n);
}

ROWS_OUTLINE void rows_dot_outlined(real *sums, const real *x, size_t x_stride, const real *y,
                                    size_t y_stride, size_t rows, size_t n) {
    rows_dot_inlined(sums, x, x_stride, y, y_stride, rows, n);
}

// sums (rows) of each row of x (rows, n), rows `stride` apart.
TILE_INLINE void rows_sum(real *sums, const real *x, size_t stride, size_t rows, size_t n) {
    if (__builtin_constant_p(n))
        rows_sum_inlined(sums, x, stride, rows, n);
    else
        rows_sum_outlined(sums, x, stride, rows, n);
}

// sums (rows): the dot product of each row of x (rows, n) with that of y (rows, n).
TILE_INLINE void rows_dot(real *sums, const real *x, size_t x_stride, const real *y,
                          size_t y_stride, size_t rows, size_t n) {
    if (__builtin_constant_p(n))
        rows_dot_inlined(sums, x, x_stride, y, y_stride, rows, n);
    else
        rows_dot_outlined(sums, x, x_stride, y, y_stride, rows, n);
}

// out = x + y
TILE_INLINE void row_add(real *out, const real *x, const real *y, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES)
        row_put(out, i, n, row_get(x, i, n) + row_get(y, i, n));
}

// out = a x
TILE_INLINE void row_scale(real *out, real a, const real *x, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES) row_put(out, i, n, a * row_get(x, i, n));
}

// out = x y z, elementwise
TILE_INLINE void row_multiply(real *out, const real *x, const real *y, const real *z, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES)
        row_put(out, i, n, row_get(x, i, n) * row_get(y, i, n) * row_get(z, i, n));
}

#endif
