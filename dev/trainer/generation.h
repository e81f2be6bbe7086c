// How text is written: what a Hugging Face model's generation_config.json says, and config.json
// where that says nothing; of our own weights, what their data say.
#ifndef TRAINER_GENERATION_H
#define TRAINER_GENERATION_H

#include "dataset.h"
#include "safetensors.h"

typedef struct {
    int32_t *tokens; // (count)
    size_t count;
} TokenList;

typedef struct {
    TokenList unused; // rows of the model that are no token's, which are never written
    TokenList ends;   // "eos_token_id": each ends a text
    TokenList *bad;   // (bad_count) "bad_words_ids": such a sequence is never written
    size_t bad_count;
    int32_t forced_end; // "forced_eos_token_id": the last of a text that has no room any more; -1
} Generation;

// weights: what a run began with. vocabulary: rows of its embedding; tokens beyond it mean nothing.
Generation generation_open(const Safetensors *weights, const Dataset *dataset, int64_t vocabulary);
void generation_free(Generation *generation);

bool generation_ends(const Generation *generation, int32_t token);

// No unused token is drawn from logits (V) after this.
void generation_forbid(const Generation *generation, real *logits);

// What is read before a text: the end of another one, as in training, or what the tokenizer's file
// says.
const int32_t *generation_before(const Dataset *dataset, size_t *count);

#endif
