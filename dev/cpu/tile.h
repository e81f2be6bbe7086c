// Products of small matrices in cache, and the work between two of them, in the widest vectors of
// the processor. Written with the vector extension of gcc and clang, so that speed does not depend
// on how a compiler vectorises a loop.
#ifndef CPU_TILE_H
#define CPU_TILE_H

#include "amx.h"
#include "error.h"
#include "real.h"
#include "sizes.h"
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// One instruction multiplies two bf16 numbers, stored in place of one float, with another two.
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(REAL_IS_DOUBLE)
#define TILE_PAIRS 1
#else
#define TILE_PAIRS 0
#endif

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define TILE_NAME "AVX-512"
enum { TILE_BYTES = 64 };
#elif defined(__AVX__)
#define TILE_NAME "AVX"
enum { TILE_BYTES = 32 };
#else
#ifdef __aarch64__
#define TILE_NAME "NEON"
#else
#define TILE_NAME "SSE"
#endif
enum { TILE_BYTES = 16 };
#endif

// A product is computed in blocks of TILE_ROWS x TILE_COLUMNS: 16 sums in registers keep two
// multiply-add units busy and leave registers for the operands. SSE and AVX have only 16 registers.
#if defined(__x86_64__) && !defined(__AVX512F__)
#define TILE_FEW_REGISTERS 1
#else
#define TILE_FEW_REGISTERS 0
#endif
enum {
#if TILE_FEW_REGISTERS
    TILE_ROWS = 4,
#else
    TILE_ROWS = 8,
#endif
    TILE_LANES = TILE_BYTES / sizeof(real),
    TILE_VECTORS = 2,
    TILE_COLUMNS = TILE_VECTORS * TILE_LANES
};

typedef real TileVector __attribute__((vector_size(TILE_BYTES), may_alias));
#ifdef REAL_IS_DOUBLE
typedef int64_t TileBits __attribute__((vector_size(TILE_BYTES), may_alias));
#else
typedef int32_t TileBits __attribute__((vector_size(TILE_BYTES), may_alias));
#endif

#define TILE_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define TILE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLL _Pragma("GCC unroll 16")
#endif

// Returns a * b, a number of elements. Exits with an error if it overflows.
static inline size_t tile_count(size_t a, size_t b) {
    size_t count;
    if (__builtin_mul_overflow(a, b, &count)) fail("no memory for %zu x %zu elements", a, b);
    return count;
}

TILE_INLINE TileVector tile_load(const real *x) {
    return *(const TileVector *)x;
}

TILE_INLINE TileVector tile_load_unaligned(const real *x) {
    TileVector v;
    memcpy(&v, x, sizeof(v));
    return v;
}

TILE_INLINE void tile_store(real *x, TileVector v) {
    *(TileVector *)x = v;
}

// Prefetches n numbers. The rows of one head are too far apart for the hardware prefetcher.
static inline void tile_prefetch(const real *x, size_t n) {
    for (size_t i = 0; i < n; i += 64 / sizeof(real)) __builtin_prefetch(x + i);
}

// The maximum of each lane; b where a is NaN.
TILE_INLINE TileVector tile_max(TileVector a, TileVector b) {
#if defined(__AVX512F__) && defined(REAL_IS_DOUBLE)
    return (TileVector)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX512F__)
    return (TileVector)_mm512_max_ps((__m512)a, (__m512)b);
#else
    const TileBits greater = a > b;
    return (TileVector)(((TileBits)a & greater) | ((TileBits)b & ~greater));
#endif
}

// The indices of the lanes.
TILE_INLINE TileBits tile_lanes(void) {
    TileBits lanes = {0};
    for (int l = 0; l < (int)TILE_LANES; l++) lanes[l] = l;
    return lanes;
}

// v, but -Inf in the lanes where all bits of `other` are set.
TILE_INLINE TileVector tile_hide(TileVector v, TileBits other) {
    const TileVector lowest = (TileVector){0} - (real)INFINITY;
    return (TileVector)(((TileBits)lowest & other) | ((TileBits)v & ~other));
}

// tile_first: the first n lanes of v (n <= 0: none), -Inf in the others. tile_after: all but the
// first n.
TILE_INLINE TileVector tile_first(TileVector v, int n) {
    return tile_hide(v, tile_lanes() >= n);
}

TILE_INLINE TileVector tile_after(TileVector v, int n) {
    return tile_hide(v, tile_lanes() < n);
}

// Lane l of v if bit l is set, else 0.
TILE_INLINE TileVector tile_keep(TileVector v, uint32_t bits) {
#if defined(__AVX512F__) && defined(REAL_IS_DOUBLE)
    return (TileVector)_mm512_maskz_mov_pd((__mmask8)bits, (__m512d)v);
#elif defined(__AVX512F__)
    return (TileVector)_mm512_maskz_mov_ps((__mmask16)bits, (__m512)v);
#else
    const TileBits lane = ((TileBits){0} + 1) << tile_lanes(), all = (TileBits){0} + (int32_t)bits;
    return (TileVector)((TileBits)v & ((all & lane) != 0));
#endif
}

static inline real tile_greatest_lane(TileVector v) {
    real lane[TILE_LANES];
    memcpy(lane, &v, sizeof(lane));
    TILE_UNROLL
    for (size_t half = TILE_LANES / 2; half > 0; half /= 2) {
        TILE_UNROLL
        for (size_t l = 0; l < half; l++)
            lane[l] = lane[l] > lane[l + half] ? lane[l] : lane[l + half];
    }
    return lane[0];
}

TILE_INLINE real tile_sum_of_lanes(TileVector v) {
#if defined(__AVX512F__) && defined(REAL_IS_DOUBLE)
    return _mm512_reduce_add_pd((__m512d)v);
#elif defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    real lane[TILE_LANES];
    memcpy(lane, &v, sizeof(lane));
    TILE_UNROLL
    for (size_t half = TILE_LANES / 2; half > 0; half /= 2) {
        TILE_UNROLL
        for (size_t l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
#endif
}

// Lane l is the sum of the lanes of v[l]. Takes less than half the work of separate sums.
TILE_INLINE TileVector tile_sums_of_lanes(const TileVector v[TILE_LANES]) {
#if defined(__AVX512F__) && !defined(REAL_IS_DOUBLE)
    enum { EVEN = 0x88, ODD = 0xDD };
    __m512 quarters[4]; // partial sums of four vectors in each quarter
    TILE_UNROLL
    for (size_t i = 0; i < 4; i++) {
        const __m512 a = (__m512)v[4 * i], b = (__m512)v[4 * i + 1], c = (__m512)v[4 * i + 2],
                     d = (__m512)v[4 * i + 3];
        const __m512d ab =
            (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512d cd =
            (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        quarters[i] =
            _mm512_add_ps((__m512)_mm512_unpacklo_pd(ab, cd), (__m512)_mm512_unpackhi_pd(ab, cd));
    }
    __m512 halves[2];
    TILE_UNROLL
    for (size_t i = 0; i < 2; i++)
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quarters[2 * i], quarters[2 * i + 1], EVEN),
                                  _mm512_shuffle_f32x4(quarters[2 * i], quarters[2 * i + 1], ODD));
    return (TileVector)_mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], EVEN),
                                     _mm512_shuffle_f32x4(halves[0], halves[1], ODD));
#else
    TileVector sums = {0};
    for (size_t l = 0; l < TILE_LANES; l++) sums[l] = tile_sum_of_lanes(v[l]);
    return sums;
#endif
}

// Transposes the square with rows v[0], v[1], ...
TILE_INLINE void tile_transpose(TileVector v[TILE_LANES]) {
#if defined(__AVX512F__) && !defined(REAL_IS_DOUBLE)
    enum { EVEN = 0x88, ODD = 0xDD };
    __m512 twos[16],
        fours[16]; // quarter k of fours[4 q + c]: rows 4 q to 4 q + 3 of column 4 k + c
    TILE_UNROLL
    for (size_t i = 0; i < 16; i += 2) {
        twos[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
        twos[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    }
    TILE_UNROLL
    for (size_t i = 0; i < 16; i += 4) {
        TILE_UNROLL
        for (size_t half = 0; half < 2; half++) {
            const __m512d a = (__m512d)twos[i + half], b = (__m512d)twos[i + 2 + half];
            fours[i + 2 * half] = (__m512)_mm512_unpacklo_pd(a, b);
            fours[i + 2 * half + 1] = (__m512)_mm512_unpackhi_pd(a, b);
        }
    }
    TILE_UNROLL
    for (size_t c = 0; c < 4; c++) {
        const __m512 a = fours[c], b = fours[4 + c], e = fours[8 + c], f = fours[12 + c];
        const __m512 even[2] = {_mm512_shuffle_f32x4(a, b, EVEN), _mm512_shuffle_f32x4(e, f, EVEN)};
        const __m512 odd[2] = {_mm512_shuffle_f32x4(a, b, ODD), _mm512_shuffle_f32x4(e, f, ODD)};
        v[c] = (TileVector)_mm512_shuffle_f32x4(even[0], even[1], EVEN);
        v[4 + c] = (TileVector)_mm512_shuffle_f32x4(odd[0], odd[1], EVEN);
        v[8 + c] = (TileVector)_mm512_shuffle_f32x4(even[0], even[1], ODD);
        v[12 + c] = (TileVector)_mm512_shuffle_f32x4(odd[0], odd[1], ODD);
    }
#else
    TileVector columns[TILE_LANES];
    for (size_t i = 0; i < TILE_LANES; i++)
        for (size_t l = 0; l < TILE_LANES; l++) columns[l][i] = v[i][l];
    memcpy(v, columns, sizeof(columns));
#endif
}

// 2^x for x < 128, with a relative error below 1.5e-7, or below 1e-4 if `rough`, which suits
// results that are rounded to bf16. For x below -126 the result is at most 2^-126, for -Inf it is
// 0. NaN stays NaN.
TILE_INLINE TileVector tile_exp2(TileVector x, bool rough) {
#ifdef REAL_IS_DOUBLE
    (void)rough;
    for (size_t l = 0; l < TILE_LANES; l++) x[l] = exp2(x[l]);
    return x;
#else
    // x = n + f with an integer n and f from 0 to 1; 2^f is a minimax polynomial.
#ifdef __AVX512DQ__
    enum { DOWN = 1 };
    const TileVector f = (TileVector)_mm512_reduce_ps((__m512)x, DOWN);
#else
    // Adding 1.5 * 2^23 rounds to n in the low bits of the sum, adding 127 more makes it an
    // exponent field. Slightly less than a half is subtracted, so that f is 0 for every integer x
    // (not 1 for some), and 2^0 is exactly 1.
    const TileVector shifted = (x - (0.5f - 0x1p-12f)) + (12582912.0f + 127.0f);
    const TileVector f = x - (shifted - (12582912.0f + 127.0f));
#endif
    TileVector p;
    if (rough) {
        p = f * 7.706706346e-2f + 2.276449677e-1f;
        p = p * f + 6.951167918e-1f;
    } else {
        p = f * 1.867130411e-3f + 9.017029597e-3f;
        p = p * f + 5.579991362e-2f;
        p = p * f + 2.401644500e-1f;
        p = p * f + 6.931513118e-1f;
    }
    p = p * f + 1.0f;
#ifdef __AVX512DQ__
    return (TileVector)_mm512_scalef_ps((__m512)p, (__m512)x); // times 2^n
#else
    p *= (TileVector)((TileBits)shifted << 23);
    return (TileVector)((TileBits)p & ~(x < -126.0f));
#endif
#endif
}

// ---- operands ---------------------------------------------------------------
// A product reads its left operand along rows and its right operand along columns. With `pairs`
// (TILE_PAIRS builds only) both hold bf16, and one word holds two neighbours along the summed
// dimension.

// Stores two neighbouring vectors of a left operand's row as two vectors of words, or as one with
// `pairs`.
TILE_INLINE void tile_store_left(real *words, TileVector low, TileVector high, bool pairs) {
#if TILE_PAIRS
    if (pairs) {
        tile_store(words, (TileVector)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        return;
    }
#endif
    (void)pairs;
    tile_store(words, low);
    tile_store(words + TILE_LANES, high);
}

#if TILE_PAIRS
// Makes words from 16 bf16 of a row, in the lower half, and 16 of the next row.
TILE_INLINE __m512i tile_interleave(__m512i rows) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, rows);
}
#endif

// Stores vectors of two neighbouring rows of a right operand as two vectors of words, `stride`
// apart, or as one with `pairs`.
TILE_INLINE void tile_store_right(real *words, size_t stride, TileVector even, TileVector odd,
                                  bool pairs) {
#if TILE_PAIRS
    if (pairs) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
        tile_store(words, (TileVector)tile_interleave(both));
        return;
    }
#endif
    (void)pairs;
    tile_store(words, even);
    tile_store(words + stride, odd);
}

// Stores two rows of a right operand as two rows of n words, `stride` apart, or as one with
// `pairs`. n is a multiple of TILE_LANES; in place is allowed.
static inline void tile_right(real *words, size_t stride, const real *even, const real *odd,
                              size_t n, bool pairs) {
    for (size_t j = 0; j < n; j += TILE_LANES)
        tile_store_right(words + j, stride, tile_load(even + j), tile_load(odd + j), pairs);
}

// Transposes in place the squares of TILE_LANES rows and columns of x (rows, columns), whose rows
// are `stride` apart.
static inline void tile_transpose_squares(real *x, size_t stride, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i += TILE_LANES) {
        for (size_t j = 0; j < columns; j += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++) square[r] = tile_load(x + (i + r) * stride + j);
            tile_transpose(square);
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++) tile_store(x + (i + r) * stride + j, square[r]);
        }
    }
}

// ---- products ---------------------------------------------------------------
TILE_INLINE TileVector tile_multiply_add(TileVector sum, real x, TileVector row, bool pairs) {
#if TILE_PAIRS
    if (pairs) {
        const __m512 all = _mm512_set1_ps(x);
        return (TileVector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)row);
    }
#endif
    (void)pairs;
    return sum + x * row;
}

// Sums of one block, in registers.
typedef TileVector TileSums[TILE_ROWS][TILE_VECTORS];

// sum = rows of x, x_row apart
TILE_INLINE void tile_get(TileSums sum, const real *x, size_t x_row) {
    TILE_UNROLL
    for (size_t i = 0; i < TILE_ROWS; i++) {
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++)
            sum[i][v] = tile_load(x + i * x_row + v * TILE_LANES);
    }
}

// sum += a (TILE_ROWS, k) b (k, TILE_COLUMNS)
TILE_INLINE void tile_add_product(TileSums sum, TileView a, const real *b, size_t b_row, size_t k,
                                  bool pairs) {
    for (size_t s = 0; s < k; s++) {
        TileVector row[TILE_VECTORS];
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++) {
            row[v] = tile_load(b + s * b_row + v * TILE_LANES);
#if TILE_FEW_REGISTERS
            // Otherwise compilers reload it for each use, which takes as long as everything else.
            __asm__("" : "+x"(row[v]));
#endif
        }
        TILE_UNROLL
        for (size_t i = 0; i < TILE_ROWS; i++) {
            const real x = a.data[i * a.row + s * a.column];
            TILE_UNROLL
            for (size_t v = 0; v < TILE_VECTORS; v++)
                sum[i][v] = tile_multiply_add(sum[i][v], x, row[v], pairs);
        }
    }
}

// One block of tile_product.
TILE_INLINE void tile_block(real *c, size_t c_row, const real *start, size_t start_row, TileView a,
                            const real *b, size_t b_row, size_t k, bool pairs) {
    TileSums sum;
    tile_get(sum, start, start_row);
    tile_add_product(sum, a, b, b_row, k, pairs);
    TILE_UNROLL
    for (size_t i = 0; i < TILE_ROWS; i++) {
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++)
            tile_store(c + i * c_row + v * TILE_LANES, sum[i][v]);
    }
}

// c (m, n) = start + a (m, k) b (k, n), k in words. m is a multiple of TILE_ROWS, n of
// TILE_COLUMNS; rows of b, c and start (start_row 0: the same for all rows) are aligned to
// TILE_BYTES.
TILE_INLINE void tile_product(real *c, size_t c_row, const real *start, size_t start_row,
                              TileView a, const real *b, size_t b_row, size_t m, size_t n, size_t k,
                              bool pairs) {
    for (size_t j = 0; j < n; j += TILE_COLUMNS) {
        for (size_t i = 0; i < m; i += TILE_ROWS)
            tile_block(c + i * c_row + j, c_row, start + i * start_row + j, start_row,
                       (TileView){a.data + i * a.row, a.row, a.column}, b + j, b_row, k, pairs);
    }
}

static inline void tile_product_reals(real *c, size_t c_row, const real *start, size_t start_row,
                                      TileView a, const real *b, size_t b_row, size_t m, size_t n,
                                      size_t k) {
    tile_product(c, c_row, start, start_row, a, b, b_row, m, n, k, false);
}

static inline void tile_product_pairs(real *c, size_t c_row, const real *start, size_t start_row,
                                      TileView a, const real *b, size_t b_row, size_t m, size_t n,
                                      size_t k) {
    tile_product(c, c_row, start, start_row, a, b, b_row, m, n, k, true);
}

static inline void tile_nothing(void) {}

// The kind of multiplication, chosen at run time: vectors of numbers, vectors of pairs, or AMX
// (amx.h), which multiplies pairs, too.
typedef enum { MULTIPLY_REALS, MULTIPLY_PAIRS, MULTIPLY_AMX } Multiplier;

static const struct TileEngine {
    const char *name;
    size_t step;                       // numbers per word
    bool squares;                      // left operands read along columns have transposed squares
    void (*begin)(void), (*end)(void); // a thread calls these before and after its products
    // Same as tile_product(). For AMX, m and n are multiples of AMX_BLOCK, k of AMX_WORDS.
    void (*product)(real *c, size_t c_row, const real *start, size_t start_row, TileView a,
                    const real *b, size_t b_row, size_t m, size_t n, size_t k);
} tile_engines[] = {
    [MULTIPLY_REALS] = {TILE_NAME, 1, false, tile_nothing, tile_nothing, tile_product_reals},
#if TILE_PAIRS
    [MULTIPLY_PAIRS] = {"AVX512-BF16", 2, false, tile_nothing, tile_nothing, tile_product_pairs},
    [MULTIPLY_AMX] = {"AMX", 2, true, amx_begin, amx_end, amx_product},
#endif
};
typedef struct TileEngine TileEngine;

static inline Multiplier tile_multiplier(bool bf16) {
#if TILE_PAIRS
    if (bf16) return amx_available() ? MULTIPLY_AMX : MULTIPLY_PAIRS;
#endif
    (void)bf16;
    return MULTIPLY_REALS;
}

#endif
