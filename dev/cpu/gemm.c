// Code shared by both GEMM libraries: the matrices that products read, and the measured peak.
#include "gemm.h"

#include "arena.h"
#include "bf16.h"
#include "clock.h"
#include "error.h"
#include "memory.h"
#include "threads.h"
#include "tile.h"
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

// ---- inputs -----------------------------------------------------------------

Matrix gemm_input_carve(const Gemm *gemm, Arena *arena, size_t rows, size_t columns,
                        const char *what) {
    const bool bf16 = gemm_precision(gemm) == PRECISION_BFLOAT16;
    size_t row;
    if (__builtin_mul_overflow(columns, bf16 ? sizeof(uint16_t) : sizeof(real), &row))
        fail("no memory for %s: %zu x %zu elements", what, rows, columns);
    return (Matrix){arena_array(arena, rows, row, what), columns, bf16};
}

void gemm_check_input(const Gemm *gemm, Matrix input, size_t rows, size_t columns,
                      const char *name) {
    const bool bf16 = gemm_precision(gemm) == PRECISION_BFLOAT16;
    if (input.columns != columns || input.bf16 != bf16 || rows > INT32_MAX)
        fail("product: %s is %s (%zu, %zu), expected %s (at most %d, %zu)", name,
             input.bf16 ? "bf16" : "real", rows, input.columns, bf16 ? "bf16" : "real", INT32_MAX,
             columns);
}

static void bf16_store(uint16_t *restrict out, const real *restrict values, size_t count) {
    size_t i = 0;
#if defined(__AVX512BF16__) && !defined(REAL_IS_DOUBLE)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(values + i)));
#endif
    for (; i < count; i++) out[i] = bf16_from_float((float)values[i]);
}

void gemm_input_store(Matrix input, size_t row, size_t column, const real *restrict values,
                      size_t count) {
    const size_t first = row * input.columns + column;
    if (input.bf16)
        bf16_store((uint16_t *)input.data + first, values, count);
    else
        memcpy((real *)input.data + first, values, count * sizeof(real));
}

void gemm_input_store_rows(Matrix input, size_t row, size_t column, const real *restrict values,
                           size_t rows, size_t count) {
    for (size_t i = 0; i < rows; i++)
        gemm_input_store(input, row + i, column, values + i * count, count);
}

void gemm_input_load(Matrix input, size_t row, size_t column, real *restrict values, size_t count) {
    const size_t first = row * input.columns + column;
    if (!input.bf16) {
        memcpy(values, (const real *)input.data + first, count * sizeof(real));
        return;
    }
    const uint16_t *restrict in = (const uint16_t *)input.data + first;
    for (size_t i = 0; i < count; i++) values[i] = float_from_bf16(in[i]);
}

// ---- the peak ---------------------------------------------------------------

// A product y (m, n) = x (m, k) w (k, n) to time.
typedef struct {
    Gemm *gemm;
    size_t m;
    Arena *arena; // holds the arrays of x, weight and y
    Matrix x;
    GemmWeight *weight;
    real *y;
    double fastest; // seconds
} Trial;

static void trial_run(Trial *trial) {
    const double before = clock_seconds();
    gemm_forward(trial->gemm, trial->y, trial->x, trial->weight, trial->m);
    const double seconds = clock_seconds() - before;
    if (seconds < trial->fastest) trial->fastest = seconds;
}

static void trial_carve(Trial *trial, size_t n, size_t k, const char *what) {
    trial->x = gemm_input_carve(trial->gemm, trial->arena, trial->m, k, what);
    trial->y = arena_reals(trial->arena, trial->m, n, what);
    gemm_weight_carve(trial->weight, trial->arena);
}

static Trial trial_create(Gemm *gemm, size_t m, size_t n, size_t k) {
    static const char what[] = "a measured product";
    Trial trial = {.gemm = gemm, .m = m, .arena = arena_create()};
    real *values = allocate(n * k, sizeof(*values), what);
    trial.weight = gemm_weight_create(gemm, n, k, WEIGHT_OUT_IN, what);
    ARENA_CARVE(trial.arena, trial_carve(&trial, n, k, what));
    gemm_weight_pack(trial.weight, values);
    free(values);
    trial_run(&trial); // warmup: touches the memory, creates the plan
    trial.fastest = 1e30;
    return trial;
}

static void trial_free(Trial *trial) {
    gemm_weight_free(trial->weight);
    arena_free(trial->arena);
}

double gemm_measure_peak(Gemm *gemm) {
    enum { M = 2048, FEW = 64, N = 1024, K = 512 };
    const double duration = 0.05;
    Trial trial = trial_create(gemm, FEW, N, K);
    trial_run(&trial);
    if (trial.fastest * M / FEW < 4 * duration) { // else few rows take long enough
        trial_free(&trial);
        trial = trial_create(gemm, M, N, K);
    }
    const double start = clock_seconds();
    do trial_run(&trial);
    while (clock_seconds() - start < duration);
    trial_free(&trial);
    return 2.0 * (double)trial.m * N * K / trial.fastest;
}

bool gemm_bf16_is_fast(void) {
    // One thread runs both kinds in turn, each for less than a scheduler time slice, so that other
    // load slows down both or neither.
    enum { SIZE = 256, TURNS = 16, KINDS = 2 };
    if (!gemm_supports(PRECISION_BFLOAT16)) return false;
    Gemm *shared[KINDS], *serial[KINDS];
    Trial trials[KINDS];
    for (int p = 0; p < KINDS; p++) {
        shared[p] = gemm_create((Precision)p);
        serial[p] = gemm_create_serial(shared[p]);
        trials[p] = trial_create(serial[p], SIZE, SIZE, SIZE);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int p = 0; p < KINDS; p++) trial_run(&trials[p]);
    for (int p = 0; p < KINDS; p++) {
        trial_free(&trials[p]);
        gemm_free(serial[p]);
        gemm_free(shared[p]);
    }
    return trials[PRECISION_BFLOAT16].fastest < trials[PRECISION_FLOAT32].fastest;
}
