#include "attention.h"

#include "memory.h"
#include "threads.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

Attention attention_of_kind(const AttentionKind *kind, const ModelSizes *size, bool causal) {
    return (Attention){.channels = size->channels,
                       .heads = size->heads,
                       .causal = causal,
                       .cosine = kind->cosine,
                       .additive = kind->additive,
                       .power = kind->power,
                       .sink = kind->sink};
}

void attention_create(Attention *a, Precision precision, size_t batch, size_t length, size_t rows) {
    if (a->cosine)
        a->linear = cosine_attention_create(precision, a->power, batch, length, length, a->channels,
                                            a->heads);
    else if (a->additive)
        a->pooling = additive_global_create(batch, length, a->channels, a->heads);
    else
        a->softmax = softmax_attention_create(precision, a->sink, batch, length, length, rows,
                                              a->channels, a->heads);
}

void attention_carve(Attention *a, Arena *arena, bool training) {
    if (a->cosine)
        cosine_attention_carve(a->linear, arena);
    else if (a->additive)
        additive_global_carve(a->pooling, arena);
    else
        softmax_attention_carve(a->softmax, arena, training);
}

void attention_free(Attention *a) {
    softmax_attention_free(a->softmax);
    cosine_attention_free(a->linear);
    free(a->pooling);
}

void attention_forward(const Attention *a, Matrix y, real *logsumexp, const real *learned,
                       const AttentionInput *in) {
    if (a->cosine)
        cosine_attention_forward(a->linear, y, learned, in);
    else if (a->additive)
        additive_global_forward(a->pooling, y, learned, in);
    else
        softmax_attention_forward(a->softmax, y, logsumexp, in);
}

void attention_backward(const Attention *a, const AttentionGradients *gradients, real *dlearned,
                        const real *dy, Matrix y, const real *logsumexp, const real *learned,
                        const AttentionInput *in) {
    if (a->cosine)
        cosine_attention_backward(a->linear, gradients, dlearned, dy, learned, in);
    else if (a->additive)
        additive_global_backward(a->pooling, gradients, dlearned, dy, learned, in);
    else
        softmax_attention_backward(a->softmax, gradients, dy, y, logsumexp, in);
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no
    // weight. Its gradient is 0; what came out is rounding, of which AdamW would make full steps.
    real *bias = gradients->parts[KEY].bias;
    if (a->softmax && a->sink == 0 && bias) memset(bias, 0, a->channels * sizeof(real));
}

// ---- what --stats measures --------------------------------------------------
// Row t of a head's queries or keys, bias added (D). Cosine attention takes it at length 1.
static void load_row(const Attention *a, const AttentionInput *in, AttentionPart part, size_t b,
                     size_t h, size_t t, real *row) {
    const size_t D = a->channels / a->heads, length = part == QUERY ? in->queries : in->keys;
    const AttentionRows *from = &in->rows[part];
    const real *x = from->x + (b * length + t) * from->stride + h * D;
    double square = 0;
    for (size_t d = 0; d < D; d++) {
        row[d] = from->bias ? x[d] + from->bias[h * D + d] : x[d];
        square += (double)row[d] * (double)row[d];
    }
    if (!a->cosine) return;
    const double inverse = square > 1e-24 ? 1 / sqrt(square) : 0;
    for (size_t d = 0; d < D; d++) row[d] = (real)((double)row[d] * inverse);
}

// Adds the weights of one row of softmax attention, from its scores (count), which are overwritten.
static void measure_softmax(Measurement *m, real *scores, const uint8_t *mask, size_t count,
                            double sink) {
    real largest = sink > 0 ? (real)log(sink) : -INFINITY;
    for (size_t j = 0; mask && j < count; j++)
        if (!mask[j]) scores[j] = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (size_t j = 0; j < count; j++) largest = scores[j] > largest ? scores[j] : largest;
#pragma omp simd
    for (size_t j = 0; j < count; j++) scores[j] = vector_exp(scores[j] - largest);
    measurement_add_weights(m, scores, mask, count, sink * exp(-(double)largest));
}

// The same of cosine attention, whose weights are the scores over n^power.
static void measure_cosine(Measurement *m, const real *scores, const uint8_t *mask, size_t count,
                           double power) {
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    measurement_add_quotients(m, scores, mask, count, pow((double)seen, power));
}

// What the threads of attention_measure() share.
typedef struct {
    const Attention *attention;
    const AttentionInput *in;
    const real *learned;
    const uint8_t *tokens;
    const real *keys; // (B, H, D, Tk) all of them, loaded
    real *rows;       // (threads, D + Tk) a query, its scores
} Measuring;

// Adds the weights of queries [first, last) of one head of one sequence (unit).
static void measure_rows(const Measuring *all, size_t unit, size_t first, size_t last,
                         Measurement *m) {
    const Attention *a = all->attention;
    const AttentionInput *in = all->in;
    const size_t D = a->channels / a->heads, b = unit / a->heads, h = unit % a->heads;
    const double power = all->learned ? 1 / (1 + exp(-(double)all->learned[h])) : a->power;
    const real scale = a->cosine ? 1 : 1 / (real)sqrt((double)D);
    real *query = all->rows + (size_t)thread_index() * (D + in->keys), *restrict scores = query + D;
    for (size_t i = first; i < last; i++) {
        if (all->tokens && !all->tokens[b * in->queries + i]) continue;
        const size_t begin = attention_first_key(in, i), count = attention_keys_end(in, i) - begin;
        const uint8_t *mask = in->mask ? in->mask + b * in->keys + begin : NULL;
        load_row(a, in, QUERY, b, h, i, query);
        memset(scores, 0, count * sizeof(real));
        for (size_t d = 0; d < D; d++) {
            const real *key = all->keys + (unit * D + d) * in->keys + begin, q = scale * query[d];
#pragma omp simd
            for (size_t j = 0; j < count; j++) scores[j] += q * key[j];
        }
        if (a->cosine)
            measure_cosine(m, scores, mask, count, power);
        else
            measure_softmax(m, scores, mask, count, a->sink);
    }
}

// Keys of all heads, dimension by dimension: (B, H, D, Tk), fresh.
static real *load_keys(const Attention *a, const AttentionInput *in) {
    const size_t D = a->channels / a->heads, units = in->batch * a->heads;
    real *keys = allocate(units * D * in->keys, sizeof(real), "statistics"),
         *rows = allocate((size_t)thread_limit() * D, sizeof(real), "statistics");
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < units; unit++) {
        real *row = rows + (size_t)thread_index() * D;
        for (size_t t = 0; t < in->keys; t++) {
            load_row(a, in, KEY, unit / a->heads, unit % a->heads, t, row);
            for (size_t d = 0; d < D; d++) keys[(unit * D + d) * in->keys + t] = row[d];
        }
    }
    free(rows);
    return keys;
}

void attention_measure(const Attention *a, const real *learned, const AttentionInput *in,
                       const uint8_t *tokens, Measurement *m) {
    if (a->additive) {
        additive_global_measure(a->pooling, learned, in, m);
        return;
    }
    enum { ROWS = 64 };
    const size_t D = a->channels / a->heads, blocks = (in->queries + ROWS - 1) / ROWS;
    const size_t count = in->batch * a->heads * blocks;
    Measurement *parts = allocate(count, sizeof(*parts), "statistics");
    real *keys = load_keys(a, in),
         *rows = allocate((size_t)thread_limit() * (D + in->keys), sizeof(real), "statistics");
    const Measuring all = {a, in, learned, tokens, keys, rows};
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < count; i++) {
        const size_t first = i % blocks * ROWS, rest = in->queries - first;
        measure_rows(&all, i / blocks, first, first + (rest < ROWS ? rest : ROWS), &parts[i]);
    }
    for (size_t i = 0; i < count; i++) measurement_merge(m, &parts[i]);
    free(parts);
    free(keys);
    free(rows);
}
