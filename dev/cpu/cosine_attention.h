// Multi-head cosine attention ("Cottention", Mongaras et al. 2024), in its linear form: cost O(T),
// a state of D x D a head.
//
//   y_i = sum_j (q_i/|q_i| . k_j/|k_j|) v_j / n_i^p
//
// over the n_i keys that i sees (attention_input.h), with a window the last ones, whose sum is made
// of whole chunks' (exp_window.h) and of the products with those at its ends: nothing is
// subtracted. The power p is fixed, or sigmoid(m) with a learned m for each head. As the sum is
// linear in the keys, y_i = q_i/|q_i| (sum_j k_j/|k_j| v_j^T) / n_i^p. A row that sees only padding
// gives 0, and so does a query or key shorter than 1e-12, which then takes no gradient. There are
// no weights in this form, and no dropout of them: the input's `dropout` and `first_row` are not
// read.
#ifndef CPU_COSINE_ATTENTION_H
#define CPU_COSINE_ATTENTION_H

#include "attention_input.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>

// Working memory for batches up to (batch, queries, keys), used by all layers of a model one after
// the other. With PRECISION_BFLOAT16 the products take bf16 and sum in float32, where the processor
// has an instruction for that (AVX512-BF16 or AMX, tile.h); lengths and sums over keys stay
// float32. power: p where none is learned.
typedef struct CosineAttention CosineAttention;
CosineAttention *cosine_attention_create(Precision precision, double power, size_t batch,
                                         size_t queries, size_t keys, size_t channels,
                                         size_t heads);
// Before carving: layers have windows of up to so many keys.
void cosine_attention_set_window(CosineAttention *attention, size_t window);
struct Arena;
void cosine_attention_carve(CosineAttention *attention, struct Arena *arena);
void cosine_attention_free(CosineAttention *attention);

// y (B, Tq, C), what the output projection reads. exponent (H): m, or NULL: the fixed power.
void cosine_attention_forward(CosineAttention *attention, Matrix y, const real *exponent,
                              const AttentionInput *in);

// Sets the gradients to queries, keys and values, adds those to biases, and to dexponent (H) where
// there is an exponent. dy (B, Tq, C). The same bits for any number of threads.
void cosine_attention_backward(CosineAttention *attention, const AttentionGradients *gradients,
                               real *dexponent, const real *dy, const real *exponent,
                               const AttentionInput *in);

// What decoding keeps of the tokens so far: of all of them a sum, or the window's in a ring.
typedef struct {
    size_t window;       // 0: all
    real *sums;          // (S, H, D, D) of k v^T, 0 at first
    real *keys, *values; // (S, H, room, D), room = window once so many have come
    size_t room;
} CosineMemory;

// One token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten. The
// memory takes it in. exponent (H), or NULL: `power`. In a parallel region
// streams and heads are divided among the threads, which must then wait for each other.
void cosine_attention_decode(real *restrict y, const CosineMemory *memory, real *restrict qkv,
                             const real *restrict bias, const real *restrict exponent, double power,
                             size_t position, size_t streams, size_t channels, size_t heads);

#endif
