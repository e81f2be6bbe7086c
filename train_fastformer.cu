// The Fastformer on the GPU: the model of train_fastformer.c.
//
// Matrix products read bf16 (float32 with --precision fp32 and tf32). The residual stream,
// statistics and parameter gradients are float32.
//
// Two places need more than bf16. The product that computes q, k and v of additive attention reads
// float32, or two bf16 numbers for each float32 (parts.cuh): the exponential of scores up to the
// rescale magnifies the rounding of q and k. With TF32, gradients of fastformer_sharp are off by
// 0.055, and 0.05 is allowed. The input of the GELU is float32, too; otherwise gradients of w_k are
// off by 0.06 instead of 0.04. The backward pass reads it as bf16.

#include "on_gpu.h"
extern "C" {
#include "fastformer.h"
#include "train.h"
}

MODEL_ON_GPU(fastformer)
