// Cross entropy over a large vocabulary. With the logits l_ij = h_i . E_j + bias_j of row i and
// token j, target t and any shift c_i that keeps exp() in range,
//
//     e_ij = exp(l_ij - c_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + c_i - l_it
//     dh_i = (sum_j e_ij E_j) / Z_i - E_t,        dE_j = sum_i e_ij (h_i / Z_i) - sum_{i: t = j}
//     h_i
//
// so that no product needs Z_i before its row is complete: the e_ij of a block of rows and a slice
// of the vocabulary are made from the logits while these are in cache, and go at once into the
// product that becomes dh. Only they are kept for the rows of a chunk; once all Z_i are known, the
// product for dE takes h_i / Z_i. It is our own (tile.h): it sums over rows, and reads the e_ij as
// words that hold two rows of one token, where a library would first have to transpose them. Where
// a processor has AMX, all three are our own, and e_ij are made between them (classifier_amx.h).
// The target's own term is left out of the products and added in full precision: p_t - 1 = -(sum
// over j != t of e_ij) / Z_i keeps its digits where p_t is close to 1.
//
// Label smoothing by s adds s to that term, and -s / V to those of all tokens alike, which needs no
// product but with sums: dh_i -= s/V sum_j E_j and dE_j -= s/V sum_i h_i. Its loss is s (l_it -
// mean_j l_ij) more.
#include "classifier.h"

#include "arena.h"
#include "bf16.h"
#include "classifier_amx.h"
#include "error.h"
#include "memory.h"
#include "rows.h"
#include "sizes.h"
#include "threads.h"
#include "tile.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>

// Threads share out blocks of rows when they make the e_ij, then slices of the vocabulary for dE;
// each multiplies on its own, which spares a barrier a product, and sums in a fixed order.
enum {
    SLICE = 384,   // tokens: a block's logits, and a slice's part of dE, stay in the L2 cache
    BLOCK = 512,   // rows
    ROW_STEP = 32, // blocks and chunks are multiples of this
    CHUNK_BYTES = 1 << 26, // of e_ij
    // The product for dE takes DEPTH words of TOKENS tokens at a time with COLUMNS of h, which stay
    // in L1.
    DEPTH = 32,
    TOKENS = 8,
    COLUMNS = 128,
    PAIRS_STEP = 32 // rows of pairs are padded to multiples of this
};

// Where e_ij passes e^32, or a sum over a slice that, the row's shift rises.
static const double EXPONENT_LIMIT = 32, SUM_LIMIT = 7.9e13;
static const real LOWEST_SHIFT = (real)-1e30;

// What a thread has for itself.
typedef struct {
    Gemm *gemm;
    real *logits; // (BLOCK, SLICE)
    real *unused; // (2, SLICE) e of the loss alone
    Matrix e;     // (BLOCK, SLICE) as the product for dh reads them, where that is bf16
    real *h;      // (2, padded C) two rows of h / Z
    real *sums;   // (SLICE, COLUMNS) a part of dE
    // By AMX logits are (AMX_BLOCK, SLICE), sums (C' + 16, AMX_BLOCK), and there are:
    uint16_t *strip; // (AMX_BLOCK, C') rows of h
    real *left;      // (AMX_BLOCK, SLICE / 2) e for dh
    real *dh;        // (BLOCK, C')
    real *words;     // (AMX_BLOCK / 2, C') of h / Z
} Worker;

typedef struct Chunk Chunk;

// How the passes over a chunk are made: with a library's products, or by AMX.
typedef struct {
    void (*create)(Classifier *c); // what is not in the arena; NULL: nothing
    void (*carve)(Classifier *c, Arena *arena);
    void (*pack)(Classifier *c, size_t slice, const real *rows); // a slice's weight (width, C)
    void (*begin)(Classifier *c, const real *bias);              // NULL: nothing to be done
    void (*rows)(Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                 const Worker *worker);
    void (*gradients)(const Classifier *c, const Chunk *chunk, size_t slice, const Worker *worker,
                      real *dweight, real *dbias);
    void (*logits)(const Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                   const Worker *worker, real *logits);
} Passes;

// Of the product for dE, "words" are what tile.h multiplies: numbers, or with `pairs` two rows'
// bf16.
struct Classifier {
    size_t vocabulary, channels, slices, chunk;
    const Passes *passes;
    Gemm *gemm;
    const real *weight;  // (V, C)
    GemmWeight **packed; // (slices) of (SLICE, C); by AMX none, but
    real *across, *down; // (V', C' / 2) words
    real *padded_bias;   // (V') -Inf behind V
    real *no_bias;       // (SLICE) zeros
    real *shift;         // (chunk) c_i
    double *others;      // (chunk) sum of e_ij over j != t
    real *target_logit;  // (chunk) l_it
    int threads;
    Worker *workers; // (threads)
    // For training only:
    bool training, pairs;
    Multiplier by;  // of the products that are our own
    real *e;        // slice after slice of (words of chunk, row of words)
    real *scaled_h; // (words of chunk, padded C) scale h_i / Z_i; by AMX its tiles, a group each 32
                    // rows
    real *factor;   // (chunk) scale / Z_i
    real *target_gradient; // (chunk) scale (p_it - 1)
    double smoothing, unsmoothed;
    // With smoothing: sums of E and bias over V, and of smoothing / V times h, and 1, over a
    // chunk's rows.
    real *weight_sum, *h_sum; // (C)
    double bias_sum, rows_share;
};

// What a pass over a chunk reads and writes, all from its first row on.
struct Chunk {
    Matrix h;
    const real *bias;
    const int32_t *targets;
    size_t rows;
    double scale;
    real *dh; // NULL: the loss alone
};

static size_t slice_width(const Classifier *c, size_t slice) {
    return smaller(c->vocabulary - slice * SLICE, SLICE);
}

// Words that hold so many rows.
static size_t words_of_rows(const Classifier *c, size_t rows) {
    return c->pairs ? (rows + 1) / 2 : rows;
}

static size_t padded_channels(const Classifier *c) {
    return round_up(c->channels, TILE_COLUMNS);
}

// Words in a row of a slice.
static size_t row_of_words(const Classifier *c, size_t slice) {
    return c->pairs ? round_up(slice_width(c, slice), PAIRS_STEP) : slice_width(c, slice);
}

// The words of a slice that hold row i; with pairs an even row and the next one.
static real *words_of_e(const Classifier *c, size_t slice, size_t i) {
    return c->e + slice * SLICE * words_of_rows(c, c->chunk) +
           words_of_rows(c, i) * row_of_words(c, slice);
}

static bool by_amx(const Classifier *c) {
    return c->by == MULTIPLY_AMX;
}

// By AMX, from one block of AMX_BLOCK tokens of e to the next.
static size_t words_step(const Classifier *c) {
    return words_of_rows(c, c->chunk) * AMX_BLOCK;
}

// The word of e for dE that holds row i and token j of a slice.
static real *word_of_e(const Classifier *c, size_t slice, size_t i, size_t j) {
    if (!by_amx(c)) return words_of_e(c, slice, i) + j;
    return c->e + (slice * SLICE + j) / AMX_BLOCK * words_step(c) + i / 2 * AMX_BLOCK +
           j % AMX_BLOCK;
}

// ---- creation ---------------------------------------------------------------

static size_t chunk_rows(bool pairs, size_t vocabulary, size_t rows) {
    const size_t size = pairs ? sizeof(real) / 2 : sizeof(real);
    const size_t fit = CHUNK_BYTES / size / vocabulary / ROW_STEP * ROW_STEP;
    return smaller(fit > ROW_STEP ? fit : ROW_STEP, round_up(rows > 0 ? rows : 1, ROW_STEP));
}

static const char buffers[] = "classifier"; // what the plan calls them

static void gradients_carve(Classifier *c, Arena *arena) {
    const size_t words = words_of_rows(c, c->chunk), columns = padded_channels(c);
    // The product reads TOKENS words at a time, maybe beyond the last row.
    c->e = arena_reals(arena, tile_count(words, round_up(c->vocabulary, PAIRS_STEP)) + TOKENS, 1,
                       buffers);
    c->scaled_h = arena_reals(arena, words, by_amx(c) ? columns + AMX_BLOCK / 2 : columns, buffers);
    c->factor = arena_reals(arena, c->chunk, 1, buffers);
    c->target_gradient = arena_reals(arena, c->chunk, 1, buffers);
    c->weight_sum = arena_reals(arena, 1, c->channels, buffers);
    c->h_sum = arena_reals(arena, 1, c->channels, buffers);
    for (int i = 0; i < c->threads; i++) {
        Worker *worker = &c->workers[i];
        if (by_amx(c)) {
            worker->left = arena_reals(arena, AMX_BLOCK, SLICE / 2, buffers);
            worker->dh = arena_reals(arena, BLOCK, columns, buffers);
            worker->words = arena_reals(arena, AMX_BLOCK / 2, columns, buffers);
            worker->h = arena_reals(arena, 2, columns, buffers);
            worker->sums = arena_reals(arena, columns + AMX_BLOCK / 2, AMX_BLOCK, buffers);
            continue;
        }
        if (gemm_precision(c->gemm) == PRECISION_BFLOAT16)
            worker->e = gemm_input_carve(c->gemm, arena, BLOCK, SLICE, buffers);
        worker->h = arena_reals(arena, 2, columns, buffers);
        worker->sums = arena_reals(arena, SLICE, COLUMNS, buffers);
    }
}

// Without AMX a library multiplies but for dE.
static void library_create(Classifier *c) {
    c->packed = allocate(c->slices, sizeof(GemmWeight *), "the classifier's weight");
    for (size_t s = 0; s < c->slices; s++)
        c->packed[s] = gemm_weight_create(c->gemm, slice_width(c, s), c->channels, WEIGHT_OUT_IN,
                                          "packed weights");
    for (int i = 0; i < c->threads; i++) c->workers[i].gemm = gemm_create_serial(c->gemm);
}

static void library_carve(Classifier *c, Arena *arena) {
    for (size_t s = 0; s < c->slices; s++) gemm_weight_carve(c->packed[s], arena);
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].logits = arena_reals(arena, BLOCK, SLICE, buffers);
        c->workers[i].unused = arena_reals(arena, 2, SLICE, buffers);
    }
}

static void library_pack(Classifier *c, size_t slice, const real *rows) {
    gemm_weight_pack(c->packed[slice], rows);
}

// ---- exponentials -----------------------------------------------------------
// Two rows of a slice, and where their e_ij go.
typedef struct {
    real *logits;     // (2, width)
    const real *bias; // (width)
    real shift[2];
    size_t width;
    bool keep;   // or the sums alone are wanted
    real *words; // for dE
    Matrix e;    // (2, width) for dh, where that reads bf16
} TwoRows;

#if TILE_PAIRS

// The e_ij of 16 tokens from their logits, (2, 16), `width` apart: added to the rows' sums, and
// stored.
TILE_INLINE void exponentials_of_16(const real *logits, size_t width, const real *bias,
                                    const __m512 shift[2], uint16_t *e, real *words,
                                    __m512 sums[2]) {
    __m512 values[2];
    for (size_t r = 0; r < 2; r++) {
        const __m512 x = _mm512_add_ps(_mm512_loadu_ps(logits + r * width), _mm512_loadu_ps(bias));
        values[r] = (__m512)tile_exp2((TileVector)((x - shift[r]) * (float)LOG2_E), false);
        sums[r] = _mm512_add_ps(sums[r], values[r]);
    }
    if (!e) return;
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(values[1], values[0]);
    _mm256_storeu_si256((void *)e, _mm512_castsi512_si256(both));
    _mm256_storeu_si256((void *)(e + width), _mm512_extracti64x4_epi64(both, 1));
    _mm512_stream_si512((void *)words, tile_interleave(both));
}

// The same for the last `count` tokens, by way of 16.
static void exp_tail(const TwoRows *two, size_t count, const __m512 shift[2], __m512 sums[2]) {
    const size_t width = two->width, j = width - count;
    real logits[32], bias[16];
    uint16_t e[32];
    for (size_t i = 0; i < 16; i++) {
        bias[i] = i < count ? two->bias[j + i] : 0;
        for (size_t r = 0; r < 2; r++)
            logits[16 * r + i] = i < count ? two->logits[r * width + j + i] : -INFINITY;
    }
    exponentials_of_16(logits, 16, bias, shift, two->keep ? e : NULL, two->words + j, sums);
    for (size_t r = 0; two->keep && r < 2; r++)
        memcpy((uint16_t *)two->e.data + r * width + j, e + 16 * r, count * sizeof(*e));
}

// e of both rows in bf16, and as pairs; the words behind `width` become 0. In one pass, which takes
// 70% of the time of two. The words bypass the caches, as dE is made much later; the barrier behind
// a chunk's rows makes them visible to other threads.
static void exponentials_in_pairs(const TwoRows *two, real sums[2]) {
    const size_t width = two->width, rest = width % 16;
    const __m512 shift[2] = {_mm512_set1_ps(two->shift[0]), _mm512_set1_ps(two->shift[1])};
    const real *logits = two->logits, *bias = two->bias;
    uint16_t *e = two->keep ? two->e.data : NULL;
    real *words = two->words;
    __m512 lanes[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t j = 0; j < width - rest; j += 16)
        exponentials_of_16(logits + j, width, bias + j, shift, e ? e + j : NULL, words + j, lanes);
    if (rest > 0) exp_tail(two, rest, shift, lanes);
    for (size_t r = 0; r < 2; r++) sums[r] = _mm512_reduce_add_ps(lanes[r]);
}

#endif

// e (width) = exp(logits + bias - shift); returns the sum. Not inlined: compilers add in another
// order in another place, and the loss of an evaluation has the bits of training's.
static __attribute__((noinline)) real exponentials_of_row(real *restrict e,
                                                          const real *restrict logits,
                                                          const real *restrict bias, real shift,
                                                          size_t width) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; j++) {
        const real value = vector_exp(logits[j] + bias[j] - shift);
        e[j] = value;
        sum += value;
    }
    return sum;
}

// e of both rows, and their sums.
static void exponentials(const TwoRows *two, bool pairs, real sums[2]) {
#if TILE_PAIRS
    if (pairs) {
        exponentials_in_pairs(two, sums);
        return;
    }
#endif
    (void)pairs;
    const size_t width = two->width;
    for (size_t r = 0; r < 2; r++) {
        real *e = two->words + r * width;
        sums[r] = exponentials_of_row(e, two->logits + r * width, two->bias, two->shift[r], width);
        if (two->keep && two->e.bf16) gemm_input_store(two->e, r, 0, e, width);
    }
}

// Row i of e in one slice, which was kept, times `factor`.
static void scale_words(const Classifier *c, size_t i, size_t slice, real factor) {
    const size_t width = slice_width(c, slice);
    for (size_t j = 0; j < width; j++) {
        real *word = word_of_e(c, slice, i - (c->pairs ? i % 2 : 0), j);
        if (c->pairs) {
            uint16_t two[2];
            memcpy(two, word, sizeof(two));
            two[i % 2] = bf16_from_float(float_from_bf16(two[i % 2]) * (float)factor);
            memcpy(word, two, sizeof(two));
        } else {
            *word *= factor;
        }
    }
}

// Moves row i to a higher shift with all that was computed, up to `slice`, under the old one; dh
// (C) is its row's, NULL where only the loss is wanted.
static void raise_shift(Classifier *c, size_t i, size_t slice, real shift, real *dh) {
    const real factor = (real)exp((double)c->shift[i] - (double)shift);
    c->shift[i] = shift;
    c->others[i] *= (double)factor;
    if (!dh || slice == 0) return;
    for (size_t k = 0; k < c->channels; k++) dh[k] *= factor;
    for (size_t s = 0; s < slice; s++) scale_words(c, i, s, factor);
}

static real *dh_of_row(const Classifier *c, const Chunk *chunk, size_t i) {
    return chunk->dh ? chunk->dh + i * c->channels : NULL;
}

static real largest(const real *logits, const real *bias, size_t width) {
    real max = -INFINITY;
    for (size_t j = 0; j < width; j++) max = logits[j] + bias[j] > max ? logits[j] + bias[j] : max;
    return max;
}

// Row i, from its logits (width) of one slice: a first shift, and the target's logit, which is
// taken out.
static void start_row(Classifier *c, const Chunk *chunk, size_t i, size_t slice, real *logits,
                      const real *bias) {
    if (slice == 0) { // any finite shift will do that does not overflow
        c->shift[i] = logits[0] + bias[0] > LOWEST_SHIFT ? logits[0] + bias[0] : LOWEST_SHIFT;
        c->others[i] = 0;
    }
    // Wraps around, to a large number, for a target below the slice and for -1.
    const size_t target = (size_t)chunk->targets[i] - slice * SLICE;
    if (target >= slice_width(c, slice)) return;
    const real logit = logits[target] + bias[target];
    c->target_logit[i] = logit;
    logits[target] = -INFINITY;
    if ((double)logit - (double)c->shift[i] > EXPONENT_LIMIT)
        raise_shift(c, i, slice, logit, dh_of_row(c, chunk, i));
}

// Rows i and i + 1, of which `count` (1 or 2) exist: e and its sums from their logits of one slice.
// A row that does not exist gets zeros.
static void two_rows_of_slice(Classifier *c, const Chunk *chunk, size_t i, size_t count,
                              size_t slice, TwoRows *two) {
    const size_t width = two->width;
    for (size_t r = 0; r < count; r++) {
        start_row(c, chunk, i + r, slice, two->logits + r * width, two->bias);
        two->shift[r] = c->shift[i + r];
    }
    if (count == 1)
        for (size_t j = 0; j < width; j++) two->logits[width + j] = -INFINITY;
    real sums[2];
    exponentials(two, c->pairs, sums);
    bool again = false;
    for (size_t r = 0; r < count; r++) {
        if (!((double)sums[r] > SUM_LIMIT)) continue;
        two->shift[r] = largest(two->logits + r * width, two->bias, width);
        raise_shift(c, i + r, slice, two->shift[r], dh_of_row(c, chunk, i + r));
        again = true;
    }
    if (again) exponentials(two, c->pairs, sums);
    for (size_t r = 0; r < count; r++) c->others[i + r] += (double)sums[r];
}

// ---- passes over a chunk ----------------------------------------------------
// Z_i of a row whose target counts.
static double sum_of_row(const Classifier *c, size_t i) {
    return c->others[i] + exp((double)c->target_logit[i] - (double)c->shift[i]);
}

// With Z_i known: dh_i in full from its sums (C) over tokens, which may stand there, and h_i / Z_i
// (C) for dE.
static void finish_row(Classifier *c, const Chunk *chunk, size_t i, const real *sums,
                       real *restrict h) {
    const size_t channels = c->channels;
    real *dh = dh_of_row(c, chunk, i);
    const int32_t target = chunk->targets[i];
    const double share = target < 0 ? 0 : chunk->scale / sum_of_row(c, i);
    const double smoothing = target < 0 ? 0 : chunk->scale * c->smoothing;
    const real factor = (real)share, gradient = (real)(smoothing - share * c->others[i]);
    const real *restrict weight = c->weight + (target < 0 ? 0 : (size_t)target) * channels;
#pragma omp simd
    for (size_t k = 0; k < channels; k++) dh[k] = sums[k] * factor + gradient * weight[k];
    if (smoothing > 0) {
        const real spread = (real)(smoothing / (double)c->vocabulary);
        for (size_t k = 0; k < channels; k++) dh[k] -= spread * c->weight_sum[k];
    }
    c->factor[i] = factor;
    c->target_gradient[i] = gradient;
    gemm_input_load(chunk->h, i, 0, h, channels);
    for (size_t k = 0; k < channels; k++) h[k] *= factor;
}

// Rows first .. first+rows-1, the first one even, in twos, from their sums (rows, C), `stride`
// apart; words (rows in words, padded C).
static void finish_rows(Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                        const real *sums, size_t stride, real *words, const Worker *worker) {
    const size_t columns = padded_channels(c);
    real *even = worker->h, *odd = even + columns;
    for (size_t r = 0; r < rows; r += 2) {
        finish_row(c, chunk, first + r, sums + r * stride, even);
        if (r + 1 < rows) {
            finish_row(c, chunk, first + r + 1, sums + (r + 1) * stride, odd);
        } else {
            memset(odd, 0, columns * sizeof(real));
            c->factor[first + r + 1] = 0;
        }
        tile_right(words + words_of_rows(c, r) * columns, columns, even, odd, columns, c->pairs);
    }
}

// From the logits (rows, width) of a block of rows and a slice: their sums and, when training, e
// for both products.
static void exponentials_of_block(Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                                  size_t slice, const Worker *worker, Matrix e) {
    const real *bias = chunk->bias ? chunk->bias + slice * SLICE : c->no_bias;
    const bool keep = chunk->dh;
    for (size_t i = 0; i < rows; i += 2) {
        TwoRows two = {.logits = worker->logits + i * e.columns,
                       .bias = bias,
                       .width = e.columns,
                       .keep = keep};
        two.words = keep ? words_of_e(c, slice, first + i) : worker->unused;
        if (keep) two.e = gemm_input_rows(e, i);
        two_rows_of_slice(c, chunk, first + i, smaller(rows - i, 2), slice, &two);
    }
}

// A block of rows, the first one even: logits, exponentials and dh, slice by slice.
static void rows_pass(Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                      const Worker *worker) {
    const Matrix h = gemm_input_rows(chunk->h, first);
    for (size_t s = 0; s < c->slices; s++) {
        Matrix e = {worker->e.data, slice_width(c, s), worker->e.bf16};
        if (chunk->dh && !e.bf16) e.data = words_of_e(c, s, first);
        gemm_forward(worker->gemm, worker->logits, h, c->packed[s], rows);
        exponentials_of_block(c, chunk, first, rows, s, worker, e);
        if (!chunk->dh) continue;
        real *dh = chunk->dh + first * c->channels;
        if (s == 0)
            gemm_backward_input(worker->gemm, dh, e, c->packed[s], rows);
        else
            gemm_backward_input_add(worker->gemm, dh, e, c->packed[s], rows);
    }
    if (chunk->dh)
        finish_rows(c, chunk, first, rows, chunk->dh + first * c->channels, c->channels,
                    c->scaled_h + words_of_rows(c, first) * padded_channels(c), worker);
}

// sums (width) += the sums of the columns of e (count, width), `count` rows of words from row `row`
// on, each row times its factor.
static void add_column_sums(const Classifier *c, real *restrict sums, const real *restrict e,
                            size_t row, size_t count, size_t width) {
    for (size_t i = 0; i < count; i++) {
        const real *restrict words = e + i * width;
        if (c->pairs) {
            const real even = c->factor[row + 2 * i], odd = c->factor[row + 2 * i + 1];
            for (size_t j = 0; j < width; j++) {
                uint32_t two;
                memcpy(&two, words + j, sizeof(two));
                sums[j] += even * (real)float_from_bf16((uint16_t)two) +
                           odd * (real)float_from_bf16((uint16_t)(two >> 16));
            }
        } else {
            const real factor = c->factor[row + i];
            for (size_t j = 0; j < width; j++) sums[j] += factor * words[j];
        }
    }
}

// sums (SLICE, COLUMNS) = e^T h / Z for a slice and `columns` columns of h from `column` on; where
// column_sums is given, what dbias needs is added to it while e is in cache.
static void slice_product(const Classifier *c, real *sums, real *column_sums, size_t slice,
                          size_t rows, size_t column, size_t columns) {
    const size_t width = row_of_words(c, slice), words = words_of_rows(c, rows),
                 stride = padded_channels(c);
    memset(sums, 0, (size_t)SLICE * COLUMNS * sizeof(real));
    for (size_t k = 0; k < words; k += DEPTH) {
        const size_t depth = smaller(words - k, DEPTH);
        const real *e = words_of_e(c, slice, 0) + k * width, *h = c->scaled_h + k * stride + column;
        if (column_sums) add_column_sums(c, column_sums, e, c->pairs ? 2 * k : k, depth, width);
        for (size_t j = 0; j < width; j += TOKENS) {
            // A share of the next words, which come from memory.
            if (k + 2 * DEPTH <= words)
                tile_prefetch(e + DEPTH * width + j * DEPTH, TOKENS * DEPTH);
            real *sum = sums + j * COLUMNS;
            tile_product(sum, COLUMNS, sum, COLUMNS, (TileView){e + j, 1, width}, h, stride, TOKENS,
                         columns, depth, c->by);
        }
    }
}

// `count` columns of `width` rows of dweight, `channels` apart, += sums (SLICE, COLUMNS).
static void add_sums(real *restrict dweight, size_t channels, const real *restrict sums,
                     size_t width, size_t count) {
    for (size_t j = 0; j < width; j++)
        for (size_t i = 0; i < count; i++) dweight[j * channels + i] += sums[j * COLUMNS + i];
}

// A slice's part of dweight and dbias, over all rows of the chunk.
static void slice_gradients(const Classifier *c, const Chunk *chunk, size_t slice,
                            const Worker *worker, real *dweight, real *dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    real column_sums[SLICE] = {0};
    for (size_t k = 0; k < channels; k += COLUMNS) {
        const size_t count = smaller(channels - k, COLUMNS);
        const size_t columns = smaller(padded_channels(c) - k, COLUMNS);
        slice_product(c, worker->sums, dbias && k == 0 ? column_sums : NULL, slice, chunk->rows, k,
                      columns);
        add_sums(dweight + first * channels + k, channels, worker->sums, width, count);
    }
    for (size_t j = 0; dbias && j < width; j++) dbias[first + j] += column_sums[j];
}

// Targets in a slice, whose e_ij are no part of the products.
static void add_targets(const Classifier *c, const Chunk *chunk, size_t slice, real *dweight,
                        real *dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    for (size_t i = 0; i < chunk->rows; i++) {
        const size_t target = (size_t)chunk->targets[i];
        if (target - first >= width) continue; // also for -1
        if (dbias) dbias[target] += c->target_gradient[i];
        for (size_t k = 0; k < channels; k += COLUMNS) {
            real h[COLUMNS];
            const size_t count = smaller(channels - k, COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++)
                dweight[target * channels + k + j] += c->target_gradient[i] * h[j];
        }
    }
}

// Logits of a block of rows, bias added, to their rows of (M, V).
static void logits_pass(const Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                        const Worker *worker, real *logits) {
    for (size_t s = 0; s < c->slices; s++) {
        const size_t width = slice_width(c, s);
        const real *bias = chunk->bias ? chunk->bias + s * SLICE : c->no_bias;
        gemm_forward(worker->gemm, worker->logits, gemm_input_rows(chunk->h, first), c->packed[s],
                     rows);
        for (size_t r = 0; r < rows; r++) {
            const real *restrict in = worker->logits + r * width;
            real *restrict out = logits + (first + r) * c->vocabulary + s * SLICE;
            for (size_t j = 0; j < width; j++) out[j] = in[j] + bias[j];
        }
    }
}

static const Passes library_passes = {library_create, library_carve,   library_pack, NULL,
                                      rows_pass,      slice_gradients, logits_pass};

// ---- by AMX -----------------------------------------------------------------

#if TILE_PAIRS

static void amx_carve(Classifier *c, Arena *arena) {
    const size_t tokens = round_up(c->vocabulary, AMX_BLOCK), columns = padded_channels(c);
    c->across = arena_reals(arena, tokens, columns / 2, "packed weights");
    c->down = arena_reals(arena, tokens, columns / 2, "packed weights");
    c->padded_bias = arena_reals(arena, tokens, 1, buffers);
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].logits = arena_reals(arena, AMX_BLOCK, SLICE, buffers);
        c->workers[i].strip =
            arena_array(arena, AMX_BLOCK * columns, sizeof(*c->workers[i].strip), buffers);
    }
}

// Where the words of a slice begin in `across` and `down`.
static size_t amx_slice(const Classifier *c, size_t slice) {
    return slice * SLICE * padded_channels(c) / 2;
}

static void amx_pack(Classifier *c, size_t slice, const real *rows) {
    const size_t at = amx_slice(c, slice);
    classifier_amx_pack(c->across + at, c->down + at, rows, slice_width(c, slice), c->channels);
}

// A strip: rows i to i + AMX_BLOCK of a chunk, of which `rows` exist.
typedef struct {
    size_t i, rows;
    ClassifierStrip in;
    real shift[AMX_BLOCK];
    int32_t targets[AMX_BLOCK];
} Strip;

// Rows of h as they lie, or where they are too few or too short, a copy filled up with zeros.
static void strip_rows(const Classifier *c, const Chunk *chunk, const Worker *worker,
                       Strip *strip) {
    const size_t channels = c->channels, columns = padded_channels(c);
    const uint16_t *h = (const uint16_t *)chunk->h.data + strip->i * channels;
    strip->in.h = h;
    strip->in.h_row = columns;
    if (strip->rows == AMX_BLOCK && channels == columns) return;
    memset(worker->strip, 0, AMX_BLOCK * columns * sizeof(*h));
    for (size_t r = 0; r < strip->rows; r++)
        memcpy(worker->strip + r * columns, h + r * channels, channels * sizeof(*h));
    strip->in.h = worker->strip;
}

// What the kernels need to know of a strip and a slice. Rows that do not exist get e_ij of 0.
static void strip_create(const Classifier *c, const Chunk *chunk, size_t i, size_t rows,
                         size_t slice, const Worker *worker, Strip *strip) {
    strip->i = i;
    strip->rows = rows;
    strip->in.across = c->across + amx_slice(c, slice);
    strip->in.bias = c->padded_bias + slice * SLICE;
    strip->in.width = round_up(slice_width(c, slice), AMX_BLOCK);
    strip->in.channels = padded_channels(c);
    strip->in.words_step = words_step(c);
    strip->in.shift = strip->shift;
    strip->in.targets = strip->targets;
    strip_rows(c, chunk, worker, strip);
    for (size_t r = 0; r < AMX_BLOCK; r++) {
        strip->shift[r] = r < rows ? c->shift[i + r] : -LOWEST_SHIFT;
        const int64_t target = r < rows && chunk->targets
                                   ? (int64_t)chunk->targets[i + r] - (int64_t)(slice * SLICE)
                                   : -1;
        strip->targets[r] =
            target >= 0 && target < (int64_t)slice_width(c, slice) ? (int32_t)target : -1;
    }
}

// Raises the shifts of rows whose sum or target passes the limits; whether there were any.
static bool raise_shifts(Classifier *c, Strip *strip, const real *sums, const real *target_logit,
                         size_t slice, const Worker *worker, real *dh) {
    bool known = false, raised = false;
    for (size_t r = 0; r < strip->rows; r++) {
        const bool far = strip->targets[r] >= 0 &&
                         (double)target_logit[r] - (double)strip->shift[r] > EXPONENT_LIMIT;
        if (!((double)sums[r] > SUM_LIMIT) && !far) continue;
        if (!known) classifier_amx_logits(worker->logits, &strip->in);
        known = raised = true;
        strip->shift[r] =
            largest(worker->logits + r * strip->in.width, c->no_bias, slice_width(c, slice));
        raise_shift(c, strip->i + r, slice, strip->shift[r],
                    dh ? dh + r * strip->in.channels : NULL);
    }
    return raised;
}

// e of a strip and a slice, its sums and target logits, and what it gives to dh (rows, C'), if that
// is wanted.
static void strip_of_slice(Classifier *c, Strip *strip, size_t slice, const Worker *worker,
                           real *dh) {
    real sums[AMX_BLOCK], target_logit[AMX_BLOCK];
    real *left = dh ? worker->left : NULL;
    real *words = dh ? word_of_e(c, slice, strip->i, 0) : NULL;
    classifier_amx_exponentials(sums, target_logit, left, words, &strip->in);
    if (raise_shifts(c, strip, sums, target_logit, slice, worker, dh))
        classifier_amx_exponentials(sums, target_logit, left, words, &strip->in);
    for (size_t r = 0; r < strip->rows; r++) {
        c->others[strip->i + r] += (double)sums[r];
        if (strip->targets[r] >= 0) c->target_logit[strip->i + r] = target_logit[r];
    }
    if (dh)
        classifier_amx_add_dh(dh, left, c->down + amx_slice(c, slice), strip->in.width,
                              strip->in.channels);
}

// A first shift for each row: about the first token's logit, so that its e is about 1.
static void start_rows(Classifier *c, const Chunk *chunk, size_t first, size_t rows) {
    for (size_t i = first; i < first + rows; i++) {
        real logit = c->padded_bias[0], h[COLUMNS];
        for (size_t k = 0; k < c->channels; k += COLUMNS) {
            const size_t count = smaller(c->channels - k, COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            logit += row_dot(h, c->weight + k, count);
        }
        c->shift[i] = logit > LOWEST_SHIFT ? logit : LOWEST_SHIFT;
        c->others[i] = 0;
    }
}

// Rows i to i + rows, a strip's, from their sums (rows, C').
static void finish_strip(Classifier *c, const Chunk *chunk, size_t i, size_t rows, const real *sums,
                         const Worker *worker) {
    const size_t columns = padded_channels(c);
    memset(worker->words, 0, AMX_BLOCK / 2 * columns * sizeof(real));
    memset(c->factor + i, 0, AMX_BLOCK * sizeof(real));
    finish_rows(c, chunk, i, rows, sums, columns, worker->words, worker);
    classifier_amx_transpose(c->scaled_h + i / 2 * (columns + AMX_BLOCK / 2), worker->words,
                             c->factor + i, columns);
}

// rows_pass().
static void amx_rows_pass(Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                          const Worker *worker) {
    const size_t columns = padded_channels(c);
    real *dh = chunk->dh ? worker->dh : NULL;
    start_rows(c, chunk, first, rows);
    if (dh) memset(dh, 0, BLOCK * columns * sizeof(real));
    amx_begin();
    for (size_t s = 0; s < c->slices; s++) {
        for (size_t r = 0; r < rows; r += AMX_BLOCK) {
            Strip strip;
            strip_create(c, chunk, first + r, smaller(rows - r, AMX_BLOCK), s, worker, &strip);
            strip_of_slice(c, &strip, s, worker, dh ? dh + r * columns : NULL);
        }
    }
    amx_end();
    for (size_t r = 0; dh && r < rows; r += AMX_BLOCK)
        finish_strip(c, chunk, first + r, smaller(rows - r, AMX_BLOCK), dh + r * columns, worker);
}

// dweight and dbias of `tokens` tokens from `first` on += sums (C' + 16, AMX_BLOCK).
static void add_transposed(const Classifier *c, const real *sums, size_t first, size_t tokens,
                           real *dweight, real *dbias) {
    const size_t channels = c->channels;
    const real *factors = sums + padded_channels(c) * AMX_BLOCK;
    for (size_t j = 0; j < tokens; j += TILE_LANES) {
        for (size_t k = 0; k < channels; k += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++)
                square[r] = tile_load(sums + (k + r) * AMX_BLOCK + j);
            tile_transpose(square);
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++) {
                real *out = dweight + (first + j + r) * channels;
                if (j + r < tokens)
                    row_put(out, k, channels, row_get(out, k, channels) + square[r]);
            }
        }
    }
    for (size_t j = 0; dbias && j < tokens; j++)
        dbias[first + j] += factors[j] + factors[AMX_BLOCK + j];
}

// slice_gradients().
static void amx_slice_gradients(const Classifier *c, const Chunk *chunk, size_t slice,
                                const Worker *worker, real *dweight, real *dbias) {
    const size_t width = slice_width(c, slice), groups = (chunk->rows + AMX_BLOCK - 1) / AMX_BLOCK;
    amx_begin();
    for (size_t j = 0; j < width; j += AMX_BLOCK) {
        const real *words = word_of_e(c, slice, 0, j);
        classifier_amx_gradient(worker->sums, c->scaled_h, words, words + words_step(c), groups,
                                padded_channels(c));
        add_transposed(c, worker->sums, slice * SLICE + j, smaller(width - j, AMX_BLOCK), dweight,
                       dbias);
    }
    amx_end();
}

// The chunk's bias, -Inf behind the vocabulary.
static void amx_pad_bias(Classifier *c, const real *bias) {
    const size_t tokens = round_up(c->vocabulary, AMX_BLOCK);
    for (size_t j = 0; j < tokens; j++)
        c->padded_bias[j] = j >= c->vocabulary ? -INFINITY : bias ? bias[j] : 0;
}

// logits_pass().
static void amx_logits_pass(const Classifier *c, const Chunk *chunk, size_t first, size_t rows,
                            const Worker *worker, real *logits) {
    amx_begin();
    for (size_t s = 0; s < c->slices; s++) {
        for (size_t r = 0; r < rows; r += AMX_BLOCK) {
            Strip strip;
            strip_create(c, chunk, first + r, smaller(rows - r, AMX_BLOCK), s, worker, &strip);
            classifier_amx_logits(worker->logits, &strip.in);
            for (size_t i = 0; i < strip.rows; i++)
                memcpy(logits + (strip.i + i) * c->vocabulary + s * SLICE,
                       worker->logits + i * strip.in.width, slice_width(c, s) * sizeof(real));
        }
    }
    amx_end();
}

static const Passes amx_passes = {NULL,          amx_carve,           amx_pack,       amx_pad_bias,
                                  amx_rows_pass, amx_slice_gradients, amx_logits_pass};

#endif

static const Passes *passes_by(Multiplier by) {
#if TILE_PAIRS
    if (by == MULTIPLY_AMX) return &amx_passes;
#endif
    (void)by;
    return &library_passes;
}

// ---- label smoothing --------------------------------------------------------
// weight_sum and bias_sum. Threads share out the channels, so that sums have one order.
static void sum_weights(Classifier *c, const real *bias) {
    const size_t channels = c->channels;
#pragma omp parallel for schedule(static)
    for (size_t k = 0; k < channels; k += COLUMNS) {
        real sums[COLUMNS] = {0};
        const size_t count = smaller(channels - k, COLUMNS);
        for (size_t j = 0; j < c->vocabulary; j++)
            for (size_t i = 0; i < count; i++) sums[i] += c->weight[j * channels + k + i];
        memcpy(c->weight_sum + k, sums, count * sizeof(real));
    }
    c->bias_sum = 0;
    for (size_t j = 0; bias && j < c->vocabulary; j++) c->bias_sum += (double)bias[j];
}

// h_sum and rows_share, over the rows that count.
static void sum_rows(Classifier *c, const Chunk *chunk) {
    const size_t channels = c->channels;
    const double share = chunk->scale * c->smoothing / (double)c->vocabulary;
#pragma omp parallel for schedule(static)
    for (size_t k = 0; k < channels; k += COLUMNS) {
        real sums[COLUMNS] = {0}, h[COLUMNS];
        const size_t count = smaller(channels - k, COLUMNS);
        for (size_t i = 0; i < chunk->rows; i++) {
            if (chunk->targets[i] < 0) continue;
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++) sums[j] += h[j];
        }
        for (size_t j = 0; j < count; j++) c->h_sum[k + j] = (real)share * sums[j];
    }
    c->rows_share = 0;
    for (size_t i = 0; i < chunk->rows; i++) c->rows_share += chunk->targets[i] < 0 ? 0 : share;
}

// What smoothing adds to the loss of a chunk.
static double smoothing_of_chunk(const Classifier *c, const Chunk *chunk) {
    double loss = 0;
    for (size_t i = 0; i < chunk->rows; i++) {
        if (chunk->targets[i] < 0) continue;
        double sum = c->bias_sum;
        for (size_t k = 0; k < c->channels; k += COLUMNS) {
            real h[COLUMNS];
            const size_t count = smaller(c->channels - k, COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++) sum += (double)h[j] * (double)c->weight_sum[k + j];
        }
        loss += (double)c->target_logit[i] - sum / (double)c->vocabulary;
    }
    return c->smoothing * loss;
}

// dweight and dbias of one slice.
static void smooth_slice(const Classifier *c, size_t slice, real *restrict dweight,
                         real *restrict dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    for (size_t j = first; j < first + width; j++) {
        for (size_t k = 0; k < channels; k++) dweight[j * channels + k] -= c->h_sum[k];
        if (dbias) dbias[j] -= (real)c->rows_share;
    }
}

static void slices_of_chunk(Classifier *c, const Chunk *chunk, real *dweight, real *dbias) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t s = 0; s < c->slices; s++) {
        const Worker *worker = &c->workers[thread_index()];
        c->passes->gradients(c, chunk, s, worker, dweight, dbias);
        add_targets(c, chunk, s, dweight, dbias);
        if (c->smoothing > 0) smooth_slice(c, s, dweight, dbias);
    }
}

// Rows of a block, such that all threads have some.
static size_t block_rows(const Classifier *c, size_t rows) {
    const size_t threads = (size_t)c->threads;
    const size_t share = rows > threads ? (rows + threads - 1) / threads : 1;
    return smaller(round_up(share, ROW_STEP), BLOCK);
}

static double rows_of_chunk(Classifier *c, const Chunk *chunk) {
    const size_t block = block_rows(c, chunk->rows);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t i = 0; i < chunk->rows; i += block) {
        const size_t rows = smaller(chunk->rows - i, block);
        c->passes->rows(c, chunk, i, rows, &c->workers[thread_index()]);
    }
    double loss = 0;
    for (size_t i = 0; i < chunk->rows; i++)
        if (chunk->targets[i] >= 0)
            loss += log(sum_of_row(c, i)) + (double)c->shift[i] - (double)c->target_logit[i];
    return loss;
}

// ---- the interface ----------------------------------------------------------

Classifier *classifier_create(Gemm *gemm, size_t vocabulary, size_t channels, size_t rows,
                              int training) {
    if (vocabulary == 0 || vocabulary > INT32_MAX || channels == 0)
        fail("classifier: vocabulary %zu, channels %zu; expected 1 to %d, at least 1", vocabulary,
             channels, INT32_MAX);
    Classifier *c = allocate(1, sizeof(*c), "the classifier");
    c->vocabulary = vocabulary;
    c->channels = channels;
    c->slices = (vocabulary + SLICE - 1) / SLICE;
    c->by = tile_multiplier(gemm_precision(gemm) == PRECISION_BFLOAT16);
    c->pairs = c->by != MULTIPLY_REALS;
    c->passes = passes_by(c->by);
    c->chunk = chunk_rows(c->pairs, vocabulary, rows);
    c->gemm = gemm;
    c->training = training;
    c->threads = thread_limit();
    c->workers = allocate((size_t)c->threads, sizeof(*c->workers), "the classifier's threads");
    if (c->passes->create) c->passes->create(c);
    return c;
}

void classifier_carve(Classifier *c, Arena *arena) {
    c->no_bias = arena_reals(arena, 1, SLICE, buffers);
    c->shift = arena_reals(arena, c->chunk, 1, buffers);
    c->others = arena_array(arena, c->chunk, sizeof(*c->others), buffers);
    c->target_logit = arena_reals(arena, c->chunk, 1, buffers);
    c->passes->carve(c, arena);
    if (c->training) gradients_carve(c, arena);
}

void classifier_free(Classifier *c) {
    if (!c) return;
    for (size_t s = 0; c->packed && s < c->slices; s++) gemm_weight_free(c->packed[s]);
    for (int i = 0; i < c->threads; i++) gemm_free(c->workers[i].gemm);
    free(c->packed);
    free(c->workers);
    free(c);
}

void classifier_pack(Classifier *c, const real *weight) {
    c->weight = weight;
#pragma omp parallel for schedule(static)
    for (size_t s = 0; s < c->slices; s++) c->passes->pack(c, s, weight + s * SLICE * c->channels);
}

static void check_targets(const Classifier *c, const int32_t *targets, size_t m) {
    for (size_t i = 0; i < m; i++)
        if (targets[i] < -1 || targets[i] >= (int64_t)c->vocabulary)
            fail("target %zu is %d, expected a token below %zu, or -1", i, targets[i],
                 c->vocabulary);
}

// Rows of a chunk, such that all chunks of m rows are about equally long.
static size_t even_chunk(const Classifier *c, size_t m) {
    const size_t chunks = (m + c->chunk - 1) / c->chunk;
    return chunks == 0 ? c->chunk
                       : smaller(round_up((m + chunks - 1) / chunks, ROW_STEP), c->chunk);
}

double classifier_forward(Classifier *c, Matrix h, const real *bias, const int32_t *targets,
                          size_t m) {
    check_targets(c, targets, m);
    if (c->passes->begin) c->passes->begin(c, bias);
    const size_t step = even_chunk(c, m);
    double loss = 0;
    for (size_t i = 0; i < m; i += step) {
        const Chunk chunk = {gemm_input_rows(h, i), bias, targets + i,
                             smaller(m - i, step),  0,    NULL};
        loss += rows_of_chunk(c, &chunk);
    }
    return loss;
}

double classifier_train(Classifier *c, Matrix h, const real *bias, const int32_t *targets, size_t m,
                        double scale, real *dh, real *dweight, real *dbias) {
    check_targets(c, targets, m);
    if (c->passes->begin) c->passes->begin(c, bias);
    const size_t step = even_chunk(c, m);
    double loss = 0, more = 0;
    if (c->smoothing > 0) sum_weights(c, bias);
    for (size_t i = 0; i < m; i += step) {
        const Chunk chunk = {gemm_input_rows(h, i), bias,  targets + i,
                             smaller(m - i, step),  scale, dh + i * c->channels};
        loss += rows_of_chunk(c, &chunk);
        if (c->smoothing > 0) {
            more += smoothing_of_chunk(c, &chunk);
            sum_rows(c, &chunk);
        }
        slices_of_chunk(c, &chunk, dweight, dbias);
    }
    c->unsmoothed = loss;
    return loss + more;
}

void classifier_smooth(Classifier *c, double smoothing) {
    c->smoothing = smoothing;
}

double classifier_unsmoothed(const Classifier *c) {
    return c->unsmoothed;
}

void classifier_logits(Classifier *c, Matrix h, const real *bias, size_t m, real *logits) {
    const size_t block = block_rows(c, m);
    const Chunk chunk = {h, bias, NULL, m, 0, NULL};
    if (c->passes->begin) c->passes->begin(c, bias);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t i = 0; i < m; i += block) {
        const Worker *worker = &c->workers[thread_index()];
        c->passes->logits(c, &chunk, i, smaller(m - i, block), worker, logits);
    }
}
