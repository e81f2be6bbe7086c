// Rules for writing text: those of a Hugging Face model's generation_config.json, or of its
// config.json if the former lacks them; for our own weights, those of their data.
#ifndef TRAINER_GENERATION_H
#define TRAINER_GENERATION_H

#include "dataset.h"
#include "safetensors.h"

typedef struct {
    int32_t *tokens; // (count)
    size_t count;
} TokenList;

typedef struct {
    TokenList unused; // rows of the model without a token, which are never written
    TokenList ends;   // "eos_token_id": each ends a text
    TokenList *bad;   // (bad_count) "bad_words_ids": forbidden sequences
    size_t bad_count;
    int32_t forced_end; // "forced_eos_token_id": the last token of a text at its limit; -1: none
} Generation;

// weights: the run's initial weights. vocabulary: rows of its embedding; tokens beyond it are
// ignored.
Generation generation_open(const Safetensors *weights, const Dataset *dataset, int64_t vocabulary);
void generation_free(Generation *generation);

bool generation_ends(const Generation *generation, int32_t token);

// Changes logits (V) so that no unused token is drawn.
void generation_forbid(const Generation *generation, real *logits);

// In byte-level BPE a blank belongs to the word after it. A blank at the end of a prompt would be a
// token that the model has hardly ever seen there. Removes it; returns whether there was one. The
// next token must then begin with it: generation_keep_blanks() changes logits so that it does.
bool generation_take_blank(const Dataset *dataset, Text *prompt);
void generation_keep_blanks(const Dataset *dataset, real *logits);

// Returns the tokens that are read before a text: the end of another text, as in training, or those
// in the tokenizer's file.
const int32_t *generation_before(const Dataset *dataset, size_t *count);

#endif
