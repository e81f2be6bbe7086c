// Llama and Qwen 3 on the GPU: the model of train_llama.c. Precisions are those of train_gpt2.cu.

#include "on_gpu.h"
extern "C" {
#include "llama.h"
#include "train.h"
}

MODEL_ON_GPU(llama)
