#include "translation.h"

#include "error.h"
#include "memory.h"
#include "random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    READ_TOKENS = 1 << 16, // at a time
    SIDE_BY_SIDE = 64,     // a batch has room for at least batch_tokens / SIDE_BY_SIDE sentences
    SHORTEST = 8           // a batch holds at most batch_tokens / SHORTEST sentences
};

// clang-format off
static const Option rows[] = {
    {.letter = 'b', .name = OPT_BATCH_TOKENS, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "4096", .min = 1, .max = 1 << 28, .group = "Training",
     .help = "tokens per batch, of either language"},
    {.name = OPT_ACCUMULATE, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "1", .min = 1, .max = 1 << 20, .group = OPTION_GROUP_MORE,
     .help = "batches per update"},
    {.letter = 't', .name = OPT_MAX_LENGTH, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "128", .min = 1, .max = 1 << 20, .group = "Training",
     .help = "tokens per sentence; longer pairs are left out"},
    {.name = OPT_TRANSLATE, .kind = OPTION_FLAG, .group = "Translation",
     .help = "translate standard input with -e's weights"},
    {.name = OPT_BEAM, .kind = OPTION_INTEGER, .value = "N", .initial = "1", .min = 1, .max = 64,
     .group = "Translation", .help = "hypotheses per sentence; 1: greedy"},
    {.name = OPT_NBEST, .kind = OPTION_INTEGER, .value = "N", .initial = "0", .max = 64,
     .group = OPTION_GROUP_MORE,
     .help = "hypotheses to print per line, with scores; 0: the best alone"},
    {.name = OPT_ALPHA, .kind = OPTION_NUMBER, .value = "A", .initial = "0.6", .max = 10,
     .group = OPTION_GROUP_MORE, .help = "length penalty: log p is divided by (tokens)^A"},
    {.name = OPT_LONGEST, .kind = OPTION_INTEGER, .value = "N", .initial = "0", .max = 1 << 20,
     .group = OPTION_GROUP_MORE,
     .help = "tokens per translation at most; 0: twice the source's + 20"},
    {.name = OPT_SHOW_ATTENTION, .kind = OPTION_TEXT, .value = "TEXT", .group = OPTION_GROUP_MORE,
     .help = "translate TEXT, print the attention weights of each layer and head"},
};
// clang-format on

static void add_options(Options *options) {
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
}

typedef struct {
    int64_t start;           // token of the split at which the source begins; the target follows
    uint32_t source, target; // tokens, including the end token
} Pair;

// The pairs of one batch: neighbours in the list of pairs.
typedef struct {
    size_t first, count;
} Group;

typedef struct {
    const Split *split;
    Pair *pairs; // (count) sorted by length, shortest target first
    size_t count, left_out;
    Group *groups; // (group_count)
    size_t group_count;
    uint32_t *evaluated; // (group_count) groups in evaluation order; NULL: not evaluated
} PairList;

// The order of one epoch.
typedef struct {
    int64_t epoch;    // -1: none yet
    uint32_t *pairs;  // (count) the pair at each index of the list
    uint32_t *groups; // (group_count)
    int64_t *places;  // (group_count + 1) pairs before each of these groups
} Order;

typedef struct {
    const Dataset *dataset;
    uint64_t seed;
    int64_t accumulate, batch_tokens, max_length;
    TaskPlan plan;
    PairList lists[SPLIT_COUNT];
    Order order;
    int32_t *sentences;        // (2 T) both sentences of a pair
    int32_t *inputs, *targets; // (batch_tokens) of one batch
    int32_t *source;
    uint8_t *mask, *source_mask;
} Translation;

// ---- pairs ------------------------------------------------------------------

static int compare_numbers(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

// Sorts by target first, as targets take the most work. Sources rise in length among targets of one
// length and fall among those of the next, so that neighbours are of similar length on both sides.
static int compare_lengths(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    if (x->target != y->target) return compare_numbers(x->target, y->target);
    if (x->source != y->source)
        return x->target % 2 ? compare_numbers(x->source, y->source)
                             : compare_numbers(y->source, x->source);
    return compare_numbers(x->start, y->start);
}

static void add_pair(PairList *list, int64_t max_length, int64_t start, int64_t middle,
                     int64_t end) {
    const int64_t source = middle - start, target = end - middle;
    if (source > max_length || target > max_length) {
        list->left_out++;
        return;
    }
    list->pairs = grow_list(list->pairs, list->count, sizeof(Pair), "the list of pairs");
    list->pairs[list->count++] = (Pair){start, (uint32_t)source, (uint32_t)target};
}

// Finds the pairs by the end tokens of their sentences.
static void find_pairs(PairList *list, const Dataset *dataset, int64_t max_length) {
    const Split *split = list->split;
    const int64_t most = split->tokens < READ_TOKENS ? split->tokens : READ_TOKENS;
    int32_t *tokens = allocate((size_t)most, sizeof(*tokens), "tokens");
    int64_t start = 0, middle = -1; // of the present pair
    for (int64_t read = 0; read < split->tokens; read += most) {
        const int64_t left = split->tokens - read, count = left < most ? left : most;
        split_copy(split, read, count, tokens);
        for (int64_t i = 0; i < count; i++) {
            if (tokens[i] != dataset->end) continue;
            const int64_t end = read + i + 1;
            if (middle < 0) {
                middle = end;
                continue;
            }
            add_pair(list, max_length, start, middle, end);
            start = end;
            middle = -1;
        }
    }
    free(tokens);
    if (start < split->tokens)
        fail("%s: pair %zu of the %s split, after token %lld, is not complete: its two sentences "
             "do not end with token %d",
             dataset->name, list->count + list->left_out + 1, split->name, (long long)start,
             dataset->end);
    if (list->count > UINT32_MAX)
        fail("%s: %zu pairs in the %s split, more than %u", dataset->name, list->count, split->name,
             UINT32_MAX);
}

// Cuts the list into groups. The cuts depend on lengths alone, so they remain valid for any order
// of pairs of one length.
static void make_groups(PairList *list, int64_t batch_tokens) {
    const size_t most = batch_tokens < SHORTEST ? 1 : (size_t)batch_tokens / SHORTEST;
    for (size_t first = 0, count; first < list->count; first += count) {
        uint32_t longest = 0;
        for (count = 0; first + count < list->count && count < most; count++) {
            const Pair *pair = &list->pairs[first + count];
            const uint32_t length = pair->source > pair->target ? pair->source : pair->target;
            if (length > longest) longest = length;
            if ((int64_t)(count + 1) * longest > batch_tokens) break;
        }
        list->groups =
            grow_list(list->groups, list->group_count, sizeof(Group), "the list of batches");
        list->groups[list->group_count++] = (Group){first, count};
    }
}

static void list_pairs(Translation *t, SplitName split) {
    PairList *list = &t->lists[split];
    list->split = &t->dataset->splits[split];
    if (list->split->tokens == 0) return;
    find_pairs(list, t->dataset, t->max_length);
    if (list->left_out > 0)
        warn(
            "%s: %zu of %zu pairs of the %s split are left out, a sentence of theirs has more than "
            "--max-length %lld tokens",
            t->dataset->name, list->left_out, list->count + list->left_out, list->split->name,
            (long long)t->max_length);
    if (list->count == 0)
        fail("%s: no pair of the %s split is left", t->dataset->name, list->split->name);
    qsort(list->pairs, list->count, sizeof(Pair), compare_lengths);
    make_groups(list, t->batch_tokens);
    for (size_t g = 0; g < list->group_count; g++)
        if ((int64_t)list->groups[g].count > t->plan.batch)
            t->plan.batch = (int64_t)list->groups[g].count;
}

// ---- order ------------------------------------------------------------------
// Fisher-Yates shuffle.
static void shuffle(Random *random, uint32_t *items, size_t count) {
    for (size_t i = count; i > 1; i--) {
        const size_t j = (size_t)random_below(random, i);
        const uint32_t item = items[j];
        items[j] = items[i - 1];
        items[i - 1] = item;
    }
}

// Returns the end of the pairs that have the same lengths on both sides as the pair at `first`.
static size_t end_of_length(const PairList *list, size_t first) {
    const Pair *pairs = list->pairs;
    size_t end = first + 1;
    while (end < list->count && pairs[end].target == pairs[first].target &&
           pairs[end].source == pairs[first].source)
        end++;
    return end;
}

// Shuffles all groups, so that their order does not depend on length.
static void shuffle_groups(Random *random, const PairList *list, uint32_t *order) {
    for (size_t g = 0; g < list->group_count; g++) order[g] = (uint32_t)g;
    shuffle(random, order, list->group_count);
}

// Shuffled, so that the first batches of an evaluation are representative; the seed is fixed, so
// that the order is the same for all runs.
static void order_evaluation(PairList *list) {
    Random random = random_stream(0, RANDOM_SHUFFLE, 0, 0);
    list->evaluated = allocate(list->group_count, sizeof(uint32_t), "the order of batches");
    shuffle_groups(&random, list, list->evaluated);
}

static void make_order(Translation *t, int64_t epoch) {
    const PairList *list = &t->lists[SPLIT_TRAIN];
    Order *order = &t->order;
    Random random =
        random_stream(t->seed, RANDOM_SHUFFLE, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32));
    for (size_t i = 0; i < list->count; i++) order->pairs[i] = (uint32_t)i;
    for (size_t first = 0, end; first < list->count; first = end) {
        end = end_of_length(list, first);
        shuffle(&random, order->pairs + first, end - first);
    }
    shuffle_groups(&random, list, order->groups);
    for (size_t g = 0; g < list->group_count; g++)
        order->places[g + 1] = order->places[g] + (int64_t)list->groups[order->groups[g]].count;
    order->epoch = epoch;
}

// Returns the group that begins at `place` in the epoch's order.
static size_t group_at(const Translation *t, int64_t place) {
    size_t low = 0, high = t->lists[SPLIT_TRAIN].group_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (t->order.places[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    if (t->order.places[low] != place)
        fail("the resumed run has other data or options: no batch begins after pair %lld",
             (long long)place);
    return low;
}

// ---- creating ---------------------------------------------------------------

static bool uses_splits(const TaskSetup *setup) {
    for (int split = 0; split < SPLIT_COUNT; split++)
        if (setup->uses[split]) return true;
    return false;
}

// Sets the most tokens per sentence and per batch. What is evaluated must not depend on the memory
// for it, so a batch size that was not given rises to the sentence length. When only translating
// text, a sentence length that was not given falls to the batch size.
static void plan_lengths(Translation *t, const TaskSetup *setup) {
    const Options *o = setup->options;
    t->max_length = task_length(setup, OPT_MAX_LENGTH);
    t->batch_tokens = options_integer(o, OPT_BATCH_TOKENS);
    if (t->max_length <= t->batch_tokens) return;
    if (!uses_splits(setup) && !options_given(o, OPT_MAX_LENGTH))
        t->max_length = t->batch_tokens;
    else if (!setup->training && !options_given(o, OPT_BATCH_TOKENS))
        t->batch_tokens = t->max_length;
    else
        fail_usage("--batch-tokens %lld: a sentence may have --max-length %lld tokens",
                   (long long)t->batch_tokens, (long long)t->max_length);
}

static void plan_training(Translation *t) {
    const PairList *list = &t->lists[SPLIT_TRAIN];
    const int64_t groups = (int64_t)list->group_count,
                  updates = (groups + t->accumulate - 1) / t->accumulate;
    t->plan.sequences = (int64_t)list->count;
    t->plan.sequences_per_update = (double)list->count / (double)updates;
    t->order = (Order){-1, allocate(list->count, sizeof(uint32_t), "the order of pairs"),
                       allocate(list->group_count, sizeof(uint32_t), "the order of batches"),
                       allocate(list->group_count + 1, sizeof(int64_t), "the order of batches")};
}

// Without tokens the data set is only a tokenizer, to translate with.
static bool has_tokens(const Dataset *dataset) {
    for (int split = 0; split < SPLIT_COUNT; split++)
        if (dataset->splits[split].tokens > 0) return true;
    return false;
}

static void *translation_create(const TaskSetup *setup) {
    const Dataset *dataset = setup->dataset;
    if ((has_tokens(dataset) && !dataset->paired) || dataset->end < 0 || dataset->padding < 0)
        fail("%s: has no pairs of sentences; make the data with ./tokenize --source FILE --target "
             "FILE",
             dataset->name);
    Translation *t = allocate(1, sizeof(*t), "task");
    t->dataset = dataset;
    t->seed = (uint64_t)options_integer(setup->options, OPT_SEED);
    t->accumulate = options_integer(setup->options, OPT_ACCUMULATE);
    plan_lengths(t, setup);
    t->plan = (TaskPlan){.batch = 1 + t->batch_tokens / SIDE_BY_SIDE,
                         .length = t->max_length,
                         .rows = t->batch_tokens};
    for (int split = 0; split < SPLIT_COUNT; split++)
        if (setup->uses[split]) list_pairs(t, (SplitName)split);
    for (int split = SPLIT_VAL; split < SPLIT_COUNT; split++) order_evaluation(&t->lists[split]);
    if (setup->training) plan_training(t);
    const size_t N = (size_t)t->batch_tokens;
    t->sentences = allocate(2 * (size_t)t->max_length, sizeof(int32_t), "batch");
    t->inputs = allocate(N, sizeof(int32_t), "batch");
    t->targets = allocate(N, sizeof(int32_t), "batch");
    t->source = allocate(N, sizeof(int32_t), "batch");
    t->mask = allocate(N, 1, "batch");
    t->source_mask = allocate(N, 1, "batch");
    return t;
}

static void translation_destroy(void *task) {
    Translation *t = task;
    if (!t) return;
    for (int split = 0; split < SPLIT_COUNT; split++) {
        free(t->lists[split].pairs);
        free(t->lists[split].groups);
        free(t->lists[split].evaluated);
    }
    void *const arrays[] = {
        t->order.pairs, t->order.groups, t->order.places, t->sentences,   t->inputs,
        t->targets,     t->source,       t->mask,         t->source_mask, t};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) free(arrays[i]);
}

static const TaskPlan *translation_plan(const void *task) {
    return &((const Translation *)task)->plan;
}

static char *translation_describe(const void *task) {
    const Translation *t = task;
    return format_string("%lld x %lld tokens of each language, about %.0f pairs",
                         (long long)t->accumulate, (long long)t->batch_tokens,
                         t->plan.sequences_per_update);
}

// ---- batches ----------------------------------------------------------------
// Builds the batch of a group. `order` lists the pair at each index; NULL: list order.
static void build_batch(const Translation *t, const PairList *list, const Group *group,
                        const uint32_t *order, Batch *batch) {
    int64_t S = 0, T = 0;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        const Pair *pair = &list->pairs[order ? order[i] : i];
        if (pair->source > S) S = pair->source;
        if (pair->target > T) T = pair->target;
    }
    for (size_t b = 0; b < group->count; b++) {
        const size_t i = group->first + b;
        const Pair *pair = &list->pairs[order ? order[i] : i];
        const int64_t source = pair->source, target = pair->target;
        const size_t at = b * (size_t)T;
        split_copy(list->split, pair->start, source + target, t->sentences);
        for (int64_t s = 0; s < S; s++) {
            t->source[(int64_t)b * S + s] = s < source ? t->sentences[s] : t->dataset->padding;
            t->source_mask[(int64_t)b * S + s] = s < source;
        }
        for (int64_t j = 0; j < T; j++) {
            const size_t k = at + (size_t)j;
            t->inputs[k] = j > 0 && j < target ? t->sentences[source + j - 1] : t->dataset->padding;
            t->targets[k] = j < target ? t->sentences[source + j] : -1;
            t->mask[k] = j < target;
        }
    }
    *batch = (Batch){.batch = (int64_t)group->count,
                     .length = T,
                     .inputs = t->inputs,
                     .targets = t->targets,
                     .mask = t->mask,
                     .source = {S, t->source, t->source_mask}};
}

static const Group *group_of(const Translation *t, size_t i) {
    return &t->lists[SPLIT_TRAIN].groups[t->order.groups[i]];
}

static Update translation_update(void *task, int64_t place) {
    Translation *t = task;
    const PairList *list = &t->lists[SPLIT_TRAIN];
    const int64_t pairs = (int64_t)list->count, epoch = place / pairs;
    if (epoch != t->order.epoch) make_order(t, epoch);
    const size_t first = group_at(t, place % pairs), left = list->group_count - first;
    Update update = {.place = place, .batches = t->accumulate};
    if (left < (size_t)t->accumulate) update.batches = (int64_t)left;
    for (size_t g = first; g < first + (size_t)update.batches; g++) {
        const Group *group = group_of(t, g);
        update.sequences += (int64_t)group->count;
        for (size_t i = group->first; i < group->first + group->count; i++) {
            const Pair *pair = &list->pairs[t->order.pairs[i]];
            update.tokens += pair->source + pair->target;
            update.targets += pair->target;
        }
    }
    return update;
}

static void translation_train_batch(void *task, const Update *update, int64_t i, Batch *batch) {
    const Translation *t = task;
    const size_t first = group_at(t, update->place % (int64_t)t->lists[SPLIT_TRAIN].count);
    build_batch(t, &t->lists[SPLIT_TRAIN], group_of(t, first + (size_t)i), t->order.pairs, batch);
    batch->first_row = t->order.places[first + (size_t)i] - t->order.places[first];
}

static int64_t translation_evaluation_batches(const void *task, SplitName split) {
    return (int64_t)((const Translation *)task)->lists[split].group_count;
}

static bool translation_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch) {
    const Translation *t = task;
    const PairList *list = &t->lists[split];
    if (i >= translation_evaluation_batches(task, split)) return false;
    build_batch(t, list, &list->groups[list->evaluated[i]], NULL, batch);
    return true;
}

static void translation_report(const void *task, SplitName split, Evaluation *result) {
    (void)task;
    (void)split;
    evaluation_add(result, (Metric){"ppl", "ppl ", "", 2, exp(result->loss)});
}

static const OptionName translate_options[] = {OPT_BEAM, OPT_NBEST, OPT_ALPHA, OPT_LONGEST,
                                               OPT_NONE};
static const Action actions[] = {
    {OPT_TRANSLATE, true, translate_lines, translate_options, NULL},
    {OPT_SHOW_ATTENTION, true, show_translation_attention, translate_options, NULL}};

const TaskType task_translation = {
    .name = "translation",
    .summary = "trains a model of translation, evaluates it, or translates with it",
    .add_options = add_options,
    .lower = {OPT_BATCH_TOKENS, OPT_MAX_LENGTH},
    .length = OPT_MAX_LENGTH,
    .actions = actions,
    .action_count = sizeof(actions) / sizeof(actions[0]),
    .use = "translate",
    .used_by = "--translate",
    .create = translation_create,
    .destroy = translation_destroy,
    .plan = translation_plan,
    .describe = translation_describe,
    .update = translation_update,
    .train_batch = translation_train_batch,
    .evaluation_batch = translation_evaluation_batch,
    .evaluation_batches = translation_evaluation_batches,
    .report = translation_report,
};
