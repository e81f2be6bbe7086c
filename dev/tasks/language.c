#include "language.h"

#include "error.h"
#include "reader.h"
#include "run.h"
#include "sequences.h"
#include <math.h>
#include <stdlib.h>

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
    {0, "stop", OPTION_TEXT, OPTION_RUN, "TEXT", NULL, 0, 0, OPTION_AGAIN, NULL, OPTION_GROUP_MORE,
     "end a sample where TEXT comes up; can be given again"},
    {0, "repetition-penalty", OPTION_NUMBER, OPTION_HABIT, "X", "1", 0.01, 100, NULL, NULL,
     OPTION_GROUP_MORE, "above 1: tokens of the text are less probable"},
    {0, "beyond", OPTION_CHOICE, OPTION_HABIT, "HOW", "slide", 0, 0, READER_BEYOND, NULL,
     OPTION_GROUP_MORE, "behind the last position"},
};

static void add_options(Options *options) {
    sequences_add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

// Padding is no target, and hidden from all positions.
static void hide_padding(void *task, Batch *batch) {
    const int32_t padding = sequences_dataset(task)->padding;
    int32_t *targets = (int32_t *)batch->targets;
    for (int64_t i = 0; padding >= 0 && i < batch->batch * batch->length; i++)
        if (targets[i] == padding) targets[i] = -1;
    batch->mask = sequences_mask(task, batch, batch->inputs);
}

static int64_t all_of(int64_t tokens) {
    return tokens;
}

static Update language_update(void *task, int64_t place) {
    Update update = sequences_update(task, place);
    update.targets = sequences_targets(task, &update, all_of);
    return update;
}

static void language_train_batch(void *task, const Update *update, int64_t i, Batch *batch) {
    sequences_train_batch(task, update, i, batch);
    hide_padding(task, batch);
}

static bool language_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch) {
    if (!sequences_evaluation_batch(task, split, i, batch)) return false;
    hide_padding(task, batch);
    return true;
}

// The share of a split's words and bytes that so many tokens stand for: of those that are not
// padding's, in proportion.
static double share_of_text(const Dataset *dataset, const Split *split, int64_t tokens) {
    const int64_t paddings = split_paddings(split);
    size_t size = 0;
    if (paddings > 0 && dataset->tokenizer)
        free(tokenizer_decode(dataset->tokenizer, &dataset->padding, 1, &size));
    const double hidden =
        split->bytes > 0 ? (double)paddings * (double)size / (double)split->bytes : 0;
    return (1 - hidden) * (double)tokens / (double)(split->tokens - paddings);
}

// Perplexity a token; bits a byte and perplexity a word where the data say how many there are.
// These are counted in the whole split; of a part, a proportional share is taken.
static void language_report(const void *task, SplitName name, Evaluation *result) {
    const Dataset *dataset = sequences_dataset(task);
    const Split *split = &dataset->splits[name];
    const double total = result->loss * (double)result->tokens;
    const double share = share_of_text(dataset, split, result->tokens);
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
    .update = language_update,
    .train_batch = language_train_batch,
    .evaluation_batch = language_evaluation_batch,
    .report = language_report,
    .sample = language_sample,
    .text = sample_text,
};
