#include "language.h"

#include "attention_view.h"
#include "error.h"
#include "reader.h"
#include "run.h"
#include "sequences.h"
#include <math.h>
#include <stdlib.h>

// clang-format off
static const Option rows[] = {
    {.name = OPT_PRESET, .kind = OPTION_CHOICE, .scope = OPTION_TRAINING, .value = "NAME",
     .initial = "auto", .choices = "auto|tiny|small|hybrid|long|published", .group = "Training",
     .help = "recipe"},
    {.name = OPT_PROMPT, .kind = OPTION_TEXT, .value = "TEXT", .group = "Generation",
     .help = "continue TEXT with -e's weights; -: standard input"},
    {.letter = 's', .name = OPT_SAMPLE_EVERY, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = OPTION_GROUP_MORE,
     .help = "steps between samples; 0: none"},
    {.letter = 'g', .name = OPT_SAMPLE_TOKENS, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "100", .min = 1, .max = 1e9, .group = "Generation",
     .help = "tokens per sample"},
    {.name = OPT_TEMPERATURE, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "0.8", .max = 100, .group = "Generation",
     .help = "sampling temperature; 0: the most probable token"},
    {.name = OPT_TOP_K, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "0",
     .max = 1e9, .group = OPTION_GROUP_MORE,
     .help = "choose among the N most probable tokens; 0: all"},
    {.name = OPT_TOP_P, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "0.95", .min = 1e-6, .max = 1, .group = OPTION_GROUP_MORE,
     .help = "choose among the most probable tokens of total mass X"},
    {.name = OPT_PROMPT_FILE, .kind = OPTION_TEXT, .value = "FILE", .group = OPTION_GROUP_MORE,
     .help = "continue the text of FILE, as --prompt"},
    {.name = OPT_SAMPLES, .kind = OPTION_INTEGER, .value = "N", .initial = "1", .min = 1,
     .max = 4096, .group = OPTION_GROUP_MORE, .help = "texts to generate at once"},
    {.name = OPT_STOP, .kind = OPTION_TEXT, .value = "TEXT", .choices = OPTION_AGAIN,
     .group = OPTION_GROUP_MORE, .help = "text that ends a sample; can be repeated"},
    {.name = OPT_REPETITION_PENALTY, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "1", .min = 0.01, .max = 100, .group = OPTION_GROUP_MORE,
     .help = "repetition penalty; above 1: repeated tokens are less probable"},
    {.name = OPT_SHOW_ATTENTION, .kind = OPTION_TEXT, .value = "TEXT", .group = OPTION_GROUP_MORE,
     .help = "print the attention weights of TEXT, by layer and head"},
    {.name = OPT_BEYOND, .kind = OPTION_CHOICE, .scope = OPTION_HABIT, .value = "HOW",
     .initial = "slide", .choices = READER_BEYOND, .group = OPTION_GROUP_MORE,
     .help = "reading beyond the last position"},
};
// clang-format on

static void add_options(Options *options) {
    sequences_add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

// Removes padding from the targets and hides it from all positions.
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
    batch->counts_correct = sequences_dataset(task)->recall.kind != RECALL_NONE;
    return true;
}

// Returns the fraction of a split's words and bytes in `tokens` of its tokens, in proportion;
// padding does not count.
static double share_of_text(const Dataset *dataset, const Split *split, int64_t tokens) {
    const int64_t paddings = split_paddings(split);
    size_t size = 0;
    if (paddings > 0 && dataset->tokenizer)
        free(tokenizer_decode(dataset->tokenizer, &dataset->padding, 1, &size));
    const double hidden =
        split->bytes > 0 ? (double)paddings * (double)size / (double)split->bytes : 0;
    return (1 - hidden) * (double)tokens / (double)(split->tokens - paddings);
}

// Reports perplexity per token, and bits per byte and perplexity per word if the data record how
// many bytes and words they have. These counts are for the whole split; part of a split uses a
// proportional share.
static void language_report(const void *task, SplitName name, Evaluation *result) {
    const Dataset *dataset = sequences_dataset(task);
    const Split *split = &dataset->splits[name];
    const double total = result->loss * (double)result->tokens;
    const double share = share_of_text(dataset, split, result->tokens);
    if (dataset->recall.kind != RECALL_NONE) {
        evaluation_add(result, (Metric){"accuracy", "accuracy ", "", 4,
                                        (double)result->correct / (double)result->tokens});
        return;
    }
    evaluation_add(result, (Metric){"ppl", "ppl ", "", 2, exp(result->loss)});
    if (split->bytes > 0)
        evaluation_add(result, (Metric){"bpb", "", " bits/byte", 4,
                                        total / (share * (double)split->bytes * log(2))});
    // For bytes and byte-level BPE, which users' own texts use, bits per byte say more, so
    // perplexity per word goes to the log only.
    const TokenizerKind kind = tokenizer_kind(dataset->tokenizer);
    const bool words = kind != TOKENIZER_BYTE && kind != TOKENIZER_BPE;
    if (split->words > 0)
        evaluation_add(result, (Metric){"word_ppl", words ? "word ppl " : NULL, "", 2,
                                        exp(total / (share * (double)split->words))});
}

// Rejects --sample-every at the start if samples cannot be written.
static void *language_create(const TaskSetup *setup) {
    const Dataset *dataset = setup->dataset;
    if (setup->training && options_integer(setup->options, OPT_SAMPLE_EVERY) > 0) {
        if (!dataset->tokenizer)
            fail("--sample-every: %s has no tokenizer, so no text can be written; drop the option, "
                 "or make the data with ./tokenize",
                 dataset->name);
        if (dataset->end < 0)
            fail("--sample-every: %s has no token that precedes a text (\"end\" in "
                 "meta.json); drop the "
                 "option",
                 dataset->name);
    }
    return sequences_create(setup);
}

// ./tokenize turns users' own texts into bytes or byte-level BPE; these get a recipe by size.
// Words, SentencePiece (WikiText-2) and generated sequences get the published one.
static const char *language_preset(const Dataset *dataset) {
    const TokenizerKind kind = tokenizer_kind(dataset->tokenizer);
    if (kind != TOKENIZER_BPE && kind != TOKENIZER_BYTE) return "published";
    return dataset->splits[SPLIT_TRAIN].tokens < 100000 ? "tiny" : "small";
}

static const OptionName generation_options[] = {OPT_SAMPLES, OPT_NONE};
static const OptionName writing_options[] = {
    OPT_SAMPLE_TOKENS, OPT_TEMPERATURE,        OPT_TOP_K,  OPT_TOP_P,
    OPT_STOP,          OPT_REPETITION_PENALTY, OPT_BEYOND, OPT_NONE};
static const OptionName no_options[] = {OPT_NONE};
static const Action actions[] = {
    {OPT_PROMPT, false, generate, generation_options, writing_options},
    {OPT_PROMPT_FILE, false, generate, generation_options, NULL},
    {OPT_SHOW_ATTENTION, false, show_text_attention, no_options, NULL}};

const TaskType task_language = {
    .name = "language",
    .summary = "trains a language model on tokenized text, and evaluates or samples it",
    .add_options = add_options,
    .learns_embedded = true,
    .lower = {OPT_BATCH, OPT_SEQ_LEN},
    .length = OPT_SEQ_LEN,
    .actions = actions,
    .action_count = sizeof(actions) / sizeof(actions[0]),
    .preset = language_preset,
    .use = "write text",
    .used_by = "--prompt The",
    .create = language_create,
    .destroy = sequences_destroy,
    .plan = sequences_plan,
    .describe = sequences_describe,
    .update = language_update,
    .train_batch = language_train_batch,
    .evaluation_batch = language_evaluation_batch,
    .evaluation_batches = sequences_evaluation_batches,
    .report = language_report,
    .sample = generate_sample,
    .text = sample_text,
};
