// Measures perplexity beyond a model's last position T-1. The model reads a multiple of T tokens of
// validation text, in the way set by --beyond (dev/tasks/reader.h). Prints a table row with the
// perplexity of tokens 0 .. T-1, of tokens T .. 2T-1 and so on.
//
//   beyond --type fastformer|gpt2 --times 8 --texts 32 --beyond slide -e RUN -i DATA
#include "error.h"
#include "language.h"
#include "memory.h"
#include "reader.h"
#include "run.h"
#include "stop.h"
#include "train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const ModelType fastformer, gpt2;

// clang-format off
static const Option rows[] = {
    {.name = OPT_TYPE, .kind = OPTION_CHOICE, .value = "MODEL", .initial = "fastformer",
     .choices = "fastformer|gpt2", .group = "Measurement", .help = "which model"},
    {.name = OPT_TIMES, .kind = OPTION_INTEGER, .value = "N", .initial = "8", .min = 1, .max = 1024,
     .group = "Measurement", .help = "as many tokens as positions"},
    {.name = OPT_TEXTS, .kind = OPTION_INTEGER, .value = "N", .initial = "32", .min = 1,
     .max = 4096, .group = "Measurement", .help = "read side by side"},
};
// clang-format on

static void add_options(Options *options) {
    task_language.add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

// Returns -log p of one token.
static double loss_of(const real *logits, int64_t vocabulary, int32_t token) {
    double greatest = (double)logits[0], others = 0; // the sum without the token itself
    for (int64_t i = 1; i < vocabulary; i++) greatest = fmax(greatest, (double)logits[i]);
    for (int64_t i = 0; i < vocabulary; i++)
        others += i == token ? 0 : exp((double)logits[i] - greatest);
    return log(others + exp((double)logits[token] - greatest)) + greatest - (double)logits[token];
}

static void measure_by_position(Run *run) {
    const Options *o = run->options;
    const Split *split = &run->dataset->splits[SPLIT_VAL];
    const int64_t T = run->setup.positions, V = run->setup.vocabulary;
    const int64_t times = options_integer(o, OPT_TIMES), length = times * T;
    const int S = (int)options_integer(o, OPT_TEXTS);
    if (split->tokens <= length)
        fail("%s: %lld tokens of validation, a text has %lld", run->dataset->name,
             (long long)split->tokens, (long long)length + 1);
    Reader *reader = reader_create(run, S, (ReaderBeyond)options_choice(o, OPT_BEYOND));
    real *logits = allocate((size_t)S * (size_t)V, sizeof(real), "logits");
    int32_t *tokens = allocate((size_t)S, sizeof(int32_t), "tokens");
    double *losses = allocate((size_t)times, sizeof(double), "losses");
    for (int64_t i = 0; i < length && !stop_requested(); i++) {
        // Texts begin at equal distances in the split.
        for (int s = 0; s < S; s++)
            tokens[s] = split_token(split, (split->tokens - length - 1) / S * s + i);
        reader_read(reader, tokens, logits);
        for (int s = 0; s < S; s++)
            losses[i / T] +=
                loss_of(logits + s * V, V,
                        split_token(split, (split->tokens - length - 1) / S * s + i + 1));
    }
    printf("| %s | %s |", run->type->name, options_text(o, OPT_BEYOND));
    for (int64_t i = 0; i < times; i++) printf(" %.1f |", exp(losses[i] / (double)(S * T)));
    putchar('\n');
    reader_free(reader);
    free(logits);
    free(tokens);
    free(losses);
}

int main(int argc, char **argv) {
    static const Action actions[] = {{OPT_BEYOND, false, measure_by_position, NULL, NULL}};
    bool other = false;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--type") == 0) other = strcmp(argv[i + 1], gpt2.name) == 0;
    ModelType type = other ? gpt2 : fastformer;
    TaskType task = *type.task;
    type.task = &task;
    task.add_options = add_options;
    task.actions = actions;
    task.action_count = 1;
    return train_main(argc, argv, &type);
}
