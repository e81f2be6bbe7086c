#include "error.h"
#include "generation.h"
#include "masked.h"
#include "memory.h"
#include "run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MASK[] = "[MASK]";
enum { BEST = 5 };

static void append(TokenList *t, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        t->tokens = grow_list(t->tokens, t->count, sizeof(int32_t), "a text");
        t->tokens[t->count++] = tokens[i];
    }
}

static void append_text(TokenList *t, const Dataset *dataset, const char *text, size_t size) {
    int32_t *encoded;
    const size_t count = tokenizer_encode(dataset->tokenizer, text, size, 0, &encoded);
    append(t, encoded, count);
    free(encoded);
}

// Removes blanks at the end: white space before a mask belongs to the token that the mask hides.
static size_t without_space(const char *text, size_t size) {
    while (size > 0 && text[size - 1] == ' ') size--;
    return size;
}

int32_t *fill_encode(const Run *run, const char *text, size_t *count) {
    const Dataset *dataset = run->dataset;
    dataset_need_tokenizer(dataset, "read");
    TokenList t = {0};
    size_t around;
    const int32_t *before = tokenizer_before(dataset->tokenizer, &around);
    append(&t, before, around);
    for (const char *mask; (mask = strstr(text, MASK)); text = mask + strlen(MASK)) {
        append_text(&t, dataset, text, without_space(text, (size_t)(mask - text)));
        append(&t, &dataset->mask, 1);
    }
    append_text(&t, dataset, text, strlen(text));
    const int32_t *after = tokenizer_after(dataset->tokenizer, &around);
    append(&t, after, around);
    const int64_t longest = run->type->task->plan(run->task)->length;
    if ((int64_t)t.count > longest)
        fail("--fill: %zu tokens, a sequence has at most %lld; raise --seq-len if the model allows "
             "it",
             t.count, (long long)longest);
    *count = t.count;
    return t.tokens;
}

// Finds the BEST largest logits of a row, largest first; equal ones in token order, without NaN.
// Returns their number.
static int best_tokens(const real *logits, size_t vocabulary, int32_t best[BEST]) {
    int count = 0;
    for (size_t v = 0; v < vocabulary; v++) {
        if (isnan(logits[v])) continue;
        int rank = count;
        while (rank > 0 && logits[v] > logits[best[rank - 1]]) rank--;
        if (rank == BEST) continue;
        if (count < BEST) count++;
        memmove(best + rank + 1, best + rank, (size_t)(count - 1 - rank) * sizeof *best);
        best[rank] = (int32_t)v;
    }
    return count;
}

// The tokens that best_tokens() finds, and their probabilities.
typedef struct {
    int32_t tokens[BEST];
    double probabilities[BEST];
    int count;
} Guesses;

// Only the first `tokens` of the model's `vocabulary` rows are tokens.
static Guesses guess(const real *logits, size_t vocabulary, size_t tokens) {
    Guesses g;
    g.count = best_tokens(logits, tokens, g.tokens);
    const double largest = g.count > 0 ? (double)logits[g.tokens[0]] : 0;
    double sum = 0;
    for (size_t v = 0; v < vocabulary; v++) sum += exp((double)logits[v] - largest);
    for (int rank = 0; rank < g.count; rank++)
        g.probabilities[rank] = exp((double)logits[g.tokens[rank]] - largest) / sum;
    return g;
}

// Writes the token as a JSON string, so that white space is visible.
static void write_token(JsonWriter *w, const Dataset *dataset, int32_t token) {
    size_t size;
    char *text = tokenizer_decode(dataset->tokenizer, &token, 1, &size);
    json_write_text(w, text, size);
    free(text);
}

static void print_guesses(const Dataset *dataset, int mask, const Guesses *g) {
    printf("%s %d\n", MASK, mask);
    for (int rank = 0; rank < g->count; rank++) {
        JsonWriter quoted = {0};
        write_token(&quoted, dataset, g->tokens[rank]);
        printf("  %.6f  %s\n", g->probabilities[rank], quoted.text);
        json_writer_free(&quoted);
    }
}

static void write_guesses(JsonWriter *w, const Dataset *dataset, const Guesses *g) {
    json_begin(w, '[');
    for (int rank = 0; rank < g->count; rank++) {
        json_begin(w, '{');
        json_key(w, "token");
        write_token(w, dataset, g->tokens[rank]);
        json_add_number(w, "probability", g->probabilities[rank]);
        json_end(w, '}');
    }
    json_end(w, ']');
}

void fill_write_best(const Dataset *dataset, const real *logits, size_t vocabulary, JsonWriter *w) {
    const Guesses g = guess(logits, vocabulary, (size_t)dataset->vocabulary);
    write_guesses(w, dataset, &g);
}

// {"mask": 1, "best": [{"token": " the", "probability": 0.5}, ...]}
static void write_json(const Dataset *dataset, int mask, const Guesses *g) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_integer(&w, "mask", mask);
    json_key(&w, "best");
    write_guesses(&w, dataset, g);
    json_end(&w, '}');
    puts(w.text);
    json_writer_free(&w);
}

void fill(Run *run) {
    const Dataset *dataset = run->dataset;
    const char *text = options_text(run->options, OPT_FILL);
    if (!strstr(text, MASK)) fail("--fill: no %s in \"%s\"", MASK, text);
    size_t count;
    int32_t *tokens = fill_encode(run, text, &count);
    const size_t V = (size_t)run->setup.vocabulary;
    real *logits = allocate(count * V, sizeof(real), "logits");
    const Batch batch = {.batch = 1, .length = (int64_t)count, .inputs = tokens};
    run->type->logits(run->model, &batch, logits);
    int mask = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] != dataset->mask) continue;
        const Guesses guesses = guess(logits + i * V, V, (size_t)dataset->vocabulary);
        (options_flag(run->options, OPT_JSON) ? write_json : print_guesses)(dataset, ++mask,
                                                                            &guesses);
    }
    log_flush();
    free(logits);
    free(tokens);
}
