#include "sequences.h"

#include "error.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

// clang-format off
static const Option rows[] = {
    {.letter = 'b', .name = OPT_BATCH, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "2", .min = 1, .max = 1 << 20, .group = "Training", .help = "sequences per batch"},
    {.letter = 't', .name = OPT_SEQ_LEN, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "2048", .min = 1, .max = 1 << 28, .group = "Training",
     .help = "tokens per sequence"},
    {.letter = 'd', .name = OPT_TOTAL_BATCH, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e12, .group = "Training",
     .help = "tokens per update; 0: batch * seq-len"},
    {.name = OPT_OFFSETS, .kind = OPTION_CHOICE, .scope = OPTION_TRAINING, .value = "HOW",
     .initial = "moving", .choices = "moving|fixed", .group = OPTION_GROUP_MORE,
     .help = "starts of sequences: new in each epoch, or as published"},
};
// clang-format on

void sequences_add_options(Options *options) {
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

struct Sequences {
    const Dataset *dataset;
    Loader *loader; // NULL: evaluation only, or generated sequences
    uint64_t seed;  // of training
    TaskPlan plan;
    int64_t per_update;        // sequences
    int32_t *inputs, *targets; // (B, T)
    uint8_t *mask;             // (B, T)
};

static bool is_generated(const Sequences *s) {
    return s->dataset->recall.kind != RECALL_NONE;
}

// Writes the n-th sequence since the start of training to row b. Returns its number of targets.
static int64_t training_sequence(const Sequences *s, int64_t n, int64_t b) {
    const int64_t T = s->plan.length;
    int32_t *inputs = s->inputs + b * T, *targets = s->targets + b * T;
    if (is_generated(s))
        return recall_sequence(&s->dataset->recall, s->seed, SPLIT_TRAIN, (uint64_t)n, T, inputs,
                               targets);
    loader_sequence(s->loader, n, inputs, targets);
    int64_t tokens = 0;
    for (int64_t t = 0; t < T; t++) tokens += targets[t] != s->dataset->padding;
    return tokens;
}

static int64_t sequences_per_update(const Options *options, int64_t B, int64_t T) {
    const int64_t total = options_integer(options, OPT_TOTAL_BATCH), tokens = B * T;
    if (total == 0) return B;
    if (total % tokens != 0)
        fail_usage("--total-batch %lld: must be a multiple of batch * seq-len = %lld * %lld = %lld",
                   (long long)total, (long long)B, (long long)T, (long long)tokens);
    return total / T;
}

// Plans the order of training. Exits with an error if the split is smaller than one update.
static void plan_training(Sequences *s, const Options *options) {
    const int64_t B = s->plan.batch, T = s->plan.length;
    s->per_update = sequences_per_update(options, B, T);
    s->plan.sequences_per_update = (double)s->per_update;
    s->seed = (uint64_t)options_integer(options, OPT_SEED);
    if (is_generated(s)) {
        s->plan.sequences = RECALL_EPOCH;
        return;
    }
    s->loader = loader_create(&s->dataset->splits[SPLIT_TRAIN], T, s->seed,
                              strcmp(options_text(options, OPT_OFFSETS), "moving") == 0);
    s->plan.sequences = loader_sequences(s->loader);
    if (s->plan.sequences < s->per_update)
        fail("%s: %lld sequences of %lld tokens in the training split, an update takes %lld; lower "
             "--seq-len or --batch, or train on a longer text",
             s->dataset->name, (long long)s->plan.sequences, (long long)T,
             (long long)s->per_update);
}

void *sequences_create(const TaskSetup *setup) {
    Sequences *s = allocate(1, sizeof(*s), "task");
    s->dataset = setup->dataset;
    s->plan.batch = options_integer(setup->options, OPT_BATCH);
    s->plan.length = task_length(setup, OPT_SEQ_LEN);
    if (is_generated(s)) recall_check_length(&s->dataset->recall, s->plan.length);
    if (setup->training) plan_training(s, setup->options);
    const size_t tokens = (size_t)(s->plan.batch * s->plan.length);
    s->inputs = allocate(tokens, sizeof(int32_t), "batch");
    s->targets = allocate(tokens, sizeof(int32_t), "batch");
    s->mask = allocate(tokens, 1, "batch");
    return s;
}

void sequences_destroy(void *task) {
    Sequences *s = task;
    if (!s) return;
    loader_free(s->loader);
    free(s->inputs);
    free(s->targets);
    free(s->mask);
    free(s);
}

const TaskPlan *sequences_plan(const void *task) {
    return &((const Sequences *)task)->plan;
}

const Dataset *sequences_dataset(const void *task) {
    return ((const Sequences *)task)->dataset;
}

uint64_t sequences_seed(const void *task) {
    return ((const Sequences *)task)->seed;
}

char *sequences_describe(const void *task) {
    const Sequences *s = task;
    char *text =
        format_string("%lld x %lld tokens", (long long)s->per_update, (long long)s->plan.length);
    const int64_t left = s->loader ? loader_left_out(s->loader) : 0;
    if (left > 0)
        append_format(&text, "; %lld of %lld training tokens are in no sequence (--offsets fixed)",
                      (long long)left, (long long)s->dataset->splits[SPLIT_TRAIN].tokens);
    return text;
}

Update sequences_update(void *task, int64_t place) {
    const Sequences *s = task;
    const int64_t tokens = s->per_update * s->plan.length;
    return (Update){.place = place,
                    .batches = s->per_update / s->plan.batch,
                    .sequences = s->per_update,
                    .tokens = tokens,
                    .targets = tokens};
}

void sequences_train_batch(void *task, const Update *update, int64_t i, Batch *batch) {
    const Sequences *s = task;
    const int64_t B = s->plan.batch, T = s->plan.length, first = i * B;
    for (int64_t b = 0; b < B; b++) training_sequence(s, update->place + first + b, b);
    *batch = (Batch){
        .batch = B, .length = T, .inputs = s->inputs, .targets = s->targets, .first_row = first};
}

// Returns the number of blocks of T tokens to evaluate, or of generated sequences.
static int64_t blocks_of(const Sequences *s, SplitName split) {
    return is_generated(s) ? RECALL_EVALUATION : s->dataset->splits[split].tokens / s->plan.length;
}

int64_t sequences_evaluation_batches(const void *task, SplitName split) {
    const Sequences *s = task;
    const int64_t B = s->plan.batch, left = s->dataset->splits[split].tokens % s->plan.length;
    return (blocks_of(s, split) + B - 1) / B + (!is_generated(s) && left > 0);
}

// Fills batches of B blocks of T tokens each. The blocks left at the end form a smaller batch, and
// the last, shorter block a batch of its own.
bool sequences_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch) {
    const Sequences *s = task;
    const Dataset *dataset = s->dataset;
    const Split *data = &dataset->splits[split];
    const int64_t B = s->plan.batch, T = s->plan.length, blocks = blocks_of(s, split);
    const int64_t batches = (blocks + B - 1) / B;
    if (i >= sequences_evaluation_batches(task, split)) return false;
    const int64_t first = i < batches ? i * B : blocks, left = blocks - first;
    const int64_t count = i == batches ? 1 : left < B ? left : B;
    for (int64_t b = 0; b < count; b++) {
        int32_t *inputs = s->inputs + b * T, *targets = s->targets + b * T;
        if (is_generated(s)) // the same for any training seed
            recall_sequence(&dataset->recall, 0, split, (uint64_t)(first + b), T, inputs, targets);
        else
            split_block(data, T, first + b, dataset->end, inputs, targets);
    }
    *batch = (Batch){.batch = count,
                     .length = i < batches ? T : data->tokens % T,
                     .inputs = s->inputs,
                     .targets = s->targets,
                     .first_row = first};
    return true;
}

const uint8_t *sequences_mask(void *task, const Batch *batch, const int32_t *tokens) {
    const Sequences *s = task;
    const int64_t count = batch->batch * batch->length;
    int64_t hidden = 0;
    for (int64_t i = 0; i < count; i++) {
        s->mask[i] = tokens[i] != s->dataset->padding;
        hidden += !s->mask[i];
    }
    return s->dataset->padding >= 0 && hidden ? s->mask : NULL;
}

int64_t sequences_targets(void *task, const Update *update, int64_t (*targets_of)(int64_t tokens)) {
    const Sequences *s = task;
    const bool counted = s->dataset->padding >= 0 || is_generated(s);
    if (!counted) return update->sequences * targets_of(s->plan.length);
    int64_t targets = 0;
    for (int64_t i = 0; i < update->sequences; i++)
        targets += targets_of(training_sequence(s, update->place + i, 0));
    return targets > 0 ? targets : 1;
}
