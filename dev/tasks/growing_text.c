#include "growing_text.h"

#include "memory.h"
#include <stdlib.h>
#include <string.h>

void growing_text_free(GrowingText *g) {
    free(g->tokens);
    bytes_free(&g->text);
}

// Decodes tokens that are not decoded yet.
static void decode(GrowingText *g) {
    size_t before, after;
    free(tokenizer_decode(g->tokenizer, g->tokens + g->context, g->decoded - g->context, &before));
    char *text =
        tokenizer_decode(g->tokenizer, g->tokens + g->context, g->count - g->context, &after);
    if (after > before) bytes_append(&g->text, text + before, after - before);
    free(text);
    g->context = g->decoded;
    g->decoded = g->count;
}

// Where `stop` stands in the text from byte `from` on; NULL: nowhere.
static const char *find_stop(const GrowingText *g, size_t from) {
    return g->stop.size > 0 && g->text.size > from
               ? memmem(g->text.data + from, g->text.size - from, g->stop.data, g->stop.size)
               : NULL;
}

// Bytes at the end of the text with which `stop` may begin.
static size_t begun_stop(const GrowingText *g) {
    size_t size = g->text.size - g->begin;
    if (g->stop.size == 0) return 0;
    if (size >= g->stop.size) size = g->stop.size - 1;
    while (size > 0 && memcmp(g->text.data + g->text.size - size, g->stop.data, size) != 0) size--;
    return size;
}

static size_t complete(const GrowingText *g, size_t size) {
    return utf8_complete((Text){g->text.data, size});
}

void growing_text_add(GrowingText *g, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        g->tokens = grow_list(g->tokens, g->count, sizeof(int32_t), "a text");
        g->tokens[g->count++] = tokens[i];
    }
    if (g->count == 0 || tokenizer_is_partial(g->tokenizer, g->tokens[g->count - 1])) return;
    const size_t old = g->text.size;
    decode(g);
    const size_t overlap = g->stop.size > 0 ? g->stop.size - 1 : 0;
    const char *stop = find_stop(g, old > g->begin + overlap ? old - overlap : g->begin);
    g->stopped = stop != NULL;
    g->end = stop ? (size_t)(stop - g->text.data) : complete(g, g->text.size - begun_stop(g));
}

void growing_text_begin(GrowingText *g) {
    g->begin = g->text.size;
}

void growing_text_finish(GrowingText *g) {
    if (g->stopped) return;
    if (g->decoded < g->count) decode(g);
    g->end = complete(g, g->text.size);
}
