// Input: a vocabulary of words and a text, separated by the first NUL byte. Decoding its tokens and
// encoding the result must give the same tokens.
#include "harness.h"
#include "tokenizer.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    const uint8_t *end = size > 0 ? memchr(data, '\0', size) : NULL;
    const size_t vocabulary = end ? (size_t)(end - data) : size;
    fuzz_file("tokenizer.vocab", data, vocabulary);
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_WORD, fuzz_directory());
    int32_t *tokens, *again;
    size_t length;
    const size_t count =
        tokenizer_encode(tokenizer, (const char *)data + vocabulary, size - vocabulary, 1, &tokens);
    char *text = tokenizer_decode(tokenizer, tokens, count, &length);
    if (tokenizer_encode(tokenizer, text, length, 1, &again) != count) abort();
    if (memcmp(tokens, again, count * sizeof(*tokens)) != 0) abort();
    free(tokens);
    free(again);
    free(text);
    tokenizer_free(tokenizer);
}
