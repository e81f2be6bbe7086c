#include "growing_text.h"

#include "memory.h"
#include <stdlib.h>
#include <string.h>

void growing_text_free(GrowingText *g) {
    free(g->tokens);
    bytes_free(&g->text);
}

// Decodes the tokens that are not decoded yet.
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

// Returns the first stop in the text after the prompt that ends after byte `old`, or NULL.
static const char *find_stop(const GrowingText *g, size_t old) {
    const char *first = NULL;
    for (size_t i = 0; i < g->stop_count; i++) {
        const Text stop = g->stops[i];
        const size_t from = old > g->begin + stop.size ? old - stop.size : g->begin;
        const char *found =
            g->text.size > from && stop.size > 0
                ? memmem(g->text.data + from, g->text.size - from, stop.data, stop.size)
                : NULL;
        if (found && (!first || found < first)) first = found;
    }
    return first;
}

// Returns how many bytes at the end of the text may be the beginning of a stop.
static size_t begun_stop(const GrowingText *g) {
    size_t most = 0;
    for (size_t i = 0; i < g->stop_count; i++) {
        const Text stop = g->stops[i];
        size_t size = g->text.size - g->begin;
        if (size >= stop.size) size = stop.size > 0 ? stop.size - 1 : 0;
        while (size > 0 && memcmp(g->text.data + g->text.size - size, stop.data, size) != 0) size--;
        if (size > most) most = size;
    }
    return most;
}

static size_t complete(const GrowingText *g, size_t size) {
    return utf8_complete((Text){g->text.data, size});
}

void growing_text_add(GrowingText *g, const int32_t *tokens, size_t count) {
    g->stopped = false;
    for (size_t i = 0; i < count; i++) {
        g->tokens = grow_list(g->tokens, g->count, sizeof(int32_t), "a text");
        g->tokens[g->count++] = tokens[i];
    }
    if (g->count == 0 || tokenizer_is_partial(g->tokenizer, g->tokens[g->count - 1])) return;
    const size_t old = g->text.size;
    decode(g);
    const char *stop = find_stop(g, old);
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
