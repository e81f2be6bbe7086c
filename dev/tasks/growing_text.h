// Text decoded from tokens that arrive one by one: which part of it may be shown, and whether it
// contains a text that ends it.
#ifndef TASKS_GROWING_TEXT_H
#define TASKS_GROWING_TEXT_H

#include "bytes.h"
#include "tokenizer.h"
#include <stdbool.h>

typedef struct {
    const Tokenizer *tokenizer;
    const Text *stops; // (stop_count) each ends the text and is excluded from it
    size_t stop_count;
    int32_t *tokens;
    size_t count;
    // The bytes of the tokens before `decoded`. Decoding resumes at `context`, where the last piece
    // begins, so that the cost per token does not grow with the text.
    Bytes text;
    size_t context, decoded;
    size_t begin; // bytes before it are a prompt, which is not searched for stops
    size_t end;   // bytes that may be shown: no partial character, no beginning of a stop
    bool stopped; // a stop follows text.data[end - 1]
} GrowingText;

void growing_text_free(GrowingText *g);

// Ends the prompt.
void growing_text_begin(GrowingText *g);

// Appends tokens of the tokenizer's vocabulary. After a stop only a prompt may follow.
void growing_text_add(GrowingText *g, const int32_t *tokens, size_t count);

// Ends the text: bytes held back as the beginning of a stop may now be shown. A partial character
// may not.
void growing_text_finish(GrowingText *g);

#endif
