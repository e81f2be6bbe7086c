// The task of a language model: which tokens a batch holds, and that evaluation counts each of them once.
#include "bytes.h"
#include "error.h"
#include "language.h"
#include "memory.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// A shard of `count` tokens: 1, 2, 3, ...
static void make_shard(const char *name, int32_t count) {
    Bytes file = {0};
    const int32_t header[256] = {SHARD_MAGIC, 1, count};
    bytes_append(&file, header, sizeof(header));
    for (int32_t i = 1; i <= count; i++) bytes_append(&file, &(uint16_t){(uint16_t)i}, 2);
    test_file(name, file.data, file.size);
    bytes_free(&file);
}

static Options *make_options(int batch, int length, int total) {
    Options *options = options_create("test", "");
    static const Option seed = {0,  "seed", OPTION_INTEGER, OPTION_TRAINING, "N", "7", 0, 100, NULL, NULL,
                                "", ""};
    options_add(options, &seed, 1);
    task_language.add_options(options);
    char *values[] = {format_string("%d", batch), format_string("%d", length), format_string("%d", total)};
    options_set(options, "batch", values[0], "test");
    options_set(options, "seq-len", values[1], "test");
    options_set(options, "total-batch", values[2], "test");
    for (int i = 0; i < 3; i++) free(values[i]);
    return options;
}

// Every token of the split is a target once, in order, behind the one before it; batches are full but for the
// last.
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
    task_language.destroy(task);
    options_free(options);
    dataset_close(dataset);
}

static void test_evaluation(void) {
    for (int tokens = 1; tokens <= 13; tokens++)
        for (int batch = 1; batch <= 3; batch++) check_evaluation(tokens, batch, 4);
}

// An epoch's updates hold every sequence once, however it is cut into micro-batches.
static void test_training(void) {
    enum { T = 4, SEQUENCES = 12 };
    make_shard("train_0.bin", SEQUENCES * T + 1);
    Dataset *dataset = dataset_open(test_directory());
    int32_t order[3][SEQUENCES];
    const int batches[] = {1, 2, 3};
    for (int k = 0; k < 3; k++) {
        Options *options = make_options(batches[k], T, 6 * T);
        void *task =
            task_language.create(&(TaskSetup){.options = options, .dataset = dataset, .training = true});
        CHECK(task_language.plan(task)->sequences == SEQUENCES);
        CHECK_CLOSE(task_language.plan(task)->sequences_per_update, 6, 0);
        int place = 0;
        while (place < SEQUENCES) {
            const Update update = task_language.update(task, place);
            CHECK(update.batches == 6 / batches[k] && update.targets == 6 * T && update.tokens == 6 * T);
            for (int64_t i = 0; i < update.batches; i++) {
                Batch b;
                task_language.train_batch(task, &update, i, &b);
                CHECK(b.first_row == i * batches[k]);
                for (int64_t row = 0; row < b.batch; row++) {
                    order[k][place + b.first_row + row] = b.inputs[row * T];
                    for (int t = 0; t < T; t++) CHECK(b.targets[row * T + t] == b.inputs[row * T + t] + 1);
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
    CHECK_FAILS(create_task, options, 1, "4 sequences of 4 tokens in the training split, an update takes 8");
    options_free(options);
    options = make_options(1, 65, 0); // not asked for on the command line: the model's positions are taken
    CHECK_FAILS(create_task, options, 1, "has no sequence of 64 tokens");
    options_free(options);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"evaluation", test_evaluation},
        {"training", test_training},
        {"report", test_report},
        {"refusals", test_refusals},
    };
    return test_main(argc, argv, "tasks", cases, sizeof(cases) / sizeof(*cases));
}
