// The encoder-decoder Transformer. train_translate.c defines it for every device.
#ifndef TRANSLATE_H
#define TRANSLATE_H

#include "model.h"

extern const ModelType translate;

#endif
