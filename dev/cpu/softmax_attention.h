// Multi-head softmax attention, computed tile by tile with a running maximum (Milakov and
// Gimelshein 2018; Dao et al., "FlashAttention", 2022), so that the Tq x Tk weights are never
// stored.
//
//   y_i = sum_j w_ij v_j,  w_ij = exp(s_ij) / (sink + sum_j exp(s_ij)),  s_ij = q_i . k_j / sqrt(D)
//
// over the keys that i sees (attention_input.h). sink 0 is softmax, 1 is softmax1 (Miller,
// "Attention is off by one", 2023). The sink acts as one more key with score log(sink) and value 0,
// so scores of any size are safe. A row that sees only padding gives 0.
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

// Working memory for batches up to (batch, queries, keys), with at most `rows` queries and as many
// keys in all, shared by all layers of a model. With PRECISION_BFLOAT16, products multiply bf16 and
// sum in float32, if the processor has an instruction for that.
typedef struct SoftmaxAttention SoftmaxAttention;
SoftmaxAttention *softmax_attention_create(Precision precision, double sink, size_t batch,
                                           size_t queries, size_t keys, size_t rows,
                                           size_t channels, size_t heads);
struct Arena;
void softmax_attention_carve(SoftmaxAttention *attention, struct Arena *arena, bool training);
void softmax_attention_free(SoftmaxAttention *attention);

// y (B, Tq, C) is the input of the output projection. logsumexp (B, H, Tq), or NULL: the logarithm
// of the denominator of each row, with the sink, for the backward pass.
void softmax_attention_forward(SoftmaxAttention *attention, Matrix y, real *logsumexp,
                               const AttentionInput *in);

// Sets the gradients of queries, keys and values, and adds to those of biases. dy (B, Tq, C); y and
// logsumexp are results of the forward pass with the same input. The result has the same bits for
// any number of threads.
void softmax_attention_backward(SoftmaxAttention *attention, const AttentionGradients *gradients,
                                const real *dy, Matrix y, const real *logsumexp,
                                const AttentionInput *in);

// Keys and values of the tokens decoded so far by each stream, in one layer.
typedef struct {
    real *keys, *values; // (S, H, positions, D), a ring: position t is in row t % positions
    size_t positions;    // capacity: all, or as many as the window
    // (S, positions) the stream that wrote the token at each position; NULL: the stream itself
    const uint32_t *origins;
    size_t window; // a token sees the last `window` tokens, including itself; 0: all
} AttentionCache;

// Decodes one token of each stream at `position`: y (S, C) from qkv (S, 3C), which is overwritten.
// Adds its keys and values to the cache. In a parallel region, streams and heads are divided among
// the threads, which must then pass a barrier.
void softmax_attention_decode(real *restrict y, const AttentionCache *cache, real *restrict qkv,
                              const real *restrict bias, double sink, size_t position,
                              size_t streams, size_t channels, size_t heads);

#endif
