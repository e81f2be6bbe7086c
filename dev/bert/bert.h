// BERT. train_bert.c defines it for every device.
#ifndef BERT_H
#define BERT_H

#include "model.h"

extern const ModelType bert;

#endif
