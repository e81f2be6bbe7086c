// Cross entropy over a large vocabulary. With the logits l_ij = h_i . E_j + bias_j of row i and token j,
// target t and any shift c_i that keeps exp() in range,
//
//     e_ij = exp(l_ij - c_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + c_i - l_it
//     dh_i = (sum_j e_ij E_j) / Z_i - E_t,        dE_j = sum_i e_ij (h_i / Z_i) - sum_{i: t = j} h_i
//
// so that no product needs Z_i before its row is complete: the e_ij of a block of rows and a slice of the
// vocabulary are made from the logits while these are in cache, and go at once into the product that becomes
// dh. Only they are kept for the rows of a chunk; once all Z_i are known, the second product takes h_i / Z_i.
// The target's own term is left out of the products and added in full precision: p_t - 1 = -(sum over j != t
// of e_ij) / Z_i keeps its digits where p_t is close to 1.
#include "classifier.h"

#include "bf16.h"
#include "error.h"
#include "memory.h"
#include "threads.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512BF16__) && !defined(REAL_IS_DOUBLE)
#include <immintrin.h>
#endif

// Threads share out blocks of rows when they make the e_ij, then slices of the vocabulary for dE; each
// multiplies on its own, which spares a barrier a product, and sums in a fixed order.
enum {
    SLICE = 384,   // tokens: a block's logits, and a slice's e_ij for 1,024 rows, stay in the L2 cache
    BLOCK = 512,   // rows
    ROW_STEP = 16, // blocks and chunks are multiples of this
    CHUNK_BYTES = 1 << 26, // of e_ij
    COLUMNS = 128          // of h at a time
};

// Where e_ij passes e^32, or a sum over a slice that, the row's shift rises.
static const double EXPONENT_LIMIT = 32, SUM_LIMIT = 7.9e13;
static const real LOWEST_SHIFT = (real)-1e30;

// What a thread has for itself.
typedef struct {
    Gemm *gemm;
    real *logits;  // (BLOCK, SLICE)
    GemmInput row; // (1, SLICE) e_i where it is not kept
} Worker;

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
    // For training only:
    GemmInput e;           // slice after slice of (chunk, SLICE)
    real *factor;          // (chunk) scale / Z_i
    real *target_gradient; // (chunk) scale (p_it - 1)
    real *scaled_h;        // (chunk, C) factor_i h_i
    GemmWeight *packed_h;  // the same (packed_rows, C)
    size_t packed_rows;
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

static GemmInput slice_of_e(const Classifier *c, size_t slice) {
    const size_t first = slice * SLICE * c->chunk, size = c->e.bf16 ? sizeof(uint16_t) : sizeof(real);
    return (GemmInput){(char *)c->e.data + first * size, slice_width(c, slice), c->e.bf16};
}

// ---- creation --------------------------------------------------------------------------------------

static size_t chunk_rows(const Gemm *gemm, size_t vocabulary, size_t rows) {
    const size_t size = gemm_precision(gemm) == PRECISION_BFLOAT16 ? sizeof(uint16_t) : sizeof(real);
    const size_t fit = CHUNK_BYTES / size / vocabulary / ROW_STEP * ROW_STEP;
    return smaller(fit > ROW_STEP ? fit : ROW_STEP, round_up(rows > 0 ? rows : 1, ROW_STEP));
}

Classifier *classifier_create(Gemm *gemm, size_t vocabulary, size_t channels, size_t rows, int training) {
    if (vocabulary == 0 || vocabulary > INT32_MAX || channels == 0)
        fail("classifier: vocabulary %zu, channels %zu; expected 1 to %d, at least 1", vocabulary, channels,
             INT32_MAX);
    Classifier *c = allocate(1, sizeof(*c), "the classifier");
    c->vocabulary = vocabulary;
    c->channels = channels;
    c->slices = (vocabulary + SLICE - 1) / SLICE;
    c->chunk = chunk_rows(gemm, vocabulary, rows);
    c->gemm = gemm;
    c->packed = allocate(c->slices, sizeof(GemmWeight *), "the classifier's weight");
    for (size_t s = 0; s < c->slices; s++)
        c->packed[s] =
            gemm_weight_create(gemm, slice_width(c, s), channels, WEIGHT_OUT_IN, "the classifier's weight");
    c->no_bias = allocate(SLICE, sizeof(real), "the classifier");
    c->shift = allocate(c->chunk, sizeof(*c->shift), "the classifier");
    c->others = allocate(c->chunk, sizeof(*c->others), "the classifier");
    c->target_logit = allocate(c->chunk, sizeof(*c->target_logit), "the classifier");
    c->threads = thread_limit();
    c->workers = allocate((size_t)c->threads, sizeof(*c->workers), "the classifier's threads");
    for (int i = 0; i < c->threads; i++) {
        c->workers[i].gemm = gemm_create_serial(gemm);
        c->workers[i].logits = allocate((size_t)BLOCK * SLICE, sizeof(real), "the classifier's logits");
        c->workers[i].row = gemm_input_create(gemm, 1, SLICE, "the classifier's logits");
    }
    if (!training) return c;
    c->e = gemm_input_create(gemm, c->chunk, vocabulary, "the classifier's gradients");
    c->factor = allocate(c->chunk, sizeof(*c->factor), "the classifier's gradients");
    c->target_gradient = allocate(c->chunk, sizeof(*c->target_gradient), "the classifier's gradients");
    c->scaled_h = allocate(c->chunk * channels, sizeof(*c->scaled_h), "the classifier's gradients");
    return c;
}

void classifier_free(Classifier *c) {
    if (!c) return;
    for (size_t s = 0; s < c->slices; s++) gemm_weight_free(c->packed[s]);
    gemm_weight_free(c->packed_h);
    for (int i = 0; i < c->threads; i++) {
        gemm_free(c->workers[i].gemm);
        free(c->workers[i].logits);
        gemm_input_free(&c->workers[i].row);
    }
    gemm_input_free(&c->e);
    free(c->packed);
    free(c->no_bias);
    free(c->shift);
    free(c->others);
    free(c->target_logit);
    free(c->workers);
    free(c->factor);
    free(c->target_gradient);
    free(c->scaled_h);
    free(c);
}

void classifier_pack(Classifier *c, const real *weight) {
    c->weight = weight;
#pragma omp parallel for schedule(static)
    for (size_t s = 0; s < c->slices; s++) gemm_weight_pack(c->packed[s], weight + s * SLICE * c->channels);
}

// ---- exponentials ----------------------------------------------------------------------------------

static real exponentials_real(real *restrict e, const real *restrict logits, const real *restrict bias,
                              real shift, size_t width) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; j++) {
        const real value = vector_exp(logits[j] + bias[j] - shift);
        e[j] = value;
        sum += value;
    }
    return sum;
}

// The same to bf16, by way of float.
static real two_passes(uint16_t *restrict e, const real *restrict logits, const real *restrict bias,
                       real shift, size_t width) {
    real values[SLICE];
    const real sum = exponentials_real(values, logits, bias, shift, width);
    gemm_input_store((GemmInput){e, width, true}, 0, 0, values, width);
    return sum;
}

#if defined(__AVX512BF16__) && !defined(REAL_IS_DOUBLE)

// As vector_exp(), with the instructions that round and scale. The polynomial is minimax on |r| <= ln 2 / 2,
// relative error 1e-7. NaN, the second operand of max and min, stays.
static inline __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(128.0f), _mm512_max_ps(_mm512_set1_ps(-128.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181f), x);
    __m512 p = _mm512_set1_ps(8.312501288e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.189033157e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.666711539e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.999923031e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// In one pass, which takes 60% of the time of two.
static real exponentials_bf16(uint16_t *restrict e, const real *restrict logits, const real *restrict bias,
                              real shift, size_t width) {
    const __m512 shifts = _mm512_set1_ps(shift);
    __m512 sum = _mm512_setzero_ps();
    const size_t whole = width / 16 * 16;
    for (size_t j = 0; j < whole; j += 16) {
        const __m512 l = _mm512_add_ps(_mm512_loadu_ps(logits + j), _mm512_loadu_ps(bias + j));
        const __m512 value = exp16(_mm512_sub_ps(l, shifts));
        sum = _mm512_add_ps(sum, value);
        _mm256_storeu_si256((__m256i *)(e + j), (__m256i)_mm512_cvtneps_pbh(value));
    }
    const real total = _mm512_reduce_add_ps(sum);
    if (whole == width) return total;
    return total + two_passes(e + whole, logits + whole, bias + whole, shift, width - whole);
}

#else

static real exponentials_bf16(uint16_t *restrict e, const real *restrict logits, const real *restrict bias,
                              real shift, size_t width) {
    return two_passes(e, logits, bias, shift, width);
}

#endif

// e (1, width) = exp(logits + bias - shift); returns the sum.
static real exponentials(GemmInput e, const real *logits, const real *bias, real shift, size_t width) {
    return e.bf16 ? exponentials_bf16(e.data, logits, bias, shift, width)
                  : exponentials_real(e.data, logits, bias, shift, width);
}

// Moves row i to a higher shift with all that was computed, up to `slice`, under the old one.
static void raise_shift(Classifier *c, const Chunk *chunk, size_t i, size_t slice, real shift) {
    const real factor = (real)exp((double)c->shift[i] - (double)shift);
    c->shift[i] = shift;
    c->others[i] *= (double)factor;
    if (!chunk->dh || slice == 0) return;
    for (size_t k = 0; k < c->channels; k++) chunk->dh[i * c->channels + k] *= factor;
    for (size_t s = 0; s < slice; s++) {
        real e[SLICE];
        const size_t count = slice_width(c, s);
        gemm_input_load(slice_of_e(c, s), i, 0, e, count);
        for (size_t j = 0; j < count; j++) e[j] *= factor;
        gemm_input_store(slice_of_e(c, s), i, 0, e, count);
    }
}

static real largest(const real *logits, const real *bias, size_t width) {
    real max = -INFINITY;
    for (size_t j = 0; j < width; j++) max = logits[j] + bias[j] > max ? logits[j] + bias[j] : max;
    return max;
}

// From the logits (width) of row i and one slice: e_i (1, width) with 0 for the target, its sum, the target's
// logit.
static void row_of_slice(Classifier *c, const Chunk *chunk, size_t i, size_t slice, real *logits,
                         GemmInput e) {
    const size_t width = slice_width(c, slice);
    const real *bias = chunk->bias ? chunk->bias + slice * SLICE : c->no_bias;
    if (slice == 0) { // any finite shift will do that does not overflow
        c->shift[i] = logits[0] + bias[0] > LOWEST_SHIFT ? logits[0] + bias[0] : LOWEST_SHIFT;
        c->others[i] = 0;
    }
    // Wraps around, to a large number, for a target below the slice and for -1.
    const size_t target = (size_t)chunk->targets[i] - slice * SLICE;
    if (target < width) {
        const real logit = logits[target] + bias[target];
        c->target_logit[i] = logit;
        logits[target] = -INFINITY;
        if ((double)logit - (double)c->shift[i] > EXPONENT_LIMIT) raise_shift(c, chunk, i, slice, logit);
    }
    real sum = exponentials(e, logits, bias, c->shift[i], width);
    if ((double)sum > SUM_LIMIT) {
        raise_shift(c, chunk, i, slice, largest(logits, bias, width));
        sum = exponentials(e, logits, bias, c->shift[i], width);
    }
    c->others[i] += (double)sum;
}

// ---- passes over a chunk ---------------------------------------------------------------------------

// Z_i of a row whose target counts.
static double row_sum(const Classifier *c, size_t i) {
    return c->others[i] + exp((double)c->target_logit[i] - (double)c->shift[i]);
}

// With Z_i known: dh_i in full, and what the product for dE takes.
static void finish_row(Classifier *c, const Chunk *chunk, size_t i) {
    const size_t channels = c->channels;
    real *restrict dh = chunk->dh + i * channels;
    const int32_t target = chunk->targets[i];
    const double share = target < 0 ? 0 : chunk->scale / row_sum(c, i);
    const real factor = (real)share, gradient = (real)(-share * c->others[i]);
    const real *restrict weight = c->weight + (target < 0 ? 0 : (size_t)target) * channels;
    for (size_t k = 0; k < channels; k++) dh[k] = dh[k] * factor + gradient * weight[k];
    c->factor[i] = factor;
    c->target_gradient[i] = gradient;
    real *restrict h = c->scaled_h + i * channels;
    gemm_input_load(chunk->h, i, 0, h, channels);
    for (size_t k = 0; k < channels; k++) h[k] *= factor;
}

// A block of rows: logits, exponentials and dh, slice by slice.
static void rows_pass(Classifier *c, const Chunk *chunk, size_t first, size_t rows, Worker *worker) {
    const GemmInput h = gemm_input_rows(chunk->h, first);
    for (size_t s = 0; s < c->slices; s++) {
        const size_t width = slice_width(c, s);
        gemm_forward(worker->gemm, worker->logits, h, c->packed[s], rows);
        for (size_t i = 0; i < rows; i++)
            row_of_slice(c, chunk, first + i, s, worker->logits + i * width,
                         chunk->dh ? gemm_input_rows(slice_of_e(c, s), first + i) : worker->row);
        if (!chunk->dh) continue;
        const GemmInput e = gemm_input_rows(slice_of_e(c, s), first);
        real *dh = chunk->dh + first * c->channels;
        if (s == 0)
            gemm_backward_input(worker->gemm, dh, e, c->packed[s], rows);
        else
            gemm_backward_input_add(worker->gemm, dh, e, c->packed[s], rows);
    }
    if (!chunk->dh) return;
    for (size_t i = first; i < first + rows; i++) finish_row(c, chunk, i);
}

// dbias += the sums of the columns of e, each row times its factor. Row after row: a stream to the processor.
static void add_column_sums(const Classifier *c, GemmInput e, size_t rows, real *restrict dbias) {
    const size_t width = e.columns;
    real sums[SLICE] = {0};
    for (size_t i = 0; i < rows; i++) {
        const real factor = c->factor[i];
        if (e.bf16) {
            const uint16_t *restrict row = (const uint16_t *)e.data + i * width;
            for (size_t j = 0; j < width; j++) sums[j] += factor * (real)float_from_bf16(row[j]);
        } else {
            const real *restrict row = (const real *)e.data + i * width;
            for (size_t j = 0; j < width; j++) sums[j] += factor * row[j];
        }
    }
    for (size_t j = 0; j < width; j++) dbias[j] += sums[j];
}

// A slice of the vocabulary: its part of dweight and dbias, over all rows of the chunk.
static void slice_pass(Classifier *c, const Chunk *chunk, size_t slice, Worker *worker,
                       real *restrict dweight, real *restrict dbias) {
    const size_t first = slice * SLICE, width = slice_width(c, slice), channels = c->channels;
    const GemmInput e = slice_of_e(c, slice);
    if (dbias) add_column_sums(c, e, chunk->rows, dbias + first); // also brings e into the cache
    gemm_transposed_add(worker->gemm, dweight + first * channels, e, c->packed_h, width);
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

static void slices_of_chunk(Classifier *c, const Chunk *chunk, real *dweight, real *dbias) {
    if (c->packed_rows != chunk->rows) {
        gemm_weight_free(c->packed_h);
        c->packed_h = gemm_weight_create(c->gemm, chunk->rows, c->channels, WEIGHT_OUT_IN,
                                         "the classifier's gradients");
        c->packed_rows = chunk->rows;
    }
    gemm_weight_pack(c->packed_h, c->scaled_h);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->threads)
    for (size_t s = 0; s < c->slices; s++)
        slice_pass(c, chunk, s, &c->workers[thread_index()], dweight, dbias);
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
            loss += log(row_sum(c, i)) + (double)c->shift[i] - (double)c->target_logit[i];
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
    double loss = 0;
    for (size_t i = 0; i < m; i += step) {
        const Chunk chunk = {gemm_input_rows(h, i), bias,  targets + i,
                             smaller(m - i, step),  scale, dh + i * c->channels};
        loss += rows_of_chunk(c, &chunk);
        slices_of_chunk(c, &chunk, dweight, dbias);
    }
    return loss;
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
