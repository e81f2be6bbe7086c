// The text of tokens that come one by one: what of it may be shown, and whether a text that ends it
// came up.
#ifndef TASKS_GROWING_TEXT_H
#define TASKS_GROWING_TEXT_H

#include "bytes.h"
#include "tokenizer.h"
#include <stdbool.h>

typedef struct {
    const Tokenizer *tokenizer;
    const Text *stops; // (stop_count) each ends the text, and is no part of it
    size_t stop_count;
    int32_t *tokens;
    size_t count;
    // The bytes of tokens before `decoded`. The next ones are decoded from `context` on, where the
    // last piece begins, so that a long text costs no more per token than a short one.
    Bytes text;
    size_t context, decoded;
    size_t begin; // bytes before it are a prompt, in which nothing is looked for
    size_t end;   // bytes that may be shown: no half character, no beginning of a stop
    bool stopped; // a stop came after text.data[end - 1]
} GrowingText;

void growing_text_free(GrowingText *g);

// What follows is no prompt any more.
void growing_text_begin(GrowingText *g);

// Takes tokens of the tokenizer's vocabulary; after a stop came up there should be none.
void growing_text_add(GrowingText *g, const int32_t *tokens, size_t count);

// No token follows: what was held back as the beginning of a stop may be shown. Half a character
// may not.
void growing_text_finish(GrowingText *g);

#endif
