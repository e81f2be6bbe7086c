// Cross entropy over a large vocabulary. With the logits l_ij = h_i . E_j + bias_j of row i and
// token j, target t and any shift c_i that keeps exp() in range,
//
//     e_ij = exp(l_ij - c_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + c_i - l_it
//     dh_i = (sum_j e_ij E_j) / Z_i - E_t
//     dE_j = sum_i e_ij (h_i / Z_i) - sum_{i: t = j} h_i
//
// so no product needs Z_i before its row is complete. The e_ij of a block of rows and a slice of
// the vocabulary are computed from the logits while these are in cache, and used at once in the
// product for dh. Only the e_ij are kept for all rows of a chunk. Once all Z_i are known, the
// product for dE takes h_i / Z_i. This product is our own (tile.h): it sums over rows, and reads
// the e_ij as words that hold two rows of one token, while a library would first have to transpose
// them. With AMX, all three products are our own, and the e_ij are computed between them
// (classifier_amx.h).
//
// The target's own term is excluded from the products and added in full precision: p_t - 1 = -(sum
// over j != t of e_ij) / Z_i stays accurate when p_t is close to 1.
//
// Label smoothing by s adds s to that term, and -s / V to the terms of all tokens. This needs only
// sums, no product: dh_i -= s/V sum_j E_j and dE_j -= s/V sum_i h_i. It adds s (l_it - mean_j l_ij)
// to the loss.
#include "classifier_parts.h"

#include "bf16.h"
#include "error.h"
#include "threads.h"

enum {
    ROW_STEP = 32,         // blocks and chunks are multiples of this
    CHUNK_BYTES = 1 << 26, // of e_ij
};

// ---- creation ---------------------------------------------------------------

static size_t chunk_rows(bool pairs, size_t vocabulary, size_t rows) {
    const size_t size = pairs ? sizeof(real) / 2 : sizeof(real);
    const size_t fit = CHUNK_BYTES / size / vocabulary / ROW_STEP * ROW_STEP;
    return smaller(fit > ROW_STEP ? fit : ROW_STEP, round_up(rows > 0 ? rows : 1, ROW_STEP));
}

static void gradients_carve(Classifier *c, Arena *arena) {
    const size_t words = classifier_word_rows(c, c->chunk), columns = classifier_columns(c);
    // The product reads CLASSIFIER_TOKENS words at a time, possibly beyond the last row.
    c->e = arena_reals(arena,
                       tile_count(words, round_up(c->vocabulary, PAIRS_STEP)) + CLASSIFIER_TOKENS,
                       1, classifier_what);
    c->scaled_h =
        arena_reals(arena, words, c->engine == MULTIPLY_AMX ? columns + AMX_BLOCK / 2 : columns,
                    classifier_what);
    c->factor = arena_reals(arena, c->chunk, 1, classifier_what);
    c->target_gradient = arena_reals(arena, c->chunk, 1, classifier_what);
    c->weight_sum = arena_reals(arena, 1, c->channels, classifier_what);
    c->h_sum = arena_reals(arena, 1, c->channels, classifier_what);
    for (int i = 0; i < c->threads; i++) {
        ClassifierWorker *worker = &c->workers[i];
        if (c->engine == MULTIPLY_AMX) {
            worker->left = arena_reals(arena, AMX_BLOCK, CLASSIFIER_SLICE / 2, classifier_what);
            worker->dh = arena_reals(arena, CLASSIFIER_BLOCK, columns, classifier_what);
            worker->words = arena_reals(arena, AMX_BLOCK / 2, columns, classifier_what);
            worker->h = arena_reals(arena, 2, columns, classifier_what);
            worker->sums = arena_reals(arena, columns + AMX_BLOCK / 2, AMX_BLOCK, classifier_what);
            continue;
        }
        if (gemm_precision(c->gemm) == PRECISION_BFLOAT16)
            worker->e = gemm_input_carve(c->gemm, arena, CLASSIFIER_BLOCK, CLASSIFIER_SLICE,
                                         classifier_what);
        worker->h = arena_reals(arena, 2, columns, classifier_what);
        worker->sums = arena_reals(arena, CLASSIFIER_SLICE, CLASSIFIER_COLUMNS, classifier_what);
    }
}

static const ClassifierPasses *passes_by(Multiplier engine) {
#if TILE_PAIRS
    if (engine == MULTIPLY_AMX) return &classifier_by_strips;
#endif
    (void)engine;
    return &classifier_by_library;
}

// ---- rows -------------------------------------------------------------------
// Multiplies the kept e of row i in one slice by `factor`.
static void scale_words(const Classifier *c, size_t i, size_t slice, real factor) {
    const size_t width = classifier_slice_width(c, slice);
    for (size_t j = 0; j < width; j++) {
        const ClassifierWords words = classifier_words(c, slice, j);
        real *word = classifier_words_row(c, words, i) + j % words.width;
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

void classifier_raise_shift(Classifier *c, size_t i, size_t slice, real shift, real *dh) {
    const real factor = (real)exp((double)c->shift[i] - (double)shift);
    c->shift[i] = shift;
    c->others[i] *= (double)factor;
    if (!dh || slice == 0) return;
    for (size_t k = 0; k < c->channels; k++) dh[k] *= factor;
    for (size_t s = 0; s < slice; s++) scale_words(c, i, s, factor);
}

real classifier_largest(const real *logits, const real *bias, size_t width) {
    real max = -INFINITY;
    for (size_t j = 0; j < width; j++) max = logits[j] + bias[j] > max ? logits[j] + bias[j] : max;
    return max;
}

// Returns Z_i of a row that has a target.
static double sum_of_row(const Classifier *c, size_t i) {
    return c->others[i] + exp((double)c->target_logit[i] - (double)c->shift[i]);
}

// Once Z_i is known: computes dh_i from its sums (C) over tokens, which may be stored in dh_i
// itself, and h_i / Z_i (C) for dE.
static void finish_row(Classifier *c, const ClassifierChunk *chunk, size_t i, const real *sums,
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

void classifier_finish_rows(Classifier *c, const ClassifierChunk *chunk, size_t first, size_t rows,
                            const real *sums, size_t stride, real *words,
                            const ClassifierWorker *worker) {
    const size_t columns = classifier_columns(c);
    real *even = worker->h, *odd = even + columns;
    for (size_t r = 0; r < rows; r += 2) {
        finish_row(c, chunk, first + r, sums + r * stride, even);
        if (r + 1 < rows) {
            finish_row(c, chunk, first + r + 1, sums + (r + 1) * stride, odd);
        } else {
            memset(odd, 0, columns * sizeof(real));
            c->factor[first + r + 1] = 0;
        }
        tile_right(words + classifier_word_rows(c, r) * columns, columns, even, odd, columns,
                   c->pairs);
    }
}

// ---- chunks -----------------------------------------------------------------
// Adds the terms of the targets in a slice, whose e_ij are excluded from the products.
static void add_targets(const Classifier *c, const ClassifierChunk *chunk, size_t slice,
                        real *dweight, real *dbias) {
    const size_t first = slice * CLASSIFIER_SLICE, width = classifier_slice_width(c, slice),
                 channels = c->channels;
    for (size_t i = 0; i < chunk->rows; i++) {
        const size_t target = (size_t)chunk->targets[i];
        if (target - first >= width) continue; // also for -1
        if (dbias) dbias[target] += c->target_gradient[i];
        for (size_t k = 0; k < channels; k += CLASSIFIER_COLUMNS) {
            real h[CLASSIFIER_COLUMNS];
            const size_t count = smaller(channels - k, CLASSIFIER_COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++)
                dweight[target * channels + k + j] += c->target_gradient[i] * h[j];
        }
    }
}

static void slices_of_chunk(Classifier *c, const ClassifierChunk *chunk, real *dweight,
                            real *dbias) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t s = 0; s < c->slices; s++) {
        const ClassifierWorker *worker = &c->workers[thread_index()];
        c->passes->gradients(c, chunk, s, worker, dweight, dbias);
        add_targets(c, chunk, s, dweight, dbias);
        if (c->smoothing > 0) classifier_smooth_slice(c, s, dweight, dbias);
    }
}

// Returns the rows per block, such that all threads get some.
static size_t block_rows(const Classifier *c, size_t rows) {
    const size_t threads = (size_t)c->threads;
    const size_t share = rows > threads ? (rows + threads - 1) / threads : 1;
    return smaller(round_up(share, ROW_STEP), CLASSIFIER_BLOCK);
}

static double rows_of_chunk(Classifier *c, const ClassifierChunk *chunk) {
    const size_t block = block_rows(c, chunk->rows);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t i = 0; i < chunk->rows; i += block) {
        const size_t rows = smaller(chunk->rows - i, block);
        c->passes->rows(c, chunk, i, rows, &c->workers[thread_index()]);
    }
    double loss = 0;
    for (size_t i = 0; i < chunk->rows; i++) {
        if (chunk->losses) chunk->losses[i] = 0;
        if (chunk->targets[i] < 0) continue;
        const double of_row =
            log(sum_of_row(c, i)) + (double)c->shift[i] - (double)c->target_logit[i];
        if (chunk->losses) chunk->losses[i] = (real)of_row;
        loss += of_row;
    }
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
    c->slices = (vocabulary + CLASSIFIER_SLICE - 1) / CLASSIFIER_SLICE;
    c->engine = tile_multiplier(gemm_precision(gemm) == PRECISION_BFLOAT16);
    c->pairs = c->engine != MULTIPLY_REALS;
    c->passes = passes_by(c->engine);
    c->chunk = chunk_rows(c->pairs, vocabulary, rows);
    c->gemm = gemm;
    c->training = training;
    c->threads = thread_limit();
    c->workers = allocate((size_t)c->threads, sizeof(*c->workers), "the classifier's threads");
    if (c->passes->create) c->passes->create(c);
    return c;
}

void classifier_carve(Classifier *c, Arena *arena) {
    c->no_bias = arena_reals(arena, 1, CLASSIFIER_SLICE, classifier_what);
    c->shift = arena_reals(arena, c->chunk, 1, classifier_what);
    c->others = arena_array(arena, c->chunk, sizeof(*c->others), classifier_what);
    c->target_logit = arena_reals(arena, c->chunk, 1, classifier_what);
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
    for (size_t s = 0; s < c->slices; s++)
        c->passes->pack(c, s, weight + s * CLASSIFIER_SLICE * c->channels);
}

static void check_targets(const Classifier *c, const int32_t *targets, size_t m) {
    for (size_t i = 0; i < m; i++)
        if (targets[i] < -1 || targets[i] >= (int64_t)c->vocabulary)
            fail("target %zu is %d, expected a token below %zu, or -1", i, targets[i],
                 c->vocabulary);
}

// Returns the rows per chunk, such that all chunks of m rows have about the same length.
static size_t even_chunk(const Classifier *c, size_t m) {
    const size_t chunks = (m + c->chunk - 1) / c->chunk;
    return chunks == 0 ? c->chunk
                       : smaller(round_up((m + chunks - 1) / chunks, ROW_STEP), c->chunk);
}

double classifier_forward(Classifier *c, Matrix h, const real *bias, const int32_t *targets,
                          size_t m, real *losses) {
    check_targets(c, targets, m);
    if (c->passes->begin) c->passes->begin(c, bias);
    const size_t step = even_chunk(c, m);
    double loss = 0;
    for (size_t i = 0; i < m; i += step) {
        const ClassifierChunk chunk = {.h = gemm_input_rows(h, i),
                                       .bias = bias,
                                       .targets = targets + i,
                                       .rows = smaller(m - i, step),
                                       .losses = losses ? losses + i : NULL};
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
    if (c->smoothing > 0) classifier_sum_weights(c, bias);
    for (size_t i = 0; i < m; i += step) {
        const ClassifierChunk chunk = {.h = gemm_input_rows(h, i),
                                       .bias = bias,
                                       .targets = targets + i,
                                       .rows = smaller(m - i, step),
                                       .scale = scale,
                                       .dh = dh + i * c->channels};
        loss += rows_of_chunk(c, &chunk);
        if (c->smoothing > 0) {
            more += classifier_smoothing_loss(c, &chunk);
            classifier_sum_rows(c, &chunk);
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
    const ClassifierChunk chunk = {.h = h, .bias = bias, .rows = m};
    if (c->passes->begin) c->passes->begin(c, bias);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t i = 0; i < m; i += block) {
        const ClassifierWorker *worker = &c->workers[thread_index()];
        c->passes->logits(c, &chunk, i, smaller(m - i, block), worker, logits);
    }
}
