#include "masked.h"

#include "attention_view.h"
#include "error.h"
#include "random.h"
#include "sequences.h"
#include <math.h>
#include <stdlib.h>

static const double REPLACED = 0.8, RANDOM = 0.1; // of the chosen tokens; the rest are kept

// clang-format off
static const Option rows[] = {
    {.name = OPT_FILL, .kind = OPTION_TEXT, .value = "TEXT", .group = "Generation",
     .help = "guess each [MASK] in TEXT with -e's weights"},
    {.name = OPT_SHOW_ATTENTION, .kind = OPTION_TEXT, .value = "TEXT", .group = OPTION_GROUP_MORE,
     .help = "print the attention weights of TEXT, by layer and head"},
};
// clang-format on

static void add_options(Options *options) {
    sequences_add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

static void *masked_create(const TaskSetup *setup) {
    if (setup->dataset->mask < 0)
        fail("%s: has no mask token; make the data with ./tokenize --tokenizer bpe --reserve "
             "mask,padding, or name it as \"mask_token\" in a Hugging Face model's "
             "tokenizer_config.json",
             setup->dataset->name);
    return sequences_create(setup);
}

// Returns how many of `tokens` tokens are hidden; at least one, unless there are none.
static int64_t count_chosen(int64_t tokens) {
    const int64_t count = llround(MASKED_SHARE * (double)tokens);
    return tokens > 0 && count == 0 ? 1 : count;
}

static int32_t replacement(const Dataset *dataset, Random *random, int32_t token) {
    const double u = random_uniform(random);
    if (u < REPLACED) return dataset->mask;
    return u < REPLACED + RANDOM ? (int32_t)random_below(random, (uint64_t)dataset->vocabulary)
                                 : token;
}

// Hides tokens. On entry targets (T) hold a text, in which -1 is an unknown token; on return inputs
// (T) hold what the model reads, and targets the tokens to predict. Padding is kept.
static void hide(const Dataset *dataset, Random *random, int64_t length, int32_t *inputs,
                 int32_t *targets) {
    const int32_t padding = dataset->padding;
    int64_t left = 0;
    for (int64_t t = 0; t < length; t++) left += targets[t] >= 0 && targets[t] != padding;
    int64_t wanted = count_chosen(left);
    for (int64_t t = 0; t < length; t++) {
        const int32_t token = targets[t];
        inputs[t] = token >= 0 ? token : dataset->mask;
        targets[t] = -1;
        // Each remaining token is equally likely to be chosen.
        if (token < 0 || token == padding ||
            (int64_t)random_below(random, (uint64_t)left--) >= wanted)
            continue;
        wanted--;
        targets[t] = token;
        inputs[t] = replacement(dataset, random, token);
    }
}

// The next-token targets of `batch` are the text. Row b uses random stream `first` + b.
static void hide_batch(void *task, Batch *batch, uint64_t seed, RandomPurpose purpose,
                       uint64_t first) {
    const int64_t T = batch->length;
    batch->mask = sequences_mask(task, batch, batch->targets);
    for (int64_t b = 0; b < batch->batch; b++) {
        const uint64_t number = first + (uint64_t)b;
        Random random = random_stream(seed, purpose, (uint32_t)number, (uint32_t)(number >> 32));
        hide(sequences_dataset(task), &random, T, (int32_t *)batch->inputs + b * T,
             (int32_t *)batch->targets + b * T);
    }
}

static Update masked_update(void *task, int64_t place) {
    Update update = sequences_update(task, place);
    update.targets = sequences_targets(task, &update, count_chosen);
    return update;
}

static void masked_train_batch(void *task, const Update *update, int64_t i, Batch *batch) {
    sequences_train_batch(task, update, i, batch);
    hide_batch(task, batch, sequences_seed(task), RANDOM_MASK,
               (uint64_t)(update->place + batch->first_row));
}

static bool masked_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch) {
    if (!sequences_evaluation_batch(task, split, i, batch)) return false;
    hide_batch(task, batch, (uint64_t)split, RANDOM_MASK_FIXED, (uint64_t)batch->first_row);
    batch->counts_correct = true;
    return true;
}

// Reports the pseudo-perplexity of the hidden tokens, and how many of them were the most probable
// token.
static void masked_report(const void *task, SplitName split, Evaluation *result) {
    (void)task;
    (void)split;
    evaluation_add(result, (Metric){"pseudo_ppl", "pseudo-ppl ", "", 2, exp(result->loss)});
    evaluation_add(result, (Metric){"accuracy", "accuracy ", "", 4,
                                    (double)result->correct / (double)result->tokens});
}

static const OptionName fill_options[] = {OPT_NONE};
static const Action actions[] = {
    {OPT_FILL, true, fill, fill_options, NULL},
    {OPT_SHOW_ATTENTION, false, show_text_attention, fill_options, NULL}};

const TaskType task_masked = {
    .name = "masked",
    .summary = "trains a model that predicts masked tokens of a text from all others, and "
               "evaluates or asks it",
    .add_options = add_options,
    .lower = {OPT_BATCH, OPT_SEQ_LEN},
    .length = OPT_SEQ_LEN,
    .actions = actions,
    .action_count = sizeof(actions) / sizeof(actions[0]),
    .use = "fill in",
    .used_by = "--fill 'the [MASK] is'",
    .create = masked_create,
    .destroy = sequences_destroy,
    .plan = sequences_plan,
    .describe = sequences_describe,
    .update = masked_update,
    .train_batch = masked_train_batch,
    .evaluation_batch = masked_evaluation_batch,
    .evaluation_batches = sequences_evaluation_batches,
    .report = masked_report,
};
