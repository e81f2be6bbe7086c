// Short rows in vectors (tile.h). Compilers that unroll a loop over a few numbers before they vectorise it
// add them one after the other, and check whether arrays overlap more often than they compute; here both are
// written out. A row may have any length: what is missing in its last vector is 0.
#ifndef CPU_ROWS_H
#define CPU_ROWS_H

#include "tile.h"

// The vector of x (n) from element i on; `missing` stands for what is behind the end.
TILE_INLINE TileVector row_get_or(const real *x, size_t i, size_t n, real missing) {
    TileVector v = missing - (TileVector){0};
    memcpy(&v, x + i, n - i < TILE_LANES ? (n - i) * sizeof(real) : sizeof(v));
    return v;
}

TILE_INLINE TileVector row_get(const real *x, size_t i, size_t n) {
    return row_get_or(x, i, n, 0);
}

TILE_INLINE void row_put(real *x, size_t i, size_t n, TileVector v) {
    memcpy(x + i, &v, n - i < TILE_LANES ? (n - i) * sizeof(real) : sizeof(v));
}

// sum of x (n)
TILE_INLINE real row_sum(const real *x, size_t n) {
    TileVector lanes = {0};
    for (size_t i = 0; i < n; i += TILE_LANES) lanes += row_get(x, i, n);
    return tile_sum_of_lanes(lanes);
}

// sum of (x - mean)^2
TILE_INLINE real row_squares(const real *x, real mean, size_t n) {
    TileVector lanes = {0};
    for (size_t i = 0; i < n; i += TILE_LANES) {
        const TileVector centred = row_get_or(x, i, n, mean) - mean;
        lanes += centred * centred;
    }
    return tile_sum_of_lanes(lanes);
}

// sum of x y, elementwise
TILE_INLINE real row_dot(const real *x, const real *y, size_t n) {
    TileVector lanes = {0};
    for (size_t i = 0; i < n; i += TILE_LANES) lanes += row_get(x, i, n) * row_get(y, i, n);
    return tile_sum_of_lanes(lanes);
}

// out = x + y
TILE_INLINE void row_add(real *out, const real *x, const real *y, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES) row_put(out, i, n, row_get(x, i, n) + row_get(y, i, n));
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
