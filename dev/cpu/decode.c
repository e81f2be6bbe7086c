#include "decode.h"

#include "bf16.h"
#include "memory.h"
#include "threads.h"
#include "tile.h"
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4, // of w side by side
#if defined(__AVX__) && !defined(__AVX512F__)
    STREAMS = 2, // the sums of so many streams stay in registers
#else
    STREAMS = 4,
#endif
    COLUMNS = 1024,     // at most
    PARALLEL = 1 << 15, // weights from which threads are worth starting
    AHEAD = 1 << 14     // bytes from where weights are read to where they are asked for
};

// ---- weights -----------------------------------------------------------------------------------------

DecodeWeights decode_weights_create(Precision precision, const real *values, size_t count) {
    DecodeWeights weights = {values, NULL};
    if (precision != PRECISION_BFLOAT16) return weights;
    weights.bf16 = allocate(count, sizeof(uint16_t), "the weights for decoding");
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) weights.bf16[i] = bf16_from_float((float)values[i]);
    return weights;
}

void decode_weights_free(DecodeWeights *weights) {
    free(weights->bf16);
    *weights = (DecodeWeights){NULL, NULL};
}

typedef uint16_t Halves __attribute__((vector_size(TILE_LANES * sizeof(uint16_t))));
typedef uint32_t Words __attribute__((vector_size(TILE_LANES * sizeof(uint32_t))));
typedef float Floats __attribute__((vector_size(TILE_LANES * sizeof(float))));

// In the functions below `w` are the weights from which on a product reads, and `bf16` a constant: whether it
// reads the copy.
TILE_INLINE TileVector weight_vector(DecodeWeights w, size_t i, bool bf16) {
    if (!bf16) return tile_load_unaligned(w.values + i);
#if defined(__AVX512F__) && !defined(REAL_IS_DOUBLE) // gcc takes five instructions for what is one
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(w.bf16 + i)));
    return (TileVector)_mm512_slli_epi32(words, 16);
#else
    Halves halves;
    memcpy(&halves, w.bf16 + i, sizeof(halves));
    return __builtin_convertvector((Floats)(__builtin_convertvector(halves, Words) << 16), TileVector);
#endif
}

TILE_INLINE real weight(DecodeWeights w, size_t i, bool bf16) {
    return bf16 ? (real)float_from_bf16(w.bf16[i]) : w.values[i];
}

TILE_INLINE void prefetch(DecodeWeights w, size_t i, bool bf16) {
    if (bf16)
        __builtin_prefetch(w.bf16 + i + AHEAD / sizeof(uint16_t));
    else
        __builtin_prefetch(w.values + i + AHEAD / sizeof(real));
}

static DecodeWeights from(DecodeWeights w, size_t i) {
    return (DecodeWeights){w.values + i, w.bf16 ? w.bf16 + i : NULL};
}

// ---- w (N, K) ----------------------------------------------------------------------------------------

// The sums of the lanes of ROWS vectors, for less than four times the work.
TILE_INLINE void sums_of_lanes(real *restrict sums, const TileVector v[ROWS]) {
#if defined(__AVX512F__) && !defined(REAL_IS_DOUBLE)
    const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 low = (__m512)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd);
    const __m512 high = (__m512)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
    const __m512 quarters = _mm512_add_ps(low, high); // each has a part of all four sums
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(quarters), (__m256)_mm512_extractf64x4_pd((__m512d)quarters, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
#else
    for (size_t i = 0; i < ROWS; i++) sums[i] = tile_sum_of_lanes(v[i]);
#endif
}

// y (streams, rows), rows N apart: products of rows of w (rows, K) and x (streams, K), and the bias (rows).
// `first`: w is not in the cache yet. Always inlined, so that the numbers of rows and streams are constants.
TILE_INLINE void dot_products(real *restrict y, const real *restrict x, DecodeWeights w,
                              const real *restrict bias, size_t n, size_t k, size_t streams, size_t rows,
                              bool first, bool bf16) {
    TileVector sums[STREAMS][ROWS] = {0};
    size_t i = 0;
    for (; i + TILE_LANES <= k; i += TILE_LANES) {
        TileVector row[ROWS];
        TILE_UNROLL
        for (size_t r = 0; r < rows; r++) {
            row[r] = weight_vector(w, r * k + i, bf16);
            if (first) prefetch(w, r * k + i, bf16);
        }
        TILE_UNROLL
        for (size_t s = 0; s < streams; s++) {
            const TileVector xs = tile_load_unaligned(x + s * k + i);
            TILE_UNROLL
            for (size_t r = 0; r < rows; r++) sums[s][r] += row[r] * xs;
        }
    }
    for (size_t s = 0; s < streams; s++) {
        if (rows == ROWS)
            sums_of_lanes(y + s * n, sums[s]);
        else
            y[s * n] = tile_sum_of_lanes(sums[s][0]);
        for (size_t r = 0; i < k && r < rows; r++)
            for (size_t rest = i; rest < k; rest++)
                y[s * n + r] += weight(w, r * k + rest, bf16) * x[s * k + rest];
        if (bias) {
            TILE_UNROLL
            for (size_t r = 0; r < rows; r++) y[s * n + r] += bias[r];
        }
    }
}

// y (S, N): `rows` columns of y, ROWS or less at the end. The block of w stays in the L1 cache while all
// streams use it.
TILE_INLINE void product_rows(real *restrict y, const real *restrict x, DecodeWeights w,
                              const real *restrict bias, size_t streams, size_t n, size_t k, size_t rows,
                              bool bf16) {
    if (rows < ROWS) {
        for (size_t s = 0; s < streams; s++)
            for (size_t r = 0; r < rows; r++)
                dot_products(y + s * n + r, x + s * k, from(w, r * k), bias ? bias + r : NULL, n, k, 1, 1,
                             false, bf16);
        return;
    }
    size_t s = streams < STREAMS ? 1 : STREAMS;
    if (s == 1)
        dot_products(y, x, w, bias, n, k, 1, ROWS, true, bf16);
    else
        dot_products(y, x, w, bias, n, k, STREAMS, ROWS, true, bf16);
    for (; s + STREAMS <= streams; s += STREAMS)
        dot_products(y + s * n, x + s * k, w, bias, n, k, STREAMS, ROWS, false, bf16);
    for (; s < streams; s++) dot_products(y + s * n, x + s * k, w, bias, n, k, 1, ROWS, false, bf16);
}

// ---- w (K, N) ----------------------------------------------------------------------------------------

// `columns` columns of y (S, N): the bias and the sums over the rows of w.
TILE_INLINE void product_columns(real *restrict y, const real *restrict x, DecodeWeights w,
                                 const real *restrict bias, size_t streams, size_t n, size_t k,
                                 size_t columns, bool bf16) {
    for (size_t s = 0; s < streams; s++)
        for (size_t j = 0; j < columns; j++) y[s * n + j] = bias ? bias[j] : 0;
    size_t i = 0;
    for (; i + ROWS <= k; i += ROWS)
        for (size_t s = 0; s < streams; s++) {
            const real *restrict xs = x + s * k + i;
            real *restrict ys = y + s * n;
            const real x0 = xs[0], x1 = xs[1], x2 = xs[2], x3 = xs[3];
            for (size_t j = 0; j < columns; j++)
                ys[j] = ys[j] + x0 * weight(w, i * n + j, bf16) + x1 * weight(w, (i + 1) * n + j, bf16) +
                        x2 * weight(w, (i + 2) * n + j, bf16) + x3 * weight(w, (i + 3) * n + j, bf16);
        }
    for (; i < k; i++)
        for (size_t s = 0; s < streams; s++) {
            const real factor = x[s * k + i];
            for (size_t j = 0; j < columns; j++) y[s * n + j] += factor * weight(w, i * n + j, bf16);
        }
}

// ---- what a model calls ------------------------------------------------------------------------------

void decode_product(real *restrict y, const real *restrict x, DecodeWeights weights, size_t offset,
                    const real *bias, size_t streams, size_t n, size_t k, WeightLayout layout) {
    const DecodeWeights w = from(weights, offset);
    const bool rows = layout == WEIGHT_OUT_IN;
    const size_t share = tile_round_up(n / (size_t)thread_limit() + 1, 64 / sizeof(real));
    const size_t columns = share < COLUMNS ? share : COLUMNS, step = rows ? ROWS : columns;
#pragma omp parallel for schedule(static) if (n * k >= PARALLEL)
    for (size_t j = 0; j < n; j += step) {
        const size_t count = n - j < step ? n - j : step;
        const real *const b = bias ? bias + j : NULL;
        if (rows && w.bf16)
            product_rows(y + j, x, from(w, j * k), b, streams, n, k, count, true);
        else if (rows)
            product_rows(y + j, x, from(w, j * k), b, streams, n, k, count, false);
        else if (w.bf16)
            product_columns(y + j, x, from(w, j), b, streams, n, k, count, true);
        else
            product_columns(y + j, x, from(w, j), b, streams, n, k, count, false);
    }
}
