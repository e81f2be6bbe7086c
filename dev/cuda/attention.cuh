// Multi-head attention of the kinds that --attention names, with one interface, as
// dev/cpu/attention.h: softmax, softmax1, cosine and, in both directions, additive. The kernels, of
// which there are many for three models, are compiled once (attention.cu).
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "attention_input.cuh"
extern "C" {
#include "attention_type.h"
}

struct DeviceAttention {
    bool cosine, additive; // neither: softmax
    double power;          // cosine: of the number of keys seen, where none is learned
    double sink;           // of the softmax's denominator: 0 softmax, 1 softmax1
};

static inline DeviceAttention attention_of_plan(const AttentionPlan *plan) {
    return {plan->kind == ATTENTION_COSINE, plan->kind == ATTENTION_ADDITIVE_GLOBAL, plan->power,
            plan->sink};
}

// Floats of working memory, for batches of up to so many queries and, where they are others, keys.
size_t attention_workspace(const Device *d, const DeviceAttention *a, size_t batch, size_t length,
                           size_t channels, size_t heads, bool in_bf16);

// Floats that the forward pass keeps for the backward pass: the logarithms of softmax's
// denominators (B, H, Tq), or what additive attention pools; cosine attention keeps none.
size_t attention_kept(const DeviceAttention *a, size_t batch, size_t length, size_t channels,
                      size_t heads);

// y (B, Tq, C), what the output projection reads, and what is kept. learned: cosine's m (H), or
// NULL: the power is fixed; additive attention's w (2, H, D).
void attention_forward(const Device *d, const DeviceAttention *a, Matrix y, float *kept,
                       const float *learned, const DeviceAttentionInput *in, float *workspace);

// Sets the gradients to queries, keys and values from dy (B, Tq, C), and adds that to dlearned. y
// and kept as the forward pass left them.
void attention_backward(const Device *d, const DeviceAttention *a,
                        const DeviceAttentionGradients *gradients, float *dlearned, Matrix dy,
                        Matrix y, const float *kept, const float *learned,
                        const DeviceAttentionInput *in, float *workspace);

// Whether gradients to the bias of the keys are other than 0. In softmax without a sink this bias
// adds the same to all scores of a row, which changes no weight; what would come out is rounding,
// of which AdamW would make full steps.
static inline bool attention_trains_key_bias(const DeviceAttention *a) {
    return a->cosine || a->additive || a->sink > 0;
}

#endif
