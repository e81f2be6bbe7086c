// Shared by the parts of the classifier (classifier.c): the passes over a chunk of rows, with a
// library's products (classifier_library.c) or with AMX (classifier_strips.c), and label smoothing
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

// Threads divide the blocks of rows to compute the e_ij, then the slices of the vocabulary for dE.
// Each thread runs its own products, which saves a barrier per product, and sums in a fixed order.
enum {
    CLASSIFIER_TOKENS = 8, // tokens that the product for dE reads at a time
    CLASSIFIER_SLICE =
        384, // tokens: a block's logits, and a slice's part of dE, stay in the L2 cache
    CLASSIFIER_BLOCK = 512,   // rows
    CLASSIFIER_COLUMNS = 128, // columns of h that the product for dE takes at a time
    PAIRS_STEP = 32           // rows of pairs are padded to multiples of this
};

// A row's shift is raised if a single e_ij, or a sum over a slice, exceeds e^32.
#define CLASSIFIER_EXPONENT_LIMIT 32.0
#define CLASSIFIER_SUM_LIMIT 7.9e13
#define CLASSIFIER_LOWEST_SHIFT ((real)-1e30)
#define classifier_what "classifier" // name in the arena

// Per-thread buffers.
typedef struct {
    Gemm *gemm;
    real *logits; // (CLASSIFIER_BLOCK, CLASSIFIER_SLICE)
    real *unused; // (2, CLASSIFIER_SLICE) e, if only the loss is needed
    Matrix e;   // (CLASSIFIER_BLOCK, CLASSIFIER_SLICE) input of the product for dh, if that is bf16
    real *h;    // (2, padded C) two rows of h / Z
    real *sums; // (CLASSIFIER_SLICE, CLASSIFIER_COLUMNS) a part of dE
    // With AMX, logits are (AMX_BLOCK, CLASSIFIER_SLICE) and sums (C' + 16, AMX_BLOCK); only with
    // AMX:
    uint16_t *strip; // (AMX_BLOCK, C') rows of h
    real *left;      // (AMX_BLOCK, CLASSIFIER_SLICE / 2) e for dh
    real *dh;        // (CLASSIFIER_BLOCK, C')
    real *words;     // (AMX_BLOCK / 2, C') of h / Z
} ClassifierWorker;

typedef struct ClassifierChunk ClassifierChunk;

// How the passes over a chunk are implemented: with a library's products, or with AMX.
typedef struct {
    void (*create)(Classifier *c); // allocates outside the arena; NULL: nothing to do
    void (*carve)(Classifier *c, Arena *arena);
    void (*pack)(Classifier *c, size_t slice, const real *rows); // a slice's weight (width, C)
    void (*begin)(Classifier *c, const real *bias);              // NULL: nothing to do
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

// In the product for dE, a word is the unit that tile.h multiplies: a number, or with `pairs` the
// bf16 of two rows.
struct Classifier {
    size_t vocabulary, channels, slices, chunk;
    const ClassifierPasses *passes;
    Gemm *gemm;
    const real *weight;  // (V, C)
    GemmWeight **packed; // (slices) of (CLASSIFIER_SLICE, C); with AMX NULL, and instead:
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
    Multiplier engine; // of our own products
    real *e;           // slice after slice of (words of chunk, row of words)
    real *scaled_h; // (words of chunk, padded C) scale h_i / Z_i; with AMX its tiles, a group per
                    // 32 rows
    real *factor;   // (chunk) scale / Z_i
    real *target_gradient; // (chunk) scale (p_it - 1)
    double smoothing, unsmoothed;
    // With smoothing: sums of E and bias over V; sums of share h and share over the rows of a
    // chunk, share = scale smoothing / V.
    real *weight_sum, *h_sum; // (C)
    double bias_sum, rows_share;
};

// Input and output of a pass over a chunk, from its first row on.
struct ClassifierChunk {
    Matrix h;
    const real *bias;
    const int32_t *targets;
    size_t rows;
    double scale;
    real *dh;     // NULL: only the loss is needed
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

// The e_ij of a block of tokens for dE: a slice, or with AMX AMX_BLOCK tokens of it. Each word has
// one token: of one row i, or with `pairs` of an even row and the next.
typedef struct {
    real *data; // (rows, width)
    size_t rows, width;
} ClassifierWords;

// Returns the number of words that hold that many rows.
static inline size_t classifier_word_rows(const Classifier *c, size_t rows) {
    return c->pairs ? (rows + 1) / 2 : rows;
}

// Returns the block that contains token j of a slice.
static inline ClassifierWords classifier_words(const Classifier *c, size_t slice, size_t j) {
    const size_t rows = classifier_word_rows(c, c->chunk), width = classifier_slice_width(c, slice);
    if (c->engine == MULTIPLY_AMX)
        return (ClassifierWords){
            c->e + (slice * CLASSIFIER_SLICE + j) / AMX_BLOCK * AMX_BLOCK * rows, rows, AMX_BLOCK};
    return (ClassifierWords){c->e + slice * CLASSIFIER_SLICE * rows, rows,
                             c->pairs ? round_up(width, PAIRS_STEP) : width};
}

// Returns the row of words that contains row i.
static inline real *classifier_words_row(const Classifier *c, ClassifierWords words, size_t i) {
    return words.data + (c->pairs ? i / 2 : i) * words.width;
}

// ---- classifier.c -----------------------------------------------------------

// Raises the shift of row i, and rescales everything computed with the old one, up to `slice`. dh
// (C) is that of the row, NULL if only the loss is needed.
void classifier_raise_shift(Classifier *c, size_t i, size_t slice, real shift, real *dh);

// Returns the largest logit (width), including the bias.
real classifier_largest(const real *logits, const real *bias, size_t width);

// Finishes rows first .. first+rows-1, in pairs, once Z_i is known: computes dh from their sums
// (rows, C), `stride` apart, and words of h / Z (rows in words, padded C) for dE. `first` is even.
void classifier_finish_rows(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                            const real *sums, size_t stride, real *words,
                            const ClassifierWorker *worker);

// ---- classifier_smoothing.c -------------------------------------------------

// Sum weights and bias over the vocabulary, and h over the rows of a chunk that have a target.
void classifier_sum_weights(Classifier *c, const real *bias);
void classifier_sum_rows(Classifier *c, const ClassifierChunk *chunk);

// The part of smoothing in the loss of a chunk, and in dweight and dbias of one slice.
double classifier_smoothing_loss(const Classifier *c, const ClassifierChunk *chunk);
void classifier_smooth_slice(const Classifier *c, size_t slice, real *dweight, real *dbias);

#endif
