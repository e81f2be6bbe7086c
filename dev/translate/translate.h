// The encoder-decoder, which train_translate.c builds for any device.
#ifndef TRANSLATE_H
#define TRANSLATE_H

#include "model.h"

extern const ModelType translate;

#endif
