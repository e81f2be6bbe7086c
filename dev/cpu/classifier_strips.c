// The classifier's passes with AMX, one strip of rows at a time. All three products are our own,
// and the e_ij are computed between them (classifier_amx.h).
#include "classifier_parts.h"

#if TILE_PAIRS

#include "classifier_amx.h"
#include "rows.h"

static void amx_carve(Classifier *c, Arena *arena) {
    const size_t tokens = round_up(c->vocabulary, AMX_BLOCK), columns = classifier_columns(c);
    c->across = arena_reals(arena, tokens, columns / 2, "packed weights");
    c->down = arena_reals(arena, tokens, columns / 2, "packed weights");
    c->padded_bias = arena_reals(arena, tokens, 1, classifier_what);
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].logits = arena_reals(arena, AMX_BLOCK, CLASSIFIER_SLICE, classifier_what);
        c->workers[i].strip =
            arena_array(arena, AMX_BLOCK * columns, sizeof(*c->workers[i].strip), classifier_what);
    }
}

// Returns where a slice begins in `across` and `down`, in words.
static size_t amx_slice(const Classifier *c, size_t slice) {
    return slice * CLASSIFIER_SLICE * classifier_columns(c) / 2;
}

static void amx_pack(Classifier *c, size_t slice, const real *rows) {
    const size_t at = amx_slice(c, slice);
    classifier_amx_pack(c->across + at, c->down + at, rows, classifier_slice_width(c, slice),
                        c->channels);
}

// A strip: rows i to i + AMX_BLOCK of a chunk, of which `rows` exist.
typedef struct {
    size_t i, rows;
    ClassifierStrip in;
    real shift[AMX_BLOCK];
    int32_t targets[AMX_BLOCK];
} Strip;

// Sets in.h to the rows of h, or if they are too few or too short, to a copy padded with zeros.
static void strip_rows(const Classifier *c, const ClassifierChunk *chunk,
                       const ClassifierWorker *worker, Strip *strip) {
    const size_t channels = c->channels, columns = classifier_columns(c);
    const uint16_t *h = (const uint16_t *)chunk->h.data + strip->i * channels;
    strip->in.h = h;
    strip->in.h_row = columns;
    if (strip->rows == AMX_BLOCK && channels == columns) return;
    memset(worker->strip, 0, AMX_BLOCK * columns * sizeof(*h));
    for (size_t r = 0; r < strip->rows; r++)
        memcpy(worker->strip + r * columns, h + r * channels, channels * sizeof(*h));
    strip->in.h = worker->strip;
}

// Sets up the kernels' input for a strip and a slice. Missing rows get e_ij = 0.
static void strip_create(const Classifier *c, const ClassifierChunk *chunk, size_t i, size_t rows,
                         size_t slice, const ClassifierWorker *worker, Strip *strip) {
    strip->i = i;
    strip->rows = rows;
    strip->in.across = c->across + amx_slice(c, slice);
    strip->in.bias = c->padded_bias + slice * CLASSIFIER_SLICE;
    strip->in.width = round_up(classifier_slice_width(c, slice), AMX_BLOCK);
    strip->in.channels = classifier_columns(c);
    const ClassifierWords words = classifier_words(c, slice, 0);
    strip->in.words_step = words.rows * words.width;
    strip->in.shift = strip->shift;
    strip->in.targets = strip->targets;
    strip_rows(c, chunk, worker, strip);
    for (size_t r = 0; r < AMX_BLOCK; r++) {
        strip->shift[r] = r < rows ? c->shift[i + r] : -CLASSIFIER_LOWEST_SHIFT;
        const int64_t target = r < rows && chunk->targets ? (int64_t)chunk->targets[i + r] -
                                                                (int64_t)(slice * CLASSIFIER_SLICE)
                                                          : -1;
        strip->targets[r] = target >= 0 && target < (int64_t)classifier_slice_width(c, slice)
                                ? (int32_t)target
                                : -1;
    }
}

// Raises the shifts of rows whose sum or target exceeds the limits. Returns whether there were any.
static bool raise_shifts(Classifier *c, Strip *strip, const real *sums, const real *target_logit,
                         size_t slice, const ClassifierWorker *worker, real *dh) {
    bool known = false, raised = false;
    for (size_t r = 0; r < strip->rows; r++) {
        const bool far =
            strip->targets[r] >= 0 &&
            (double)target_logit[r] - (double)strip->shift[r] > CLASSIFIER_EXPONENT_LIMIT;
        if (!((double)sums[r] > CLASSIFIER_SUM_LIMIT) && !far) continue;
        if (!known) classifier_amx_logits(worker->logits, &strip->in);
        known = raised = true;
        strip->shift[r] = classifier_largest(worker->logits + r * strip->in.width, c->no_bias,
                                             classifier_slice_width(c, slice));
        classifier_raise_shift(c, strip->i + r, slice, strip->shift[r],
                               dh ? dh + r * strip->in.channels : NULL);
    }
    return raised;
}

// Computes e of a strip and a slice, its sums and target logits, and adds to dh (rows, C') unless
// it is NULL.
static void strip_of_slice(Classifier *c, Strip *strip, size_t slice,
                           const ClassifierWorker *worker, real *dh) {
    real sums[AMX_BLOCK], target_logit[AMX_BLOCK];
    real *left = dh ? worker->left : NULL;
    real *words = dh ? classifier_words_row(c, classifier_words(c, slice, 0), strip->i) : NULL;
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

// Sets each row's first shift to about the logit of the first token, so that its e is about 1.
static void start_rows(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows) {
    for (size_t i = first; i < first + rows; i++) {
        real logit = c->padded_bias[0], h[CLASSIFIER_COLUMNS];
        for (size_t k = 0; k < c->channels; k += CLASSIFIER_COLUMNS) {
            const size_t count = smaller(c->channels - k, CLASSIFIER_COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            logit += row_dot(h, c->weight + k, count);
        }
        c->shift[i] = logit > CLASSIFIER_LOWEST_SHIFT ? logit : CLASSIFIER_LOWEST_SHIFT;
        c->others[i] = 0;
    }
}

// Finishes rows i to i + rows, those of a strip, from their sums (rows, C').
static void finish_strip(Classifier *c, const ClassifierChunk *chunk, size_t i, size_t rows,
                         const real *sums, const ClassifierWorker *worker) {
    const size_t columns = classifier_columns(c);
    memset(worker->words, 0, AMX_BLOCK / 2 * columns * sizeof(real));
    memset(c->factor + i, 0, AMX_BLOCK * sizeof(real));
    classifier_finish_rows(c, chunk, i, rows, sums, columns, worker->words, worker);
    classifier_amx_transpose(c->scaled_h + i / 2 * (columns + AMX_BLOCK / 2), worker->words,
                             c->factor + i, columns);
}

// Implements ClassifierPasses.rows, like rows_pass().
static void amx_rows_pass(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                          const ClassifierWorker *worker) {
    const size_t columns = classifier_columns(c);
    real *dh = chunk->dh ? worker->dh : NULL;
    start_rows(c, chunk, first, rows);
    if (dh) memset(dh, 0, CLASSIFIER_BLOCK * columns * sizeof(real));
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

// Adds sums (C' + 16, AMX_BLOCK) to dweight and dbias of `tokens` tokens from `first` on.
static void add_transposed(const Classifier *c, const real *sums, size_t first, size_t tokens,
                           real *dweight, real *dbias) {
    const size_t channels = c->channels;
    const real *factors = sums + classifier_columns(c) * AMX_BLOCK;
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

// Implements ClassifierPasses.gradients, like slice_gradients().
static void amx_slice_gradients(const Classifier *c, const ClassifierChunk *chunk, size_t slice,
                                const ClassifierWorker *worker, real *dweight, real *dbias) {
    const size_t width = classifier_slice_width(c, slice),
                 groups = (chunk->rows + AMX_BLOCK - 1) / AMX_BLOCK;
    amx_begin();
    for (size_t j = 0; j < width; j += AMX_BLOCK) {
        const ClassifierWords words = classifier_words(c, slice, j);
        classifier_amx_gradient(worker->sums, c->scaled_h, words.data,
                                words.data + words.rows * words.width, groups,
                                classifier_columns(c));
        add_transposed(c, worker->sums, slice * CLASSIFIER_SLICE + j, smaller(width - j, AMX_BLOCK),
                       dweight, dbias);
    }
    amx_end();
}

// Sets padded_bias to the bias, -Inf beyond the vocabulary.
static void amx_pad_bias(Classifier *c, const real *bias) {
    const size_t tokens = round_up(c->vocabulary, AMX_BLOCK);
    for (size_t j = 0; j < tokens; j++)
        c->padded_bias[j] = j >= c->vocabulary ? -INFINITY : bias ? bias[j] : 0;
}

// Implements ClassifierPasses.logits, like logits_pass().
static void amx_logits_pass(const Classifier *c, const ClassifierChunk *chunk, size_t first,
                            size_t rows, const ClassifierWorker *worker, real *logits) {
    amx_begin();
    for (size_t s = 0; s < c->slices; s++) {
        for (size_t r = 0; r < rows; r += AMX_BLOCK) {
            Strip strip;
            strip_create(c, chunk, first + r, smaller(rows - r, AMX_BLOCK), s, worker, &strip);
            classifier_amx_logits(worker->logits, &strip.in);
            for (size_t i = 0; i < strip.rows; i++)
                memcpy(logits + (strip.i + i) * c->vocabulary + s * CLASSIFIER_SLICE,
                       worker->logits + i * strip.in.width,
                       classifier_slice_width(c, s) * sizeof(real));
        }
    }
    amx_end();
}

const ClassifierPasses classifier_by_strips = {
    NULL, amx_carve, amx_pack, amx_pad_bias, amx_rows_pass, amx_slice_gradients, amx_logits_pass};

#endif
