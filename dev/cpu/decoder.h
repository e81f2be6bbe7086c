// Decoding, the counterpart of blocks.h for training: a token goes through all layers of a plan
// (pre-norm, one stack). A layer computes
//
//   x += attend(LayerNorm(x) W_qkv) W_proj + b          or without a projection, x += attend(...)
//   x += activation(LayerNorm(x) W_up + b) W_down + b
//
// What it keeps of the previous tokens is a state of its kind of attention. S texts side by side
// ("streams"), C channels, F channels inside the feed-forward network, L layers.
#ifndef CPU_DECODER_H
#define CPU_DECODER_H

#include <stdint.h>

#include "real.h"

// Entries of ModelType (model.h). decoder_decode() exits with an error after the last position.
void *decoder_create(void *model, int streams);
void decoder_decode(void *decoder, const int32_t *tokens, real *logits);
void decoder_place(void *decoder, int64_t position);
void decoder_destroy(void *decoder);

// All of these entries, for a model's table.
#define DECODER_ENTRIES                                                                            \
    .decoder_create = decoder_create, .decode = decoder_decode, .decoder_place = decoder_place,    \
    .decoder_destroy = decoder_destroy

#endif
