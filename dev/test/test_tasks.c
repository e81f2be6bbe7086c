// The tasks: which tokens a batch contains, and that evaluation counts each of them once.
#include "bytes.h"
#include "error.h"
#include "language.h"
#include "masked.h"
#include "memory.h"
#include "test.h"
#include "translation.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Writes a shard of `count` tokens: 1, 2, 3, ...
static void make_shard(const char *name, int32_t count) {
    Bytes file = {0};
    const int32_t header[256] = {SHARD_MAGIC, 1, count};
    bytes_append(&file, header, sizeof(header));
    for (int32_t i = 1; i <= count; i++) bytes_append(&file, &(uint16_t){(uint16_t)i}, 2);
    test_file(name, file.data, file.size);
    bytes_free(&file);
}

// clang-format off
static const Option seed_option = {.name = OPT_SEED, .kind = OPTION_INTEGER,
                                   .scope = OPTION_TRAINING, .initial = "7", .max = 100};
// clang-format on

static Options *make_options(int batch, int length, int total) {
    Options *options = options_create("test", "");
    options_add(options, &seed_option, 1);
    task_language.add_options(options);
    char *values[] = {format_string("%d", batch), format_string("%d", length),
                      format_string("%d", total)};
    options_set(options, OPT_BATCH, values[0], "test");
    options_set(options, OPT_SEQ_LEN, values[1], "test");
    options_set(options, OPT_TOTAL_BATCH, values[2], "test");
    for (int i = 0; i < 3; i++) free(values[i]);
    return options;
}

// Every token of the split is a target once, in order, after the one before it; all batches except
// the last are full.
static void check_evaluation(int tokens, int batch, int length) {
    make_shard("train_0.bin", 50);
    make_shard("val_0.bin", tokens);
    Dataset *dataset = dataset_open(test_directory());
    Options *options = make_options(batch, length, 0);
    void *task = task_language.create(&(TaskSetup){.options = options, .dataset = dataset});
    int next = 1;
    Batch b;
    for (int64_t i = 0; task_language.evaluation_batch(task, SPLIT_VAL, i, &b); i++) {
        CHECK(b.batch <= batch && b.length <= length && (b.length == length || b.batch == 1));
        for (int64_t j = 0; j < b.batch * b.length; j++, next++) {
            CHECK(b.targets[j] == next);
            CHECK(b.inputs[j] == (next == 1 ? dataset->end : next - 1));
        }
    }
    CHECK(next == tokens + 1);
    const int64_t batches = task_language.evaluation_batches(task, SPLIT_VAL);
    CHECK(task_language.evaluation_batch(task, SPLIT_VAL, batches - 1, &b));
    CHECK(!task_language.evaluation_batch(task, SPLIT_VAL, batches, &b));
    task_language.destroy(task);
    options_free(options);
    dataset_close(dataset);
}

static void test_evaluation(void) {
    for (int tokens = 1; tokens <= 13; tokens++)
        for (int batch = 1; batch <= 3; batch++) check_evaluation(tokens, batch, 4);
}

// The updates of an epoch contain every sequence once, for any split into micro-batches.
static void test_training(void) {
    enum { T = 4, SEQUENCES = 12 };
    make_shard("train_0.bin", SEQUENCES * T + 1);
    Dataset *dataset = dataset_open(test_directory());
    int32_t order[3][SEQUENCES];
    const int batches[] = {1, 2, 3};
    for (int k = 0; k < 3; k++) {
        Options *options = make_options(batches[k], T, 6 * T);
        options_set(options, OPT_OFFSETS, "fixed", "test");
        void *task = task_language.create(
            &(TaskSetup){.options = options, .dataset = dataset, .training = true});
        CHECK(task_language.plan(task)->sequences == SEQUENCES);
        CHECK_CLOSE(task_language.plan(task)->sequences_per_update, 6, 0);
        int place = 0;
        while (place < SEQUENCES) {
            const Update update = task_language.update(task, place);
            CHECK(update.batches == 6 / batches[k] && update.targets == 6 * T &&
                  update.tokens == 6 * T);
            for (int64_t i = 0; i < update.batches; i++) {
                Batch b;
                task_language.train_batch(task, &update, i, &b);
                CHECK(b.first_row == i * batches[k]);
                for (int64_t row = 0; row < b.batch; row++) {
                    order[k][place + b.first_row + row] = b.inputs[row * T];
                    for (int t = 0; t < T; t++)
                        CHECK(b.targets[row * T + t] == b.inputs[row * T + t] + 1);
                }
            }
            place += (int)update.sequences;
        }
        task_language.destroy(task);
        options_free(options);
    }
    CHECK(memcmp(order[0], order[1], sizeof(order[0])) == 0 &&
          memcmp(order[0], order[2], sizeof(order[0])) == 0);
    int seen[SEQUENCES] = {0};
    for (int i = 0; i < SEQUENCES; i++) seen[(order[0][i] - 1) / T]++;
    for (int i = 0; i < SEQUENCES; i++) CHECK(seen[i] == 1);
    dataset_close(dataset);
}

// With moving offsets, every token is a target in each epoch; with fixed ones, a message counts the
// tokens left out.
static void test_offsets(void) {
    enum { TOKENS = 22, T = 5 };
    static const char *const kinds[] = {"moving", "fixed"};
    make_shard("train_0.bin", TOKENS);
    Dataset *dataset = dataset_open(test_directory());
    for (int k = 0; k < 2; k++) {
        Options *options = make_options(1, T, 0);
        options_set(options, OPT_OFFSETS, kinds[k], "test");
        void *task = task_language.create(
            &(TaskSetup){.options = options, .dataset = dataset, .training = true});
        const int64_t sequences = task_language.plan(task)->sequences;
        CHECK(sequences == (k == 0 ? 5 : 4));
        int seen[TOKENS + 1] = {0}, starts[TOKENS + 1] = {0}, places = 0;
        for (int64_t place = 0; place < 3 * sequences; place++) {
            Batch b;
            const Update update = task_language.update(task, place);
            task_language.train_batch(task, &update, 0, &b);
            places += starts[b.inputs[0]]++ == 0;
            for (int t = 0; t < T; t++) {
                CHECK(b.targets[t] == b.inputs[t] % TOKENS + 1);
                seen[b.targets[t]]++;
            }
        }
        for (int token = 1; token <= TOKENS; token++)
            CHECK(k == 0 ? seen[token] >= 3 : seen[token] == (token > 1 && token < 22 ? 3 : 0));
        CHECK(k == 0 ? places > 5 : places == 4);
        char *text = task_language.describe(task);
        CHECK_TEXT(text, k == 0 ? "1 x 5 tokens"
                                : "1 x 5 tokens; 1 of 22 training tokens are in no sequence "
                                  "(--offsets fixed)");
        free(text);
        task_language.destroy(task);
        options_free(options);
    }
    dataset_close(dataset);
}

// Writes a shard of `count` tokens, 1, 2, 3, ..., with padding, 0, for multiples of `period`.
static void make_padded(const char *name, int32_t count, int32_t period) {
    Bytes file = {0};
    const int32_t header[256] = {SHARD_MAGIC, 1, count};
    bytes_append(&file, header, sizeof(header));
    for (int32_t i = 1; i <= count; i++) {
        const uint16_t token = i % period ? (uint16_t)i : 0;
        bytes_append(&file, &token, sizeof(token));
    }
    test_file(name, file.data, file.size);
    bytes_free(&file);
}

static void check_hidden(const Batch *b, bool masked, int64_t *targets, int64_t *hidden) {
    for (int64_t i = 0; i < b->batch * b->length; i++) {
        // Padding among the inputs; a mask token in place of a token is not padding either.
        const bool padding = b->inputs[i] == 0;
        CHECK(b->targets[i] != 0);
        CHECK(padding ? b->mask && b->mask[i] == 0 : !b->mask || b->mask[i] == 1);
        if (masked && padding) CHECK(b->targets[i] == -1);
        *targets += b->targets[i] > 0;
        *hidden += padding;
    }
}

// Padding in running text is no target, and no position sees it. An update has the number of
// remaining targets, and reports count no padding.
static void test_padding(void) {
    static const TaskType *const types[] = {&task_language, &task_masked};
    static const char meta[] =
        "{\"tokenizer\": \"none\", \"vocab_size\": 60001, \"pad\": 0, \"mask\": 60000, "
        "\"end\": 59999, \"splits\": {\"val\": {\"words\": 10, \"bytes\": 100}}}";
    enum { T = 8, TRAIN = 60, VAL = 20 };
    test_file("meta.json", meta, strlen(meta));
    make_padded("train_0.bin", TRAIN, 3);
    make_padded("val_0.bin", VAL, 4);
    Dataset *dataset = dataset_open(test_directory());
    dataset_check(dataset, 0, 1);
    CHECK(split_paddings(&dataset->splits[SPLIT_TRAIN]) == TRAIN / 3 &&
          split_paddings(&dataset->splits[SPLIT_VAL]) == VAL / 4);
    for (int k = 0; k < 2; k++) {
        Options *options = make_options(2, T, 4 * T);
        void *task = types[k]->create(
            &(TaskSetup){.options = options, .dataset = dataset, .training = true});
        Batch b;
        int64_t hidden = 0;
        for (int64_t place = 0; place < 40; place += 4) {
            const Update update = types[k]->update(task, place);
            int64_t targets = 0;
            for (int64_t i = 0; i < update.batches; i++) {
                types[k]->train_batch(task, &update, i, &b);
                check_hidden(&b, k == 1, &targets, &hidden);
            }
            CHECK(update.targets == targets);
        }
        CHECK(hidden > 40 * T / 4 && hidden < 40 * T / 2);
        int64_t targets = 0;
        for (int64_t i = hidden = 0; types[k]->evaluation_batch(task, SPLIT_VAL, i, &b); i++)
            check_hidden(&b, k == 1, &targets, &hidden);
        CHECK(k == 0 ? targets == VAL - VAL / 4 : targets == 3); // from 6, 6 and 3 tokens
        Evaluation result = {.loss = 0.5, .tokens = VAL - VAL / 4};
        if (k == 0) {
            task_language.report(task, SPLIT_VAL, &result);
            CHECK_CLOSE(result.metrics[2].value, exp(0.5 * 15 / 10), 1e-12);
        }
        types[k]->destroy(task);
        options_free(options);
    }
    dataset_close(dataset);
}

static void test_report(void) {
    static const char meta[] =
        "{\"tokenizer\": \"none\", \"vocab_size\": 50, \"pad\": -1, \"end\": -1, \"splits\": "
        "{\"val\": {\"tokens\": 8, \"words\": 2, \"lines\": 1, \"bytes\": 16}}}";
    make_shard("train_0.bin", 9);
    make_shard("val_0.bin", 8);
    test_file("meta.json", meta, strlen(meta));
    Dataset *dataset = dataset_open(test_directory());
    Options *options = make_options(1, 4, 0);
    void *task = task_language.create(&(TaskSetup){.options = options, .dataset = dataset});
    // Half of the split: half of its bytes and words.
    Evaluation result = {.loss = 0.5, .tokens = 4};
    task_language.report(task, SPLIT_VAL, &result);
    CHECK(result.metric_count == 3);
    CHECK_TEXT(result.metrics[0].key, "ppl");
    CHECK_CLOSE(result.metrics[0].value, exp(0.5), 1e-12);
    CHECK_TEXT(result.metrics[1].key, "bpb");
    CHECK_CLOSE(result.metrics[1].value, 2.0 / (8 * log(2)), 1e-12);
    CHECK_TEXT(result.metrics[2].key, "word_ppl");
    CHECK_CLOSE(result.metrics[2].value, exp(2.0), 1e-12);
    task_language.destroy(task);
    options_free(options);
    dataset_close(dataset);
}

static void create_task(void *options) {
    Dataset *dataset = dataset_open(test_directory());
    task_language.create(
        &(TaskSetup){.options = options, .dataset = dataset, .training = true, .positions = 64});
}

static void test_refusals(void) {
    make_shard("train_0.bin", 17);
    Options *options = make_options(2, 4, 12);
    CHECK_FAILS(create_task, options, 2,
                "--total-batch 12: must be a multiple of batch * seq-len = 2 * 4 = 8");
    options_free(options);
    options = make_options(8, 4, 0);
    CHECK_FAILS(create_task, options, 1,
                "5 sequences of 4 tokens in the training split, an update takes 8");
    options_free(options);
    options = make_options(1, 65,
                           0); // not set on the command line: uses the model's positions
    CHECK_FAILS(create_task, options, 1, "has no sequence of 64 tokens");
    options_free(options);
}

// ---- masked tokens ----------------------------------------------------------

enum {
    HIDDEN_LENGTH = 40,
    HIDDEN_COUNT = 6,
    MASK_TOKEN = 60000,
    VOCABULARY = 60001
}; // 15% of 40 are 6

static Dataset *masked_dataset(void) {
    static const char meta[] =
        "{\"tokenizer\": \"none\", \"vocab_size\": 60001, \"pad\": -1, \"mask\": 60000, "
        "\"end\": -1, \"splits\": {}}";
    make_shard("train_0.bin", 400 * HIDDEN_LENGTH + 1);
    make_shard("val_0.bin", 301 * HIDDEN_LENGTH + 9);
    test_file("meta.json", meta, strlen(meta));
    return dataset_open(test_directory());
}

typedef struct {
    int64_t chosen, masked, kept, other;
} HiddenCounts;

// Counts hidden tokens. Token t of a row is first + t; positions without a target are unchanged.
static void count_hidden(const int32_t *inputs, const int32_t *targets, int64_t length,
                         int32_t first, HiddenCounts *n) {
    int64_t chosen = 0;
    for (int64_t t = 0; t < length; t++) {
        const int32_t token = first + (int32_t)t;
        CHECK(targets[t] == -1 || targets[t] == token);
        if (targets[t] == -1) {
            CHECK(inputs[t] == token);
            continue;
        }
        chosen++;
        n->masked += inputs[t] == MASK_TOKEN;
        n->kept += inputs[t] == token;
        n->other += inputs[t] != MASK_TOKEN && inputs[t] != token;
    }
    CHECK(chosen == (length == HIDDEN_LENGTH ? HIDDEN_COUNT : 1));
    n->chosen += chosen;
}

static void *masked_task(const Dataset *dataset, int batch, Options **options) {
    *options = make_options(batch, HIDDEN_LENGTH, 4 * HIDDEN_LENGTH);
    options_set(*options, OPT_OFFSETS, "fixed", "test");
    return task_masked.create(
        &(TaskSetup){.options = *options, .dataset = dataset, .training = true});
}

// 15% of each sequence are chosen, of which 80% are masked, 10% random and 10% kept: the same for
// any split of an update into micro-batches, others in each epoch.
static void test_masked_training(void) {
    Dataset *dataset = masked_dataset();
    Options *options[2];
    void *tasks[] = {masked_task(dataset, 4, &options[0]), masked_task(dataset, 1, &options[1])};
    HiddenCounts n = {0};
    int64_t same = 0, epoch = task_masked.plan(tasks[0])->sequences;
    static uint8_t hidden[401][HIDDEN_LENGTH]; // in the first epoch, by the sequence's first token
    for (int64_t place = 0; place < 2 * epoch; place += 4) {
        const Update update = task_masked.update(tasks[0], place),
                     rows = task_masked.update(tasks[1], place);
        CHECK(update.batches == 1 && rows.batches == 4 && update.targets == 4 * HIDDEN_COUNT);
        Batch whole, part;
        task_masked.train_batch(tasks[0], &update, 0, &whole);
        for (int row = 0; row < 4; row++) {
            const int32_t *inputs = whole.inputs + row * HIDDEN_LENGTH,
                          *targets = whole.targets + row * HIDDEN_LENGTH;
            task_masked.train_batch(tasks[1], &rows, row, &part);
            CHECK(memcmp(part.inputs, inputs, HIDDEN_LENGTH * sizeof(int32_t)) == 0);
            CHECK(memcmp(part.targets, targets, HIDDEN_LENGTH * sizeof(int32_t)) == 0);
            int32_t first = 0; // from any target
            for (int t = 0; t < HIDDEN_LENGTH && !first; t++)
                if (targets[t] >= 0) first = targets[t] - t;
            count_hidden(inputs, targets, HIDDEN_LENGTH, first, &n);
            uint8_t *before = hidden[(first - 2) / HIDDEN_LENGTH];
            for (int t = 0; t < HIDDEN_LENGTH; t++) {
                if (place < epoch) before[t] = targets[t] >= 0;
                if (place >= epoch) same += before[t] && targets[t] >= 0;
            }
        }
    }
    const double chosen = (double)n.chosen;
    CHECK_CLOSE((double)n.masked / chosen, 0.8, 0.03);
    CHECK_CLOSE((double)n.kept / chosen, 0.1, 0.03);
    CHECK_CLOSE((double)n.other / chosen, 0.1, 0.03);
    CHECK_CLOSE((double)same / (chosen / 2), 0.15, 0.05); // two epochs agree only by chance
    for (int i = 0; i < 2; i++) {
        task_masked.destroy(tasks[i]);
        options_free(options[i]);
    }
    dataset_close(dataset);
}

// Every token occurs, and the same tokens are hidden each time, for any batch size.
static void test_masked_evaluation(void) {
    Dataset *dataset = masked_dataset();
    static int32_t targets[2][301 * HIDDEN_LENGTH + 9];
    for (int k = 0; k < 2; k++) {
        Options *options;
        void *task = masked_task(dataset, k == 0 ? 4 : 1, &options);
        int64_t next = 0;
        HiddenCounts n = {0};
        Batch b;
        for (int64_t i = 0; task_masked.evaluation_batch(task, SPLIT_VAL, i, &b); i++) {
            for (int64_t row = 0; row < b.batch; row++, next += b.length) {
                const int32_t *inputs = b.inputs + row * b.length, *at = b.targets + row * b.length;
                memcpy(targets[k] + next, at, (size_t)b.length * sizeof(int32_t));
                if (next == 0)
                    CHECK(inputs[0] == MASK_TOKEN && at[0] == -1); // nothing precedes it
                else
                    count_hidden(inputs, at, b.length, (int32_t)next + 1, &n);
            }
        }
        CHECK(next == 301 * HIDDEN_LENGTH + 9);
        task_masked.destroy(task);
        options_free(options);
    }
    CHECK(memcmp(targets[0], targets[1], sizeof(targets[0])) == 0);
    dataset_close(dataset);
}

static void create_masked(void *options) {
    task_masked.create(&(TaskSetup){.options = options, .dataset = dataset_open(test_directory())});
}

static void test_masked_refusals(void) {
    make_shard("train_0.bin", 17);
    Options *options = make_options(1, 4, 0);
    CHECK_FAILS(create_masked, options, 1, "has no mask token; make the data with ./tokenize");
    options_free(options);
}

// ---- translation ------------------------------------------------------------

enum { END = 1, PAIRS = 200 };

static const char paired_meta[] =
    "{\"tokenizer\": \"none\", \"vocab_size\": 60000, \"pad\": 0, \"end\": 1, \"paired\": true, "
    "\"splits\": {}}";

static void append_token(Bytes *file, size_t token) {
    bytes_append(file, &(uint16_t){(uint16_t)token}, 2);
}

// Returns the words in a sentence of pair i; only pair 0 has two empty sentences.
static size_t words_of(size_t i, int side) {
    return side == 0 ? i * 7 % 11 : i == 0 ? 0 : 1 + i * 5 % 9;
}

// Writes pairs: all words of pair i are 1000 + i in its source, 2000 + i in its target. `cut`:
// tokens that are missing.
static void make_pairs(const char *name, size_t pairs, size_t cut) {
    Bytes file = {0};
    const int32_t header[256] = {SHARD_MAGIC, 1, 0};
    bytes_append(&file, header, sizeof(header));
    for (size_t i = 0; i < pairs; i++) {
        for (int side = 0; side < 2; side++) {
            for (size_t word = 0; word < words_of(i, side); word++)
                append_token(&file, 1000 * ((size_t)side + 1) + i);
            append_token(&file, END);
        }
    }
    file.size -= 2 * cut;
    const int32_t count = (int32_t)((file.size - sizeof(header)) / 2);
    memcpy(file.data + 2 * sizeof(int32_t), &count, sizeof(count));
    test_file(name, file.data, file.size);
    bytes_free(&file);
}

static Dataset *paired_dataset(void) {
    test_file("meta.json", paired_meta, strlen(paired_meta));
    make_pairs("train_0.bin", PAIRS, 0);
    make_pairs("val_0.bin", 30, 0);
    return dataset_open(test_directory());
}

static Options *translation_options(const char *batch_tokens, const char *accumulate,
                                    const char *max_length) {
    Options *options = options_create("test", "");
    options_add(options, &seed_option, 1);
    task_translation.add_options(options);
    options_set(options, OPT_BATCH_TOKENS, batch_tokens, "test");
    options_set(options, OPT_ACCUMULATE, accumulate, "test");
    options_set(options, OPT_MAX_LENGTH, max_length, "test");
    return options;
}

// Checks that row b of a batch is a pair as written, padded; returns its number.
static size_t check_pair(const Batch *batch, int64_t b) {
    const int64_t S = batch->source.length, T = batch->length;
    const int32_t *source = batch->source.tokens + b * S, *inputs = batch->inputs + b * T,
                  *targets = batch->targets + b * T;
    size_t pair = 0;
    if (source[0] != END) pair = (size_t)source[0] - 1000;
    if (source[0] == END && targets[0] != END) pair = (size_t)targets[0] - 2000;
    const size_t words[] = {words_of(pair, 0), words_of(pair, 1)};
    for (size_t s = 0; s < (size_t)S; s++) {
        CHECK(source[s] == (s < words[0] ? 1000 + (int32_t)pair : s == words[0] ? END : 0));
        CHECK(batch->source.mask[b * S + (int64_t)s] == (s <= words[0]));
    }
    for (size_t t = 0; t < (size_t)T; t++) {
        CHECK(targets[t] == (t < words[1] ? 2000 + (int32_t)pair : t == words[1] ? END : -1));
        CHECK(inputs[t] == (t > 0 && t <= words[1] ? 2000 + (int32_t)pair : 0));
        CHECK(batch->mask[b * T + (int64_t)t] == (t <= words[1]));
    }
    return pair;
}

// Reads the pairs of the first epochs in order, and checks them against the plan and the updates.
static void read_epochs(void *task, int epochs, uint32_t *order) {
    const TaskPlan *plan = task_translation.plan(task);
    int64_t place = 0, updates = 0;
    while (place < epochs * plan->sequences) {
        const Update update = task_translation.update(task, place);
        int64_t sequences = 0, tokens = 0, targets = 0;
        for (int64_t i = 0; i < update.batches; i++) {
            Batch batch;
            task_translation.train_batch(task, &update, i, &batch);
            CHECK(batch.batch <= plan->batch && batch.length <= plan->length &&
                  batch.first_row == sequences);
            CHECK(batch.batch * batch.length <= plan->rows &&
                  batch.batch * batch.source.length <= plan->rows);
            for (int64_t b = 0; b < batch.batch; b++) {
                const size_t pair = check_pair(&batch, b);
                order[place + sequences++] = (uint32_t)pair;
                tokens += (int64_t)(words_of(pair, 0) + words_of(pair, 1) + 2);
                targets += (int64_t)words_of(pair, 1) + 1;
            }
        }
        CHECK(sequences == update.sequences && tokens == update.tokens &&
              targets == update.targets);
        place += sequences;
        updates++;
    }
    CHECK(place == epochs * plan->sequences); // no update extends into the next epoch
    CHECK_CLOSE((double)place / (double)updates, plan->sequences_per_update, 1e-9);
}

static void test_translation_training(void) {
    enum { EPOCHS = 3 };
    Dataset *dataset = paired_dataset();
    static uint32_t order[2][EPOCHS * PAIRS];
    for (int k = 0; k < 2; k++) {
        Options *options = translation_options("48", k == 0 ? "1" : "4", "48");
        const TaskSetup setup = {
            .options = options, .dataset = dataset, .training = true, .uses = {true}};
        void *task = task_translation.create(&setup);
        CHECK(task_translation.plan(task)->sequences == PAIRS);
        read_epochs(task, EPOCHS, order[k]);
        // From any position, as in a resumed run.
        const Update later = task_translation.update(task, 2 * PAIRS);
        Batch batch;
        task_translation.train_batch(task, &later, 0, &batch);
        CHECK(check_pair(&batch, 0) == order[k][2 * PAIRS]);
        task_translation.destroy(task);
        options_free(options);
    }
    CHECK(memcmp(order[0], order[1], sizeof(order[0])) == 0);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[PAIRS] = {0};
        for (int i = 0; i < PAIRS; i++) seen[order[0][epoch * PAIRS + i]]++;
        for (int i = 0; i < PAIRS; i++) CHECK(seen[i] == 1);
        if (epoch > 0)
            CHECK(memcmp(order[0], order[0] + epoch * PAIRS, PAIRS * sizeof(uint32_t)) != 0);
    }
    dataset_close(dataset);
}

static void test_translation_evaluation(void) {
    Dataset *dataset = paired_dataset();
    Options *options = translation_options("40", "1", "40");
    const TaskSetup setup = {.options = options, .dataset = dataset, .uses[SPLIT_VAL] = true};
    void *task = task_translation.create(&setup);
    int seen[30] = {0};
    bool rises = true, falls = true; // lengths from batch to batch
    int64_t length = 0;
    Batch batch;
    for (int64_t i = 0; task_translation.evaluation_batch(task, SPLIT_VAL, i, &batch); i++) {
        for (int64_t b = 0; b < batch.batch; b++) seen[check_pair(&batch, b)]++;
        rises = rises && (i == 0 || batch.length >= length);
        falls = falls && (i == 0 || batch.length <= length);
        length = batch.length;
    }
    for (int i = 0; i < 30; i++) CHECK(seen[i] == 1);
    CHECK(!rises && !falls);
    CHECK(!task_translation.evaluation_batch(task, SPLIT_TEST, 0, &batch));
    CHECK(task_translation.evaluation_batches(task, SPLIT_TEST) == 0);
    task_translation.destroy(task);
    options_free(options);
    dataset_close(dataset);
}

// Without training, the length is the number of positions of the weights, unless the user or a
// run's state sets another.
static void check_length(const TaskType *type, Options *options, int64_t positions,
                         int64_t evaluated, int64_t stored) {
    Dataset *dataset = dataset_open(test_directory());
    for (int resumed = 0; resumed < 2; resumed++) {
        const TaskSetup setup = {.options = options,
                                 .dataset = dataset,
                                 .positions = positions,
                                 .resumed = resumed,
                                 .uses[SPLIT_VAL] = true};
        void *task = type->create(&setup);
        CHECK(type->plan(task)->length == (resumed ? stored : evaluated));
        type->destroy(task);
    }
    options_free(options);
    dataset_close(dataset);
}

static void test_lengths(void) {
    make_shard("train_0.bin", 50);
    check_length(&task_language, make_options(1, 4, 0), 9, 9, 4);
    check_length(&task_language, make_options(1, 4, 0), 3, 3, 3);
    check_length(&task_language, make_options(1, 4, 0), 0, 4, 4);
    dataset_close(paired_dataset());
    check_length(&task_translation, translation_options("40", "1", "20"), 30, 30, 20);
    check_length(&task_translation, translation_options("40", "1", "20"), 50, 50, 20);
    check_length(&task_translation, translation_options("40", "1", "20"), 12, 12, 12);
}

typedef struct {
    const char *batch_tokens, *max_length;
    int64_t place;
} TranslationCase;

static void create_translation(void *argument) {
    const TranslationCase *c = argument;
    const TaskSetup setup = {.options = translation_options(c->batch_tokens, "1", c->max_length),
                             .dataset = dataset_open(test_directory()),
                             .training = true,
                             .uses = {true, true},
                             .positions = 30};
    void *task = task_translation.create(&setup);
    task_translation.update(task, c->place);
}

static void test_translation_refusals(void) {
    dataset_close(paired_dataset());
    CHECK_FAILS(create_translation, (&(TranslationCase){"7", "8", 0}), 2,
                "--batch-tokens 7: a sentence may have --max-length 8 tokens");
    CHECK_FAILS(create_translation, (&(TranslationCase){"48", "30", 1}), 1,
                "has other data or options");
    char errors[1024]; // left out and counted, per split
    CHECK(test_child(create_translation, &(TranslationCase){"48", "6", 0}, errors,
                     sizeof(errors)) == 0);
    CHECK(strstr(errors, "of 200 pairs of the train split are left out") &&
          strstr(errors, "of 30 pairs of the val split are left out"));
    make_pairs("val_0.bin", 30, 1); // the last end is missing
    CHECK_FAILS(create_translation, (&(TranslationCase){"48", "30", 0}), 1,
                "pair 30 of the val split, after token");
    make_pairs("val_0.bin", 30, 1 + words_of(29, 1)); // the last target is missing
    CHECK_FAILS(create_translation, (&(TranslationCase){"48", "30", 0}), 1,
                "pair 30 of the val split");
    make_pairs("val_0.bin", 2, 2);
    CHECK_FAILS(create_translation, (&(TranslationCase){"48", "30", 0}), 1,
                "pair 2 of the val split");
    make_shard("val_0.bin", 3);
    static const char meta[] =
        "{\"tokenizer\": \"none\", \"vocab_size\": 60000, \"pad\": 0, \"end\": 1}";
    test_file("meta.json", meta, strlen(meta));
    CHECK_FAILS(create_translation, (&(TranslationCase){"48", "30", 0}), 1,
                "has no pairs of sentences; make the data with ./tokenize --source");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"evaluation", test_evaluation},
        {"training", test_training},
        {"offsets", test_offsets},
        {"masked: training", test_masked_training},
        {"masked: evaluation", test_masked_evaluation},
        {"masked: refusals", test_masked_refusals},
        {"translation: training", test_translation_training},
        {"translation: evaluation", test_translation_evaluation},
        {"lengths", test_lengths},
        {"translation: refusals", test_translation_refusals},
        {"padding", test_padding},
        {"report", test_report},
        {"refusals", test_refusals},
    };
    return test_main(argc, argv, "tasks", cases, sizeof(cases) / sizeof(*cases));
}
