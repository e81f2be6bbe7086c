#include "masked.h"

#include "attention_view.h"
#include "error.h"
#include "memory.h"
#include "random.h"
#include "sequences.h"
#include <math.h>
#include <stdlib.h>

static const double REPLACED = 0.8, RANDOM = 0.1; // of the tokens chosen; the rest stays

// clang-format off
static const Option rows[] = {
    {.name = OPT_FILL, .kind = OPTION_TEXT, .value = "TEXT", .group = "Generation",
     .help = "guess each [MASK] in TEXT with -e's weights"},
    {.name = OPT_SHOW_ATTENTION, .kind = OPTION_TEXT, .value = "TEXT", .group = OPTION_GROUP_MORE,
     .help = "print what each token of TEXT draws on, by layer and head"},
};
// clang-format on

static void add_options(Options *options) {
    sequences_add_options(options);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

typedef struct {
    void *sequences;
    int32_t mask, padding, vocabulary;
    uint64_t seed;
    int32_t *inputs, *targets; // (B, T)
} Masked;

static void *masked_create(const TaskSetup *setup) {
    const Dataset *dataset = setup->dataset;
    if (dataset->mask < 0)
        fail("%s: has no mask token; make the data with ./tokenize --tokenizer bpe --reserve "
             "mask,padding; of others' models tokenizer_config.json names it (\"mask_token\")",
             dataset->name);
    Masked *m = allocate(1, sizeof(*m), "task");
    *m = (Masked){.sequences = sequences_create(setup),
                  .mask = dataset->mask,
                  .padding = dataset->padding,
                  .vocabulary = dataset->vocabulary,
                  .seed = (uint64_t)options_integer(setup->options, OPT_SEED)};
    const TaskPlan *plan = sequences_plan(m->sequences);
    const size_t tokens = (size_t)(plan->batch * plan->length);
    m->inputs = allocate(tokens, sizeof(int32_t), "batch");
    m->targets = allocate(tokens, sizeof(int32_t), "batch");
    return m;
}

static void masked_destroy(void *task) {
    Masked *m = task;
    if (!m) return;
    sequences_destroy(m->sequences);
    free(m->inputs);
    free(m->targets);
    free(m);
}

static const TaskPlan *masked_plan(const void *task) {
    return sequences_plan(((const Masked *)task)->sequences);
}

static char *masked_describe(const void *task) {
    return sequences_describe(((const Masked *)task)->sequences);
}

// Of so many tokens; at least one.
static int64_t count_chosen(int64_t tokens) {
    const int64_t count = llround(MASKED_SHARE * (double)tokens);
    return tokens > 0 && count == 0 ? 1 : count;
}

static int32_t replacement(const Masked *m, Random *random, int32_t token) {
    const double u = random_uniform(random);
    if (u < REPLACED) return m->mask;
    return u < REPLACED + RANDOM ? (int32_t)random_below(random, (uint64_t)m->vocabulary) : token;
}

// inputs, targets (T) from a text (T), in which -1 is an unknown token. Padding stays as
// it is.
static void hide(const Masked *m, Random *random, const int32_t *text, int64_t length,
                 int32_t *inputs, int32_t *targets) {
    int64_t left = 0;
    for (int64_t t = 0; t < length; t++) left += text[t] >= 0 && text[t] != m->padding;
    int64_t wanted = count_chosen(left);
    for (int64_t t = 0; t < length; t++) {
        inputs[t] = text[t] >= 0 ? text[t] : m->mask;
        targets[t] = -1;
        // Each of the tokens that are left is equally likely.
        if (text[t] < 0 || text[t] == m->padding ||
            (int64_t)random_below(random, (uint64_t)left--) >= wanted)
            continue;
        wanted--;
        targets[t] = text[t];
        inputs[t] = replacement(m, random, text[t]);
    }
}

// What `batch` would predict, a token after the other, is the text; row b hides by stream `first` +
// b.
static void hide_batch(const Masked *m, Batch *batch, uint64_t seed, RandomPurpose purpose,
                       uint64_t first) {
    const int64_t T = batch->length;
    batch->mask = sequences_mask(m->sequences, batch, batch->targets);
    for (int64_t b = 0; b < batch->batch; b++) {
        const uint64_t number = first + (uint64_t)b;
        Random random = random_stream(seed, purpose, (uint32_t)number, (uint32_t)(number >> 32));
        hide(m, &random, batch->targets + b * T, T, m->inputs + b * T, m->targets + b * T);
    }
    batch->inputs = m->inputs;
    batch->targets = m->targets;
}

static Update masked_update(void *task, int64_t place) {
    const Masked *m = task;
    Update update = sequences_update(m->sequences, place);
    update.targets = sequences_targets(m->sequences, &update, count_chosen);
    return update;
}

static void masked_train_batch(void *task, const Update *update, int64_t i, Batch *batch) {
    const Masked *m = task;
    sequences_train_batch(m->sequences, update, i, batch);
    hide_batch(m, batch, m->seed, RANDOM_MASK, (uint64_t)(update->place + batch->first_row));
}

static bool masked_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch) {
    const Masked *m = task;
    if (!sequences_evaluation_batch(m->sequences, split, i, batch)) return false;
    hide_batch(m, batch, (uint64_t)split, RANDOM_MASK_FIXED, (uint64_t)batch->first_row);
    batch->counts_correct = true;
    return true;
}

static int64_t masked_evaluation_batches(const void *task, SplitName split) {
    return sequences_evaluation_batches(((const Masked *)task)->sequences, split);
}

// Pseudo-perplexity, of the tokens that were hidden, and how many of them were the most probable
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
    .destroy = masked_destroy,
    .plan = masked_plan,
    .describe = masked_describe,
    .update = masked_update,
    .train_batch = masked_train_batch,
    .evaluation_batch = masked_evaluation_batch,
    .evaluation_batches = masked_evaluation_batches,
    .report = masked_report,
};
