// The residual connection after a sublayer, with the dropout of its output, and the LayerNorm that
// follows.
#ifndef CUDA_RESIDUAL_CUH
#define CUDA_RESIDUAL_CUH

#include "layernorm.cuh"

// All but the sublayer's output y.
struct ResidualNorm {
    float *out;         // (M, C) x + dropout(y); not x, which is read again
    LayerNormOutput to; // of its LayerNorm
    const float *x;     // (M, C)
    LayerNormWeights weights;
    DropoutSite site;
    size_t length; // T
};

// y (M, C). The backward pass is layernorm_backward() with a tail: the gradient to x is that to
// out.
static inline void residual_layernorm_forward(const Device *d, const ResidualNorm &r,
                                              const float *y, size_t m, size_t channels) {
    layernorm_forward_from(d, r.out, r.to, ResidualRows{r.x, y}, r.site, r.weights, m, r.length,
                           channels);
}

#endif
