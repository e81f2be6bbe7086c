// Fastformer on the GPU: the model of train_fastformer.c.
//
// Products read bf16 (or float32, with --precision fp32 and tf32); the residual stream, statistics
// and gradients of parameters are float32. The product that makes q, k and v of additive attention
// reads float32, or two bf16 numbers for each (parts.cuh): q and k go through an exponential of
// scores up to the rescale, which magnifies their rounding (TF32: gradients of fastformer_sharp off
// by 0.055, where 0.05 is allowed). So does what the GELU is taken of, or gradients of w_k are off
// by 0.06, not 0.04; what the backward pass needs of it is bf16.

#include "on_gpu.h"
extern "C" {
#include "fastformer.h"
#include "train.h"
}

MODEL_ON_GPU(fastformer)
