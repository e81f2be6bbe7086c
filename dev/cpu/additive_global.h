// Additive attention over a whole sequence (Wu et al., "Fastformer: Additive Attention Can Be All
// You Need", 2021), in both directions and linear in its length. Per head, over the tokens j that
// are no padding:
//
//   g = pool(q, w_q)     p_j = g * k_j     y_i = pool(p, w_k) * v_i               * is elementwise
//   pool(x, w) = sum of e_j x_j / sum of e_j,     e_j = exp(w . x_j / sqrt(D))
//
// A sequence of padding alone gives 0. As in cosine attention, weights are not dropped: the input's
// `dropout` and `first_row` are not read. Queries and keys are of one sequence.
#ifndef CPU_ADDITIVE_GLOBAL_H
#define CPU_ADDITIVE_GLOBAL_H

#include "arena.h"
#include "attention_input.h"
#include "statistics.h"

// Working memory for batches up to (batch, length), used by all layers of a model one after the
// other. Freed with free().
typedef struct AdditiveGlobal AdditiveGlobal;
AdditiveGlobal *additive_global_create(size_t batch, size_t length, size_t channels, size_t heads);
void additive_global_carve(AdditiveGlobal *attention, Arena *arena);

// y (B, T, C), what the output projection reads. weights (2, H, D): w_q, w_k.
void additive_global_forward(const AdditiveGlobal *attention, Matrix y, const real *weights,
                             const AttentionInput *in);

// Sets the gradients to queries, keys and values, adds those to biases and dweights (2, H, D), from
// dy (B, T, C). The same bits for any number of threads.
void additive_global_backward(const AdditiveGlobal *attention, const AttentionGradients *gradients,
                              real *dweights, const real *dy, const real *weights,
                              const AttentionInput *in);

// Adds the weights of both poolings to a measurement, and their scores to another. kept: those of
// the first sequence, of the heads that pool queries and then of those that pool keys (2, H, T); or
// NULL.
void additive_global_measure(const AdditiveGlobal *attention, const real *weights,
                             const AttentionInput *in, double *kept, Measurement *m,
                             Measurement *scores);

#endif
