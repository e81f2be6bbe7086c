// Multi-head attention of the kinds that --attention names, for blocks.h: softmax, softmax1
// (softmax_attention.h), cosine (cosine_attention.h) and additive (additive_global.h).
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "additive_global.h"
#include "arena.h"
#include "cosine_attention.h"
#include "model_options.h"
#include "softmax_attention.h"

// The kind, and working memory that all layers of a model use one after the other.
typedef struct {
    size_t channels, heads;    // C, H
    bool causal;               // a token sees those up to itself, else all of its sequence
    bool cosine, additive;     // neither: softmax
    double power;              // cosine: of the number of keys seen, where none is learned
    double sink;               // of the softmax's denominator: 0 softmax, 1 softmax1
    SoftmaxAttention *softmax; // one of the three
    CosineAttention *linear;
    AdditiveGlobal *pooling;
} Attention;

// What --attention says, of a model with these sizes; without working memory.
Attention attention_of_kind(const AttentionKind *kind, const ModelSizes *size, bool causal);

// Adds the working memory, for batches up to (batch, length) with at most `rows` tokens of a side.
void attention_create(Attention *attention, Precision precision, size_t batch, size_t length,
                      size_t rows);
void attention_carve(Attention *attention, Arena *arena, bool training);
void attention_free(Attention *attention);

// y (B, Tq, C), what the output projection reads. Softmax leaves the logarithms of its denominators
// (B, H, Tq). learned: cosine's m (H), or NULL: the power is fixed; additive attention's w (2, H,
// D).
void attention_forward(const Attention *attention, Matrix y, real *logsumexp, const real *learned,
                       const AttentionInput *in);

// Sets the gradients to queries, keys and values from dy (B, Tq, C), and adds those to biases and
// dlearned. y and logsumexp as the forward pass left them.
void attention_backward(const Attention *attention, const AttentionGradients *gradients,
                        real *dlearned, const real *dy, Matrix y, const real *logsumexp,
                        const real *learned, const AttentionInput *in);

// Adds all weights of a layer to a measurement, of the queries that are no padding: tokens (B, Tq)
// 1, or NULL.
void attention_measure(const Attention *attention, const real *learned, const AttentionInput *in,
                       const uint8_t *tokens, Measurement *m);

#endif
