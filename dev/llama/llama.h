// Llama, which train_llama.c builds for any device.
#ifndef LLAMA_H
#define LLAMA_H

#include "model.h"

extern const ModelType llama;

#endif
