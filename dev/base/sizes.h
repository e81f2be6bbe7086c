// The smaller and the larger of two sizes, and rounding up to a multiple.
#ifndef BASE_SIZES_H
#define BASE_SIZES_H

#include <stddef.h>

static inline size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static inline size_t round_up(size_t n, size_t step) {
    return (n + step - 1) / step * step;
}

#endif
