// Input: a text. Decoding its byte tokens must give the same text, text_split() must cut it into
// three parts that make up the whole, and utf8_valid_prefix() and utf8_length() must agree.
#include "harness.h"
#include "text.h"
#include "tokenizer.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

static void check_bytes(const char *data, size_t size) {
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_BYTE, NULL);
    int32_t *tokens;
    size_t length;
    const size_t count = tokenizer_encode(tokenizer, data, size, 1, &tokens);
    char *text = tokenizer_decode(tokenizer, tokens, count, &length);
    if (length != size || (size > 0 && memcmp(text, data, size) != 0)) abort();
    free(text);
    free(tokens);
    tokenizer_free(tokenizer);
}

static void check_parts(Text whole) {
    Text parts[3];
    text_split(whole, parts);
    const char *at = whole.data;
    for (int i = 0; i < 3; i++) {
        if (parts[i].size > 0 && parts[i].data != at) abort();
        at += parts[i].size;
    }
    if (at != whole.data + whole.size) abort();
}

static void check_utf8(Text whole) {
    const size_t valid = utf8_valid_prefix(whole);
    size_t i = 0;
    while (i < valid) i += utf8_length((Text){whole.data + i, whole.size - i});
    if (i != valid || (i < whole.size && utf8_length((Text){whole.data + i, whole.size - i}) != 0))
        abort();
}

void fuzz_one(const uint8_t *data, size_t size) {
    const Text whole = {(const char *)data, size};
    const TextCounts counts = text_count(whole);
    if (counts.bytes != (int64_t)size || counts.words < counts.lines) abort();
    check_bytes(whole.data, size);
    check_parts(whole);
    check_utf8(whole);
}
