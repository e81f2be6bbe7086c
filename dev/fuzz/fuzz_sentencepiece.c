// Input: a SentencePiece model. Opens it and decodes every token.
#include "harness.h"
#include "memory.h"
#include "tokenizer.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_file("tokenizer.model", data, size);
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_SPM, fuzz_directory());
    const int32_t count = tokenizer_vocabulary(tokenizer);
    int32_t *tokens = allocate((size_t)count, sizeof(*tokens), "tokens");
    for (int32_t i = 0; i < count; i++) tokens[i] = i;
    size_t length;
    char *text = tokenizer_decode(tokenizer, tokens, (size_t)count, &length);
    if (text[length] != '\0') abort();
    for (int32_t i = 0; i < count; i++) (void)tokenizer_is_partial(tokenizer, i);
    free(text);
    free(tokens);
    tokenizer_free(tokenizer);
}
