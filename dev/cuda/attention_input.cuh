// Inputs and outputs of all attention kinds on the GPU: queries, keys and values, their addresses,
// and the mask. As described in dev/cpu/attention_input.h, except that biases are already added.
#ifndef CUDA_ATTENTION_INPUT_CUH
#define CUDA_ATTENTION_INPUT_CUH

#include "dropout.cuh"
extern "C" {
#include "attention_input.h"
}

static constexpr size_t LARGEST_HEAD = 256; // channels of a head, in all kernels

struct DeviceAttentionInput {
    Matrix rows[3];              // queries (B, Tq), keys, values (B, Tk): C elements per token
    size_t channels, heads;      // C, H
    size_t batch, queries, keys; // B, Tq, Tk
    bool causal;                 // query i sees the keys up to i (Tq = Tk), else its whole sequence
    size_t window;               // causal: number of keys up to i that it sees; 0: all
    const uint8_t *mask; // (B, Tk) 1: token, 0: padding, which no query sees; NULL: no padding
    DropoutSite dropout; // of weights
};

// Destinations of the gradients to queries, keys and values.
struct DeviceAttentionGradients {
    Matrix parts[3];
};

// Self-attention without dropout: qkv (B, T, 3C).
static inline DeviceAttentionInput attention_self(Matrix qkv, size_t heads, bool causal,
                                                  const uint8_t *mask, size_t batch,
                                                  size_t length) {
    const size_t C = qkv.columns / 3;
    return {{qkv, matrix_part(qkv, 1, C), matrix_part(qkv, 2, C)},
            C,
            heads,
            batch,
            length,
            length,
            causal,
            0,
            mask,
            dropout_none()};
}

// Its gradients: dqkv (B, T, 3C).
static inline DeviceAttentionGradients attention_self_gradients(Matrix dqkv) {
    const size_t C = dqkv.columns / 3;
    return {{dqkv, matrix_part(dqkv, 1, C), matrix_part(dqkv, 2, C)}};
}

// Cross-attention without dropout: q (B, Tq, C), kv (B, Tk, 2C), mask (B, Tk) or NULL.
static inline DeviceAttentionInput attention_cross(Matrix q, Matrix kv, size_t heads,
                                                   const uint8_t *mask, size_t batch,
                                                   size_t queries, size_t keys) {
    return {{q, kv, matrix_part(kv, 1, q.columns)},
            q.columns,
            heads,
            batch,
            queries,
            keys,
            false,
            0,
            mask,
            dropout_none()};
}

// Its gradients: dq (B, Tq, C), dkv (B, Tk, 2C).
static inline DeviceAttentionGradients attention_cross_gradients(Matrix dq, Matrix dkv) {
    return {{dq, dkv, matrix_part(dkv, 1, dq.columns)}};
}

// Exits with an error if no kernel supports the shapes or types, which is a bug in the caller.
static inline void attention_check(const DeviceAttentionInput *in, Matrix y) {
    const size_t size = in->heads ? in->channels / in->heads : 0;
    if (size == 0 || size > LARGEST_HEAD || size * in->heads != in->channels ||
        y.columns != in->channels)
        fail("attention: %zu heads of %zu channels, in rows of %zu: expected heads of 1..256 "
             "channels",
             in->heads, in->channels, y.columns);
    for (const Matrix &rows : in->rows)
        if (rows.bf16 != y.bf16)
            fail("attention: queries, keys, values and results differ in type");
    if (in->causal && in->queries != in->keys)
        fail("attention: %zu causal queries of %zu keys", in->queries, in->keys);
    if (in->window && !in->causal) fail("attention: a window in both directions");
}

#endif
