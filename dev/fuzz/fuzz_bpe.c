// tokenizer.json of byte-level BPE, and a text: what stands before and behind the first NUL byte.
// With a vocabulary that has all bytes, the text comes back as it was.
#include "harness.h"
#include "tokenizer.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    const uint8_t *end = size > 0 ? memchr(data, '\0', size) : NULL;
    const size_t vocabulary = end ? (size_t)(end - data) : size;
    fuzz_file("tokenizer.json", data, vocabulary);
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_BPE, fuzz_directory());
    int32_t *tokens;
    size_t length;
    const char *given = (const char *)data + vocabulary;
    const size_t count = tokenizer_encode(tokenizer, given, size - vocabulary, 0, &tokens);
    char *text = tokenizer_decode(tokenizer, tokens, count, &length);
    if (length != size - vocabulary || memcmp(text, given, length) != 0) abort();
    free(text);
    free(tokens);
    tokenizer_free(tokenizer);
}
