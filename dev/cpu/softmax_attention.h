// Causal multi-head softmax attention, tile by tile with a running maximum (Milakov and Gimelshein 2018; Dao
// et al., "FlashAttention", 2022), so that T x T weights are never held.
//
//   y_i = sum_j w_ij v_j,  w_ij = exp(s_ij) / (sink + sum_j exp(s_ij)),  s_ij = q_i . k_j / sqrt(D)
//
// over the j <= i that are no padding. sink 0 is softmax, 1 softmax1 (Miller, "Attention is off by one",
// 2023): one more key of score log(sink) and value 0, so that scores of any size are safe. A row that sees
// only padding gives 0.
//
// Dropout zeroes weights after the division. Row b of the batch is row first_row + b of the update; weight
// (b, h, i, j) is element (((first_row + b) H + h) T + i) T' + j, T' = T rounded up to a multiple of 128, so
// that each row starts a block of the generator.
#ifndef CPU_SOFTMAX_ATTENTION_H
#define CPU_SOFTMAX_ATTENTION_H

#include "dropout.h"
#include "gemm.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Working memory for batches up to (batch, length), used by all layers of a model one after the other. With
// PRECISION_BFLOAT16 the products take bf16 and sum in float32, where the processor has an instruction for
// that.
typedef struct SoftmaxAttention SoftmaxAttention;
SoftmaxAttention *softmax_attention_create(Precision precision, double sink, size_t batch, size_t length,
                                           size_t channels, size_t heads, bool training);
void softmax_attention_free(SoftmaxAttention *attention);

// y (B, T, C), what the output projection reads. logsumexp (B, H, T): the logarithm of each row's
// denominator, sink included, which the backward pass needs; or NULL. qkv (B, T, 3C) holds queries, keys and
// values; bias (3C) is added to it, or NULL. mask (B, T) 1: token, 0: padding, or NULL. dropout NULL: none.
void softmax_attention_forward(SoftmaxAttention *attention, GemmInput y, real *logsumexp, const real *qkv,
                               const real *bias, const uint8_t *mask, const Dropout *dropout,
                               uint64_t first_row, size_t batch, size_t length);

// dqkv (B, T, 3C), as the next products read it; dbias (3C) += its sum over rows, or NULL. dy (B, T, C); y
// and logsumexp as the forward pass left them. The same bits for any number of threads.
void softmax_attention_backward(SoftmaxAttention *attention, GemmInput dqkv, real *dbias, const real *dy,
                                GemmInput y, const real *logsumexp, const real *qkv, const real *bias,
                                const uint8_t *mask, const Dropout *dropout, uint64_t first_row, size_t batch,
                                size_t length);

// One token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten. Its keys and
// values are appended to the caches (S, H, positions, D), which hold those of the positions before. In a
// parallel region streams and heads are divided among the threads, which must then wait for each other.
void softmax_attention_decode(real *restrict y, real *restrict keys, real *restrict values,
                              real *restrict qkv, const real *restrict bias, double sink, size_t position,
                              size_t positions, size_t streams, size_t channels, size_t heads);

#endif
