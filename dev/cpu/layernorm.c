#include "layernorm.h"

#include "memory.h"
#include "row_blocks.h"
#include <stdbool.h>
#include <stdlib.h>
#include <tgmath.h>

static const real EPSILON = (real)1e-5; // of decoding
enum {
    PIECE = 1024, // channels normalised at a time, on their way to what the product reads
    GROUP = 2048  // elements whose rows are summed before the first is normalised: the sums overlap
};

// Two passes over a row in cache: the difference E[x^2] - mean^2 would cancel where the mean is large.
static void row_statistics(const real *x, size_t channels, real epsilon, real *mean, real *rstd) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t c = 0; c < channels; c++) sum += x[c];
    const real centre = sum / (real)channels;
    real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (size_t c = 0; c < channels; c++) squares += (x[c] - centre) * (x[c] - centre);
    *mean = centre;
    *rstd = 1 / sqrt(squares / (real)channels + epsilon);
}

static void normalise(real *restrict y, const real *restrict x, const real *restrict gain,
                      const real *restrict bias, real mean, real rstd, size_t count) {
    for (size_t c = 0; c < count; c++) y[c] = gain[c] * ((x[c] - mean) * rstd) + bias[c];
}

// One row into what the product reads.
static void store_row(GemmInput y, size_t row, const real *restrict x, const real *restrict gain,
                      const real *restrict bias, real mean, real rstd, size_t channels) {
    for (size_t c = 0; c < channels; c += PIECE) {
        const size_t count = channels - c < PIECE ? channels - c : PIECE;
        real piece[PIECE];
        normalise(piece, x + c, gain + c, bias + c, mean, rstd, count);
        gemm_input_store(y, row, c, piece, count);
    }
}

void layernorm_forward(GemmInput y, real *restrict mean, real *restrict rstd, const real *restrict x,
                       const real *restrict gain, const real *restrict bias, double epsilon, size_t m,
                       size_t channels) {
    const size_t group = 1 + GROUP / channels;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < m; first += group) {
        const size_t end = m - first < group ? m : first + group;
        for (size_t row = first; row < end; row++)
            row_statistics(x + row * channels, channels, (real)epsilon, &mean[row], &rstd[row]);
        for (size_t row = first; row < end; row++)
            store_row(y, row, x + row * channels, gain, bias, mean[row], rstd[row], channels);
    }
}

void layernorm_row(real *restrict y, const real *restrict x, const real *restrict gain,
                   const real *restrict bias, size_t channels) {
    real mean, rstd;
    row_statistics(x, channels, EPSILON, &mean, &rstd);
    normalise(y, x, gain, bias, mean, rstd, channels);
}

// With x^ = (x - mean) rstd and n = dy gain, dx = rstd (n - mean(n) - x^ mean(n x^)); all arrays (C).
static void row_backward(real *dx, real *restrict dgain, real *restrict dbias, const real *dy,
                         const real *restrict x, const real *restrict gain, real mean, real rstd,
                         size_t channels) {
    real sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (size_t c = 0; c < channels; c++) {
        const real n = dy[c] * gain[c];
        sum += n;
        product += n * ((x[c] - mean) * rstd);
    }
    const real mean_n = sum / (real)channels, mean_product = product / (real)channels;
    const bool in_place = dx == dy;
#pragma omp simd
    for (size_t c = 0; c < channels; c++) {
        const real normal = (x[c] - mean) * rstd, d = dy[c];
        const real gradient = rstd * (d * gain[c] - mean_n - normal * mean_product);
        dx[c] = in_place ? gradient : dx[c] + gradient;
        dgain[c] += d * normal;
        dbias[c] += d;
    }
}

void layernorm_backward(real *dx, real *restrict dgain, real *restrict dbias, const real *dy,
                        const real *restrict x, const real *restrict gain, const real *restrict mean,
                        const real *restrict rstd, size_t m, size_t channels) {
    real *gains = allocate(ROW_BLOCKS * channels, sizeof(real), "layer norm gradients"); // (ROW_BLOCKS, C)
    real *biases = allocate(ROW_BLOCKS * channels, sizeof(real), "layer norm gradients");
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++)
        for (size_t row = row_block_begin(m, block); row < row_block_begin(m, block + 1); row++) {
            const size_t at = row * channels;
            row_backward(dx + at, gains + block * channels, biases + block * channels, dy + at, x + at, gain,
                         mean[row], rstd[row], channels);
        }
    row_blocks_add(dgain, gains, channels);
    row_blocks_add(dbias, biases, channels);
    free(gains);
    free(biases);
}
