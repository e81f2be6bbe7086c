#include "attention.h"

#include "memory.h"
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

void attention_plan(Attention *a, Arena *arena, Precision precision, size_t batch, size_t length, size_t rows,
                    bool training) {
    if (a->cosine)
        a->linear =
            cosine_attention_plan(arena, precision, a->power, batch, length, length, a->channels, a->heads);
    else if (a->additive)
        a->pooling = additive_global_plan(arena, batch, length, a->channels, a->heads);
    else
        a->softmax = softmax_attention_plan(arena, precision, a->sink, batch, length, length, rows,
                                            a->channels, a->heads, training);
}

void attention_free(Attention *a) {
    softmax_attention_free(a->softmax);
    cosine_attention_free(a->linear);
    free(a->pooling);
}

void attention_forward(const Attention *a, GemmInput y, real *logsumexp, const real *learned,
                       const AttentionInput *in) {
    if (a->cosine)
        cosine_attention_forward(a->linear, y, learned, in);
    else if (a->additive)
        additive_global_forward(a->pooling, y, learned, in);
    else
        softmax_attention_forward(a->softmax, y, logsumexp, in);
}

void attention_backward(const Attention *a, const AttentionGradients *gradients, real *dlearned,
                        const real *dy, GemmInput y, const real *logsumexp, const real *learned,
                        const AttentionInput *in) {
    if (a->cosine)
        cosine_attention_backward(a->linear, gradients, dlearned, dy, learned, in);
    else if (a->additive)
        additive_global_backward(a->pooling, gradients, dlearned, dy, learned, in);
    else
        softmax_attention_backward(a->softmax, gradients, dy, y, logsumexp, in);
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no weight. Its
    // gradient is 0; what came out is rounding, of which AdamW would make full steps.
    real *bias = gradients->parts[KEY].bias;
    if (a->softmax && a->sink == 0 && bias) memset(bias, 0, a->channels * sizeof(real));
}

// ---- what --stats measures ------------------------------------------------------------------------------

// Queries or keys of one head, bias added: rows (Tq or Tk, D). Cosine attention takes them at length 1.
static void load_head(const Attention *a, const AttentionInput *in, AttentionPart part, size_t b, size_t h,
                      real *rows) {
    const size_t D = a->channels / a->heads, length = part == QUERY ? in->queries : in->keys;
    const AttentionRows *from = &in->rows[part];
    for (size_t t = 0; t < length; t++) {
        const real *x = from->x + (b * length + t) * from->stride + h * D;
        double square = 0;
        for (size_t d = 0; d < D; d++) {
            rows[t * D + d] = from->bias ? x[d] + from->bias[h * D + d] : x[d];
            square += (double)rows[t * D + d] * (double)rows[t * D + d];
        }
        if (!a->cosine) continue;
        const double inverse = square > 1e-24 ? 1 / sqrt(square) : 0;
        for (size_t d = 0; d < D; d++) rows[t * D + d] = (real)((double)rows[t * D + d] * inverse);
    }
}

// Adds the weights of one row of softmax attention, from its scores (count), which are overwritten.
static void measure_softmax(Measurement *m, real *scores, const uint8_t *mask, size_t count, double sink) {
    double largest = sink > 0 ? log(sink) : -INFINITY;
    for (size_t j = 0; j < count; j++)
        if ((!mask || mask[j]) && (double)scores[j] > largest) largest = (double)scores[j];
    for (size_t j = 0; j < count; j++) scores[j] = (real)exp((double)scores[j] - largest);
    measurement_add_weights(m, scores, mask, count, sink * exp(-largest));
}

// The same of cosine attention, whose weights are the scores over n^power.
static void measure_cosine(Measurement *m, const real *scores, const uint8_t *mask, size_t count,
                           double power) {
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    const double divisor = pow((double)seen, power);
    for (size_t j = 0; j < count; j++) {
        const double weight = (double)scores[j] / divisor;
        if (!mask || mask[j]) moments_add(&m->values, &weight, 1);
    }
}

void attention_measure(const Attention *a, const real *learned, const AttentionInput *in,
                       const uint8_t *tokens, Measurement *m) {
    if (a->additive) {
        additive_global_measure(a->pooling, learned, in, m);
        return;
    }
    const size_t D = a->channels / a->heads;
    const real scale = a->cosine ? 1 : 1 / (real)sqrt((double)D);
    real *q = allocate(in->queries * D, sizeof(real), "statistics"),
         *k = allocate(in->keys * D, sizeof(real), "statistics"),
         *scores = allocate(in->keys, sizeof(real), "statistics");
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) {
        const size_t b = unit / a->heads, h = unit % a->heads;
        const uint8_t *mask = in->mask ? in->mask + b * in->keys : NULL;
        const double power = learned ? 1 / (1 + exp(-(double)learned[h])) : a->power;
        load_head(a, in, QUERY, b, h, q);
        load_head(a, in, KEY, b, h, k);
        for (size_t i = 0; i < in->queries; i++) {
            if (tokens && !tokens[b * in->queries + i]) continue;
            const size_t count = in->causal ? i + 1 : in->keys;
            for (size_t j = 0; j < count; j++) {
                real dot = 0;
#pragma omp simd reduction(+ : dot)
                for (size_t d = 0; d < D; d++) dot += q[i * D + d] * k[j * D + d];
                scores[j] = scale * dot;
            }
            if (a->cosine)
                measure_cosine(m, scores, mask, count, power);
            else
                measure_softmax(m, scores, mask, count, a->sink);
        }
    }
    free(q);
    free(k);
    free(scores);
}
