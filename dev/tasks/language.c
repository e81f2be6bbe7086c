#include "language.h"

#include "error.h"
#include "reader.h"
#include "run.h"
#include "sequences.h"
#include <math.h>

static const Option rows[] = {
    {0, "prompt", OPTION_TEXT, OPTION_RUN, "TEXT", NULL, 0, 0, NULL, NULL, "Generation",
     "only continue TEXT with -e's weights; -: stdin"},
    {'s', "sample-every", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, "Generation",
     "steps between samples; 0: none"},
    {'g', "sample-tokens", OPTION_INTEGER, OPTION_HABIT, "N", "100", 1, 1e9, NULL, NULL,
     "Generation", "tokens of a sample"},
    {0, "temperature", OPTION_NUMBER, OPTION_HABIT, "X", "0.8", 0, 100, NULL, NULL, "Generation",
     "0: the most probable token"},
    {0, "top-k", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e9, NULL, NULL, "Generation",
     "choose among the N most probable; 0: all"},
    {0, "top-p", OPTION_NUMBER, OPTION_HABIT, "X", "0.95", 1e-6, 1, NULL, NULL, "Generation",
     "choose among the most probable X of the mass"},
    {0, "prompt-file", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, OPTION_GROUP_MORE,
     "the same with the text of FILE"},
    {0, "samples", OPTION_INTEGER, OPTION_RUN, "N", "1", 1, 4096, NULL, NULL, OPTION_GROUP_MORE,
     "texts written side by side"},
    {0, "stop", OPTION_TEXT, OPTION_RUN, "TEXT", NULL, 0, 0, NULL, NULL, OPTION_GROUP_MORE,
     "a sample ends where TEXT comes up"},
    {0, "repetition-penalty", OPTION_NUMBER, OPTION_HABIT, "X", "1", 0.01, 100, NULL, NULL,
     OPTION_GROUP_MORE, "above 1: tokens of the text are less probable"},
    {0, "beyond", OPTION_CHOICE, OPTION_HABIT, "HOW", "slide", 0, 0, READER_BEYOND, NULL,
     OPTION_GROUP_MORE, "behind the last position"},
};

static void add_options(Options *options) {
    sequences_add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

// Perplexity a token; bits a byte and perplexity a word where the data say how many there are.
// These are counted in the whole split; of a part, a proportional share is taken.
static void language_report(const void *task, SplitName name, Evaluation *result) {
    const Split *split = &sequences_dataset(task)->splits[name];
    const double total = result->loss * (double)result->tokens;
    const double share = (double)result->tokens / (double)split->tokens;
    evaluation_add(result, (Metric){"ppl", "ppl ", "", 2, exp(result->loss)});
    if (split->bytes > 0)
        evaluation_add(result, (Metric){"bpb", "", " bits/byte", 4,
                                        total / (share * (double)split->bytes * log(2))});
    if (split->words > 0)
        evaluation_add(result, (Metric){"word_ppl", "word ppl ", "", 2,
                                        exp(total / (share * (double)split->words))});
}

// Samples during training are refused at the start, where they cannot be written.
static void *language_create(const TaskSetup *setup) {
    const Dataset *dataset = setup->dataset;
    if (setup->training && options_integer(setup->options, "sample-every") > 0) {
        if (!dataset->tokenizer)
            fail("--sample-every: %s has no tokenizer, so no text can be written; drop the option, "
                 "or make "
                 "the data "
                 "with ./tokenize",
                 dataset->name);
        if (dataset->end < 0)
            fail("--sample-every: %s has no token that stands before a text (\"end\" in "
                 "meta.json); drop the "
                 "option",
                 dataset->name);
    }
    return sequences_create(setup);
}

static void language_sample(const Run *run, int64_t step) {
    generate_sample(run, (uint32_t)step);
}

static const char *const generation_options[] = {"samples", NULL};
static const Action actions[] = {{"prompt", false, generate, generation_options},
                                 {"prompt-file", false, generate, generation_options}};

const TaskType task_language = {
    .name = "language",
    .summary = "trains a language model on tokenized text, and evaluates or samples it",
    .add_options = add_options,
    .learns_embedded = true,
    .lower = {"--batch", "--seq-len"},
    .length = "seq-len",
    .actions = actions,
    .action_count = sizeof(actions) / sizeof(actions[0]),
    .create = language_create,
    .destroy = sequences_destroy,
    .plan = sequences_plan,
    .describe = sequences_describe,
    .update = sequences_update,
    .train_batch = sequences_train_batch,
    .evaluation_batch = sequences_evaluation_batch,
    .report = language_report,
    .sample = language_sample,
    .text = sample_text,
};
