// SentencePiece (Kudo and Richardson 2018, https://github.com/google/sentencepiece).
//
// Training and encoding are its own programs, run as child processes; where spm_encode is not
// installed, and in a page, encoding is ours, and gives the same. So are the vocabulary and
// decoding, from the model file: spm_export_vocab's text does not say which pieces are control,
// byte or unknown.
#ifndef TEXT_SENTENCEPIECE_H
#define TEXT_SENTENCEPIECE_H

#include "text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Trains BPE with byte fallback on a text and writes PREFIX.model. A text that has fewer pieces
// than asked for gives what it has. `normalise`: characters are rewritten by NFKC and white space
// is collapsed (spm_train's defaults); without it text comes back from its tokens as it was.
void sentencepiece_train(Text text, int64_t vocabulary, bool normalise, const char *prefix);

typedef struct Sentencepiece Sentencepiece;

// Reads and checks a model file; ends the program if it is none, or has no end-of-sentence piece.
Sentencepiece *sentencepiece_open(const char *path);
void sentencepiece_free(Sentencepiece *model);

int32_t sentencepiece_size(const Sentencepiece *model);
int32_t sentencepiece_end(const Sentencepiece *model);     // "</s>"
int32_t sentencepiece_padding(const Sentencepiece *model); // "<pad>"; -1: none

bool sentencepiece_is_byte(const Sentencepiece *model, int32_t token);

// Tokens of a text, the end-of-sentence piece in place of each newline; with `last_end` also after
// a last line that has none. Fresh memory in *tokens; returns their number.
size_t sentencepiece_encode(const Sentencepiece *model, Text text, bool last_end, int32_t **tokens);

// Equal to spm_decode line by line, each end-of-sentence piece a newline. NUL-terminated fresh
// memory. The tokens must be in range.
char *sentencepiece_decode(const Sentencepiece *model, const int32_t *tokens, size_t count,
                           size_t *size);

#endif
