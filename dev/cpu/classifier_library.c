// The classifier's passes with a library's products. Only the product for dE is our own (tile.h):
// it sums over rows, and reads the e_ij as words that hold two rows of one token, while a library
// would first have to transpose them.
#include "classifier_parts.h"

#include "bf16.h"
#include "vector_math.h"

enum {
    // The product for dE takes DEPTH words of TOKENS tokens at a time, and CLASSIFIER_COLUMNS
    // columns of h, which stay in L1.
    DEPTH = 32,
    TOKENS = CLASSIFIER_TOKENS
};

static void library_create(Classifier *c) {
    c->packed = allocate(c->slices, sizeof(GemmWeight *), "the classifier's weight");
    for (size_t s = 0; s < c->slices; s++)
        c->packed[s] = gemm_weight_create(c->gemm, classifier_slice_width(c, s), c->channels,
                                          WEIGHT_OUT_IN, "packed weights");
    for (int i = 0; i < c->threads; i++) c->workers[i].gemm = gemm_create_serial(c->gemm);
}

static void library_carve(Classifier *c, Arena *arena) {
    for (size_t s = 0; s < c->slices; s++) gemm_weight_carve(c->packed[s], arena);
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].logits =
            arena_reals(arena, CLASSIFIER_BLOCK, CLASSIFIER_SLICE, classifier_what);
        c->workers[i].unused = arena_reals(arena, 2, CLASSIFIER_SLICE, classifier_what);
    }
}

static void library_pack(Classifier *c, size_t slice, const real *rows) {
    gemm_weight_pack(c->packed[slice], rows);
}

// ---- exponentials -----------------------------------------------------------
// Two rows of a slice, and where their e_ij are stored.
typedef struct {
    real *logits;     // (2, width)
    const real *bias; // (width)
    real shift[2];
    size_t width;
    bool keep;   // else only the sums are needed
    real *words; // for dE
    Matrix e;    // (2, width) for dh, if that product reads bf16
} TwoRows;

#if TILE_PAIRS

// Computes the e_ij of 16 tokens from their logits (2, 16), `width` apart, adds them to the sums of
// both rows and stores them.
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

// The same for the last `count` tokens, padded to 16.
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

// e of both rows in bf16, for dh and as pairs; the words beyond `width` become 0. Doing both in one
// pass takes 70% of the time of two passes. The words bypass the caches, because dE is computed
// much later; the barrier after a chunk's rows makes them visible to other threads.
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

// e (width) = exp(logits + bias - shift); returns the sum. Not inlined: compilers may sum in a
// different order at each call, but an evaluation's loss must have the same bits as in training.
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

// Computes e of both rows, and their sums.
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

// Starts row i with its logits (width) of one slice: sets a first shift, and removes the target's
// logit from the logits.
static void start_row(Classifier *c, const ClassifierChunk *chunk, size_t i, size_t slice,
                      real *logits, const real *bias) {
    if (slice == 0) { // any finite shift that does not overflow works
        c->shift[i] = logits[0] + bias[0] > CLASSIFIER_LOWEST_SHIFT ? logits[0] + bias[0]
                                                                    : CLASSIFIER_LOWEST_SHIFT;
        c->others[i] = 0;
    }
    // Wraps around to a large number for a target before this slice, and for -1.
    const size_t target = (size_t)chunk->targets[i] - slice * CLASSIFIER_SLICE;
    if (target >= classifier_slice_width(c, slice)) return;
    const real logit = logits[target] + bias[target];
    c->target_logit[i] = logit;
    logits[target] = -INFINITY;
    if ((double)logit - (double)c->shift[i] > CLASSIFIER_EXPONENT_LIMIT)
        classifier_raise_shift(c, i, slice, logit, dh_of_row(c, chunk, i));
}

// Computes e of rows i and i + 1, of which `count` (1 or 2) exist, and their sums, from their
// logits of one slice. A missing row gets zeros.
static void two_rows_of_slice(Classifier *c, const ClassifierChunk *chunk, size_t i, size_t count,
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
        if (!((double)sums[r] > CLASSIFIER_SUM_LIMIT)) continue;
        two->shift[r] = classifier_largest(two->logits + r * width, two->bias, width);
        classifier_raise_shift(c, i + r, slice, two->shift[r], dh_of_row(c, chunk, i + r));
        again = true;
    }
    if (again) exponentials(two, c->pairs, sums);
    for (size_t r = 0; r < count; r++) c->others[i + r] += (double)sums[r];
}

// ---- passes over a chunk ----------------------------------------------------
// From the logits (rows, width) of a block of rows and a slice: computes their sums of e and, in
// training, e for both products.
static void exponentials_of_block(Classifier *c, const ClassifierChunk *chunk, size_t first,
                                  size_t rows, size_t slice, const ClassifierWorker *worker,
                                  Matrix e) {
    const real *bias = chunk->bias ? chunk->bias + slice * CLASSIFIER_SLICE : c->no_bias;
    const bool keep = chunk->dh;
    const ClassifierWords words = classifier_words(c, slice, 0);
    for (size_t i = 0; i < rows; i += 2) {
        TwoRows two = {.logits = worker->logits + i * e.columns,
                       .bias = bias,
                       .width = e.columns,
                       .keep = keep};
        two.words = keep ? classifier_words_row(c, words, first + i) : worker->unused;
        if (keep) two.e = gemm_input_rows(e, i);
        two_rows_of_slice(c, chunk, first + i, smaller(rows - i, 2), slice, &two);
    }
}

// For a block of rows, the first one even: computes logits, exponentials and dh, slice by slice.
static void rows_pass(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                      const ClassifierWorker *worker) {
    const Matrix h = gemm_input_rows(chunk->h, first);
    for (size_t s = 0; s < c->slices; s++) {
        Matrix e = {worker->e.data, classifier_slice_width(c, s), worker->e.bf16};
        if (chunk->dh && !e.bf16)
            e.data = classifier_words_row(c, classifier_words(c, s, 0), first);
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
        classifier_finish_rows(c, chunk, first, rows, chunk->dh + first * c->channels, c->channels,
                               c->scaled_h + classifier_word_rows(c, first) * classifier_columns(c),
                               worker);
}

// sums (width) += the column sums of e (count, width), which are `count` rows of words from row
// `row` on, each row times its factor.
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

// sums (CLASSIFIER_SLICE, CLASSIFIER_COLUMNS) = e^T h / Z for a slice and `columns` columns of h
// from `column` on. If column_sums is not NULL, adds the slice's dbias to it while e is in cache.
static void slice_product(const Classifier *c, real *sums, real *column_sums, size_t slice,
                          size_t rows, size_t column, size_t columns) {
    const ClassifierWords all = classifier_words(c, slice, 0);
    const size_t width = all.width, words = classifier_word_rows(c, rows),
                 stride = classifier_columns(c);
    memset(sums, 0, (size_t)CLASSIFIER_SLICE * CLASSIFIER_COLUMNS * sizeof(real));
    for (size_t k = 0; k < words; k += DEPTH) {
        const size_t depth = smaller(words - k, DEPTH);
        const real *e = all.data + k * width, *h = c->scaled_h + k * stride + column;
        if (column_sums) add_column_sums(c, column_sums, e, c->pairs ? 2 * k : k, depth, width);
        for (size_t j = 0; j < width; j += TOKENS) {
            // Prefetches a share of the next words, which come from memory.
            if (k + 2 * DEPTH <= words)
                tile_prefetch(e + DEPTH * width + j * DEPTH, TOKENS * DEPTH);
            real *sum = sums + j * CLASSIFIER_COLUMNS;
            tile_engines[c->engine].product(sum, CLASSIFIER_COLUMNS, sum, CLASSIFIER_COLUMNS,
                                            (TileView){e + j, 1, width}, h, stride, TOKENS, columns,
                                            depth);
        }
    }
}

// Adds sums (CLASSIFIER_SLICE, CLASSIFIER_COLUMNS) to `count` columns of `width` rows of dweight,
// `channels` apart.
static void add_sums(real *restrict dweight, size_t channels, const real *restrict sums,
                     size_t width, size_t count) {
    for (size_t j = 0; j < width; j++)
        for (size_t i = 0; i < count; i++)
            dweight[j * channels + i] += sums[j * CLASSIFIER_COLUMNS + i];
}

// Adds a slice's part of dweight and dbias, over all rows of the chunk.
static void slice_gradients(const Classifier *c, const ClassifierChunk *chunk, size_t slice,
                            const ClassifierWorker *worker, real *dweight, real *dbias) {
    const size_t first = slice * CLASSIFIER_SLICE, width = classifier_slice_width(c, slice),
                 channels = c->channels;
    real column_sums[CLASSIFIER_SLICE] = {0};
    for (size_t k = 0; k < channels; k += CLASSIFIER_COLUMNS) {
        const size_t count = smaller(channels - k, CLASSIFIER_COLUMNS);
        const size_t columns = smaller(classifier_columns(c) - k, CLASSIFIER_COLUMNS);
        slice_product(c, worker->sums, dbias && k == 0 ? column_sums : NULL, slice, chunk->rows, k,
                      columns);
        add_sums(dweight + first * channels + k, channels, worker->sums, width, count);
    }
    for (size_t j = 0; dbias && j < width; j++) dbias[first + j] += column_sums[j];
}

// Computes the logits of a block of rows, including the bias, in their rows of (M, V).
static void logits_pass(const Classifier *c, const ClassifierChunk *chunk, size_t first,
                        size_t rows, const ClassifierWorker *worker, real *logits) {
    for (size_t s = 0; s < c->slices; s++) {
        const size_t width = classifier_slice_width(c, s);
        const real *bias = chunk->bias ? chunk->bias + s * CLASSIFIER_SLICE : c->no_bias;
        gemm_forward(worker->gemm, worker->logits, gemm_input_rows(chunk->h, first), c->packed[s],
                     rows);
        for (size_t r = 0; r < rows; r++) {
            const real *restrict in = worker->logits + r * width;
            real *restrict out = logits + (first + r) * c->vocabulary + s * CLASSIFIER_SLICE;
            for (size_t j = 0; j < width; j++) out[j] = in[j] + bias[j];
        }
    }
}

const ClassifierPasses classifier_by_library = {library_create, library_carve,   library_pack, NULL,
                                                rows_pass,      slice_gradients, logits_pass};
