// Additive attention over a whole sequence (Wu et al., "Fastformer: Additive Attention Can Be All
// You Need", 2021), bidirectional and linear in its length. Per head, over all tokens j that are
// not padding:
//
//   g = pool(q, w_q)     p_j = g * k_j     y_i = pool(p, w_k) * v_i               * is elementwise
//   pool(x, w) = sum of e_j x_j / sum of e_j,     e_j = exp(w . x_j / sqrt(D))
//
// A sequence of only padding gives 0. As in cosine attention, weights have no dropout: the input's
// `dropout` and `first_row` are ignored. Queries and keys belong to the same sequence.
#ifndef CPU_ADDITIVE_GLOBAL_H
#define CPU_ADDITIVE_GLOBAL_H

#include "arena.h"
#include "attention_input.h"
#include "statistics.h"

// Working memory for batches up to (batch, length), shared by all layers of a model, which run one
// after the other. Freed with free().
typedef struct AdditiveGlobal AdditiveGlobal;
AdditiveGlobal *additive_global_create(size_t batch, size_t length, size_t channels, size_t heads);
void additive_global_carve(AdditiveGlobal *attention, Arena *arena);

// y (B, T, C) is the input of the output projection. weights (2, H, D): w_q, w_k.
void additive_global_forward(const AdditiveGlobal *attention, Matrix y, const real *weights,
                             const AttentionInput *in);

// Sets the gradients to queries, keys and values from dy (B, T, C), and adds those to biases and
// dweights (2, H, D). The result has the same bits for any number of threads.
void additive_global_backward(const AdditiveGlobal *attention, const AttentionGradients *gradients,
                              real *dweights, const real *dy, const real *weights,
                              const AttentionInput *in);

// Adds the weights of both poolings to m, and their scores to `scores`. kept (2, H, T): receives
// the weights of the first sequence, first those that pool queries, then those that pool keys; or
// NULL.
void additive_global_measure(const AdditiveGlobal *attention, const real *weights,
                             const AttentionInput *in, double *kept, Measurement *m,
                             Measurement *scores);

#endif
