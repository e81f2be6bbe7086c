#include "additive_global.cuh"
#include "attention.cuh"
#include "cosine_attention.cuh"
#include "softmax_attention.cuh"

size_t attention_workspace(const Device *d, const DeviceAttention *a, size_t batch, size_t length,
                           size_t channels, size_t heads, bool in_bf16) {
    return a->cosine     ? cosine_attention_workspace(batch, length, channels, heads)
           : a->additive ? additive_global_workspace(batch, length, channels, heads)
                         : softmax_attention_workspace(d, batch, length, channels, heads, in_bf16);
}

size_t attention_kept(const DeviceAttention *a, size_t batch, size_t length, size_t channels,
                      size_t heads) {
    return a->cosine     ? 0
           : a->additive ? additive_global_kept(batch, channels, heads)
                         : batch * length * heads;
}

void attention_forward(const Device *d, const DeviceAttention *a, Matrix y, float *kept,
                       const float *learned, const DeviceAttentionInput *in, float *workspace) {
    if (a->cosine)
        cosine_attention_forward(d, y, learned, a->power, in, workspace);
    else if (a->additive)
        additive_global_forward(d, y, kept, learned, in, workspace);
    else
        softmax_attention_forward(d, y, kept, in, a->sink);
}

void attention_backward(const Device *d, const DeviceAttention *a,
                        const DeviceAttentionGradients *gradients, float *dlearned, Matrix dy,
                        Matrix y, const float *kept, const float *learned,
                        const DeviceAttentionInput *in, float *workspace) {
    if (a->cosine)
        cosine_attention_backward(d, gradients, dlearned, dy, learned, a->power, in, workspace);
    else if (a->additive)
        additive_global_backward(d, gradients, dlearned, dy, kept, learned, in, workspace);
    else
        softmax_attention_backward(d, gradients, dy, y, kept, in, workspace);
}
