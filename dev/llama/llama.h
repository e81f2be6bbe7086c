// Llama. train_llama.c defines it for every device.
#ifndef LLAMA_H
#define LLAMA_H

#include "model.h"

extern const ModelType llama;

#endif
