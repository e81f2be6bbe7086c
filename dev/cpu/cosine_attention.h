// Causal multi-head cosine attention ("Cottention", Mongaras et al. 2024), in its linear form: cost O(T), a
// state of D x D a head.
//
//   y_i = sum_j (q_i/|q_i| . k_j/|k_j|) v_j / n_i^sigmoid(m)
//
// over the n_i keys j <= i that are no padding; m is learned for each head. As the sum is linear in the keys,
// y_i = q_i/|q_i| (sum_j k_j/|k_j| v_j^T) / n_i^sigmoid(m). A row that sees only padding gives 0, and so does
// a query or key shorter than 1e-12, which then takes no gradient. There are no weights in this form, and no
// dropout of them.
#ifndef CPU_COSINE_ATTENTION_H
#define CPU_COSINE_ATTENTION_H

#include "gemm.h"
#include "real.h"
#include <stddef.h>
#include <stdint.h>

// Working memory for batches up to (batch, length), used by all layers of a model one after the other.
typedef struct CosineAttention CosineAttention;
CosineAttention *cosine_attention_create(size_t batch, size_t length, size_t channels, size_t heads);
void cosine_attention_free(CosineAttention *attention);

// y (B, T, C), what the output projection reads. qkv (B, T, 3C) holds queries, keys and values; bias (3C) is
// added to it, or NULL. exponent (H): m. mask (B, T) 1: token, 0: padding, or NULL.
void cosine_attention_forward(CosineAttention *attention, GemmInput y, const real *qkv, const real *bias,
                              const real *exponent, const uint8_t *mask, size_t batch, size_t length);

// dqkv (B, T, 3C), as the next products read it; dbias (3C) += its sum over rows, or NULL; dexponent (H) +=.
// dy (B, T, C). The same bits for any number of threads.
void cosine_attention_backward(CosineAttention *attention, GemmInput dqkv, real *dbias, real *dexponent,
                               const real *dy, const real *qkv, const real *bias, const real *exponent,
                               const uint8_t *mask, size_t batch, size_t length);

// One token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten. state (S, H, D,
// D), 0 at first, takes it in. In a parallel region streams and heads are divided among the threads, which
// must then wait for each other.
void cosine_attention_decode(real *restrict y, real *restrict state, real *restrict qkv,
                             const real *restrict bias, const real *restrict exponent, size_t position,
                             size_t streams, size_t channels, size_t heads);

#endif
