// Multi-head cosine attention ("Cottention", Mongaras et al. 2024) in its linear form: cost O(T),
// with a state of D x D per head.
//
//   y_i = sum_j (q_i/|q_i| . k_j/|k_j|) v_j / n_i^p
//
// over the n_i keys that i sees (attention_input.h). With a window these are the last ones: their
// sum consists of the sum over whole chunks (exp_window.h) and products with the chunks at both
// ends, so nothing is subtracted. The power p is fixed, or sigmoid(m) with a learned m per head.
// Because the sum is linear in the keys, y_i = q_i/|q_i| (sum_j k_j/|k_j| v_j^T) / n_i^p. A row
// that sees only padding gives 0, and so does a query or key shorter than 1e-12, which also gets no
// gradient. This form has no weights, and so no dropout of weights: the input's `dropout` and
// `first_row` are ignored.
#ifndef CPU_COSINE_ATTENTION_H
#define CPU_COSINE_ATTENTION_H

#include "attention_input.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>

// Working memory for batches up to (batch, queries, keys), shared by all layers of a model, which
// run one after the other. With PRECISION_BFLOAT16 the products take bf16 and sum in float32, if
// the processor has instructions for that (AVX512-BF16 or AMX, tile.h); lengths and sums over keys
// stay float32. power: p, unless it is learned.
typedef struct CosineAttention CosineAttention;
CosineAttention *cosine_attention_create(Precision precision, double power, size_t batch,
                                         size_t queries, size_t keys, size_t channels,
                                         size_t heads);
// Sets the largest window of all layers, in keys. Called before carving.
void cosine_attention_set_window(CosineAttention *attention, size_t window);
struct Arena;
void cosine_attention_carve(CosineAttention *attention, struct Arena *arena);
void cosine_attention_free(CosineAttention *attention);

// y (B, Tq, C) is the input of the output projection. exponent (H): m; NULL: the fixed power.
void cosine_attention_forward(CosineAttention *attention, Matrix y, const real *exponent,
                              const AttentionInput *in);

// Sets the gradients to queries, keys and values from dy (B, Tq, C), and adds those to biases, and
// to dexponent (H) if there is an exponent. The result has the same bits for any number of threads.
void cosine_attention_backward(CosineAttention *attention, const AttentionGradients *gradients,
                               real *dexponent, const real *dy, const real *exponent,
                               const AttentionInput *in);

// What decoding keeps of the previous tokens: a sum over all of them, or those of a window in a
// ring.
typedef struct {
    size_t window;       // 0: all
    real *sums;          // (S, H, D, D) of k v^T, 0 at first
    real *keys, *values; // (S, H, room, D), room = window once there are that many tokens
    size_t room;
} CosineMemory;

// Decodes one token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten.
// Adds the token to the memory. exponent (H), or NULL: `power`. Called by all threads of a parallel
// region, which divide streams and heads, and must wait for each other afterwards.
void cosine_attention_decode(real *restrict y, const CosineMemory *memory, real *restrict qkv,
                             const real *restrict bias, const real *restrict exponent, double power,
                             size_t position, size_t streams, size_t channels, size_t heads);

#endif
