// BERT on the GPU: the model of train_bert.c.
//
// Matrix products and attention read bf16 (float32 with --precision fp32 and tf32). The residual
// stream, statistics and parameter gradients are float32.

#include "on_gpu.h"
extern "C" {
#include "bert.h"
#include "train.h"
}

MODEL_ON_GPU(bert)
