// Multi-head attention of the kinds that --attention names, for blocks.h: softmax, softmax1
// (softmax_attention.h) and cosine (cosine_attention.h).
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cosine_attention.h"
#include "model.h"
#include "softmax_attention.h"

// The kind, and working memory that all layers of a model use one after the other.
typedef struct {
    size_t channels, heads; // C, H
    bool cosine;
    double sink;               // of the softmax's denominator: 0 softmax, 1 softmax1
    SoftmaxAttention *softmax; // one of the two
    CosineAttention *linear;
} Attention;

// For batches up to (batch, length).
void attention_create(Attention *attention, Precision precision, size_t batch, size_t length, bool training);
void attention_free(Attention *attention);

// What a layer's attention works on: queries, keys and values (B, T, 3C) and the bias (3C) that is added to
// them; cosine: m (H); softmax: the logarithms of the denominators (B, H, T) and the dropout of weights.
typedef struct {
    const real *qkv, *bias, *exponent;
    real *logsumexp;
    const Dropout *dropout;
} AttentionInput;

// y (B, T, C), what the output projection reads.
void attention_forward(const Attention *attention, GemmInput y, const AttentionInput *in, const Batch *batch);

// dqkv (B, T, 3C) from dy (B, T, C); dbias (3C) and dexponent (H) +=. y as the forward pass left it.
void attention_backward(const Attention *attention, GemmInput dqkv, real *dbias, real *dexponent,
                        const real *dy, GemmInput y, const AttentionInput *in, const Batch *batch);

// FLOP of the products of one layer's forward pass: with T/2 keys and values on average, or with the state
// (D, D) of a head.
double attention_flops(bool cosine, size_t channels, size_t heads, double rows, double length);

// Adds all weights of a layer to a measurement.
void attention_measure(const Attention *attention, const AttentionInput *in, const Batch *batch,
                       Measurement *m);

#endif
