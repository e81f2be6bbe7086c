// Input: the tokenizer.json of a byte-level BPE and a text, separated by the first NUL byte.
// Decoding the encoded text must give the same text, unless the tokenizer changes texts.
#include "bpe.h"
#include "bpe_file.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

static bool changes_text(const Bpe *bpe) {
    bool changes = bpe->prefix_space || bpe->composes;
    for (int32_t i = 0; i < bpe->count; i++)
        changes = changes || bpe->flags[i] & (BPE_LEFT | BPE_RIGHT);
    return changes;
}

void fuzz_one(const uint8_t *data, size_t size) {
    const uint8_t *end = size > 0 ? memchr(data, '\0', size) : NULL;
    const size_t vocabulary = end ? (size_t)(end - data) : size;
    fuzz_file("tokenizer.json", data, vocabulary);
    Bpe *bpe = bpe_open(fuzz_directory());
    int32_t *tokens;
    size_t length;
    const Text given = {(const char *)data + vocabulary + (end != NULL),
                        size - vocabulary - (end != NULL)};
    const size_t count = bpe_encode(bpe, given, &tokens);
    char *text = bpe_decode(bpe, tokens, count, &length);
    if (!changes_text(bpe) && (length != given.size || memcmp(text, given.data, length) != 0))
        abort();
    if (given.size > 1 && bpe_cut(bpe, given, given.size / 2) > given.size) abort();
    free(text);
    free(tokens);
    bpe_free(bpe);
}
