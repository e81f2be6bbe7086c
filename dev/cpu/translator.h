// Decoding by an encoder and a decoder, one token at a time for all streams, `beams` of them for
// each sentence. Keys and values of the encoder's result are computed once per sentence, those of
// the tokens of the streams once per token. They stay where they were written: a stream that
// continues another one records which stream wrote each token.
//
// Self- and cross-attention are softmax attention.
#ifndef CPU_TRANSLATOR_H
#define CPU_TRANSLATOR_H

#include "batch.h"
#include "memory.h"
#include "real.h"

// The memory of a translator, reused by the next one.
typedef struct {
    Room mask, encoded, keys, values, origins, selected, attended;
} TranslatorMemory;

void translator_memory_free(TranslatorMemory *memory);

// Entries of ModelType (model.h).
void *translator_create(void *model, const Batch *batch, int beams, int64_t positions);
void translator_decode(void *decoder, const int32_t *tokens, real *logits);
void translator_select(void *decoder, const size_t *from, size_t count);

// Initialises all of these in the table of a model.
#define TRANSLATOR_ENTRIES                                                                         \
    .translator_create = translator_create, .decode = translator_decode,                           \
    .translator_select = translator_select, .decoder_destroy = free

#endif
