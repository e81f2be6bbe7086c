#include "embedding.h"

#include "threads.h"
#include <math.h>

// Index of row (b, 0) among all rows of the update.
static uint64_t row_number(const Batch *batch, size_t b) {
    return ((uint64_t)batch->first_row + b) * (uint64_t)batch->length;
}

void embedding_forward(real *restrict x, const real *restrict token, real scale,
                       const real *restrict position, const Batch *batch, const Dropout *dropout,
                       size_t channels) {
    const size_t T = (size_t)batch->length, rows = (size_t)batch->batch * T;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        const real *from = token + (size_t)batch->inputs[row] * channels,
                   *at = position ? position + row % T * channels : NULL;
        real *to = x + row * channels;
        if (at)
            for (size_t c = 0; c < channels; c++) to[c] = scale * from[c] + at[c];
        else
            for (size_t c = 0; c < channels; c++) to[c] = scale * from[c];
        if (dropout)
            dropout_apply(dropout, (row_number(batch, row / T) + row % T) * channels, channels, to);
    }
}

// Applies dropout to dx (B, T, C). If positions are learned, adds its sum over the batch, in order,
// to dposition.
static void position_backward(real *restrict dposition, real *restrict dx, const Batch *batch,
                              const Dropout *dropout, size_t channels) {
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < T; t++) {
        for (size_t b = 0; b < B; b++) {
            real *row = dx + (b * T + t) * channels;
            if (dropout)
                dropout_apply(dropout, (row_number(batch, b) + t) * channels, channels, row);
            if (!dposition) continue;
            for (size_t c = 0; c < channels; c++) dposition[t * channels + c] += row[c];
        }
    }
}

// One thread, the owner of a token, adds that token's gradients, in the order of the batch.
static void token_backward(real *restrict dtoken, real scale, const real *restrict dx,
                           const Batch *batch, int32_t padding, size_t channels) {
    const size_t rows = (size_t)batch->batch * (size_t)batch->length;
    const uint32_t owners = (uint32_t)thread_limit();
#pragma omp parallel for schedule(static)
    for (uint32_t owner = 0; owner < owners; owner++) {
        for (size_t row = 0; row < rows; row++) {
            const int32_t id = batch->inputs[row];
            if ((uint32_t)id % owners != owner || id == padding) continue;
            real *sum = dtoken + (size_t)id * channels;
            for (size_t c = 0; c < channels; c++) sum[c] += scale * dx[row * channels + c];
        }
    }
}

void embedding_backward(real *restrict dtoken, real scale, real *restrict dposition,
                        real *restrict dx, const Batch *batch, const Dropout *dropout,
                        int32_t padding, size_t channels) {
    position_backward(dposition, dx, batch, dropout, channels);
    token_backward(dtoken, scale, dx, batch, padding, channels);
}

void sinusoidal_positions(real *position, size_t positions, size_t channels) {
    const size_t sines = (channels + 1) / 2;
    for (size_t p = 0; p < positions; p++) {
        for (size_t c = 0; c < channels; c++) {
            const size_t i = c < sines ? c : c - sines;
            const double angle = (double)p / pow(10000, 2 * (double)i / (double)channels);
            position[p * channels + c] = (real)(c < sines ? sin(angle) : cos(angle));
        }
    }
}
