// Multi-head attention of the kinds of --attention (attention_type.h) on the GPU. As in
// dev/cpu/attention.h, each kind is a row of functions, so that blocks are independent of the kind.
// The many kernels are compiled only once (attention.cu).
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "statistics.cuh"
extern "C" {
#include "attention_type.h"
}

// The shapes that a layer's memory must hold: batches up to (batch, length). If only the number of
// tokens is limited, that limit and 1.
struct DeviceAttentionShape {
    const AttentionPlan *plan;
    size_t channels, heads, batch, length;
    bool in_bf16; // the projection reads bf16
    bool training;
};

// A layer's memory of the tokens of `shape.batch` texts during decoding.
struct DeviceAttentionMemory {
    float *numbers;
    size_t room;           // capacity in tokens per text
    const uint64_t *count; // tokens so far, on the device
};

// One layer in one pass.
struct DeviceAttentionCall {
    DeviceAttentionShape shape;
    DeviceAttentionInput in;
    DropoutSite dropout;                     // of the second site; in.dropout: of the first
    const float *learned[ATTENTION_LEARNED]; // the kind's parameters, or NULL
    float *kept;                             // from the forward to the backward pass
    float *workspace;
    Matrix y;       // (B, Tq, C) the projection's input; or, without one, x + the result
    const float *x; // (B, Tq, C); NULL: y is only the result
    DeviceAttentionMemory memory; // for decoding
};

struct DeviceAttentionKernel {
    bool trains_key_bias; // the gradients to the key bias are not 0
    // Floats of working memory, which layers share, and floats that each layer keeps.
    size_t (*workspace)(const Device *d, const DeviceAttentionShape *shape);
    size_t (*kept)(const DeviceAttentionShape *shape);
    void (*forward)(const Device *d, const DeviceAttentionCall *call);
    // Sets the gradients to queries, keys and values from dy (B, Tq, C), and adds to dlearned.
    // Requires y and the kept floats of the forward pass.
    void (*backward)(const Device *d, const DeviceAttentionCall *call,
                     const DeviceAttentionGradients *gradients,
                     float *const dlearned[ATTENTION_LEARNED], Matrix dy);
    // Floats of memory for `room` tokens. The memory for fewer tokens is a prefix.
    size_t (*memory)(const DeviceAttentionShape *shape, size_t room);
    // Forward pass of one more token of each text, which is added to the memory; float32 only.
    void (*step)(const Device *d, const DeviceAttentionCall *call);
    // After a layer's forward pass: adds its weights, for queries that are not padding (tokens (B,
    // Tq) 1, or NULL), and its scores to the statistics. places: of weights and scores, for kinds
    // without places of their own.
    void (*measure)(const Device *d, const DeviceAttentionCall *call, const DeviceStatistics *s,
                    const uint8_t *tokens, size_t layer, const char *const places[2]);
};

extern const DeviceAttentionKernel attention_kernels[ATTENTION_KINDS];

static inline const DeviceAttentionKernel *attention_kernel(const AttentionPlan *plan) {
    return &attention_kernels[plan->kind];
}

#endif
