// Cross entropy over a large vocabulary. With the logits l_ij = h_i . E_j + bias_j of row i and token j,
// target t and any shift c_i that keeps exp() in range,
//
//     e_ij = exp(l_ij - c_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + c_i - l_it
//     dh_i = (sum_j e_ij E_j) / Z_i - E_t,        dE_j = sum_i e_ij (h_i / Z_i) - sum_{i: t = j} h_i
//
// so that no product needs Z_i before its row is complete: the e_ij of a block of rows and a slice of the
// vocabulary are made from the logits while these are in cache, and go at once into the product that becomes
// dh. Only they are kept for the rows of a chunk; once all Z_i are known, the product for dE takes h_i / Z_i.
// It is our own (tile.h): it sums over rows, and reads the e_ij as words that hold two rows of one token,
// where a library would first have to transpose them.
// The target's own term is left out of the products and added in full precision: p_t - 1 = -(sum over j != t
// of e_ij) / Z_i keeps its digits where p_t is close to 1.
//
// Label smoothing by s adds s to that term, and -s / V to those of all tokens alike, which needs no product
// but with sums: dh_i -= s/V sum_j E_j and dE_j -= s/V sum_i h_i. Its loss is s (l_it - mean_j l_ij) more.
#include "classifier.h"

#include "arena.h"
#include "bf16.h"
#include "error.h"
#include "memory.h"
#include "rows.h"
#include "threads.h"
#include "tile.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>

// Threads share out blocks of rows when they make the e_ij, then slices of the vocabulary for dE; each
// multiplies on its own, which spares a barrier a product, and sums in a fixed order.
enum {
    SLICE = 384,           // tokens: a block's logits, and a slice's part of dE, stay in the L2 cache
    BLOCK = 512,           // rows
    ROW_STEP = 32,         // blocks and chunks are multiples of this
    CHUNK_BYTES = 1 << 26, // of e_ij
    // The product for dE takes DEPTH words of TOKENS tokens at a time with COLUMNS of h, which stay in L1.
    DEPTH = 32,
    TOKENS = 8,
    COLUMNS = 128,
    AMX_DEPTH = 128,       // that of AMX, for which loading and storing sums takes longer than adding to them
    PAIRS_STEP = AMX_BLOCK // rows of pairs are padded to multiples of this
};

// Where e_ij passes e^32, or a sum over a slice that, the row's shift rises.
static const double EXPONENT_LIMIT = 32, SUM_LIMIT = 7.9e13;
static const real LOWEST_SHIFT = (real)-1e30;

// What a thread has for itself.
typedef struct {
    Gemm *gemm;
    real *logits; // (BLOCK, SLICE)
    real *unused; // (2, SLICE) e of the loss alone
    GemmInput e;  // (BLOCK, SLICE) as the product for dh reads them, where that is bf16
    real *h;      // (2, padded C) two rows of h / Z
    real *sums;   // (SLICE, COLUMNS) a part of dE
} Worker;

// Of the product for dE, "words" are what tile.h multiplies: numbers, or with `pairs` two rows' bf16.
struct Classifier {
    size_t vocabulary, channels, slices, chunk;
    Gemm *gemm;
    const real *weight;  // (V, C)
    GemmWeight **packed; // (slices) of (SLICE, C)
    real *no_bias;       // (SLICE) zeros
    real *shift;         // (chunk) c_i
    double *others;      // (chunk) sum of e_ij over j != t
    real *target_logit;  // (chunk) l_it
    int threads;
    Worker *workers; // (threads)
    Arena *own;      // holds all arrays; NULL: another does
    // For training only:
    bool pairs;
    Multiplier by;         // of the product for dE
    real *e;               // slice after slice of (words of chunk, row of words)
    real *scaled_h;        // (words of chunk, padded C) scale h_i / Z_i
    real *factor;          // (chunk) scale / Z_i
    real *target_gradient; // (chunk) scale (p_it - 1)
    double smoothing, unsmoothed;
    // With smoothing: sums of E and bias over V, and of smoothing / V times h, and 1, over a chunk's rows.
    real *weight_sum, *h_sum; // (C)
    double bias_sum, rows_share;
};

// What a pass over a chunk reads and writes, all from its first row on.
typedef struct {
    GemmInput h;
    const real *bias;
    const int32_t *targets;
    size_t rows;
    double scale;
    real *dh; // NULL: the loss alone
} Chunk;

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t round_up(size_t value, size_t step) {
    return (value + step - 1) / step * step;
}

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
    return c->e + slice * SLICE * words_of_rows(c, c->chunk) + words_of_rows(c, i) * row_of_words(c, slice);
}

// ---- creation --------------------------------------------------------------------------------------

static size_t chunk_rows(bool pairs, size_t vocabulary, size_t rows) {
    const size_t size = pairs ? sizeof(real) / 2 : sizeof(real);
    const size_t fit = CHUNK_BYTES / size / vocabulary / ROW_STEP * ROW_STEP;
    return smaller(fit > ROW_STEP ? fit : ROW_STEP, round_up(rows > 0 ? rows : 1, ROW_STEP));
}

static const char buffers[] = "classifier"; // what the plan calls them

static void gradients_plan(Classifier *c, Arena *arena) {
    const size_t words = words_of_rows(c, c->chunk), columns = padded_channels(c);
    // The product reads TOKENS words at a time, maybe beyond the last row.
    arena_reals(arena, &c->e, tile_count(words, round_up(c->vocabulary, PAIRS_STEP)) + TOKENS, 1, buffers);
    arena_reals(arena, &c->scaled_h, words, columns, buffers);
    arena_reals(arena, &c->factor, c->chunk, 1, buffers);
    arena_reals(arena, &c->target_gradient, c->chunk, 1, buffers);
    arena_reals(arena, &c->weight_sum, 1, c->channels, buffers);
    arena_reals(arena, &c->h_sum, 1, c->channels, buffers);
    for (int i = 0; i < c->threads; i++) {
        Worker *worker = &c->workers[i];
        if (gemm_precision(c->gemm) == PRECISION_BFLOAT16)
            gemm_input_plan(&worker->e, c->gemm, arena, BLOCK, SLICE, buffers);
        arena_reals(arena, &worker->h, 2, columns, buffers);
        arena_reals(arena, &worker->sums, SLICE, COLUMNS, buffers);
    }
}

Classifier *classifier_plan(Gemm *gemm, Arena *arena, size_t vocabulary, size_t channels, size_t rows,
                            int training) {
    if (vocabulary == 0 || vocabulary > INT32_MAX || channels == 0)
        fail("classifier: vocabulary %zu, channels %zu; expected 1 to %d, at least 1", vocabulary, channels,
             INT32_MAX);
    Classifier *c = allocate(1, sizeof(*c), "the classifier");
    c->vocabulary = vocabulary;
    c->channels = channels;
    c->slices = (vocabulary + SLICE - 1) / SLICE;
    c->by = tile_multiplier(gemm_precision(gemm) == PRECISION_BFLOAT16);
    c->pairs = c->by != MULTIPLY_REALS;
    c->chunk = chunk_rows(c->pairs, vocabulary, rows);
    c->gemm = gemm;
    c->packed = allocate(c->slices, sizeof(GemmWeight *), "the classifier's weight");
    for (size_t s = 0; s < c->slices; s++)
        c->packed[s] =
            gemm_weight_plan(gemm, arena, slice_width(c, s), channels, WEIGHT_OUT_IN, "packed weights");
    arena_reals(arena, &c->no_bias, 1, SLICE, buffers);
    arena_reals(arena, &c->shift, c->chunk, 1, buffers);
    arena_array(arena, &c->others, c->chunk, sizeof(*c->others), buffers);
    arena_reals(arena, &c->target_logit, c->chunk, 1, buffers);
    c->threads = thread_limit();
    c->workers = allocate((size_t)c->threads, sizeof(*c->workers), "the classifier's threads");
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].gemm = gemm_create_serial(gemm);
        arena_reals(arena, &c->workers[i].logits, BLOCK, SLICE, buffers);
        arena_reals(arena, &c->workers[i].unused, 2, SLICE, buffers);
    }
    if (training) gradients_plan(c, arena);
    return c;
}

Classifier *classifier_create(Gemm *gemm, size_t vocabulary, size_t channels, size_t rows, int training) {
    Arena *arena = arena_create();
    Classifier *c = classifier_plan(gemm, arena, vocabulary, channels, rows, training);
    arena_allocate(arena);
    c->own = arena;
    return c;
}

void classifier_free(Classifier *c) {
    if (!c) return;
    for (size_t s = 0; s < c->slices; s++) gemm_weight_free(c->packed[s]);
    for (int i = 0; i < c->threads; i++) gemm_free(c->workers[i].gemm);
    arena_free(c->own);
    free(c->packed);
    free(c->workers);
    free(c);
}

void classifier_pack(Classifier *c, const real *weight) {
    c->weight = weight;
#pragma omp parallel for schedule(static)
    for (size_t s = 0; s < c->slices; s++) gemm_weight_pack(c->packed[s], weight + s * SLICE * c->channels);
}

// ---- exponentials ----------------------------------------------------------------------------------

// Two rows of a slice, and where their e_ij go.
typedef struct {
    real *logits;     // (2, width)
    const real *bias; // (width)
    real shift[2];
    size_t width;
    bool keep;   // or the sums alone are wanted
    real *words; // for dE
    GemmInput e; // (2, width) for dh, where that reads bf16
} TwoRows;

#if TILE_PAIRS

// The e_ij of 16 tokens from their logits, (2, 16), `width` apart: added to the rows' sums, and stored.
TILE_INLINE void exponentials_of_16(const real *logits, size_t width, const real *bias, const __m512 shift[2],
                                    uint16_t *e, real *words, __m512 sums[2]) {
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
static void exponentials_of_rest(const TwoRows *two, size_t count, const __m512 shift[2], __m512 sums[2]) {
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

// e of both rows in bf16, and as pairs; the words behind `width` become 0. In one pass, which takes 70% of
// the time of two. The words bypass the caches, as dE is made much later; the barrier behind a chunk's rows
// makes them visible to other threads.
static void exponentials_in_pairs(const TwoRows *two, real sums[2]) {
    const size_t width = two->width, rest = width % 16;
    const __m512 shift[2] = {_mm512_set1_ps(two->shift[0]), _mm512_set1_ps(two->shift[1])};
    const real *logits = two->logits, *bias = two->bias;
    uint16_t *e = two->keep ? two->e.data : NULL;
    real *words = two->words;
    __m512 lanes[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t j = 0; j < width - rest; j += 16)
        exponentials_of_16(logits + j, width, bias + j, shift, e ? e + j : NULL, words + j, lanes);
    if (rest > 0) exponentials_of_rest(two, rest, shift, lanes);
    for (size_t r = 0; r < 2; r++) sums[r] = _mm512_reduce_add_ps(lanes[r]);
}

#endif

// e (width) = exp(logits + bias - shift); returns the sum. Not inlined: compilers add in another order in
// another place, and the loss of an evaluation has the bits of training's.
static __attribute__((noinline)) real exponentials_of_row(real *restrict e, const real *restrict logits,
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
    real *words = words_of_e(c, slice, i - (c->pairs ? i % 2 : 0));
    for (size_t j = 0; j < width; j++) {
        if (c->pairs) {
            uint16_t two[2];
            memcpy(two, words + j, sizeof(two));
            two[i % 2] = bf16_from_float(float_from_bf16(two[i % 2]) * (float)factor);
            memcpy(words + j, two, sizeof(two));
        } else {
            words[j] *= factor;
        }
    }
}

// Moves row i to a higher shift with all that was computed, up to `slice`, under the old one.
static void raise_shift(Classifier *c, const Chunk *chunk, size_t i, size_t slice, real shift) {
    const real factor = (real)exp((double)c->shift[i] - (double)shift);
    c->shift[i] = shift;
    c->others[i] *= (double)factor;
    if (!chunk->dh || slice == 0) return;
    for (size_t k = 0; k < c->channels; k++) chunk->dh[i * c->channels + k] *= factor;
    for (size_t s = 0; s < slice; s++) scale_words(c, i, s, factor);
}

static real largest(const real *logits, const real *bias, size_t width) {
    real max = -INFINITY;
    for (size_t j = 0; j < width; j++) max = logits[j] + bias[j] > max ? logits[j] + bias[j] : max;
    return max;
}

// Row i, from its logits (width) of one slice: a first shift, and the target's logit, which is taken out.
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
    if ((double)logit - (double)c->shift[i] > EXPONENT_LIMIT) raise_shift(c, chunk, i, slice, logit);
}

// Rows i and i + 1, of which `count` (1 or 2) exist: e and its sums from their logits of one slice. A row
// that does not exist gets zeros.
static void two_rows_of_slice(Classifier *c, const Chunk *chunk, size_t i, size_t count, size_t slice,
                              TwoRows *two) {
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
        raise_shift(c, chunk, i + r, slice, two->shift[r]);
        again = true;
    }
    if (again) exponentials(two, c->pairs, sums);
    for (size_t r = 0; r < count; r++) c->others[i + r] += (double)sums[r];
}

// ---- passes over a chunk ---------------------------------------------------------------------------

// Z_i of a row whose target counts.
static double sum_of_row(const Classifier *c, size_t i) {
    return c->others[i] + exp((double)c->target_logit[i] - (double)c->shift[i]);
}

// With Z_i known: dh_i in full, and h_i / Z_i (C) for dE.
static void finish_row(Classifier *c, const Chunk *chunk, size_t i, real *restrict h) {
    const size_t channels = c->channels;
    real *restrict dh = chunk->dh + i * channels;
    const int32_t target = chunk->targets[i];
    const double share = target < 0 ? 0 : chunk->scale / sum_of_row(c, i);
    const double smoothing = target < 0 ? 0 : chunk->scale * c->smoothing;
    const real factor = (real)share, gradient = (real)(smoothing - share * c->others[i]);
    const real *restrict weight = c->weight + (target < 0 ? 0 : (size_t)target) * channels;
    for (size_t k = 0; k < channels; k++) dh[k] = dh[k] * factor + gradient * weight[k];
    if (smoothing > 0) {
        const real spread = (real)(smoothing / (double)c->vocabulary);
        for (size_t k = 0; k < channels; k++) dh[k] -= spread * c->weight_sum[k];
    }
    c->factor[i] = factor;
    c->target_gradient[i] = gradient;
    gemm_input_load(chunk->h, i, 0, h, channels);
    for (size_t k = 0; k < channels; k++) h[k] *= factor;
}

// Rows first .. first+rows-1, the first one even, in twos.
static void finish_rows(Classifier *c, const Chunk *chunk, size_t first, size_t rows, const Worker *worker) {
    const size_t columns = padded_channels(c);
    real *even = worker->h, *odd = even + columns;
    for (size_t i = first; i < first + rows; i += 2) {
        finish_row(c, chunk, i, even);
        if (i + 1 < first + rows) {
            finish_row(c, chunk, i + 1, odd);
        } else {
            memset(odd, 0, columns * sizeof(real));
            c->factor[i + 1] = 0;
        }
        tile_right(c->scaled_h + words_of_rows(c, i) * columns, columns, even, odd, columns, c->pairs);
    }
}

// From the logits (rows, width) of a block of rows and a slice: their sums and, when training, e for both
// products.
static void exponentials_of_block(Classifier *c, const Chunk *chunk, size_t first, size_t rows, size_t slice,
                                  const Worker *worker, GemmInput e) {
    const real *bias = chunk->bias ? chunk->bias + slice * SLICE : c->no_bias;
    const bool keep = chunk->dh;
    for (size_t i = 0; i < rows; i += 2) {
        TwoRows two = {
            .logits = worker->logits + i * e.columns, .bias = bias, .width = e.columns, .keep = keep};
        two.words = keep ? words_of_e(c, slice, first + i) : worker->unused;
        if (keep) two.e = gemm_input_rows(e, i);
        two_rows_of_slice(c, chunk, first + i, smaller(rows - i, 2), slice, &two);
    }
}

// A block of rows, the first one even: logits, exponentials and dh, slice by slice.
static void rows_pass(Classifier *c, const Chunk *chunk, size_t first, size_t rows, const Worker *worker) {
    const GemmInput h = gemm_input_rows(chunk->h, first);
    for (size_t s = 0; s < c->slices; s++) {
        GemmInput e = {worker->e.data, slice_width(c, s), worker->e.bf16};
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
    if (chunk->dh) finish_rows(c, chunk, first, rows, worker);
}

// sums (width) += the sums of the columns of e (count, width), `count` rows of words from row `row` on, each
// row times its factor.
static void add_column_sums(const Classifier *c, real *restrict sums, const real *restrict e, size_t row,
                            size_t count, size_t width) {
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
static void slice_product(const Classifier *c, real *sums, real *column_sums, size_t slice, size_t rows,
                          size_t column, size_t columns) {
    const size_t width = row_of_words(c, slice), words = words_of_rows(c, rows), stride = padded_channels(c);
    memset(sums, 0, (size_t)SLICE * COLUMNS * sizeof(real));
    for (size_t k = 0; k < words; k += DEPTH) {
        const size_t depth = smaller(words - k, DEPTH);
        const real *e = words_of_e(c, slice, 0) + k * width, *h = c->scaled_h + k * stride + column;
        if (column_sums) add_column_sums(c, column_sums, e, c->pairs ? 2 * k : k, depth, width);
        for (size_t j = 0; j < width; j += TOKENS) {
            // A share of the next words, which come from memory.
            if (k + 2 * DEPTH <= words) tile_prefetch(e + DEPTH * width + j * DEPTH, TOKENS * DEPTH);
            real *sum = sums + j * COLUMNS;
            tile_product(sum, COLUMNS, sum, COLUMNS, (TileView){e + j, 1, width}, h, stride, TOKENS, columns,
                         depth, c->by);
        }
    }
}

// For AMX, e is the right operand and h / Z, turned, the left one: their words are filled up with zeros.
static void fill_words(Classifier *c, size_t slice, size_t rows) {
    const size_t words = words_of_rows(c, rows), more = round_up(words, AMX_WORDS) - words;
    const size_t width = row_of_words(c, slice);
    memset(words_of_e(c, slice, 0) + words * width, 0, more * width * sizeof(real));
}

static void turn_h(Classifier *c, size_t rows) {
    const size_t words = words_of_rows(c, rows), more = round_up(words, AMX_WORDS) - words;
    const size_t columns = padded_channels(c);
    memset(c->scaled_h + words * columns, 0, more * columns * sizeof(real));
#pragma omp parallel for schedule(static)
    for (size_t k = 0; k < words; k += AMX_WORDS)
        tile_turn(c->scaled_h + k * columns, columns, AMX_WORDS, columns);
}

// sums (COLUMNS, SLICE), the transpose of slice_product()'s.
static void slice_product_amx(const Classifier *c, real *sums, real *column_sums, size_t slice, size_t rows,
                              size_t column, size_t columns) {
    const size_t width = row_of_words(c, slice), words = words_of_rows(c, rows), stride = padded_channels(c);
    memset(sums, 0, (size_t)SLICE * COLUMNS * sizeof(real));
    tile_begin(MULTIPLY_AMX);
    for (size_t k = 0; k < words; k += AMX_DEPTH) {
        const size_t depth = smaller(words - k, AMX_DEPTH);
        const real *e = words_of_e(c, slice, 0) + k * width, *h = c->scaled_h + k * stride + column;
        if (column_sums) add_column_sums(c, column_sums, e, 2 * k, depth, width);
        for (size_t j = 0; j < width; j += AMX_BLOCK) {
            for (size_t i = 0; i < columns; i += AMX_BLOCK) {
                if (k + 2 * AMX_DEPTH <= words) { // a share of the next words
                    const size_t share = AMX_BLOCK * AMX_DEPTH * AMX_BLOCK / columns;
                    tile_prefetch(e + AMX_DEPTH * (width + j) + i / AMX_BLOCK * share, share);
                }
                real *sum = sums + i * SLICE + j;
                tile_product(sum, SLICE, sum, SLICE, (TileView){h + i, 1, stride}, e + j, width, AMX_BLOCK,
                             AMX_BLOCK, round_up(depth, AMX_WORDS), MULTIPLY_AMX);
            }
        }
    }
    tile_end(MULTIPLY_AMX);
}

// `count` columns of `width` rows of dweight, `channels` apart, += sums (SLICE, COLUMNS).
static void add_sums(real *restrict dweight, size_t channels, const real *restrict sums, size_t width,
                     size_t count) {
    for (size_t j = 0; j < width; j++)
        for (size_t i = 0; i < count; i++) dweight[j * channels + i] += sums[j * COLUMNS + i];
}

// The same of sums (COLUMNS, SLICE).
static void add_sums_transposed(real *dweight, size_t channels, const real *sums, size_t width,
                                size_t count) {
    for (size_t j = 0; j < width; j += TILE_LANES) {
        for (size_t i = 0; i < count; i += TILE_LANES) {
            TileVector square[TILE_LANES];
            for (size_t r = 0; r < TILE_LANES; r++) square[r] = tile_load(sums + (i + r) * SLICE + j);
            tile_transpose(square);
            for (size_t r = 0; r < TILE_LANES && j + r < width; r++) {
                real *out = dweight + (j + r) * channels;
                row_put(out, i, count, row_get(out, i, count) + square[r]);
            }
        }
    }
}

// A slice of the vocabulary: its part of dweight and dbias, over all rows of the chunk.
static void slice_pass(Classifier *c, const Chunk *chunk, size_t slice, const Worker *worker,
                       real *restrict dweight, real *restrict dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    const bool amx = c->by == MULTIPLY_AMX;
    real column_sums[SLICE] = {0};
    if (amx) fill_words(c, slice, chunk->rows);
    for (size_t k = 0; k < channels; k += COLUMNS) {
        const size_t count = smaller(channels - k, COLUMNS);
        const size_t columns = smaller(padded_channels(c) - k, COLUMNS);
        real *out = dweight + first * channels + k, *for_bias = dbias && k == 0 ? column_sums : NULL;
        if (amx) {
            slice_product_amx(c, worker->sums, for_bias, slice, chunk->rows, k, columns);
            add_sums_transposed(out, channels, worker->sums, width, count);
        } else {
            slice_product(c, worker->sums, for_bias, slice, chunk->rows, k, columns);
            add_sums(out, channels, worker->sums, width, count);
        }
    }
    for (size_t j = 0; dbias && j < width; j++) dbias[first + j] += column_sums[j];
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

// ---- label smoothing -------------------------------------------------------------------------------

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
static void smooth_slice(const Classifier *c, size_t slice, real *restrict dweight, real *restrict dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    for (size_t j = first; j < first + width; j++) {
        for (size_t k = 0; k < channels; k++) dweight[j * channels + k] -= c->h_sum[k];
        if (dbias) dbias[j] -= (real)c->rows_share;
    }
}

static void slices_of_chunk(Classifier *c, const Chunk *chunk, real *dweight, real *dbias) {
    if (c->by == MULTIPLY_AMX) turn_h(c, chunk->rows);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t s = 0; s < c->slices; s++) {
        slice_pass(c, chunk, s, &c->workers[thread_index()], dweight, dbias);
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
    for (size_t i = 0; i < chunk->rows; i += block)
        rows_pass(c, chunk, i, smaller(chunk->rows - i, block), &c->workers[thread_index()]);
    double loss = 0;
    for (size_t i = 0; i < chunk->rows; i++)
        if (chunk->targets[i] >= 0)
            loss += log(sum_of_row(c, i)) + (double)c->shift[i] - (double)c->target_logit[i];
    return loss;
}

// ---- the interface ---------------------------------------------------------------------------------

static void check_targets(const Classifier *c, const int32_t *targets, size_t m) {
    for (size_t i = 0; i < m; i++)
        if (targets[i] < -1 || targets[i] >= (int64_t)c->vocabulary)
            fail("target %zu is %d, expected a token below %zu, or -1", i, targets[i], c->vocabulary);
}

// Rows of a chunk, such that all chunks of m rows are about equally long.
static size_t even_chunk(const Classifier *c, size_t m) {
    const size_t chunks = (m + c->chunk - 1) / c->chunk;
    return chunks == 0 ? c->chunk : smaller(round_up((m + chunks - 1) / chunks, ROW_STEP), c->chunk);
}

double classifier_forward(Classifier *c, GemmInput h, const real *bias, const int32_t *targets, size_t m) {
    check_targets(c, targets, m);
    const size_t step = even_chunk(c, m);
    double loss = 0;
    for (size_t i = 0; i < m; i += step) {
        const Chunk chunk = {gemm_input_rows(h, i), bias, targets + i, smaller(m - i, step), 0, NULL};
        loss += rows_of_chunk(c, &chunk);
    }
    return loss;
}

double classifier_train(Classifier *c, GemmInput h, const real *bias, const int32_t *targets, size_t m,
                        double scale, real *dh, real *dweight, real *dbias) {
    check_targets(c, targets, m);
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

void classifier_logits(Classifier *c, GemmInput h, const real *bias, size_t m, real *logits) {
    const size_t block = block_rows(c, m);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t i = 0; i < m; i += block) {
        const Worker *worker = &c->workers[thread_index()];
        const size_t rows = smaller(m - i, block);
        for (size_t s = 0; s < c->slices; s++) {
            const size_t width = slice_width(c, s);
            const real *slice_bias = bias ? bias + s * SLICE : c->no_bias;
            gemm_forward(worker->gemm, worker->logits, gemm_input_rows(h, i), c->packed[s], rows);
            for (size_t r = 0; r < rows; r++) {
                const real *restrict in = worker->logits + r * width;
                real *restrict out = logits + (i + r) * c->vocabulary + s * SLICE;
                for (size_t j = 0; j < width; j++) out[j] = in[j] + slice_bias[j];
            }
        }
    }
}
