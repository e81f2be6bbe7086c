// Input and gradients of attention of any kind: which queries attend to which keys and values,
// where these are stored, and what is masked.
//
// B sequences; the Tq queries of each attend to its Tk keys and values. In self-attention both are
// the tokens of one sequence (Tq = Tk), in cross-attention the tokens of two. C channels are H
// heads of D.
#ifndef CPU_ATTENTION_INPUT_H
#define CPU_ATTENTION_INPUT_H

#include "dropout.h"
#include "error.h"
#include "gemm.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { QUERY, KEY, VALUE } AttentionPart;

// Queries, keys or values: the C numbers of token t of sequence b are at x + (b T + t) stride,
// where T is Tq or Tk. Head h has the D numbers from h D on. bias (C) is added to them, or NULL.
typedef struct {
    const real *x, *bias;
    size_t stride;
} AttentionRows;

typedef struct {
    AttentionRows rows[3];       // queries, keys, values
    size_t batch, queries, keys; // B, Tq, Tk
    bool causal;            // query i sees the keys up to i (Tq = Tk); else all of its sequence
    size_t window;          // causal: only the last `window` of these, including key i; 0: all
    const uint8_t *mask;    // (B, Tk) 1: token, 0: padding, which no query sees; NULL: no padding
    const Dropout *dropout; // of weights; NULL: none
    uint64_t first_row;     // number of sequence 0 within the update, which determines dropout
} AttentionInput;

// Where gradients go: the C numbers of each row to columns `column` to column + C; bias (C) +=
// their sum over rows, or NULL.
typedef struct {
    Matrix to;
    size_t column;
    real *bias;
} AttentionGradient;

typedef struct {
    AttentionGradient parts[3]; // to queries, keys, values
} AttentionGradients;

// Part `part` of several parts stored side by side in rows of `stride` numbers.
static inline AttentionRows attention_rows(const real *x, const real *bias, size_t part,
                                           size_t channels, size_t stride) {
    const AttentionRows rows = {x + part * channels, bias ? bias + part * channels : NULL, stride};
    return rows;
}

static inline AttentionGradient attention_gradient(Matrix to, real *bias, size_t part,
                                                   size_t channels) {
    const AttentionGradient gradient = {to, part * channels, bias ? bias + part * channels : NULL};
    return gradient;
}

// Self-attention without dropout: qkv (B, T, 3C), bias (3C) or NULL.
static inline AttentionInput attention_self(const real *qkv, const real *bias, size_t channels,
                                            bool causal, const uint8_t *mask, size_t batch,
                                            size_t length) {
    const AttentionInput in = {{attention_rows(qkv, bias, 0, channels, 3 * channels),
                                attention_rows(qkv, bias, 1, channels, 3 * channels),
                                attention_rows(qkv, bias, 2, channels, 3 * channels)},
                               batch,
                               length,
                               length,
                               causal,
                               0,
                               mask,
                               NULL,
                               0};
    return in;
}

// Gradients of attention_self(): dqkv (B, T, 3C), dbias (3C) or NULL.
static inline AttentionGradients attention_self_gradients(Matrix dqkv, real *dbias,
                                                          size_t channels) {
    const AttentionGradients gradients = {{attention_gradient(dqkv, dbias, 0, channels),
                                           attention_gradient(dqkv, dbias, 1, channels),
                                           attention_gradient(dqkv, dbias, 2, channels)}};
    return gradients;
}

// Cross-attention without dropout: q (B, Tq, C), its bias (C) or NULL; kv (B, Tk, 2C), its bias
// (2C) or NULL; mask (B, Tk) or NULL.
static inline AttentionInput attention_cross(const real *q, const real *q_bias, const real *kv,
                                             const real *kv_bias, size_t channels,
                                             const uint8_t *mask, size_t batch, size_t queries,
                                             size_t keys) {
    const AttentionInput in = {{attention_rows(q, q_bias, 0, channels, channels),
                                attention_rows(kv, kv_bias, 0, channels, 2 * channels),
                                attention_rows(kv, kv_bias, 1, channels, 2 * channels)},
                               batch,
                               queries,
                               keys,
                               false,
                               0,
                               mask,
                               NULL,
                               0};
    return in;
}

// Gradients of attention_cross(): dq (B, Tq, C), dkv (B, Tk, 2C); biases may be NULL.
static inline AttentionGradients attention_cross_gradients(Matrix dq, real *dq_bias, Matrix dkv,
                                                           real *dkv_bias, size_t channels) {
    const AttentionGradients gradients = {{attention_gradient(dq, dq_bias, 0, channels),
                                           attention_gradient(dkv, dkv_bias, 0, channels),
                                           attention_gradient(dkv, dkv_bias, 1, channels)}};
    return gradients;
}

// Query i sees the keys from attention_first_key() up to attention_keys_end(), which may include
// padding.
static inline size_t attention_first_key(const AttentionInput *in, size_t i) {
    return in->window > 0 && i >= in->window ? i + 1 - in->window : 0;
}

static inline size_t attention_keys_end(const AttentionInput *in, size_t i) {
    return in->causal ? i + 1 : in->keys;
}

// Exits with an error if the caller has a bug: the batch is larger than the memory for (batch,
// queries, keys), a causal input has fewer or more queries than keys, or a window is not causal.
static inline void attention_check(const AttentionInput *in, size_t batch, size_t queries,
                                   size_t keys) {
    if (in->batch > batch || in->queries > queries || in->keys > keys)
        fail("attention: batch %zu x %zu queries x %zu keys is larger than its memory, %zu x %zu x "
             "%zu",
             in->batch, in->queries, in->keys, batch, queries, keys);
    if (in->causal && in->queries != in->keys)
        fail("attention: %zu causal queries of %zu keys", in->queries, in->keys);
    if (in->window > 0 && !in->causal)
        fail("attention: a window of %zu keys, not causal", in->window);
}

#endif
