// The encoder-decoder Transformer on the GPU: the model of train_translate.c.
//
// Matrix products and attention read bf16 (float32 with --precision fp32 and tf32). The residual
// stream, statistics and parameter gradients are float32.

#include "on_gpu.h"
extern "C" {
#include "train.h"
#include "translate.h"
}

MODEL_ON_GPU(translate)
