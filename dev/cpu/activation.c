#include "activation.h"

#include "memory.h"
#include "row_blocks.h"
#include "rows.h"
#include "vector_math.h"
#include <stdlib.h>

enum { PIECE = 512 }; // elements computed before they are stored for the product

// The tanh form equals x s(2u), because (1 + tanh u) / 2 = s(2u), where s is the logistic function
// and 2u = sqrt(8 / pi) (x + 0.044715 x^3).
static const real SLOPE = (real)1.5957691216057308, CUBE = (real)0.044715;

TILE_INLINE TileVector logistic(TileVector x) {
    enum { LARGEST = 127 }; // exponent
    const TileVector t = tile_max(x, -x) * (real)LOG2_E;
    const TileVector exponent = -tile_max(-LARGEST - (TileVector){0}, -t);
    return tile_mirror(1 / (1 + tile_exp2(exponent, false)), x);
}

TILE_INLINE TileVector activate(TileVector x, ActivationKind kind) {
    TileVector density;
    if (kind == RELU) return tile_max(x, (TileVector){0});
    if (kind == RELU2) return x * tile_max(x, (TileVector){0});
    if (kind == SILU) return x * logistic(x);
    if (kind == GELU_ERF) return x * tile_normal(x, &density);
    return x * logistic(SLOPE * x * (1 + CUBE * (x * x)));
}

TILE_INLINE TileVector slope_at(TileVector x, ActivationKind kind) {
    const TileVector limit = (TileVector)((TileBits)((TileVector){0} + 1) & (x > 0)); // 1 or 0
    if (kind == RELU) return limit;
    if (kind == RELU2) return 2 * tile_max(x, (TileVector){0});
    if (kind == SILU) {
        const TileVector s = logistic(x);
        return s + x * s * (1 - s);
    }
    if (kind == GELU_ERF) {
        TileVector density;
        const TileVector normal = tile_normal(x, &density);
        return normal + x * density;
    }
    const TileVector square = x * x, s = logistic(SLOPE * x * (1 + CUBE * square));
    const TileVector slope = s + x * s * (1 - s) * (SLOPE * (1 + 3 * CUBE * square));
    // For such large |x|, s is 0 or 1 and the square may be infinite.
    const TileBits far = square > 1000;
    return (TileVector)(((TileBits)limit & far) | ((TileBits)slope & ~far));
}

// Elements i to min(i + TILE_LANES, n) of y = f(x + bias); bias may be NULL, and y may be x. The
// backward function computes dx = dy f'(x + bias), and y unless it is NULL.
TILE_INLINE void vector_forward(real *y, const real *x, const real *bias, ActivationKind kind,
                                size_t i, size_t n) {
    TileVector at = row_get(x, i, n);
    if (bias) at += row_get(bias, i, n);
    row_put(y, i, n, activate(at, kind));
}

TILE_INLINE void vector_backward(real *dx, real *y, const real *dy, const real *x, const real *bias,
                                 ActivationKind kind, size_t i, size_t n) {
    TileVector at = row_get(x, i, n);
    if (bias) at += row_get(bias, i, n);
    row_put(dx, i, n, row_get(dy, i, n) * slope_at(at, kind));
    if (y) row_put(y, i, n, activate(at, kind));
}

// All n elements. The constant length tells the compiler that a vector is full.
TILE_INLINE void all_forward(real *y, const real *x, const real *bias, ActivationKind kind,
                             size_t n) {
    size_t i = 0;
    for (; i + TILE_LANES <= n; i += TILE_LANES)
        vector_forward(y, x, bias, kind, i, i + TILE_LANES);
    if (i < n) vector_forward(y, x, bias, kind, i, n);
}

TILE_INLINE void all_backward(real *dx, real *y, const real *dy, const real *x, const real *bias,
                              ActivationKind kind, size_t n) {
    size_t i = 0;
    for (; i + TILE_LANES <= n; i += TILE_LANES)
        vector_backward(dx, y, dy, x, bias, kind, i, i + TILE_LANES);
    if (i < n) vector_backward(dx, y, dy, x, bias, kind, i, n);
}

// The same with the kind as a compile-time constant.
static void piece_forward(real *y, const real *x, const real *bias, ActivationKind kind, size_t n) {
    switch (kind) {
    case GELU_ERF:
        all_forward(y, x, bias, GELU_ERF, n);
        break;
    case GELU_TANH:
        all_forward(y, x, bias, GELU_TANH, n);
        break;
    case RELU:
        all_forward(y, x, bias, RELU, n);
        break;
    case RELU2:
        all_forward(y, x, bias, RELU2, n);
        break;
    case SILU:
        all_forward(y, x, bias, SILU, n);
        break;
    case SWIGLU: // has two inputs: gated_forward()
        break;
    }
}

static void piece_backward(real *dx, real *y, const real *dy, const real *x, const real *bias,
                           ActivationKind kind, size_t n) {
    switch (kind) {
    case GELU_ERF:
        all_backward(dx, y, dy, x, bias, GELU_ERF, n);
        break;
    case GELU_TANH:
        all_backward(dx, y, dy, x, bias, GELU_TANH, n);
        break;
    case RELU:
        all_backward(dx, y, dy, x, bias, RELU, n);
        break;
    case RELU2:
        all_backward(dx, y, dy, x, bias, RELU2, n);
        break;
    case SILU:
        all_backward(dx, y, dy, x, bias, SILU, n);
        break;
    case SWIGLU: // has two inputs: gated_backward()
        break;
    }
}

// ---- SwiGLU -----------------------------------------------------------------
// Each row holds n gates x, then the n numbers `up` that they multiply.

// y = SiLU(gate + bias) * (up + up_bias), n elements; y may be `gate`. Both biases may be NULL.
static void gated_forward(real *y, const real *gate, const real *up, const real *bias,
                          const real *up_bias, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES) {
        TileVector g = row_get(gate, i, n), u = row_get(up, i, n);
        if (bias) g += row_get(bias, i, n), u += row_get(up_bias, i, n);
        row_put(y, i, n, activate(g, SILU) * u);
    }
}

// The gradients to gate and up from dy, and y unless it is NULL.
static void gated_backward(real *dgate, real *dup, real *y, const real *dy, const real *gate,
                           const real *up, const real *bias, const real *up_bias, size_t n) {
    for (size_t i = 0; i < n; i += TILE_LANES) {
        TileVector g = row_get(gate, i, n), u = row_get(up, i, n);
        if (bias) g += row_get(bias, i, n), u += row_get(up_bias, i, n);
        const TileVector d = row_get(dy, i, n), open = activate(g, SILU);
        row_put(dgate, i, n, d * u * slope_at(g, SILU));
        row_put(dup, i, n, d * open);
        if (y) row_put(y, i, n, open * u);
    }
}

static void gated_row_backward(Matrix dx, Matrix y, real *restrict dbias, const real *restrict dy,
                               const real *restrict x, const real *restrict bias, size_t row,
                               size_t n) {
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t count = n - i < PIECE ? n - i : PIECE, at = row * 2 * n + i;
        real gate[PIECE], up[PIECE], again[PIECE];
        gated_backward(gate, up, y.data ? again : NULL, dy + row * n + i, x + at, x + at + n,
                       bias ? bias + i : NULL, bias ? bias + n + i : NULL, count);
        gemm_input_store(dx, row, i, gate, count);
        gemm_input_store(dx, row, n + i, up, count);
        if (y.data) gemm_input_store(y, row, i, again, count);
        for (size_t j = 0; bias && j < count; j++) {
            dbias[i + j] += gate[j];
            dbias[n + i + j] += up[j];
        }
    }
}

void swiglu_row(real *y, const real *x, const real *up, size_t n) {
    gated_forward(y, x, up, NULL, NULL, n);
}

// ---- rows -------------------------------------------------------------------

void activation_row(real *x, ActivationKind kind, size_t n) {
    piece_forward(x, x, NULL, kind, n);
}

static void row_forward(Matrix y, const real *restrict x, const real *restrict bias,
                        ActivationKind kind, size_t row, size_t n) {
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t count = n - i < PIECE ? n - i : PIECE;
        real piece[PIECE];
        if (kind == SWIGLU)
            gated_forward(piece, x + row * 2 * n + i, x + row * 2 * n + n + i,
                          bias ? bias + i : NULL, bias ? bias + n + i : NULL, count);
        else
            piece_forward(piece, x + row * n + i, bias ? bias + i : NULL, kind, count);
        gemm_input_store(y, row, i, piece, count);
    }
}

void activation_rows_forward(Matrix y, const real *restrict x, const real *restrict bias,
                             ActivationKind kind, size_t m, size_t n) {
    for (size_t row = 0; row < m; row++) row_forward(y, x, bias, kind, row, n);
}

void activation_forward(Matrix y, const real *restrict x, const real *restrict bias,
                        ActivationKind kind, size_t m, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < m; row++) row_forward(y, x, bias, kind, row, n);
}

void activation_rows_backward(Matrix dx, Matrix y, real *restrict dbias, const real *restrict dy,
                              const real *restrict x, const real *restrict bias,
                              ActivationKind kind, size_t m, size_t n) {
    for (size_t row = 0; row < m; row++) {
        if (kind == SWIGLU) {
            gated_row_backward(dx, y, dbias, dy, x, bias, row, n);
            continue;
        }
        for (size_t i = 0; i < n; i += PIECE) {
            const size_t count = n - i < PIECE ? n - i : PIECE, at = row * n + i;
            real piece[PIECE], again[PIECE];
            piece_backward(piece, y.data ? again : NULL, dy + at, x + at, bias ? bias + i : NULL,
                           kind, count);
            gemm_input_store(dx, row, i, piece, count);
            if (y.data) gemm_input_store(y, row, i, again, count);
            if (bias)
                for (size_t j = 0; j < count; j++) dbias[i + j] += piece[j];
        }
    }
}

void activation_backward(Matrix dx, real *restrict dbias, const real *restrict dy,
                         const real *restrict x, const real *restrict bias, ActivationKind kind,
                         size_t m, size_t n) {
    const size_t columns = activation_inputs(kind) * n;
    real *partial = bias ? allocate(ROW_BLOCKS * columns, sizeof(real), "bias gradients")
                         : NULL; // (ROW_BLOCKS, columns)
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++) {
        const size_t begin = row_block_begin(m, block),
                     rows = row_block_begin(m, block + 1) - begin;
        activation_rows_backward(gemm_input_rows(dx, begin), (Matrix){0},
                                 bias ? partial + block * columns : NULL, dy + begin * n,
                                 x + begin * columns, bias, kind, rows, n);
    }
    if (bias) row_blocks_add(dbias, partial, columns);
    free(partial);
}
