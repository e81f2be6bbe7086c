// Multi-head attention of the kinds that --attention names (attention_type.h) on the GPU: a row of
// functions for each, as in dev/cpu/attention.h, so that blocks know none of them. The kernels, of
// which there are many, are compiled once (attention.cu).
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "statistics.cuh"
extern "C" {
#include "attention_type.h"
}

// What a layer's memory is for: batches up to (batch, length), or, where their tokens have another
// limit, up to so many and 1.
struct DeviceAttentionShape {
    const AttentionPlan *plan;
    size_t channels, heads, batch, length;
    bool in_bf16; // the projection reads bf16
    bool training;
};

// What a layer remembers of the tokens of `shape.batch` texts that it decodes.
struct DeviceAttentionMemory {
    float *numbers;
    size_t room;           // for so many tokens of each
    const uint64_t *count; // tokens so far, on the device
};

// One layer in one pass.
struct DeviceAttentionCall {
    DeviceAttentionShape shape;
    DeviceAttentionInput in;
    DropoutSite dropout;     // of the second site; in.dropout: of the first
    const float *learned[2]; // the kind's parameters; NULL: it has none
    float *kept;             // from the forward to the backward pass
    float *workspace;
    Matrix y;       // (B, Tq, C) what the projection reads; or, without one, x + the result
    const float *x; // (B, Tq, C); NULL: y is the result alone
    DeviceAttentionMemory memory; // decoding
};

struct DeviceAttentionKernel {
    bool trains_key_bias; // gradients to the bias of the keys are other than 0
    // Floats of working memory, which layers share, and those that a layer keeps.
    size_t (*workspace)(const Device *d, const DeviceAttentionShape *shape);
    size_t (*kept)(const DeviceAttentionShape *shape);
    void (*forward)(const Device *d, const DeviceAttentionCall *call);
    // Sets the gradients to queries, keys and values from dy (B, Tq, C), and adds those to
    // dlearned. y and what is kept as the forward pass left them.
    void (*backward)(const Device *d, const DeviceAttentionCall *call,
                     const DeviceAttentionGradients *gradients, float *const dlearned[2],
                     Matrix dy);
    // Floats of memory for so many tokens. Those for fewer are its beginning.
    size_t (*memory)(const DeviceAttentionShape *shape, size_t room);
    // Forward of one more token of each text, which joins the memory; float32 alone.
    void (*step)(const Device *d, const DeviceAttentionCall *call);
    // Adds the weights of a layer whose forward pass was taken, of queries that are no padding
    // (tokens (B, Tq) 1, or NULL), and its scores. places: of weights and scores, for kinds that
    // have no places of their own.
    void (*measure)(const Device *d, const DeviceAttentionCall *call, const DeviceStatistics *s,
                    const uint8_t *tokens, size_t layer, const char *const places[2]);
};

extern const DeviceAttentionKernel attention_kernels[ATTENTION_KINDS];

static inline const DeviceAttentionKernel *attention_kernel(const AttentionPlan *plan) {
    return &attention_kernels[plan->kind];
}

#endif
