// Attention whose weights are made of any similarity of query and key by any activation
// (pairwise_kind.h), to try what trains: all pairs are computed one by one, in plain C, for causal
// attention, windows and both directions.
//
//   y_i = sum_j w_ij v_j over the keys that i sees (attention_input.h)
//
// A row that sees only padding gives 0; so does, as a similarity, a query or key shorter than 1e-12
// where its direction counts. Dropout zeroes weights, numbered as those of softmax attention
// (softmax_attention.h).
#ifndef CPU_PAIRWISE_ATTENTION_H
#define CPU_PAIRWISE_ATTENTION_H

#include "attention_input.h"
#include "pairwise_kind.h"
#include "real.h"
#include <stddef.h>

// Working memory for batches up to (batch, queries, keys), used by all layers of a model one after
// the other.
typedef struct PairwiseAttention PairwiseAttention;
PairwiseAttention *pairwise_attention_create(PairwiseKind kind, size_t batch, size_t queries,
                                             size_t keys, size_t channels, size_t heads);
struct Arena;
void pairwise_attention_carve(PairwiseAttention *attention, struct Arena *arena, bool training);
void pairwise_attention_free(PairwiseAttention *attention);

// y (B, Tq, C), what the output projection reads. learned[.] (H), or NULL: the kind has not got it,
// or the power is fixed.
void pairwise_attention_forward(PairwiseAttention *attention, Matrix y,
                                const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in);

// Sets the gradients to queries, keys and values, and adds those to biases and dlearned (H), where
// there are any. dy (B, Tq, C). The same bits for any number of threads.
void pairwise_attention_backward(PairwiseAttention *attention, const AttentionGradients *gradients,
                                 real *const dlearned[PAIRWISE_LEARNED], const real *dy,
                                 const real *const learned[PAIRWISE_LEARNED],
                                 const AttentionInput *in);

// Calls visit(context, weights, scores, mask, count) for each row of weights (count) of the keys in
// its window, and the scores that they are made of, 0 where the mask (count, or NULL) is 0, of the
// queries that are no padding: tokens (B, Tq) 1, or NULL. Rows come in order, on the calling
// thread.
typedef void (*PairwiseVisit)(void *context, const real *weights, const real *scores,
                              const uint8_t *mask, size_t count);
void pairwise_attention_measure(PairwiseAttention *attention,
                                const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in, const uint8_t *tokens,
                                PairwiseVisit visit, void *context);

// ---- decoding ---------------------------------------------------------------
// Keys are kept as they are compared: at length 1 where their direction counts.
void pairwise_attention_direct(PairwiseKind kind, real *row, size_t size);

// y (D) of a query of head h over the `count` keys and values (count, D) that it sees; q and keys
// as above. weights (count) is overwritten.
void pairwise_attention_decode(real *restrict y, real *restrict weights, PairwiseKind kind,
                               const real *const learned[PAIRWISE_LEARNED], size_t h, const real *q,
                               const real *keys, const real *values, size_t count, size_t size);

#endif
