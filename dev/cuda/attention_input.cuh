// What attention of any kind reads and writes on the GPU: whose queries look at whose keys and
// values, where these lie, and what is hidden. What dev/cpu/attention_input.h says holds here;
// biases are added already.
#ifndef CUDA_ATTENTION_INPUT_CUH
#define CUDA_ATTENTION_INPUT_CUH

#include "dropout.cuh"
extern "C" {
#include "attention_input.h"
}

struct DeviceAttentionInput {
    Matrix rows[3];         // queries (B, Tq), keys, values (B, Tk): the C numbers of each token
    size_t channels, heads; // C, H
    size_t batch, queries, keys; // B, Tq, Tk
    bool causal;         // query i sees the keys up to i (Tq = Tk), else all of its sequence
    size_t window;       // causal: it sees the last so many of them; 0: all
    const uint8_t *mask; // (B, Tk) 1: token, 0: padding, which no query sees; NULL: all are tokens
    DropoutSite dropout; // of weights
};

// Where gradients to queries, keys and values go.
struct DeviceAttentionGradients {
    Matrix parts[3];
};

// Of tokens among themselves, without dropout: qkv (B, T, 3C).
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

// Of tokens to those of another sequence, without dropout: q (B, Tq, C), kv (B, Tk, 2C), mask (B,
// Tk) or NULL.
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

// A caller whose shapes or types no kernel takes has a bug, which ends the program.
static inline void attention_check(const DeviceAttentionInput *in, Matrix y) {
    const size_t size = in->heads ? in->channels / in->heads : 0;
    if (size == 0 || size > 256 || size * in->heads != in->channels || y.columns != in->channels)
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
