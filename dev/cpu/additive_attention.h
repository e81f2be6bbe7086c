// Causal, windowed additive attention (Wu et al., "Fastformer: Additive Attention Can Be All You
// Need", 2021, made causal and windowed), whose cost is linear in the sequence length. Per head,
// with rows (T, D):
//
//   out = x + dropout(pool(dropout(pool(q, w_q)) * k, w_k)) * v            * is elementwise
//   pool(x, w)_i = sum over j in W(i) of e_j x'_j / (sum of e_j + sink)     W(i) = {max(0,
//   i-window+1) .. i} e_j = exp(rescale/D x'_j . w'), 0 where j is padding;  x' = (x - mean) /
//   (deviation + 1e-5), w' likewise
#ifndef CPU_ADDITIVE_ATTENTION_H
#define CPU_ADDITIVE_ATTENTION_H

#include "arena.h"
#include "dropout.h"
#include "gemm.h"
#include "model.h"

// What it computes, and working memory that all layers of a model use one after the other.
typedef struct {
    size_t channels, heads; // C, H
    size_t largest_window;  // of all layers; 0: all are global
    real rescale, sink;     // s, c
    bool raw;               // x is pooled, not x'
    size_t threads;
    struct AdditiveScratch *scratch; // (threads)
    real *dweights;                  // (B, 2, H, D) a batch row's gradients to w_q', w_k'
} AdditiveAttention;

// Adds the working memory for the fields above it; with training, for batches of up to `batch`
// rows.
void additive_attention_create(AdditiveAttention *attention);
void additive_attention_carve(AdditiveAttention *attention, Arena *arena, size_t batch,
                              bool training);
void additive_attention_free(AdditiveAttention *attention);

// w' (H, D) and the deviation (H) of each head's w (H, D).
void additive_normalise(real *normal, real *deviation, const real *weight, size_t heads,
                        size_t head_size);

// What a layer's attention works on.
typedef struct {
    const real *qkv;                      // (B, T, 3C)
    size_t window;                        // k; 0: global
    const real *weights;                  // (2, H, D) w_q', w_k'
    const real *deviations;               // (2, H)
    real *pooled_query, *pooled_key;      // (B, H, T, D) kept for the backward pass, before dropout
    real *r_query, *r_key;                // (B, H, T) 1 / (sum of e + c)
    const Dropout *drop_query, *drop_key; // NULL: none
} AdditiveInput;

// out (B, T, C) from x (B, T, C); out may be x.
void additive_attention_forward(const AdditiveAttention *attention, real *out, const real *x,
                                const AdditiveInput *in, const Batch *batch);

// dqkv (B, T, 3C), as the next products read it, from dout (B, T, C), which is the gradient to x as
// well; dquery, dkey (H, D) += the gradients to w_q, w_k.
void additive_attention_backward(const AdditiveAttention *attention, Matrix dqkv, real *dquery,
                                 real *dkey, const real *dout, const AdditiveInput *in,
                                 const Batch *batch);

// Adds the weights of both poolings and what attention adds to x, of a layer whose forward pass was
// taken.
void additive_attention_measure(const AdditiveAttention *attention, const AdditiveInput *in,
                                const Batch *batch, Statistics *statistics, size_t layer);

// What a layer remembers between the tokens of `streams` texts: running sums, so that a token costs
// the same at any position. weights (2, H, D) must stay.
typedef struct AdditiveState AdditiveState;
AdditiveState *additive_state_create(const AdditiveAttention *attention, const real *weights,
                                     size_t window, size_t streams);
void additive_state_free(AdditiveState *state);

// x (S, C) += P * v for one token of each stream, from qkv (S, 3C). In a parallel region streams
// and heads are divided among the threads, which must then wait for each other.
void additive_attention_decode(AdditiveState *state, const AdditiveAttention *attention, real *x,
                               const real *qkv);

#endif
