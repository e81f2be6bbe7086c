// What both libraries share: the matrices that products read, decoding, and the measured peak.
#include "gemm.h"

#include "bf16.h"
#include "error.h"
#include "memory.h"
#include "threads.h"
#include "tile.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

// ---- inputs ----------------------------------------------------------------------------------------

GemmInput gemm_input_create(const Gemm *gemm, size_t rows, size_t columns, const char *what) {
    const bool bf16 = gemm_precision(gemm) == PRECISION_BFLOAT16;
    size_t count;
    if (__builtin_mul_overflow(rows, columns, &count))
        fail("no memory for %s: %zu x %zu elements", what, rows, columns);
    return (GemmInput){allocate(count, bf16 ? sizeof(uint16_t) : sizeof(real), what), columns, bf16};
}

void gemm_input_free(GemmInput *input) {
    free(input->data);
    *input = (GemmInput){NULL, 0, false};
}

void gemm_check_input(const Gemm *gemm, GemmInput input, size_t rows, size_t columns, const char *name) {
    const bool bf16 = gemm_precision(gemm) == PRECISION_BFLOAT16;
    if (input.columns != columns || input.bf16 != bf16 || rows > INT32_MAX)
        fail("product: %s is %s (%zu, %zu), expected %s (at most %d, %zu)", name,
             input.bf16 ? "bf16" : "real", rows, input.columns, bf16 ? "bf16" : "real", INT32_MAX, columns);
}

static void bf16_store(uint16_t *restrict out, const real *restrict values, size_t count) {
    size_t i = 0;
#if defined(__AVX512BF16__) && !defined(REAL_IS_DOUBLE)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(values + i)));
#endif
    for (; i < count; i++) out[i] = bf16_from_float((float)values[i]);
}

void gemm_input_store(GemmInput input, size_t row, size_t column, const real *restrict values, size_t count) {
    const size_t first = row * input.columns + column;
    if (input.bf16)
        bf16_store((uint16_t *)input.data + first, values, count);
    else
        memcpy((real *)input.data + first, values, count * sizeof(real));
}

void gemm_input_store_rows(GemmInput input, size_t row, size_t column, const real *restrict values,
                           size_t rows, size_t count) {
    for (size_t i = 0; i < rows; i++) gemm_input_store(input, row + i, column, values + i * count, count);
}

void gemm_input_load(GemmInput input, size_t row, size_t column, real *restrict values, size_t count) {
    const size_t first = row * input.columns + column;
    if (!input.bf16) {
        memcpy(values, (const real *)input.data + first, count * sizeof(real));
        return;
    }
    const uint16_t *restrict in = (const uint16_t *)input.data + first;
    for (size_t i = 0; i < count; i++) values[i] = float_from_bf16(in[i]);
}

// ---- decoding --------------------------------------------------------------------------------------

// Each weight is read once, in blocks that stay in the L1 cache while all streams use them. The sums of a
// stream do not depend on how many there are.
enum {
    DECODE_ROWS = 4, // of w side by side
#if defined(__AVX__) && !defined(__AVX512F__)
    DECODE_STREAMS = 2, // the sums of so many streams stay in registers
#else
    DECODE_STREAMS = 4,
#endif
    DECODE_COLUMNS = 1024,    // at most
    DECODE_PARALLEL = 1 << 15 // elements of w from which threads are worth starting
};

// y (streams, rows), rows N apart: products of rows of w (rows, K) and x (streams, K). `first`: w is not in
// the cache yet. Always inlined, so that the numbers of rows and streams are constants.
TILE_INLINE void dot_products(real *restrict y, const real *restrict x, const real *restrict w, size_t n,
                              size_t k, size_t streams, size_t rows, bool first) {
    TileVector sums[DECODE_STREAMS][DECODE_ROWS] = {0};
    size_t i = 0;
    for (; i + TILE_LANES <= k; i += TILE_LANES) {
        TileVector row[DECODE_ROWS];
        TILE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            row[r] = tile_load_unaligned(w + r * k + i);
            if (first) __builtin_prefetch(w + (rows + r) * k + i); // the next rows
        }
        TILE_UNROLL
        for (size_t s = 0; s < streams; s++) {
            const TileVector xs = tile_load_unaligned(x + s * k + i);
            TILE_UNROLL
            for (size_t r = 0; r < rows; r++) sums[s][r] += row[r] * xs;
        }
    }
    for (size_t s = 0; s < streams; s++)
        for (size_t r = 0; r < rows; r++) {
            real sum = tile_sum_of_lanes(sums[s][r]);
            for (size_t rest = i; rest < k; rest++) sum += w[r * k + rest] * x[s * k + rest];
            y[s * n + r] = sum;
        }
}

// y (S, N) for w (N, K): DECODE_ROWS columns of y, or less at the end.
static void decode_rows(real *restrict y, const real *restrict x, const real *restrict w, size_t streams,
                        size_t n, size_t k, size_t rows) {
    size_t s = 0;
    if (rows == DECODE_ROWS)
        for (; s + DECODE_STREAMS <= streams; s += DECODE_STREAMS)
            dot_products(y + s * n, x + s * k, w, n, k, DECODE_STREAMS, DECODE_ROWS, s == 0);
    for (; s < streams; s++) {
        if (rows == DECODE_ROWS)
            dot_products(y + s * n, x + s * k, w, n, k, 1, DECODE_ROWS, s == 0);
        else
            for (size_t r = 0; r < rows; r++)
                dot_products(y + s * n + r, x + s * k, w + r * k, n, k, 1, 1, false);
    }
}

// y (S, N) for w (K, N): `columns` columns of y, summed over the rows of w.
static void decode_columns(real *restrict y, const real *restrict x, const real *restrict w, size_t streams,
                           size_t n, size_t k, size_t columns) {
    for (size_t s = 0; s < streams; s++) memset(y + s * n, 0, columns * sizeof(real));
    size_t i = 0;
    for (; i + DECODE_ROWS <= k; i += DECODE_ROWS) {
        const real *restrict w0 = w + i * n, *restrict w1 = w0 + n, *restrict w2 = w1 + n,
                             *restrict w3 = w2 + n;
        for (size_t s = 0; s < streams; s++) {
            const real *restrict xs = x + s * k + i;
            real *restrict ys = y + s * n;
            const real x0 = xs[0], x1 = xs[1], x2 = xs[2], x3 = xs[3];
            for (size_t j = 0; j < columns; j++)
                ys[j] = ys[j] + x0 * w0[j] + x1 * w1[j] + x2 * w2[j] + x3 * w3[j];
        }
    }
    for (; i < k; i++)
        for (size_t s = 0; s < streams; s++) {
            const real factor = x[s * k + i];
            for (size_t j = 0; j < columns; j++) y[s * n + j] += factor * w[i * n + j];
        }
}

void gemm_decode(real *restrict y, const real *restrict x, const real *restrict w, size_t streams, size_t n,
                 size_t k, WeightLayout layout) {
    const bool rows_are_outputs = layout == WEIGHT_OUT_IN;
    const size_t share = tile_round_up(n / (size_t)thread_limit() + 1, 64 / sizeof(real));
    const size_t columns = share < DECODE_COLUMNS ? share : DECODE_COLUMNS;
    const size_t step = rows_are_outputs ? DECODE_ROWS : columns;
#pragma omp parallel for schedule(static) if (n * k >= DECODE_PARALLEL)
    for (size_t j = 0; j < n; j += step) {
        const size_t count = n - j < step ? n - j : step;
        if (rows_are_outputs)
            decode_rows(y + j, x, w + j * k, streams, n, k, count);
        else
            decode_columns(y + j, x, w + j, streams, n, k, count);
    }
}

// ---- the peak --------------------------------------------------------------------------------------

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double gemm_measure_peak(Gemm *gemm) {
    enum { M = 2048, N = 1024, K = 512, AT_LEAST = 3 };
    const double duration = 0.1;
    GemmInput x = gemm_input_create(gemm, M, K, "the measurement of the peak");
    real *y = allocate((size_t)M * N, sizeof(*y), "the measurement of the peak");
    real *values = allocate((size_t)N * K, sizeof(*values), "the measurement of the peak");
    GemmWeight *weight = gemm_weight_create(gemm, N, K, WEIGHT_OUT_IN, "the measurement of the peak");
    gemm_weight_pack(weight, values);
    gemm_forward(gemm, y, x, weight, M); // touches the memory, makes the plan
    double best = 1e30;
    const double start = seconds_now();
    for (int i = 0; i < AT_LEAST || seconds_now() - start < duration; i++) {
        const double before = seconds_now();
        gemm_forward(gemm, y, x, weight, M);
        const double seconds = seconds_now() - before;
        if (seconds < best) best = seconds;
    }
    gemm_weight_free(weight);
    gemm_input_free(&x);
    free(values);
    free(y);
    return 2.0 * M * N * K / best;
}
