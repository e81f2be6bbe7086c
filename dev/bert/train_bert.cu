// BERT on the GPU: the model of train_bert.c.
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual
// stream, statistics and gradients of parameters are float32.

#include "on_gpu.h"
extern "C" {
#include "bert.h"
#include "train.h"
}

MODEL_ON_GPU(bert)
