#include "residual.h"

#include "memory.h"
#include "row_blocks.h"
#include <stdint.h>
#include <stdlib.h>

enum { PIECE = 512 }; // elements of a row taken at a time, so that factors stay in L1

static const real *factors_of(const Dropout *dropout, uint64_t first, size_t count, real *buffer) {
    if (!dropout) return NULL;
    dropout_factors(dropout, first, count, buffer);
    return buffer;
}

void residual_forward(real *out, const real *x, const real *y, const real *bias, const Dropout *dropout,
                      uint64_t first, size_t m, size_t channels) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < m; i++) {
        for (size_t c0 = 0; c0 < channels; c0 += PIECE) {
            const size_t n = channels - c0 < PIECE ? channels - c0 : PIECE, at = i * channels + c0;
            real buffer[PIECE], sum[PIECE];
            const real *factors = factors_of(dropout, (first + i) * channels + c0, n, buffer);
            for (size_t c = 0; c < n; c++) sum[c] = bias ? y[at + c] + bias[c0 + c] : y[at + c];
            for (size_t c = 0; c < n; c++) out[at + c] = x[at + c] + (factors ? sum[c] * factors[c] : sum[c]);
        }
    }
}

// Rows begin .. end-1; dbias (C) += their sum, or NULL.
static void residual_backward_rows(GemmInput dy, real *dbias, const real *dout, const Dropout *dropout,
                                   uint64_t first, size_t begin, size_t end, size_t channels) {
    for (size_t i = begin; i < end; i++) {
        for (size_t c0 = 0; c0 < channels; c0 += PIECE) {
            const size_t n = channels - c0 < PIECE ? channels - c0 : PIECE;
            real buffer[PIECE], product[PIECE];
            const real *factors = factors_of(dropout, (first + i) * channels + c0, n, buffer);
            const real *d = dout + i * channels + c0;
            for (size_t c = 0; c < n; c++) product[c] = factors ? d[c] * factors[c] : d[c];
            gemm_input_store(dy, i, c0, product, n);
            if (dbias)
                for (size_t c = 0; c < n; c++) dbias[c0 + c] += product[c];
        }
    }
}

void residual_backward(GemmInput dy, real *dbias, const real *dout, const Dropout *dropout, uint64_t first,
                       size_t m, size_t channels) {
    real *partial = dbias ? allocate(ROW_BLOCKS * channels, sizeof(real), "bias gradients") : NULL;
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++)
        residual_backward_rows(dy, partial ? partial + block * channels : NULL, dout, dropout, first,
                               row_block_begin(m, block), row_block_begin(m, block + 1), channels);
    if (dbias) row_blocks_add(dbias, partial, channels);
    free(partial);
}
