// GPT-2. train_gpt2.c defines it for every device.
#ifndef GPT2_H
#define GPT2_H

#include "model.h"

extern const ModelType gpt2;

#endif
