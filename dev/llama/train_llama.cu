// Llama and Qwen 3 on the GPU: the model of train_llama.c, in the precisions of GPT-2's program.

#include "on_gpu.h"
extern "C" {
#include "llama.h"
#include "train.h"
}

MODEL_ON_GPU(llama)
