// Attention with any combination of similarity and activation (pairwise_kind.h), for experiments.
// It computes all pairs one by one, in plain C. It may be causal, windowed or bidirectional.
//
//   y_i = sum_j w_ij v_j over the keys that i sees (attention_input.h)
//
// A row that sees only padding gives 0. If only the direction matters, a query or key shorter than
// 1e-12 counts as 0. Dropout zeroes weights, which are numbered as in softmax attention
// (softmax_attention.h).
#ifndef CPU_PAIRWISE_ATTENTION_H
#define CPU_PAIRWISE_ATTENTION_H

#include "attention_input.h"
#include "pairwise_kind.h"
#include "real.h"
#include <stddef.h>

// Working memory for batches up to (batch, queries, keys), shared by all layers of a model.
typedef struct PairwiseAttention PairwiseAttention;
PairwiseAttention *pairwise_attention_create(PairwiseKind kind, size_t batch, size_t queries,
                                             size_t keys, size_t channels, size_t heads);
struct Arena;
void pairwise_attention_carve(PairwiseAttention *attention, struct Arena *arena, bool training);
void pairwise_attention_free(PairwiseAttention *attention);

// y (B, Tq, C) is the input of the output projection. learned[.] (H) is NULL if the kind does not
// have that parameter, or if the power is fixed.
void pairwise_attention_forward(PairwiseAttention *attention, Matrix y,
                                const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in);

// Sets the gradients of queries, keys and values, and adds to those of biases and to dlearned (H),
// unless they are NULL. dy (B, Tq, C). The result has the same bits for any number of threads.
void pairwise_attention_backward(PairwiseAttention *attention, const AttentionGradients *gradients,
                                 real *const dlearned[PAIRWISE_LEARNED], const real *dy,
                                 const real *const learned[PAIRWISE_LEARNED],
                                 const AttentionInput *in);

// Calls visit(context, weights, scores, mask, count) for each head of each query that is not
// padding: tokens (B, Tq) is 1, or NULL. weights and scores (count) are those of the keys in the
// window of the query; both are 0 where mask (count, or NULL) is 0. Rows are visited in order, on
// the calling thread.
typedef void (*PairwiseVisit)(void *context, const real *weights, const real *scores,
                              const uint8_t *mask, size_t count);
void pairwise_attention_measure(PairwiseAttention *attention,
                                const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in, const uint8_t *tokens,
                                PairwiseVisit visit, void *context);

// ---- decoding ---------------------------------------------------------------
// Prepares a query or key for comparison: if only its direction matters, scales it to length 1.
// Keys are stored prepared.
void pairwise_attention_direct(PairwiseKind kind, real *row, size_t size);

// Computes y (D) for a query of head h over the `count` keys and values (count, D) that it sees. q
// and keys are prepared as above. weights (count) is overwritten.
void pairwise_attention_decode(real *restrict y, real *restrict weights, PairwiseKind kind,
                               const real *const learned[PAIRWISE_LEARNED], size_t h, const real *q,
                               const real *keys, const real *values, size_t count, size_t size);

#endif
