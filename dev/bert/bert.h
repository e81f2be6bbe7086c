// BERT, which train_bert.c builds for any device.
#ifndef BERT_H
#define BERT_H

#include "model.h"

extern const ModelType bert;

#endif
