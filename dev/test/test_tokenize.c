// The tokenize program, from its command line to the directory it makes.
int tokenize_main(int argc, char **argv);
#define main tokenize_main
#include "dev/tools/tokenize.c"
#undef main

#include "process.h"
#include "test.h"
#include <sys/stat.h>

// A text of 1000 lines, 10 bytes and 3 words each (the line end among them).
static void make_text(const char *name) {
    char *text = copy_string("");
    for (int i = 0; i < 1000; i++) {
        char *longer = format_string("%sa%04d \u00e9x\n", text, i);
        free(text);
        text = longer;
    }
    test_file(name, text, strlen(text));
    free(text);
}

// Runs "tokenize" with the arguments, in which %s is the test's directory.
static void run(void *arguments) {
    char *copy = copy_string(arguments), *argv[16] = {(char *)"tokenize"};
    int argc = 1;
    for (char *rest, *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *mark = strstr(word, "%s");
        if (mark) *mark = '\0';
        argv[argc++] = mark ? format_string("%s%s%s", word, test_directory(), mark + 2) : copy_string(word);
    }
    if (!freopen("/dev/null", "w", stdout)) abort();
    const int code = tokenize_main(argc, argv);
    for (int i = 1; i < argc; i++) free(argv[i]);
    free(copy);
    if (code != 0) fail("tokenize returned %d", code);
}

static void check_runs(const char *arguments) {
    char errors[4096];
    const int code = test_child(run, (void *)arguments, errors, sizeof(errors));
    if (code != 0 || *errors)
        test_fail(__FILE__, __LINE__, "tokenize %s: code %d, %s", arguments, code, errors);
}

#define CHECK_RUN_FAILS(arguments, code, message) CHECK_FAILS(run, (void *)(arguments), code, message)

static Dataset *open_output(const char *name) {
    char *path = format_string("%s/%s", test_directory(), name);
    Dataset *dataset = dataset_open(path);
    free(path);
    return dataset;
}

static bool there(const char *name) {
    char *path = format_string("%s/%s", test_directory(), name);
    const bool exists = file_exists(path);
    free(path);
    return exists;
}

static void check_split_counts(const Dataset *dataset, int split, int64_t tokens, int64_t words,
                               int64_t lines) {
    const Split *s = &dataset->splits[split];
    CHECK(s->tokens == tokens);
    CHECK(s->words == words);
    CHECK(s->lines == lines);
    CHECK(s->bytes == 10 * lines);
}

static void test_one_file(void) {
    make_text("text");
    check_runs("-o %s/new/out --tokenizer word %s/text");
    Dataset *dataset = open_output("new/out");
    CHECK(dataset->vocabulary == 1000 + 3);
    check_split_counts(dataset, SPLIT_TRAIN, 2700, 2700, 900);
    check_split_counts(dataset, SPLIT_VAL, 150, 150, 50);
    check_split_counts(dataset, SPLIT_TEST, 150, 150, 50);
    CHECK(!there("new/out/unfinished.tmp"));
    dataset_close(dataset);
}

static void test_named_files(void) {
    make_text("a");
    make_text("b");
    check_runs("-o %s/out --tokenizer byte --train %s/a --test %s/b");
    Dataset *dataset = open_output("out");
    check_split_counts(dataset, SPLIT_TRAIN, 10000, 3000, 1000);
    check_split_counts(dataset, SPLIT_TEST, 10000, 3000, 1000);
    CHECK(dataset->splits[SPLIT_VAL].tokens == 0);
    CHECK(dataset->end == '\n' && dataset->padding == -1);
    dataset_close(dataset);
}

// What a larger run left must not be mixed in, nor may what others put there be lost.
static void test_run_again(void) {
    make_text("text");
    check_runs("-o %s/out --tokenizer word --shard-tokens 100 %s/text");
    Dataset *dataset = open_output("out");
    CHECK(dataset->splits[SPLIT_TRAIN].shard_count == 27);
    CHECK(there("out/train_000026.bin") && there("out/tokenizer.vocab"));
    dataset_close(dataset);
    test_file("out/notes.txt", "x", 1);
    test_file("out/unfinished.tmp", "", 0); // a file of that name is in the way
    CHECK_RUN_FAILS("-o %s/out --tokenizer byte %s/text", 1,
                    "unfinished.tmp: is there and is not a directory");
    char *staging = format_string("%s/out/unfinished.tmp", test_directory());
    unlink(staging);
    mkdir(staging, 0777);
    free(staging);
    test_file("out/unfinished.tmp/train_000099.bin", "x", 1);
    check_runs("-o %s/out --tokenizer byte %s/text");
    dataset = open_output("out");
    CHECK(dataset->splits[SPLIT_TRAIN].shard_count == 1 && dataset->vocabulary == 256);
    CHECK(!there("out/tokenizer.vocab") && there("out/notes.txt"));
    dataset_close(dataset);
}

static void test_failure_keeps(void) {
    make_text("text");
    test_file("latin1", "caf\xe9 au lait", 12);
    test_file("empty", "", 0);
    test_file("blank", "\n \n", 3);
    check_runs("-o %s/out --tokenizer word %s/text");
    const char *const failing[][2] = {
        {"-o %s/out %s/latin1", "latin1: byte 3 of the train text is no UTF-8"},
        {"-o %s/out %s/empty", "empty: has no words"},
        {"-o %s/out %s/blank", "blank: has no words"},
        {"-o %s/out %s/none", "none: cannot open"},
        {"-o %s/out %s", "is a directory"},
        {"-o %s/out --train %s/text --val %s/empty", "empty: has no words to make the val split of"},
        {"-o %s/out --model %s/text %s/text", "is not a SentencePiece model"},
    };
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++) {
        CHECK_RUN_FAILS(failing[i][0], 1, failing[i][1]);
        dataset_close(open_output("out"));
    }
    setenv("PATH", test_directory(), 1);
    CHECK_RUN_FAILS("-o %s/out %s/text", 1, "spm_train is not installed");
    dataset_close(open_output("out"));
    CHECK_RUN_FAILS("-o %s/text/out --tokenizer byte %s/text", 1, "is there and is not a directory");
    CHECK_RUN_FAILS("-o /proc/none --tokenizer byte %s/text", 1, "/proc/none: cannot make the directory");
}

static void test_foreign_shards(void) {
    make_text("text");
    check_runs("-o %s/out --tokenizer byte %s/text");
    test_file("out/fineweb_train_000001.bin", "x", 1);
    CHECK_RUN_FAILS("-o %s/out --tokenizer byte %s/text", 1,
                    "fineweb_train_000001.bin: is a shard that another program made");
}

static void test_usage(void) {
    make_text("text");
    const char *const failing[][2] = {
        {"%s/text", "--output DIR is missing"},
        {"-o %s/out", "found 0 text files"},
        {"-o %s/out %s/text %s/text", "found 2 text files"},
        {"-o %s/out --train %s/text %s/text", "found both --train and a FILE"},
        {"-o %s/out --val %s/text", "--val and --test need --train"},
        {"-o %s/out --tokenizer byte --vocab-size 300 %s/text", "--vocab-size: bytes are always 256"},
        {"-o %s/out --tokenizer word --model %s/text %s/text", "--model is for --tokenizer spm"},
        {"-o %s/out --model %s/text --vocab-size 300 %s/text", "has its own vocabulary"},
        {"-o %s/out --shard-tokens 0 %s/text", "--shard-tokens 0"},
        {"-o %s/out --tokenizer bpe %s/text", "--tokenizer bpe"},
    };
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++)
        CHECK_RUN_FAILS(failing[i][0], 2, failing[i][1]);
    CHECK(!there("out"));
}

// A text beyond what is encoded at once, with a line across the border and a last line without an end.
static void test_large(void) {
    enum { SIZE = ENCODE_AT_ONCE + 1000000 };
    char *text = allocate(SIZE, 1, "a text");
    for (int i = 0; i < SIZE; i++)
        text[i] = i % 70001 == 70000 ? '\n' : i % 5 == 4 ? ' ' : (char)('a' + i % 3);
    test_file("text", text, SIZE);
    check_runs("-o %s/out --tokenizer word --train %s/text");
    Dataset *dataset = open_output("out");
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK(train->tokens == train->words && train->bytes == SIZE && train->lines == SIZE / 70001 + 1);
    dataset_close(dataset);
    free(text);
}

static void test_spm(void) {
    ProcessResult program =
        process_run((const char *const[]){"spm_train", "--version", NULL}, (Text){NULL, 0});
    process_result_free(&program);
    if (program.start_error != 0) {
        printf("skipped: SentencePiece's programs are not installed\n");
        return;
    }
    make_text("text");
    check_runs("-o %s/out --vocab-size 300 %s/text");
    Dataset *dataset = open_output("out");
    CHECK(dataset->vocabulary == 300 && dataset->padding == 0 && dataset->end == 1);
    CHECK(dataset->splits[SPLIT_TEST].lines == 50 && dataset->splits[SPLIT_TEST].tokens > 150);
    CHECK(!there("out/tokenizer.vocab"));

    // The same with the model it made.
    check_runs("-o %s/again --model %s/out/tokenizer.model %s/text");
    Dataset *again = open_output("again");
    CHECK(again->splits[SPLIT_TRAIN].tokens == dataset->splits[SPLIT_TRAIN].tokens);
    dataset_close(again);
    dataset_close(dataset);

    char errors[1024];
    CHECK(test_child(run, (void *)"-o %s/out --vocab-size 30000 %s/text", errors, sizeof(errors)) == 0);
    CHECK(strncmp(errors, "warning: --vocab-size 30000: the training text has only", 55) == 0);
    CHECK_RUN_FAILS("-o %s/out --vocab-size 30 %s/text", 1,
                    "spm_train failed (exit code 255): Vocabulary size is");
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"one file", test_one_file},
        {"named files", test_named_files},
        {"running again", test_run_again},
        {"a failure keeps what was there", test_failure_keeps},
        {"shards of others", test_foreign_shards},
        {"usage", test_usage},
        {"large text", test_large},
        {"spm", test_spm},
    };
    return test_main(argc, argv, "tokenize", cases, sizeof(cases) / sizeof(*cases));
}
