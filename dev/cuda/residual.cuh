// The residual connection after a sublayer, with dropout of the sublayer's output, and the
// LayerNorm that follows.
#ifndef CUDA_RESIDUAL_CUH
#define CUDA_RESIDUAL_CUH

#include "layernorm.cuh"

// Arguments of residual_layernorm_forward(), except the sublayer's output y.
struct ResidualNorm {
    float *out;         // (M, C) x + dropout(y); must not alias x, which is read again
    LayerNormOutput to; // output of the LayerNorm of `out`
    const float *x;     // (M, C)
    LayerNormWeights weights;
    DropoutSite site;
    size_t length; // T
};

// y (M, C). The backward pass is layernorm_backward() with a tail: the gradient of x equals that of
// `out`.
static inline void residual_layernorm_forward(const Device *d, const ResidualNorm &r,
                                              const float *y, size_t m, size_t channels) {
    layernorm_forward_from(d, r.out, r.to, ResidualRows{r.x, y}, r.site, r.weights, m, r.length,
                           channels);
}

#endif
