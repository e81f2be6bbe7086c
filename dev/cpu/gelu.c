#include "gelu.h"

#include "memory.h"
#include "row_blocks.h"
#include "vector_math.h"
#include <stdlib.h>

enum { PIECE = 512 }; // elements computed at a time, on their way to what the product reads

// The tanh form is x s(2u), as (1 + tanh u) / 2 = s(2u), the logistic function, with
// 2u = sqrt(8 / pi) (x + 0.044715 x^3).
static const real SLOPE = (real)1.5957691216057308, CUBE = (real)0.044715;

static inline real logistic(real x) {
    return 1 / (1 + vector_exp(-x));
}

static inline real gelu_erf(real x) {
    real density;
    return x * vector_normal(x, &density);
}

static inline real gelu_erf_slope(real x) {
    real density;
    const real normal = vector_normal(x, &density);
    return normal + x * density;
}

static inline real gelu_tanh(real x) {
    return x * logistic(SLOPE * x * (1 + CUBE * (x * x)));
}

static inline real gelu_tanh_slope(real x) {
    const real square = x * x, s = logistic(SLOPE * x * (1 + CUBE * square));
    const real slope = s + x * s * (1 - s) * (SLOPE * (1 + 3 * CUBE * square));
    const real limit = x > 0; // so far out, s is 0 or 1 and the square may be infinite
    return square > 1000 ? limit : slope;
}

// y (n) = gelu(x + bias); bias NULL: none
static void piece_forward(real *restrict y, const real *restrict x, const real *restrict bias, GeluKind kind,
                          size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = bias ? x[i] + bias[i] : x[i];
    gelu_row(y, kind, n);
}

// dx (n) = dy gelu'(x + bias)
static void piece_backward(real *restrict dx, const real *restrict dy, const real *restrict x,
                           const real *restrict bias, GeluKind kind, size_t n) {
    for (size_t i = 0; i < n; i++) dx[i] = bias ? x[i] + bias[i] : x[i];
    if (kind == GELU_ERF)
        for (size_t i = 0; i < n; i++) dx[i] = dy[i] * gelu_erf_slope(dx[i]);
    else
        for (size_t i = 0; i < n; i++) dx[i] = dy[i] * gelu_tanh_slope(dx[i]);
}

void gelu_row(real *x, GeluKind kind, size_t n) {
    if (kind == GELU_ERF)
        for (size_t i = 0; i < n; i++) x[i] = gelu_erf(x[i]);
    else
        for (size_t i = 0; i < n; i++) x[i] = gelu_tanh(x[i]);
}

void gelu_forward(GemmInput y, const real *restrict x, const real *restrict bias, GeluKind kind, size_t m,
                  size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < m; row++) {
        for (size_t i = 0; i < n; i += PIECE) {
            const size_t count = n - i < PIECE ? n - i : PIECE;
            real piece[PIECE];
            piece_forward(piece, x + row * n + i, bias ? bias + i : NULL, kind, count);
            gemm_input_store(y, row, i, piece, count);
        }
    }
}

// Rows begin .. end-1; dbias (N) += their sum, or NULL.
static void rows_backward(GemmInput dx, real *restrict dbias, const real *restrict dy, const real *restrict x,
                          const real *restrict bias, GeluKind kind, size_t begin, size_t end, size_t n) {
    for (size_t row = begin; row < end; row++) {
        for (size_t i = 0; i < n; i += PIECE) {
            const size_t count = n - i < PIECE ? n - i : PIECE, at = row * n + i;
            real piece[PIECE];
            piece_backward(piece, dy + at, x + at, bias ? bias + i : NULL, kind, count);
            gemm_input_store(dx, row, i, piece, count);
            if (bias)
                for (size_t j = 0; j < count; j++) dbias[i + j] += piece[j];
        }
    }
}

void gelu_backward(GemmInput dx, real *restrict dbias, const real *restrict dy, const real *restrict x,
                   const real *restrict bias, GeluKind kind, size_t m, size_t n) {
    real *partial = bias ? allocate(ROW_BLOCKS * n, sizeof(real), "bias gradients") : NULL; // (ROW_BLOCKS, N)
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++)
        rows_backward(dx, bias ? partial + block * n : NULL, dy, x, bias, kind, row_block_begin(m, block),
                      row_block_begin(m, block + 1), n);
    if (bias) row_blocks_add(dbias, partial, n);
    free(partial);
}
