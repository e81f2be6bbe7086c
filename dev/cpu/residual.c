#include "residual.h"

#include "memory.h"
#include "row_blocks.h"
#include "sizes.h"
#include <stdint.h>
#include <stdlib.h>

enum { PIECE = 512 }; // elements processed at a time, of one or more rows; factors stay in L1

// Rows processed at a time. Their elements are contiguous, and so are their dropout factors.
static size_t rows_together(size_t channels) {
    return channels < PIECE ? PIECE / channels : 1;
}

static const real *factors_of(const Dropout *dropout, uint64_t first, size_t count, real *buffer) {
    if (!dropout) return NULL;
    dropout_factors(dropout, first, count, buffer);
    return buffer;
}

// out = x + (y + bias) * factors for n channels of a row; bias and factors (n) or NULL.
static void add_row(real *out, const real *x, const real *y, const real *restrict bias,
                    const real *restrict factors, size_t n) {
    if (!bias && factors) {
#pragma omp simd
        for (size_t c = 0; c < n; c++) out[c] = x[c] + y[c] * factors[c];
        return;
    }
#pragma omp simd
    for (size_t c = 0; c < n; c++) {
        const real sum = bias ? y[c] + bias[c] : y[c];
        out[c] = x[c] + (factors ? sum * factors[c] : sum);
    }
}

void residual_rows_forward(real *out, const real *x, const real *y, const real *bias,
                           const Dropout *dropout, uint64_t first, size_t m, size_t channels) {
    const size_t together = rows_together(channels);
    for (size_t i = 0; i < m; i += together) {
        const size_t rows = smaller(m - i, together);
        for (size_t c0 = 0; c0 < channels; c0 += PIECE) {
            const size_t n = smaller(channels - c0, PIECE);
            real buffer[PIECE];
            const real *factors =
                factors_of(dropout, (first + i) * channels + c0, rows * n, buffer);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = (i + r) * channels + c0;
                add_row(out + at, x + at, y + at, bias ? bias + c0 : NULL,
                        factors ? factors + r * n : NULL, n);
            }
        }
    }
}

void residual_forward(real *out, const real *x, const real *y, const real *bias,
                      const Dropout *dropout, uint64_t first, size_t m, size_t channels) {
    const size_t together = rows_together(channels);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < m; i += together) {
        const size_t at = i * channels;
        residual_rows_forward(out + at, x + at, y + at, bias, dropout, first + i,
                              smaller(m - i, together), channels);
    }
}

// Processes rows begin .. end-1; dbias (C) += their sum, or NULL.
static void residual_backward_rows(Matrix dy, real *dbias, const real *dout, const Dropout *dropout,
                                   uint64_t first, size_t begin, size_t end, size_t channels) {
    const size_t together = rows_together(channels);
    for (size_t i = begin; i < end; i += together) {
        const size_t rows = smaller(end - i, together);
        for (size_t c0 = 0; c0 < channels; c0 += PIECE) {
            const size_t n = smaller(channels - c0, PIECE);
            real buffer[PIECE], product[PIECE];
            const real *factors =
                factors_of(dropout, (first + i) * channels + c0, rows * n, buffer);
            for (size_t r = 0; r < rows; r++) {
                const real *d = dout + (i + r) * channels + c0;
                for (size_t c = 0; c < n; c++)
                    product[c] = factors ? d[c] * factors[r * n + c] : d[c];
                gemm_input_store(dy, i + r, c0, product, n);
                if (dbias)
                    for (size_t c = 0; c < n; c++) dbias[c0 + c] += product[c];
            }
        }
    }
}

void residual_backward(Matrix dy, real *dbias, const real *dout, const Dropout *dropout,
                       uint64_t first, size_t m, size_t channels) {
    real *partial = dbias ? allocate(ROW_BLOCKS * channels, sizeof(real), "bias gradients") : NULL;
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++)
        residual_backward_rows(dy, partial ? partial + block * channels : NULL, dout, dropout,
                               first, row_block_begin(m, block), row_block_begin(m, block + 1),
                               channels);
    if (dbias) row_blocks_add(dbias, partial, channels);
    free(partial);
}
