#include "layernorm.h"

#include "memory.h"
#include "row_blocks.h"
#include "rows.h"
#include <stdbool.h>
#include <stdlib.h>
#include <tgmath.h>

enum { PIECE = 1024 }; // channels normalised at a time, then stored for the next product

// Elements i to min(i + TILE_LANES, n) of x - mean; 0 beyond.
TILE_INLINE TileVector centred(const real *x, size_t i, size_t n, real mean) {
    const TileVector v = row_get(x, i, n) - mean;
    return n - i < TILE_LANES ? tile_keep(v, (1u << (n - i)) - 1) : v;
}

// Computes mean and rstd of up to TILE_LANES rows. The sums of all rows are reduced together: one
// at a time, each would wait for the previous one. Two passes over rows in cache, as the difference
// E[x^2] - mean^2 would cancel if the mean is large. RMSNorm uses a mean of 0.
static void rows_statistics(const real *x, size_t rows, size_t channels, bool rms, real epsilon,
                            real *mean, real *rstd) {
    TileVector lanes[TILE_LANES] = {0};
    for (size_t r = 0; r < rows && !rms; r++)
        for (size_t c = 0; c < channels; c += TILE_LANES)
            lanes[r] += row_get(x + r * channels, c, channels);
    row_put(mean, 0, rows, tile_sums_of_lanes(lanes) / (real)channels);
    for (size_t r = 0; r < rows; r++) {
        lanes[r] = (TileVector){0};
        for (size_t c = 0; c < channels; c += TILE_LANES) {
            const TileVector v = centred(x + r * channels, c, channels, mean[r]);
            lanes[r] += v * v;
        }
    }
    row_put(rstd, 0, rows, tile_sums_of_lanes(lanes) / (real)channels);
    for (size_t r = 0; r < rows; r++) rstd[r] = 1 / sqrt(rstd[r] + epsilon);
}

// Each kind has its own loop, so that the bias is part of a fused multiply-add.
static void normalise(real *restrict y, const real *restrict x, const real *restrict gain,
                      const real *restrict bias, real mean, real rstd, size_t count) {
    if (!bias) {
        for (size_t c = 0; c < count; c += TILE_LANES)
            row_put(y, c, count, row_get(gain, c, count) * ((row_get(x, c, count) - mean) * rstd));
        return;
    }
    for (size_t c = 0; c < count; c += TILE_LANES)
        row_put(y, c, count,
                row_get(gain, c, count) * ((row_get(x, c, count) - mean) * rstd) +
                    row_get(bias, c, count));
}

// Normalises one row and stores it for the next product.
static void store_row(Matrix y, size_t row, const real *restrict x, const real *restrict gain,
                      const real *restrict bias, real mean, real rstd, size_t channels) {
    for (size_t c = 0; c < channels; c += PIECE) {
        const size_t count = channels - c < PIECE ? channels - c : PIECE;
        real piece[PIECE];
        normalise(piece, x + c, gain + c, bias ? bias + c : NULL, mean, rstd, count);
        gemm_input_store(y, row, c, piece, count);
    }
}

void layernorm_rows_forward(Matrix y, real *restrict mean, real *restrict rstd,
                            const real *restrict x, const real *restrict gain,
                            const real *restrict bias, double epsilon, size_t m, size_t channels) {
    for (size_t first = 0; first < m; first += TILE_LANES) {
        const size_t end = m - first < TILE_LANES ? m : first + TILE_LANES;
        rows_statistics(x + first * channels, end - first, channels, !bias, (real)epsilon,
                        &mean[first], &rstd[first]);
        for (size_t row = first; row < end; row++)
            store_row(y, row, x + row * channels, gain, bias, mean[row], rstd[row], channels);
    }
}

void layernorm_forward(Matrix y, real *restrict mean, real *restrict rstd, const real *restrict x,
                       const real *restrict gain, const real *restrict bias, double epsilon,
                       size_t m, size_t channels) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < m; row += TILE_LANES)
        layernorm_rows_forward(gemm_input_rows(y, row), mean + row, rstd + row, x + row * channels,
                               gain, bias, epsilon, m - row < TILE_LANES ? m - row : TILE_LANES,
                               channels);
}

void layernorm_row(real *restrict y, const real *restrict x, const real *restrict gain,
                   const real *restrict bias, double epsilon, size_t channels) {
    real mean, rstd;
    rows_statistics(x, 1, channels, !bias, (real)epsilon, &mean, &rstd);
    normalise(y, x, gain, bias, mean, rstd, channels);
}

// With x^ = (x - mean) rstd and n = dy gain, dx = rstd (n - mean(n) - x^ mean(n x^)), for up to
// TILE_LANES rows. RMSNorm, whose dbias is NULL, has no mean(n).
static void rows_backward(real *dx, real *restrict dgain, real *restrict dbias, const real *dy,
                          const real *restrict x, const real *restrict gain,
                          const real *restrict mean, const real *restrict rstd, size_t rows,
                          size_t channels) {
    TileVector sums[TILE_LANES] = {0}, products[TILE_LANES] = {0};
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < channels; c += TILE_LANES) {
            const size_t at = r * channels;
            const TileVector n = row_get(dy + at, c, channels) * row_get(gain, c, channels);
            sums[r] += n;
            products[r] += n * ((row_get(x + at, c, channels) - mean[r]) * rstd[r]);
        }
    }
    real mean_n[TILE_LANES] = {0}, mean_product[TILE_LANES];
    if (dbias) row_put(mean_n, 0, TILE_LANES, tile_sums_of_lanes(sums) / (real)channels);
    row_put(mean_product, 0, TILE_LANES, tile_sums_of_lanes(products) / (real)channels);
    const bool in_place = dx == dy;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < channels; c += TILE_LANES) {
            const size_t at = r * channels;
            const TileVector normal = (row_get(x + at, c, channels) - mean[r]) * rstd[r];
            const TileVector d = row_get(dy + at, c, channels);
            TileVector gradient =
                rstd[r] * (d * row_get(gain, c, channels) - mean_n[r] - normal * mean_product[r]);
            if (!in_place) gradient += row_get(dx + at, c, channels);
            row_put(dx + at, c, channels, gradient);
            row_put(dgain, c, channels, row_get(dgain, c, channels) + d * normal);
            if (dbias) row_put(dbias, c, channels, row_get(dbias, c, channels) + d);
        }
    }
}

void layernorm_backward(real *dx, real *restrict dgain, real *restrict dbias, const real *dy,
                        const real *restrict x, const real *restrict gain,
                        const real *restrict mean, const real *restrict rstd, size_t m,
                        size_t channels) {
    real *gains =
        allocate(ROW_BLOCKS * channels, sizeof(real), "layer norm gradients"); // (ROW_BLOCKS, C)
    real *biases =
        dbias ? allocate(ROW_BLOCKS * channels, sizeof(real), "layer norm gradients") : NULL;
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++) {
        const size_t end = row_block_begin(m, block + 1);
        for (size_t row = row_block_begin(m, block); row < end; row += TILE_LANES) {
            const size_t at = row * channels,
                         rows = end - row < TILE_LANES ? end - row : TILE_LANES;
            rows_backward(dx + at, gains + block * channels,
                          biases ? biases + block * channels : NULL, dy + at, x + at, gain,
                          mean + row, rstd + row, rows, channels);
        }
    }
    row_blocks_add(dgain, gains, channels);
    if (dbias) row_blocks_add(dbias, biases, channels);
    free(gains);
    free(biases);
}
