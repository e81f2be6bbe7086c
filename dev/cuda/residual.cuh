// The residual connection behind a sublayer, with the dropout of its output, and the LayerNorm that follows.
#ifndef CUDA_RESIDUAL_CUH
#define CUDA_RESIDUAL_CUH

#include "layernorm.cuh"

// out (M, C) = x + dropout(y), and its LayerNorm. x, y (M, C); out may be x. The backward pass is
// layernorm_backward() with a tail: the gradient to x is that to out.
static inline void residual_layernorm_forward(const Device *d, float *out, LayerNormOutput to, const float *x,
                                              const float *y, LayerNormWeights w, DropoutSite site,
                                              size_t length, size_t m, size_t channels) {
    layernorm_forward_from(d, out, to, ResidualRows{x, y}, site, w, m, length, channels);
}

#endif
