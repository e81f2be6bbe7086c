// Softmax attention of sequences so short that all that a head of one of them needs stays in the
// cache of the thread that works on it: the definition is that of softmax_attention.h, which calls
// this, and products are float32 whatever the precision.
#ifndef CPU_SHORT_ATTENTION_H
#define CPU_SHORT_ATTENTION_H

#include "attention_input.h"
#include "gemm.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>

enum { SHORT_ATTENTION = 64 }; // queries and keys, at most

// Working memory of the threads, for sequences up to (queries, keys).
typedef struct ShortAttention ShortAttention;
struct Arena;
ShortAttention *short_attention_create(double sink, size_t queries, size_t keys, size_t channels,
                                       size_t heads);
void short_attention_carve(ShortAttention *attention, struct Arena *arena, bool training);
void short_attention_free(ShortAttention *attention);

// Whether the sequences are so short.
static inline bool attention_is_short(const AttentionInput *in) {
    return in->queries <= SHORT_ATTENTION && in->keys <= SHORT_ATTENTION;
}

// As softmax_attention_forward() and softmax_attention_backward().
void short_attention_forward(const ShortAttention *attention, Matrix y, real *logsumexp,
                             const AttentionInput *in);
void short_attention_backward(const ShortAttention *attention, const AttentionGradients *gradients,
                              const real *dy, Matrix y, const real *logsumexp,
                              const AttentionInput *in);

#endif
