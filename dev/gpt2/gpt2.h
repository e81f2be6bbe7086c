// GPT-2, which train_gpt2.c builds for any device.
#ifndef GPT2_H
#define GPT2_H

#include "model.h"

extern const ModelType gpt2;

#endif
