#include "error.h"
#include "language.h"
#include "memory.h"
#include "sampler.h"
#include "stop.h"
#include "train.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The prompt's tokens behind the token that stands before a text; at least one token.
static int32_t *prompt_tokens(const Run *run, const char *prompt, size_t *count) {
    int32_t *encoded;
    const size_t n = tokenizer_encode(run->dataset->tokenizer, prompt, strlen(prompt), 0, &encoded);
    const int32_t end = run->dataset->end;
    if (n == 0 && end < 0) fail("--prompt: no tokens in \"%s\"", prompt);
    int32_t *tokens = allocate(n + 1, sizeof(int32_t), "prompt");
    *count = 0;
    if (end >= 0) tokens[(*count)++] = end;
    memcpy(tokens + *count, encoded, n * sizeof(int32_t));
    *count += n;
    free(encoded);
    return tokens;
}

// What is on the terminal: the text of tokens before `printed`. It is decoded from `context` on, where the
// last piece printed begins, so that a long text costs no more a token than a short one.
typedef struct {
    size_t context, printed;
} Printer;

// Prints what the text has grown by, once its last character is complete.
static void print_growth(Printer *p, const Tokenizer *tokenizer, const int32_t *tokens, size_t count,
                         bool last) {
    if (count == p->printed || (!last && tokenizer_is_partial(tokenizer, tokens[count - 1]))) return;
    size_t before, after;
    free(tokenizer_decode(tokenizer, tokens + p->context, p->printed - p->context, &before));
    char *text = tokenizer_decode(tokenizer, tokens + p->context, count - p->context, &after);
    if (after > before) fwrite(text + before, 1, after - before, stdout);
    log_flush();
    free(text);
    *p = (Printer){p->printed, count};
}

void generate(const Run *run, const char *prompt, uint32_t number) {
    const Options *o = run->options;
    if (!run->dataset->tokenizer)
        fail("%s: has no tokenizer, so no text can be written; make it with ./tokenize", run->dataset->name);
    size_t count;
    int32_t *tokens = prompt_tokens(run, prompt, &count);
    const int64_t room = run->setup.positions - (int64_t)count, wanted = options_integer(o, "sample-tokens");
    if (room < 0)
        fail("--prompt: %zu tokens, the model has %lld positions", count, (long long)run->setup.positions);
    const size_t total = count + (size_t)(wanted < room ? wanted : room), skip = run->dataset->end >= 0;
    tokens = realloc(tokens, (total + 1) * sizeof(int32_t));
    if (!tokens) fail("out of memory for %zu tokens", total);

    const SamplerSettings settings = {options_number(o, "temperature"), options_integer(o, "top-k"),
                                      options_number(o, "top-p")};
    Random random = random_stream((uint64_t)options_integer(o, "seed"), RANDOM_SAMPLE, number, 0);
    real *logits = allocate((size_t)run->setup.vocabulary, sizeof(real), "logits");
    void *decoder = run->type->decoder_create(run->model, 1);
    Printer printer = {0};
    for (size_t i = 0; i < total && !stop_requested(); i++) {
        if (i >= count) tokens[i] = sampler_draw(&settings, logits, run->setup.vocabulary, &random);
        // Inside the prompt nothing is drawn.
        if (i + 1 < total) run->type->decode(decoder, &tokens[i], i + 1 >= count ? logits : NULL);
        if (i + 1 >= count)
            print_growth(&printer, run->dataset->tokenizer, tokens + skip, i + 1 - skip, i + 1 == total);
    }
    putchar('\n');
    log_flush();
    run->type->decoder_destroy(decoder);
    free(logits);
    free(tokens);
}
