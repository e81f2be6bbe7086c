// What the parts of the classifier share (classifier.c): the passes over a chunk of rows, which a
// library's products make (classifier_library.c) or AMX (classifier_strips.c), and label smoothing
// (classifier_smoothing.c).
#ifndef CPU_CLASSIFIER_PARTS_H
#define CPU_CLASSIFIER_PARTS_H

#include "amx.h"
#include "classifier.h"
#include "memory.h"
#include "tile.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Threads share out blocks of rows when they make the e_ij, then slices of the vocabulary for dE;
// each multiplies on its own, which spares a barrier per product, and sums in a fixed order.
enum {
    CLASSIFIER_TOKENS = 8, // that the product for dE reads at a time
    CLASSIFIER_SLICE =
        384, // tokens: a block's logits, and a slice's part of dE, stay in the L2 cache
    CLASSIFIER_BLOCK = 512,   // rows
    CLASSIFIER_COLUMNS = 128, // of h that the product for dE takes at a time
    PAIRS_STEP = 32           // rows of pairs are padded to multiples of this
};

// Where e_ij passes e^32, or a sum over a slice that, the row's shift rises.
#define CLASSIFIER_EXPONENT_LIMIT 32.0
#define CLASSIFIER_SUM_LIMIT 7.9e13
#define CLASSIFIER_LOWEST_SHIFT ((real)-1e30)
#define classifier_what "classifier" // what the arena calls them

// What a thread has for itself.
typedef struct {
    Gemm *gemm;
    real *logits; // (CLASSIFIER_BLOCK, CLASSIFIER_SLICE)
    real *unused; // (2, CLASSIFIER_SLICE) e of the loss alone
    Matrix e;   // (CLASSIFIER_BLOCK, CLASSIFIER_SLICE) as the product for dh reads them, where that
                // is bf16
    real *h;    // (2, padded C) two rows of h / Z
    real *sums; // (CLASSIFIER_SLICE, CLASSIFIER_COLUMNS) a part of dE
    // By AMX logits are (AMX_BLOCK, CLASSIFIER_SLICE), sums (C' + 16, AMX_BLOCK), and there are:
    uint16_t *strip; // (AMX_BLOCK, C') rows of h
    real *left;      // (AMX_BLOCK, CLASSIFIER_SLICE / 2) e for dh
    real *dh;        // (CLASSIFIER_BLOCK, C')
    real *words;     // (AMX_BLOCK / 2, C') of h / Z
} ClassifierWorker;

typedef struct ClassifierChunk ClassifierChunk;

// How the passes over a chunk are made: with a library's products, or by AMX.
typedef struct {
    void (*create)(Classifier *c); // what is not in the arena; NULL: nothing
    void (*carve)(Classifier *c, Arena *arena);
    void (*pack)(Classifier *c, size_t slice, const real *rows); // a slice's weight (width, C)
    void (*begin)(Classifier *c, const real *bias);              // NULL: nothing to be done
    void (*rows)(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                 const ClassifierWorker *worker);
    void (*gradients)(const Classifier *c, const ClassifierChunk *chunk, size_t slice,
                      const ClassifierWorker *worker, real *dweight, real *dbias);
    void (*logits)(const Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                   const ClassifierWorker *worker, real *logits);
} ClassifierPasses;

#if TILE_PAIRS
extern const ClassifierPasses classifier_by_strips;
#endif
extern const ClassifierPasses classifier_by_library;

// Of the product for dE, "words" are what tile.h multiplies: numbers, or with `pairs` two rows'
// bf16.
struct Classifier {
    size_t vocabulary, channels, slices, chunk;
    const ClassifierPasses *passes;
    Gemm *gemm;
    const real *weight;  // (V, C)
    GemmWeight **packed; // (slices) of (CLASSIFIER_SLICE, C); by AMX none, but
    real *across, *down; // (V', C' / 2) words
    real *padded_bias;   // (V') -Inf beyond V
    real *no_bias;       // (CLASSIFIER_SLICE) zeros
    real *shift;         // (chunk) c_i
    double *others;      // (chunk) sum of e_ij over j != t
    real *target_logit;  // (chunk) l_it
    int threads;
    ClassifierWorker *workers; // (threads)
    // For training only:
    bool training, pairs;
    Multiplier engine; // of the products that are our own
    real *e;           // slice after slice of (words of chunk, row of words)
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
struct ClassifierChunk {
    Matrix h;
    const real *bias;
    const int32_t *targets;
    size_t rows;
    double scale;
    real *dh;     // NULL: the loss alone
    real *losses; // (rows) or NULL
};

static inline size_t classifier_slice_width(const Classifier *c, size_t slice) {
    return smaller(c->vocabulary - slice * CLASSIFIER_SLICE, CLASSIFIER_SLICE);
}

// C'
static inline size_t classifier_columns(const Classifier *c) {
    return round_up(c->channels, TILE_COLUMNS);
}

static inline real *dh_of_row(const Classifier *c, const ClassifierChunk *chunk, size_t i) {
    return chunk->dh ? chunk->dh + i * c->channels : NULL;
}

// The e_ij of a block of tokens for dE: a slice, by AMX AMX_BLOCK tokens of one. Its rows are words
// of one token each: of one row i, with `pairs` of an even one and the next.
typedef struct {
    real *data; // (rows, width)
    size_t rows, width;
} ClassifierWords;

// Words that hold so many rows.
static inline size_t classifier_word_rows(const Classifier *c, size_t rows) {
    return c->pairs ? (rows + 1) / 2 : rows;
}

// The block with token j of a slice.
static inline ClassifierWords classifier_words(const Classifier *c, size_t slice, size_t j) {
    const size_t rows = classifier_word_rows(c, c->chunk), width = classifier_slice_width(c, slice);
    if (c->engine == MULTIPLY_AMX)
        return (ClassifierWords){
            c->e + (slice * CLASSIFIER_SLICE + j) / AMX_BLOCK * AMX_BLOCK * rows, rows, AMX_BLOCK};
    return (ClassifierWords){c->e + slice * CLASSIFIER_SLICE * rows, rows,
                             c->pairs ? round_up(width, PAIRS_STEP) : width};
}

// The row of words with row i.
static inline real *classifier_words_row(const Classifier *c, ClassifierWords words, size_t i) {
    return words.data + (c->pairs ? i / 2 : i) * words.width;
}

// ---- classifier.c -----------------------------------------------------------

// Moves row i to a higher shift with all that was computed, up to `slice`, under the old one; dh
// (C) is its row's, NULL where only the loss is wanted.
void classifier_raise_shift(Classifier *c, size_t i, size_t slice, real shift, real *dh);

// The largest logit (width), bias added.
real classifier_largest(const real *logits, const real *bias, size_t width);

// Rows first .. first+rows-1, the first one even, in twos, from their sums (rows, C), `stride`
// apart, with Z_i known: dh in full, and words of h / Z (rows in words, padded C) for dE.
void classifier_finish_rows(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                            const real *sums, size_t stride, real *words,
                            const ClassifierWorker *worker);

// ---- classifier_smoothing.c -------------------------------------------------

// Sums over the vocabulary, of weights and bias; and over a chunk's rows that count.
void classifier_sum_weights(Classifier *c, const real *bias);
void classifier_sum_rows(Classifier *c, const ClassifierChunk *chunk);

// What smoothing adds to the loss of a chunk, and to dweight and dbias of one slice.
double classifier_smoothing_loss(const Classifier *c, const ClassifierChunk *chunk);
void classifier_smooth_slice(const Classifier *c, size_t slice, real *dweight, real *dbias);

#endif
