// Softmax attention for sequences so short that the data of one head of one sequence fits in the
// cache of one thread. softmax_attention.h defines it and softmax_attention.c calls it. Products
// are float32 for any precision.
#ifndef CPU_SHORT_ATTENTION_H
#define CPU_SHORT_ATTENTION_H

#include "attention_input.h"
#include "gemm.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>

enum { SHORT_ATTENTION = 64 }; // largest number of queries, and of keys

// Working memory of the threads, for sequences up to (queries, keys).
typedef struct ShortAttention ShortAttention;
struct Arena;
ShortAttention *short_attention_create(double sink, size_t queries, size_t keys, size_t channels,
                                       size_t heads);
void short_attention_carve(ShortAttention *attention, struct Arena *arena, bool training);
void short_attention_free(ShortAttention *attention);

// Whether the sequences are short enough.
static inline bool attention_is_short(const AttentionInput *in) {
    return in->queries <= SHORT_ATTENTION && in->keys <= SHORT_ATTENTION;
}

// Same as softmax_attention_forward() and softmax_attention_backward().
void short_attention_forward(const ShortAttention *attention, Matrix y, real *logsumexp,
                             const AttentionInput *in);
void short_attention_backward(const ShortAttention *attention, const AttentionGradients *gradients,
                              const real *dy, Matrix y, const real *logsumexp,
                              const AttentionInput *in);

#endif
