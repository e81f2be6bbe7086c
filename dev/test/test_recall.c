// Generated sequences: their questions, the positions, and that the context alone gives the answer.
#include "dataset.h"
#include "language.h"
#include "recall.h"
#include "test.h"
#include <string.h>

enum { T = 64 };

// Enough repetitions to see that it always holds.
enum { TIMES = 200 };

static int64_t make(const char *name, uint64_t n, int32_t *inputs, int32_t *targets) {
    const Recall recall = recall_parse(name);
    const int64_t counted = recall_sequence(&recall, 3, SPLIT_TRAIN, n, T, inputs, targets);
    int64_t seen = 0;
    for (int t = 0; t < T; t++) {
        CHECK(inputs[t] >= 0 && inputs[t] < recall_vocabulary(&recall));
        CHECK(targets[t] >= -1 && targets[t] < recall_vocabulary(&recall));
        seen += targets[t] >= 0;
    }
    CHECK(seen == counted);
    return counted;
}

// Each key is asked for once, after all pairs, and its target is the value that followed it; early
// positions are more likely.
static void test_pairs(void) {
    int32_t inputs[T], targets[T];
    int64_t first_half = 0, sizes[3] = {0};
    for (uint64_t n = 0; n < TIMES; n++) {
        const int64_t pairs = make("recall:pairs=4-16", n, inputs, targets);
        CHECK(pairs == 4 || pairs == 8 || pairs == 16);
        sizes[pairs / 8]++;
        int64_t asked = 0;
        for (int64_t i = 0; i < pairs; i++) {
            CHECK(inputs[2 * i] >= 1 && inputs[2 * i] < 4096 && inputs[2 * i + 1] >= 4096);
            for (int64_t j = 0; j < i; j++) CHECK(inputs[2 * i] != inputs[2 * j]);
            for (int64_t j = 0; j < i; j++) CHECK(inputs[2 * i + 1] != inputs[2 * j + 1]);
            for (int64_t t = 2 * pairs; t < T; t += 2)
                if (targets[t] >= 0 && inputs[t] == inputs[2 * i]) {
                    CHECK(targets[t] == inputs[2 * i + 1]);
                    first_half += t < pairs + T / 2;
                    asked++;
                }
        }
        CHECK(asked == pairs);
    }
    CHECK(sizes[0] > TIMES / 5 && sizes[1] > TIMES / 5 && sizes[2] > TIMES / 5);
    CHECK((double)first_half > 0.55 * (double)(4 * sizes[0] + 8 * sizes[1] + 16 * sizes[2]));
    CHECK(make("recall:pairs=16,vocab=64", 0, inputs, targets) == 16);
    for (int i = 0; i < 16; i++) CHECK(inputs[2 * i] < 32 && inputs[2 * i + 1] >= 32);
}

static void test_passkey(void) {
    int32_t inputs[T], targets[T];
    int64_t places = 0;
    for (uint64_t n = 0; n < TIMES; n++) {
        CHECK(make("recall:passkey", n, inputs, targets) == 1);
        int64_t place = 0;
        while (inputs[place] != 0) place++;
        CHECK(inputs[place + 2] == 1 && inputs[T - 1] == 2 && targets[T - 1] == inputs[place + 1]);
        places += place;
        make("recall:passkey=0", n, inputs, targets);
        CHECK(inputs[0] == 0);
        make("recall:passkey=100", n, inputs, targets);
        CHECK(inputs[T - 4] == 0 && inputs[T - 3] == targets[T - 1]);
    }
    CHECK_CLOSE((double)places / TIMES, (T - 4) / 2.0, 5);
}

static void test_copy_and_parity(void) {
    int32_t inputs[T], targets[T];
    for (uint64_t n = 0; n < TIMES; n++) {
        CHECK(make("recall:copy", n, inputs, targets) == T / 2);
        CHECK(inputs[T / 2] == 0);
        for (int t = 0; t < T / 2; t++) CHECK(targets[T / 2 + t] == inputs[t] && inputs[t] > 0);
        for (int t = 1; t < T / 2; t++) CHECK(inputs[T / 2 + t] == inputs[t - 1]);
        CHECK(make("recall:parity", n, inputs, targets) == T);
        for (int t = 0, odd = 0; t < T; t++) CHECK(targets[t] == (odd ^= inputs[t]));
    }
}

// The same seed, split and number give the same sequence; others give another one.
static void test_seeds(void) {
    const Recall recall = recall_parse("recall:copy");
    int32_t a[T], b[T], targets[T];
    const struct {
        uint64_t seed;
        uint32_t split;
        uint64_t n;
    } others[] = {{4, SPLIT_TRAIN, 5}, {3, SPLIT_VAL, 5}, {3, SPLIT_TEST, 5}, {3, SPLIT_TRAIN, 6}};
    recall_sequence(&recall, 3, SPLIT_TRAIN, 5, T, a, targets);
    recall_sequence(&recall, 3, SPLIT_TRAIN, 5, T, b, targets);
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    for (int i = 0; i < 4; i++) {
        recall_sequence(&recall, others[i].seed, others[i].split, others[i].n, T, b, targets);
        CHECK(memcmp(a, b, sizeof(a)) != 0);
    }
}

static void parse(void *name) {
    recall_parse(name);
}

static void check_length(void *name) {
    const Recall recall = recall_parse(name);
    recall_check_length(&recall, 63);
}

static void test_refusals(void) {
    static const char *const names[] = {"recall:",
                                        "recall:pairs",
                                        "recall:pairs=0",
                                        "recall:pairs=8-4",
                                        "recall:pairs=4-",
                                        "recall:pairs=2049",
                                        "recall:pairs=17,vocab=64",
                                        "recall:pairs=9,vocab=8193",
                                        "recall:pairs=9,vocab=",
                                        "recall:passkey=9,vocab=64",
                                        "recall:passkey=101",
                                        "recall:passkey=1-2",
                                        "recall:copy=4",
                                        "recall:pairs=4x",
                                        "recall:pairs=99999999999999999999"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_FAILS(parse, (void *)names[i], 1, "expected recall:pairs=N or A-B");
    CHECK_FAILS(check_length, "recall:pairs=16", 2, "recall needs an even number of at least 64");
    CHECK(!recall_named("recall") && recall_named("recall:copy") && !recall_named("data/recall"));
}

// Batches of the task: an update's target count is right, and evaluation has each sequence once.
static void test_task(void) {
    static const Option seed = {.name = OPT_SEED,
                                .kind = OPTION_INTEGER,
                                .scope = OPTION_TRAINING,
                                .initial = "7",
                                .max = 100};
    Dataset *dataset = dataset_open("recall:pairs=1-8");
    Options *options = options_create("test", "");
    options_add(options, &seed, 1);
    task_language.add_options(options);
    options_set(options, OPT_BATCH, "3", "test");
    options_set(options, OPT_SEQ_LEN, "64", "test");
    options_set(options, OPT_TOTAL_BATCH, "384", "test");
    const TaskSetup setup = {.options = options, .dataset = dataset, .training = true};
    void *task = task_language.create(&setup);
    const Update update = task_language.update(task, 12);
    CHECK(update.batches == 2 && update.sequences == 6 && update.tokens == 6 * T);
    int64_t targets = 0, sequences = 0;
    Batch batch;
    for (int64_t i = 0; i < update.batches; i++) {
        task_language.train_batch(task, &update, i, &batch);
        for (int64_t j = 0; j < batch.batch * T; j++) targets += batch.targets[j] >= 0;
    }
    CHECK(targets == update.targets);
    for (int64_t i = 0; task_language.evaluation_batch(task, SPLIT_VAL, i, &batch); i++)
        sequences += batch.batch;
    CHECK(sequences == RECALL_EVALUATION);
    task_language.destroy(task);
    options_free(options);
    dataset_close(dataset);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"pairs", test_pairs}, {"passkey", test_passkey},   {"copy", test_copy_and_parity},
        {"seeds", test_seeds}, {"refusals", test_refusals}, {"task", test_task},
    };
    return test_main(argc, argv, "recall", cases, sizeof(cases) / sizeof(*cases));
}
