#include "attention.h"

#include "memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void attention_create(Attention *a, Precision precision, size_t batch, size_t length, bool training) {
    if (a->cosine)
        a->linear = cosine_attention_create(batch, length, a->channels, a->heads);
    else
        a->softmax =
            softmax_attention_create(precision, a->sink, batch, length, a->channels, a->heads, training);
}

void attention_free(Attention *a) {
    softmax_attention_free(a->softmax);
    cosine_attention_free(a->linear);
}

void attention_forward(const Attention *a, GemmInput y, const AttentionInput *in, const Batch *batch) {
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
    if (a->cosine)
        cosine_attention_forward(a->linear, y, in->qkv, in->bias, in->exponent, batch->mask, B, T);
    else
        softmax_attention_forward(a->softmax, y, in->logsumexp, in->qkv, in->bias, batch->mask, in->dropout,
                                  (uint64_t)batch->first_row, B, T);
}

void attention_backward(const Attention *a, GemmInput dqkv, real *dbias, real *dexponent, const real *dy,
                        GemmInput y, const AttentionInput *in, const Batch *batch) {
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length, C = a->channels;
    if (a->cosine)
        cosine_attention_backward(a->linear, dqkv, dbias, dexponent, dy, in->qkv, in->bias, in->exponent,
                                  batch->mask, B, T);
    else
        softmax_attention_backward(a->softmax, dqkv, dbias, dy, y, in->logsumexp, in->qkv, in->bias,
                                   batch->mask, in->dropout, (uint64_t)batch->first_row, B, T);
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no weight. Its
    // gradient is 0; what came out is rounding, of which AdamW would make full steps.
    if (!a->cosine && a->sink == 0 && dbias) memset(dbias + C, 0, C * sizeof(real));
}

double attention_flops(bool cosine, size_t channels, size_t heads, double rows, double length) {
    const double seen = cosine ? (double)channels / (double)heads : length / 2;
    return 4 * rows * (double)channels * seen;
}

// ---- what --stats measures ------------------------------------------------------------------------------

// Queries (part 0) or keys (part 1) of one head, bias added: rows (T, D). Cosine attention takes them at
// length 1.
static void load_head(const Attention *a, const AttentionInput *in, size_t b, size_t h, size_t part, size_t T,
                      real *rows) {
    const size_t C = a->channels, D = C / a->heads, column = part * C + h * D;
    for (size_t t = 0; t < T; t++) {
        const real *x = in->qkv + (b * T + t) * 3 * C + column;
        double square = 0;
        for (size_t d = 0; d < D; d++) {
            rows[t * D + d] = in->bias ? x[d] + in->bias[column + d] : x[d];
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
        if (!mask || mask[j]) largest = fmax(largest, (double)scores[j]);
    for (size_t j = 0; j < count; j++) scores[j] = (real)exp((double)scores[j] - largest);
    measurement_add_weights(m, scores, mask, count, sink * exp(-largest));
}

// The same of cosine attention, whose weights are the scores over n^sigmoid(exponent).
static void measure_cosine(Measurement *m, const real *scores, const uint8_t *mask, size_t count,
                           double exponent) {
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    const double divisor = pow((double)seen, 1 / (1 + exp(-exponent)));
    for (size_t j = 0; j < count; j++) {
        const double weight = (double)scores[j] / divisor;
        if (!mask || mask[j]) moments_add(&m->values, &weight, 1);
    }
}

void attention_measure(const Attention *a, const AttentionInput *in, const Batch *batch, Measurement *m) {
    const size_t T = (size_t)batch->length, D = a->channels / a->heads;
    const real scale = a->cosine ? 1 : 1 / (real)sqrt((double)D);
    real *q = allocate(T * D, sizeof(real), "statistics"), *k = allocate(T * D, sizeof(real), "statistics"),
         *scores = allocate(T, sizeof(real), "statistics");
    for (size_t unit = 0; unit < (size_t)batch->batch * a->heads; unit++) {
        const size_t b = unit / a->heads, h = unit % a->heads;
        const uint8_t *mask = batch->mask ? batch->mask + b * T : NULL;
        load_head(a, in, b, h, 0, T, q);
        load_head(a, in, b, h, 1, T, k);
        for (size_t i = 0; i < T; i++) {
            if (mask && !mask[i]) continue;
            for (size_t j = 0; j <= i; j++) {
                real dot = 0;
#pragma omp simd reduction(+ : dot)
                for (size_t d = 0; d < D; d++) dot += q[i * D + d] * k[j * D + d];
                scores[j] = scale * dot;
            }
            if (a->cosine)
                measure_cosine(m, scores, mask, i + 1, (double)in->exponent[h]);
            else
                measure_softmax(m, scores, mask, i + 1, a->sink);
        }
    }
    free(q);
    free(k);
    free(scores);
}
