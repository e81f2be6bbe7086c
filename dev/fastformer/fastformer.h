// The Fastformer. train_fastformer.c defines it for every device.
#ifndef FASTFORMER_H
#define FASTFORMER_H

#include "model.h"

extern const ModelType fastformer;
extern const Exchange fastformer_exchange; // with Hugging Face transformers

#endif
