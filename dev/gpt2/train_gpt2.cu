// GPT-2 on the GPU: the model of train_gpt2.c.
//
// Matrix products and attention read bf16 (float32 with --precision fp32 and tf32). The residual
// stream, statistics and parameter gradients are float32.

#include "on_gpu.h"
extern "C" {
#include "gpt2.h"
#include "train.h"
}

MODEL_ON_GPU(gpt2)
