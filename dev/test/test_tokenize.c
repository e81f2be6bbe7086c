// The tokenize program, from its command line to the directory it writes.
int tokenize_main(int argc, char **argv);
#define main tokenize_main
#include "dev/tools/tokenize.c"
#undef main

#include "process.h"
#include "test.h"
#include <sys/resource.h>
#include <sys/stat.h>

// Writes a text of 1000 lines with 10 bytes and 3 words each, including the line end.
static void make_text(const char *name) {
    char *text = copy_string("");
    for (int i = 0; i < 1000; i++) append_format(&text, "a%04d \u00e9x\n", i);
    test_file(name, text, strlen(text));
    free(text);
}

// Runs "tokenize" with the arguments; %s in them is the test's directory.
static void run(void *arguments) {
    char *copy = copy_string(arguments), *argv[32] = {(char *)"tokenize"};
    int argc = 1;
    for (char *rest, *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (argc == sizeof(argv) / sizeof(*argv)) abort();
        char *mark = strstr(word, "%s");
        if (mark) *mark = '\0';
        argv[argc++] =
            mark ? format_string("%s%s%s", word, test_directory(), mark + 2) : copy_string(word);
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

#define CHECK_RUN_FAILS(arguments, code, message)                                                  \
    CHECK_FAILS(run, (void *)(arguments), code, message)

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

// Files of a larger earlier run must not be mixed in, and files of others must not be lost.
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
                    "unfinished.tmp: exists and is not a directory");
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
        {"-o %s/out --tokenizer spm %s/latin1", "latin1: byte 3 of the train text is not UTF-8"},
        {"-o %s/out %s/empty", "empty: has no words"},
        {"-o %s/out %s/blank", "blank: has no words"},
        {"-o %s/out %s/none", "none: cannot open"},
        {"-o %s/out %s", "is a directory"},
        {"-o %s/out --train %s/text --val %s/empty",
         "empty: has no words to make the val split of"},
        {"-o %s/out --tokenizer spm --model %s/text %s/text", "text: is not a SentencePiece model"},
        {"-o %s/out --model %s/text %s/text", "text: byte 0: found 'a', expected a value"},
        {"-o %s/out --vocab-size 256 %s/text",
         "--vocab-size 256: the bytes and the special tokens are 257"},
    };
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++) {
        CHECK_RUN_FAILS(failing[i][0], 1, failing[i][1]);
        dataset_close(open_output("out"));
    }
    setenv("PATH", test_directory(), 1);
    CHECK_RUN_FAILS("-o %s/out --tokenizer spm %s/text", 1, "spm_train is not installed");
    dataset_close(open_output("out"));
    CHECK_RUN_FAILS("-o %s/text/out --tokenizer byte %s/text", 1, "exists and is not a directory");
    CHECK_RUN_FAILS("-o /proc/none --tokenizer byte %s/text", 1,
                    "/proc/none: cannot make the directory");
}

static void test_foreign_files(void) {
    make_text("text");
    check_runs("-o %s/out --tokenizer byte %s/text");
    test_file("out/fineweb_train_000001.bin", "x", 1);
    CHECK_RUN_FAILS("-o %s/out --tokenizer byte %s/text", 1,
                    "fineweb_train_000001.bin: another program made it");
    // A model's directory.
    char *directory = format_string("%s/theirs", test_directory());
    mkdir(directory, 0777);
    free(directory);
    test_file("theirs/tokenizer.json", "{}", 2);
    CHECK_RUN_FAILS("-o %s/theirs --tokenizer byte %s/text", 1,
                    "tokenizer.json: another program made it");
    CHECK(there("theirs/tokenizer.json") && !there("theirs/meta.json"));
}

static void test_usage(void) {
    make_text("text");
    const char *const failing[][2] = {
        {"%s/text", "--output DIR is missing"},
        {"-o %s/out", "found 0 text files"},
        {"-o %s/out %s/text %s/text", "found 2 text files"},
        {"-o %s/out --train %s/text %s/text", "found both --train and a FILE"},
        {"-o %s/out --train %s/text --train %s/text", "--train is given twice, and takes one file"},
        {"-o %s/out --val %s/text", "--val and --test need --train"},
        {"-o %s/out --tokenizer byte --vocab-size 300 %s/text",
         "--vocab-size: bytes are always 256"},
        {"-o %s/out --tokenizer byte --model %s/text %s/text",
         "--model is for --tokenizer bpe, spm or word"},
        {"-o %s/out --model a.vocab %s/text", "--model a.vocab: add --tokenizer word"},
        {"-o %s/out --model a.model %s/text", "--model a.model: add --tokenizer spm"},
        {"-o %s/out --tokenizer word --binary %s/text", "--binary is for --tokenizer bpe or byte"},
        {"-o %s/out --tokenizer spm --reserve mask %s/text", "--reserve is for --tokenizer bpe"},
        {"-o %s/out --normalise %s/text", "--normalise is for --tokenizer spm"},
        {"-o %s/out --model %s/text --vocab-size 300 %s/text", "has its own vocabulary"},
        {"-o %s/out --shard-tokens 0 %s/text", "--shard-tokens 0"},
        {"-o %s/out --tokenizer bpf %s/text", "--tokenizer bpf"},
        {"-o %s/out --source %s/text", "--source and --target: name one file each"},
        {"-o %s/out --val-source %s/text --val-target %s/text", "need --source and --target"},
        {"-o %s/out --source %s/text --target %s/text %s/text", "found both pairs of sentences"},
        {"-o %s/out --source %s/text --target %s/text --tokenizer word", "are for --tokenizer bpe"},
    };
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++)
        CHECK_RUN_FAILS(failing[i][0], 2, failing[i][1]);
    CHECK(!there("out"));
}

// A text larger than what is encoded at once, with a line across the boundary and a last line
// without a line end.
static void test_large(void) {
    enum { SIZE = ENCODE_AT_ONCE + 1000000 };
    char *text = allocate(SIZE, 1, "a text");
    for (int i = 0; i < SIZE; i++)
        text[i] = i % 70001 == 70000 ? '\n' : i % 5 == 4 ? ' ' : (char)('a' + i % 3);
    test_file("text", text, SIZE);
    check_runs("-o %s/out --tokenizer word --train %s/text");
    Dataset *dataset = open_output("out");
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK(train->tokens == train->words && train->lines == SIZE / 70001 + 1);
    CHECK(train->bytes < SIZE &&
          train->bytes > SIZE - 2 * train->lines); // a space at a line's end is lost
    dataset_close(dataset);
    free(text);
}

static bool have_spm(void) {
    ProcessResult program =
        process_run((const char *const[]){"spm_train", "--version", NULL}, (Text){NULL, 0});
    process_result_free(&program);
    if (program.start_error != 0) printf("skipped: SentencePiece's programs are not installed\n");
    return program.start_error == 0;
}

static void test_spm(void) {
    if (!have_spm()) return;
    make_text("text");
    check_runs("-o %s/out --tokenizer spm --vocab-size 300 %s/text");
    Dataset *dataset = open_output("out");
    CHECK(dataset->vocabulary == 300 && dataset->padding == 0 && dataset->end == 1);
    CHECK(dataset->splits[SPLIT_TEST].lines == 50 && dataset->splits[SPLIT_TEST].tokens > 150);
    CHECK(!there("out/tokenizer.vocab"));

    // The same with the model that it made.
    check_runs("-o %s/again --tokenizer spm --model %s/out/tokenizer.model %s/text");
    Dataset *again = open_output("again");
    CHECK(again->splits[SPLIT_TRAIN].tokens == dataset->splits[SPLIT_TRAIN].tokens);
    dataset_close(again);
    dataset_close(dataset);

    char errors[1024];
    CHECK(test_child(run, (void *)"-o %s/out --tokenizer spm --vocab-size 30000 %s/text", errors,
                     sizeof(errors)) == 0);
    CHECK(strncmp(errors, "warning: --vocab-size 30000: the training text has only", 55) == 0);
    CHECK_RUN_FAILS("-o %s/out --tokenizer spm --vocab-size 30 %s/text", 1,
                    "spm_train failed (exit code 255): Vocabulary size is");
}

// A line that is cut between words has the tokens that spm_encode gives for the whole line.
static void test_spm_long_line(void) {
    enum { SIZE = 400000 };
    if (!have_spm()) return;
    char *text = allocate(SIZE, 1, "a text");
    for (int64_t i = 0; i < SIZE; i++)
        text[i] = i * i % 7 == 4 || i % 29 < 2 ? ' '
                  : i % 1001 == 5              ? '-'
                                               : (char)('a' + i * i / 5 % 26);
    test_file("text", text, SIZE);
    check_runs("-o %s/out --tokenizer spm --vocab-size 300 --train %s/text");
    Dataset *dataset = open_output("out");
    const Split *split = &dataset->splits[SPLIT_TRAIN];
    int32_t *tokens = allocate((size_t)split->tokens, sizeof(int32_t), "tokens");
    split_copy(split, 0, split->tokens, tokens);
    char *model = format_string("--model=%s/out/tokenizer.model", test_directory());
    ProcessResult result = process_run(
        (const char *const[]){"spm_encode", model, "--output_format=id", NULL}, (Text){text, SIZE});
    CHECK(result.start_error == 0 && result.exit_code == 0);
    bytes_append(&result.output, "", 1);
    char *at = result.output.data;
    int64_t equal = 0;
    while (equal < split->tokens && strtol(at, &at, 10) == tokens[equal]) equal++;
    CHECK(equal == split->tokens - 1 &&
          tokens[equal] == dataset->end); // the whole line, and its end
    CHECK(strcmp(at, "\n") == 0);
    process_result_free(&result);
    free(model);
    free(tokens);
    dataset_close(dataset);
    free(text);
}

// Returns the decoded tokens of a split, as a new string.
static char *decode_split(const Dataset *dataset, SplitName name, size_t *size) {
    const Split *split = &dataset->splits[name];
    int32_t *tokens = allocate((size_t)split->tokens, sizeof(int32_t), "tokens");
    split_copy(split, 0, split->tokens, tokens);
    char *decoded = tokenizer_decode(dataset->tokenizer, tokens, (size_t)split->tokens, size);
    free(tokens);
    return decoded;
}

// Checks that the decoded split of a data set equals the text.
static void check_text(const Dataset *dataset, SplitName name, const char *text, size_t size) {
    size_t got;
    char *decoded = decode_split(dataset, name, &got);
    CHECK(got == size && memcmp(decoded, text, size) == 0);
    CHECK(dataset->splits[name].bytes == (int64_t)size);
    free(decoded);
}

// The default tokenizer loses no byte of a user's text.
static void test_bpe(void) {
    const char text[] = "\tif (x)  {\r\n\0\xff\n\n    y = 1;   \n\u00e9<|endoftext|> end  ";
    test_file("text", text, sizeof(text) - 1);
    check_runs("-o %s/out --train %s/text --val %s/text");
    Dataset *dataset = open_output("out");
    CHECK(dataset->tokenizer && dataset->padding == -1 && dataset->mask == -1 && dataset->end == 0);
    check_text(dataset, SPLIT_TRAIN, text, sizeof(text) - 1);
    check_text(dataset, SPLIT_VAL, text, sizeof(text) - 1);
    dataset_close(dataset);

    check_runs("-o %s/reserved --vocab-size 260 --reserve mask,padding --train %s/text");
    dataset = open_output("reserved");
    CHECK(dataset->vocabulary == 260 && dataset->padding == 0 && dataset->end == 1 &&
          dataset->mask == 2);
    dataset_close(dataset);

    // In a text without an end-of-text token, newline is the end token.
    make_text("plain");
    check_runs("-o %s/plain_out %s/plain");
    dataset = open_output("plain_out");
    size_t size;
    char *end = tokenizer_decode(dataset->tokenizer, &dataset->end, 1, &size);
    CHECK_TEXT(end, "\n");
    free(end);
    dataset_close(dataset);
    check_runs("-o %s/again --model %s/plain_out/tokenizer.json %s/plain");
    check_runs("-o %s/again --model %s/plain_out/vocab.json %s/plain");
}

// A word vocabulary works for other texts; words that it lacks are unknown.
static void test_word_model(void) {
    make_text("text");
    check_runs("-o %s/out --tokenizer word %s/text");
    test_file("other", "a0001 new\na0002 \u00e9x\n", 20);
    check_runs("-o %s/again --tokenizer word --model %s/out/tokenizer.vocab --train %s/other");
    Dataset *dataset = open_output("out"), *again = open_output("again");
    CHECK(again->vocabulary == dataset->vocabulary && again->end == dataset->end);
    size_t size;
    char *text = decode_split(again, SPLIT_TRAIN, &size);
    CHECK_TEXT(text, "a0001 <unk>\na0002 \u00e9x\n");
    free(text);
    dataset_close(dataset);
    dataset_close(again);
    test_file("twice", "a\n<eos>\na\n", 10);
    CHECK_RUN_FAILS("-o %s/x --tokenizer word --model %s/twice %s/text", 1,
                    "twice: line 3: the word \"a\" is listed twice");
    test_file("endless", "a\nb\n", 4);
    CHECK_RUN_FAILS("-o %s/x --tokenizer word --model %s/endless %s/text", 1,
                    "endless: has no line <eos>");
}

#define BYTES(literal) literal, sizeof(literal) - 1

// Texts are never mistaken for another format, nor other formats for text.
static void test_formats(void) {
    static const char ascii[] = "Some text, as it is.\r\n\tMore.\n",
                      cyrillic[] = "\4\x1f\4\x3e\4\x3c\0\n";
    static const struct {
        const char *data;
        size_t size;
        const char *name;
    } cases[] = {
        {BYTES(""), NULL},
        {BYTES(ascii), NULL},
        {BYTES("caf\xe9 au lait, \x1b[1mbold\x1b[0m"), NULL}, // Latin-1, terminal codes
        {BYTES("\xef\xbb\xbfUTF-8 with a mark"), NULL},
        {BYTES("BZh is no mark alone"), NULL},
        {BYTES("PK, %PDF and \x1f\x8b later on, and even a \0 in so long a text as this"), NULL},
        {BYTES("\x1f\x8b\b\0"), "compressed by gzip"},
        {"\xfd"
         "7zXZ\0\0",
         7, "compressed by xz"},
        {BYTES("\x28\xb5\x2f\xfd$"), "compressed by zstd"},
        {"\x04\x22\x4d\x18"
         "d",
         5, "compressed by lz4"},
        {BYTES("BZh91AY&SY\x12"), "compressed by bzip2"},
        {BYTES("BZh9\x17rE8P\x90"), "compressed by bzip2"},
        {BYTES("PK\3\4\x14"), "a zip archive"},
        {BYTES("%PDF-1.7\n"), "a PDF"},
        {"\xff\xfe"
         "a\0",
         4, "UTF-16"},
        {BYTES("\xfe\xff\0a"), "UTF-16"},
        {BYTES("\xff\xfe\0\0a\0\0\0"), "UTF-32"},
        {BYTES("\0\0\xfe\xff\0\0\0a"), "UTF-32"},
        {BYTES("a\0b\0c\0d\0"), "UTF-16"},
        {BYTES("\0a\0b\0c\0d"), "UTF-16"},
        {BYTES(cyrillic), "binary"},
        {"\x7f"
         "ELF\2\1\1\0\0\0\0\0\0\0\0\0",
         16, "binary"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const TextFormat format = text_format((Text){cases[i].data, cases[i].size});
        CHECK_TEXT(format.name ? format.name : "text", cases[i].name ? cases[i].name : "text");
    }
    make_text("text");
    test_file("text.gz", "\x1f\x8b\b\0", 4);
    test_file("noise", "\1\2\3\4\5\6 \1", 8);
    const char *const failing[] = {
        "-o %s/out %s/text.gz",
        "-o %s/out --tokenizer byte --train %s/text --val %s/text.gz",
        "-o %s/out --source %s/text --target %s/text.gz",
    };
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++)
        CHECK_RUN_FAILS(failing[i], 1,
                        "text.gz: is compressed by gzip, expected plain text: zcat ");
    CHECK_RUN_FAILS("-o %s/a;b --tokenizer byte %s/text.gz", 1, "/a;b' --tokenizer byte -\n");
    CHECK_RUN_FAILS("-o %s/out --val %s/text.gz --train %s/text", 1, "/text --val -\n");
    CHECK_RUN_FAILS("-o %s/out %s/noise", 1,
                    "noise: is binary, expected plain text; --tokenizer byte --binary takes");
    check_runs("-o %s/out --tokenizer byte --binary --train %s/noise");
}

// Pairs of sentences have one vocabulary, and an end after each sentence.
static void test_pairs(void) {
    static const char source[] = "a dog runs\nno pair\na cat\r\na last line",
                      target[] = "ein Hund\n \t\r\neine Katze\n letzte \n";
    test_file("source", source, strlen(source));
    test_file("target", target, strlen(target));
    char errors[1024];
    CHECK(test_child(run,
                     (void *)"-o %s/out --vocab-size 262 --shard-tokens 7 --source %s/source "
                             "--target %s/target "
                             "--test-source %s/source --test-target %s/target",
                     errors, sizeof(errors)) == 0);
    CHECK(strstr(errors, "1 pairs with an empty side are left out, the first is line 2"));
    Dataset *dataset = open_output("out");
    CHECK(dataset->paired && dataset->padding == 0 && dataset->end == 1 &&
          dataset->vocabulary == 262);
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK(train->lines == 6 && train->tokens == dataset->splits[SPLIT_TEST].tokens &&
          train->shard_count > 1);
    size_t size;
    char *text = decode_split(dataset, SPLIT_TRAIN, &size);
    CHECK_TEXT(
        text,
        "a dog runs<|endoftext|>ein Hund<|endoftext|>a cat<|endoftext|>eine Katze<|endoftext|>"
        "a last line<|endoftext|> letzte <|endoftext|>");
    CHECK(train->bytes == (int64_t)(strlen(source) + 1 - strlen("no pair\n\r") + strlen(target) -
                                    strlen(" \t\r\n")));
    free(text);
    CHECK(dataset->splits[SPLIT_VAL].tokens == 0);
    dataset_close(dataset);
    check_runs("-o %s/again --model %s/out/tokenizer.json --source %s/source --target %s/source");

    test_file("longer", "one\ntwo\nthree\nfour\nfive\n", 24);
    CHECK_RUN_FAILS("-o %s/x --source %s/source --target %s/longer", 1,
                    "longer, line 5: has no partner");
    test_file("ends", "one\ntwo <|endoftext|>\n", 22);
    CHECK_RUN_FAILS("-o %s/x --source %s/ends --target %s/ends", 1,
                    "ends, line 2: holds <|endoftext|>");
    test_file("empty", "\n\n\n\n", 4);
    CHECK_RUN_FAILS("-o %s/x --source %s/source --target %s/empty", 1, "have no pair of sentences");
    check_runs("-o %s/plain --train %s/longer");
    CHECK_RUN_FAILS("-o %s/x --model %s/plain/tokenizer.json --source %s/longer --target %s/longer",
                    1, "has no [PAD] or no <|endoftext|>");
}

// Text that is not restored is counted, and bits per byte count only what is.
static void test_lost(void) {
    const char text[] = "int  x;\n\treturn \u2026  y;\n  \n";
    if (!have_spm()) return;
    test_file("text", text, sizeof(text) - 1);
    check_runs("-o %s/kept --tokenizer spm --vocab-size 280 --train %s/text");
    Dataset *dataset = open_output("kept");
    check_text(dataset, SPLIT_TRAIN, text, sizeof(text) - 1);
    dataset_close(dataset);
    check_runs("-o %s/lost --tokenizer spm --normalise --vocab-size 280 --train %s/text");
    dataset = open_output("lost");
    check_text(dataset, SPLIT_TRAIN, "int x;\nreturn ... y;\n\n", 22);
    dataset_close(dataset);
}

static void hold_output(void *path) {
    lock_output(path);
    run((void *)"-o %s/out --tokenizer byte %s/text");
}

static void run_limited(void *arguments) {
    const struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    run(arguments);
}

// If a file cannot grow, the message gives the reason, whichever program writes the file.
static void test_full(void) {
    make_text("text");
    CHECK_FAILS(run_limited, (void *)"-o %s/out --tokenizer byte %s/text", 1,
                "cannot write: File too large");
    CHECK_FAILS(run_limited, (void *)"-o %s/out %s/text", 1, "cannot write: File too large");
    if (!have_spm()) return;
    CHECK_FAILS(run_limited, (void *)"-o %s/out --tokenizer spm --vocab-size 400 %s/text", 1,
                "tokenizer.model: cannot write: File too large");
}

// Only one run at a time, which leaves no lock.
static void test_lock(void) {
    make_text("text");
    check_runs("-o %s/out --tokenizer byte %s/text");
    char *path = format_string("%s/out", test_directory());
    CHECK_FAILS(hold_output, path, 1, "another tokenize writes there");
    free(path);
    check_runs("-o %s/out --tokenizer byte %s/text");
}

// A line of 60 MB, as in a generated file.
static void test_long_line(void) {
    enum { SIZE = 60000000 };
    char *text = allocate(SIZE, 1, "a text");
    for (int i = 0; i < SIZE; i++)
        text[i] = i % 11 == 10 ? ' ' : (char)('a' + (int64_t)i * i / 7 % 26);
    test_file("text", text, SIZE);
    check_runs("-o %s/out --vocab-size 400 --train %s/text");
    Dataset *dataset = open_output("out");
    CHECK(dataset->splits[SPLIT_TRAIN].bytes == SIZE && dataset->splits[SPLIT_TRAIN].lines == 1);
    dataset_close(dataset);
    free(text);
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"one file", test_one_file},
        {"named files", test_named_files},
        {"running again", test_run_again},
        {"a failure keeps what was there", test_failure_keeps},
        {"shards of others", test_foreign_files},
        {"usage", test_usage},
        {"large text", test_large},
        {"spm", test_spm},
        {"spm, a long line", test_spm_long_line},
        {"bpe", test_bpe},
        {"words of another text", test_word_model},
        {"files that are no text", test_formats},
        {"pairs", test_pairs},
        {"what is lost", test_lost},
        {"a full disk", test_full},
        {"one run at a time", test_lock},
        {"a long line", test_long_line},
    };
    return test_main(argc, argv, "tokenize", cases, sizeof(cases) / sizeof(*cases));
}
