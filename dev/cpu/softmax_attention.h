// Multi-head softmax attention, tile by tile with a running maximum (Milakov and Gimelshein 2018;
// Dao et al., "FlashAttention", 2022), so that Tq x Tk weights are never held.
//
//   y_i = sum_j w_ij v_j,  w_ij = exp(s_ij) / (sink + sum_j exp(s_ij)),  s_ij = q_i . k_j / sqrt(D)
//
// over the keys that i sees (attention_input.h). sink 0 is softmax, 1 softmax1 (Miller, "Attention
// is off by one", 2023): one more key of score log(sink) and value 0, so that scores of any size
// are safe. A row that sees only padding gives 0.
//
// Dropout zeroes weights after the division. Row b of the batch is row first_row + b of the update;
// weight (b, h, i, j) is element (((first_row + b) H + h) Tq + i) T' + j, T' = Tk rounded up to a
// multiple of 128, so that each row starts a block of the generator.
#ifndef CPU_SOFTMAX_ATTENTION_H
#define CPU_SOFTMAX_ATTENTION_H

#include "attention_input.h"
#include "gemm.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>

// Working memory for batches up to (batch, queries, keys) with at most `rows` queries, and as many
// keys, used by all layers of a model one after the other. With PRECISION_BFLOAT16 the products
// take bf16 and sum in float32, where the processor has an instruction for that.
typedef struct SoftmaxAttention SoftmaxAttention;
SoftmaxAttention *softmax_attention_create(Precision precision, double sink, size_t batch,
                                           size_t queries, size_t keys, size_t rows,
                                           size_t channels, size_t heads);
struct Arena;
void softmax_attention_carve(SoftmaxAttention *attention, struct Arena *arena, bool training);
void softmax_attention_free(SoftmaxAttention *attention);

// y (B, Tq, C), what the output projection reads. logsumexp (B, H, Tq): the logarithm of each row's
// denominator, sink included, which the backward pass needs; or NULL.
void softmax_attention_forward(SoftmaxAttention *attention, Matrix y, real *logsumexp,
                               const AttentionInput *in);

// Sets the gradients to queries, keys and values, and adds those to biases. dy (B, Tq, C); y and
// logsumexp as the forward pass of the same input left them. The same bits for any number of
// threads.
void softmax_attention_backward(SoftmaxAttention *attention, const AttentionGradients *gradients,
                                const real *dy, Matrix y, const real *logsumexp,
                                const AttentionInput *in);

// Keys and values of the tokens that streams have decoded, in one layer.
typedef struct {
    real *keys, *values; // (S, H, positions, D): a ring, position t is in row t % positions
    size_t positions;    // that have room: all, or as many as the window
    const uint32_t
        *origins; // (S, positions) the stream that wrote a stream's token there; NULL: each its own
    size_t window; // a token sees the last so many, itself among them; 0: all
} AttentionCache;

// One token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten. Its keys
// and values join the cache. In a parallel region streams and heads are divided among
// the threads, which must then wait for each other.
void softmax_attention_decode(real *restrict y, const AttentionCache *cache, real *restrict qkv,
                              const real *restrict bias, double sink, size_t position,
                              size_t streams, size_t channels, size_t heads);

#endif
