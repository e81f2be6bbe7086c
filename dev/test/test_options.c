#include "memory.h"
#include "options.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// clang-format off
static const Option trainer_rows[] = {
    {.letter = 'i', .name = OPT_INPUT, .kind = OPTION_TEXT, .value = "DIR", .group = "Data",
     .help = "shards and tokenizer"},
    {.letter = 'o', .name = OPT_OUTPUT, .kind = OPTION_TEXT, .value = "DIR", .group = "Data",
     .help = "where the run is kept"},
    {.letter = 'y', .name = OPT_RESUME, .kind = OPTION_FLAG, .group = "Data",
     .help = "resume where it stopped"},
    {.letter = 'b', .name = OPT_BATCH, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "2", .min = 1, .max = 65536, .group = "Training",
     .help = "sequences"},
    {.letter = 'x', .name = OPT_STEPS, .kind = OPTION_INTEGER, .scope = OPTION_LENGTH, .value = "N",
     .min = 1, .max = INFINITY, .group = "Training", .help = "updates"},
    {.letter = 'l', .name = OPT_LR, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "5e-4", .max = 10, .group = "Training", .help = "peak rate"},
    {.letter = 'q', .name = OPT_FINAL_LR, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING,
     .value = "X", .initial = "0", .min = -1, .max = 1, .group = "Training", .help = "fraction"},
    {.letter = 'k', .name = OPT_SCHEDULE, .kind = OPTION_CHOICE, .scope = OPTION_TRAINING,
     .value = "KIND", .initial = "linear", .choices = "linear|cosine|constant|wsd",
     .group = "Training", .help = "learning rate"},
    {.letter = 'S', .name = OPT_SEED, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "0", .min = -INFINITY, .max = INFINITY, .group = "Training",
     .help = "seed"},
    {.name = OPT_EVAL, .kind = OPTION_CHOICE, .value = "SPLIT", .choices = "val|test",
     .group = "Text", .help = "only evaluate"},
    {.name = OPT_INIT, .kind = OPTION_TEXT, .value = "PATH", .group = "Text", .help = "weights"},
    {.name = OPT_PROMPT, .kind = OPTION_TEXT, .value = "TEXT", .group = "Text",
     .help = "continue this"},
    {.name = OPT_TEMPERATURE, .kind = OPTION_NUMBER, .value = "X", .initial = "1", .max = INFINITY,
     .group = "Text", .help = "of sampling"},
    {.name = OPT_RARE, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "1",
     .max = 9, .group = OPTION_GROUP_MORE, .help = "a rare thing"},
    {.name = OPT_DRY, .kind = OPTION_FLAG, .group = OPTION_GROUP_MORE, .help = "another"},
};
// clang-format on
// clang-format off
static const Option model_rows[] = {
    {.letter = 'H', .name = OPT_HEADS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N",
     .initial = "4", .min = 1, .max = 1024, .metadata_key = "n_heads", .group = "Model",
     .help = "heads"},
    {.name = OPT_WINDOWS, .kind = OPTION_TEXT, .scope = OPTION_MODEL, .value = "LIST",
     .initial = "auto", .group = "Model", .help = "auto, global or a list"},
    {.name = OPT_SINK, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X",
     .initial = "1e-5", .max = INFINITY, .group = "Model", .help = "softmax1: 1"},
    {.name = OPT_POOL, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND",
     .initial = "normalised", .choices = "normalised|raw", .group = "Model", .help = "what"},
    {.name = OPT_TIED, .kind = OPTION_FLAG, .scope = OPTION_MODEL, .group = "Model",
     .help = "flag with a place in files"},
};
// clang-format on

static Options *create(void) {
    Options *options = options_create("train_test", "Trains a test.");
    options_add(options, trainer_rows, sizeof trainer_rows / sizeof *trainer_rows);
    options_add(options, model_rows, sizeof model_rows / sizeof *model_rows);
    return options;
}

enum { WORDS = 16 };

// A command line, split at spaces; "_" is an empty argument. The words are stored in `memory`.
typedef struct {
    int argc;
    char *argv[WORDS];
    char memory[256];
} CommandLine;

static void split(const char *line, CommandLine *c) {
    snprintf(c->memory, sizeof c->memory, "program %s", line);
    c->argc = 0;
    for (char *rest = c->memory, *word; (word = strsep(&rest, " "));) {
        if (*word) c->argv[c->argc++] = *word == '_' ? word + 1 : word;
    }
}

static Options *parse(const char *line) {
    static CommandLine c; // options may point into it
    split(line, &c);
    Options *options = create();
    options_parse(options, c.argc, c.argv, NULL, NULL);
    return options;
}

static void parse_body(void *line) {
    options_free(parse(line));
}

static void check_refused(const char *line, const char *message) {
    CHECK_FAILS(parse_body, (void *)(uintptr_t)line, 2, message);
}

static void test_defaults(void) {
    Options *o = parse("");
    CHECK(options_text(o, OPT_INPUT) == NULL);
    CHECK(!options_flag(o, OPT_RESUME));
    CHECK(options_integer(o, OPT_BATCH) == 2);
    CHECK(options_integer(o, OPT_STEPS) == 0);
    CHECK(options_number(o, OPT_LR) == 5e-4);
    CHECK_TEXT(options_text(o, OPT_SCHEDULE), "linear");
    CHECK(options_text(o, OPT_EVAL) == NULL);
    CHECK(!options_given(o, OPT_BATCH));
    options_free(o);
}

static void test_spellings(void) {
    static const char *const lines[] = {"-b 4 -o a -y",
                                        "-b4 -oa -y",
                                        "--batch 4 --output a --resume",
                                        "--batch=4 --output=a -y",
                                        "-yb4 -oa",
                                        "-yb 4 -o a",
                                        "-yyob -o a -b 4",
                                        "-b 7 --batch 4 -o b -o a -y"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        Options *o = parse(lines[i]);
        CHECK(options_integer(o, OPT_BATCH) == 4);
        CHECK_TEXT(options_text(o, OPT_OUTPUT), "a");
        CHECK(options_flag(o, OPT_RESUME));
        CHECK(options_given(o, OPT_BATCH) && options_given(o, OPT_RESUME) &&
              !options_given(o, OPT_LR));
        options_free(o);
    }
}

static void test_values(void) {
    Options *o = parse(
        "-q -1 -l .5 -S -9223372036854775808 --temperature 1.50E+1 --prompt=--resume -o=x -i _");
    CHECK(options_number(o, OPT_FINAL_LR) == -1);
    CHECK(options_number(o, OPT_LR) == 0.5);
    CHECK(options_integer(o, OPT_SEED) == INT64_MIN);
    CHECK(options_number(o, OPT_TEMPERATURE) == 15);
    CHECK_TEXT(options_text(o, OPT_PROMPT), "--resume");
    CHECK_TEXT(options_text(o, OPT_OUTPUT), "=x");
    CHECK_TEXT(options_text(o, OPT_INPUT), "");
    options_free(o);
    o = parse("--prompt -5 -o - -H 1024 --seed 007 -q -0 --sink -0.0e1");
    CHECK(!options_changed(o, OPT_FINAL_LR) && !signbit(options_number(o, OPT_SINK)));
    CHECK_TEXT(options_text(o, OPT_PROMPT), "-5");
    CHECK_TEXT(options_text(o, OPT_OUTPUT), "-");
    CHECK(options_integer(o, OPT_HEADS) == 1024);
    CHECK(options_integer(o, OPT_SEED) == 7);
    options_free(o);
}

static void test_unknown(void) {
    check_refused("--widnows 4", "error: unknown option --widnows; did you mean --windows?");
    check_refused("--widnows=4", "unknown option --widnows; did you mean --windows?");
    check_refused("--bach 4", "did you mean --batch?");
    check_refused("--shedule wsd", "did you mean --schedule?");
    check_refused("--temp 1", "did you mean --temperature?");
    check_refused("--rl 1", "did you mean --lr?");
    check_refused("--batch-size 4", "did you mean --batch?");
    check_refused("--x 4", "unknown option --x; did you mean -x (--steps)?");
    check_refused("--helpp", "did you mean --help?");
    check_refused("-widnows 4", "unknown option -widnows; did you mean --windows?");
    check_refused("-windows 4", "unknown option -windows; did you mean --windows?");
    check_refused("-seed=4", "unknown option -seed; did you mean --seed?");
    check_refused("-1", "unknown option -1; --help lists the options");
    check_refused("-B 4", "unknown option -B; did you mean -b (--batch)?");
    check_refused("-yZ", "unknown option -Z; --help lists the options");
    check_refused("--frobnicate", "unknown option --frobnicate; --help lists the options");
    check_refused("--", "unexpected argument --;");
    check_refused("---batch 3", "unknown option ---batch; did you mean --batch?");
    check_refused("_", "unexpected argument ;");
    check_refused("resume", "unexpected argument resume; did you mean --resume?");
    check_refused("-y data", "unexpected argument data; did you mean --input data?");
}

static void long_word_body(void *argument) {
    char *argv[] = {argument, argument};
    Options *o = create();
    options_parse(o, 2, argv, NULL, NULL);
    options_free(o);
}

static void test_long_words(void) {
    enum { LENGTH = 100000 };
    char *word = allocate(LENGTH + 1, 1, "a word");
    memset(word, 0x78, LENGTH);
    word[0] = word[1] = '-';
    CHECK_FAILS(long_word_body, word, 2, "unknown option --xxx");
    word[1] = 'b';
    CHECK_FAILS(long_word_body, word, 2, "--batch xxx");
    free(word);
}

static void test_refused_values(void) {
    check_refused("--heads 0", "error: --heads 0: expected an integer from 1 to 1024");
    check_refused("-H 1025", "--heads 1025: expected an integer from 1 to 1024");
    check_refused("-H -1", "--heads -1: expected an integer from 1 to 1024");
    static const char *const integers[] = {"1e3",  "4.0", "0x4", "+4", "4k",
                                           "four", "_",   "--4", "-",  "9223372036854775808"};
    static const char *const numbers[] = {"nan", "inf",  "0x1p3", "1e",  "1e+",   ".",
                                          "-",   "-.e1", "+1",    "1,5", "1e999", "_"};
    char line[80];
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        snprintf(line, sizeof line, "--seed %s", integers[i]);
        check_refused(line, *integers[i] == '_' ? "--seed : expected an integer"
                                                : ": expected an integer");
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(line, sizeof line, "--temperature %s", numbers[i]);
        check_refused(line, ": expected a number of at least 0");
    }
    check_refused("--steps 0", "--steps 0: expected an integer of at least 1");
    check_refused("--final-lr 1.0001", "--final-lr 1.0001: expected a number from -1 to 1");
    check_refused("-k=wsd",
                  "--schedule =wsd: expected one of linear|cosine|constant|wsd; did you mean wsd?");
    check_refused(
        "-k cosin",
        "--schedule cosin: expected one of linear|cosine|constant|wsd; did you mean cosine?");
    check_refused("--pool normalized", "did you mean normalised?");
    check_refused("--eval train", "--eval train: expected one of val|test");
    check_refused("-b", "--batch needs a value N: an integer from 1 to 65536");
    check_refused("--output", "--output needs a value DIR");
    check_refused("--output --resume", "--output needs a value DIR");
    check_refused("-o -y", "--output needs a value DIR");
    check_refused("--resume=yes", "--resume takes no value, found yes");
}

static void test_operands(void) {
    CommandLine c = {0};
    split("a -b 3 - b -- -y", &c);
    const char **operands;
    int count;
    Options *o = create();
    options_parse(o, c.argc, c.argv, &operands, &count);
    CHECK(count == 4);
    if (count == 4) {
        CHECK_TEXT(operands[0], "a");
        CHECK_TEXT(operands[1], "-");
        CHECK_TEXT(operands[2], "b");
        CHECK_TEXT(operands[3], "-y");
    }
    CHECK(options_integer(o, OPT_BATCH) == 3 && !options_flag(o, OPT_RESUME));
    free(operands);
    options_free(o);
}

// Prints to the stream that test_child() reads.
static void print_body(void *line) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    options_free(parse(line));
}

static void test_help(void) {
    char text[8192];
    CHECK(test_child(print_body, "-yh --widnows", text, sizeof text) == 0);
    CHECK(strstr(text, "usage: train_test [options]\nTrains a test.\nData:\n  -i, --input DIR "));
    CHECK(strstr(text,
                 "\n  -k, --schedule KIND  learning rate: linear|cosine|constant|wsd [linear]\n"));
    CHECK(strstr(text, "\n      --temperature X  of sampling [1]\n"));
    CHECK(strstr(text, "\nOther:\n  -h, --help           print this and exit; --help=man: "
                       "the manual page\n"));
    int lines = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1, lines++)
        CHECK(strcspn(line, "\n") <= 79);
    CHECK(lines == 2 + 5 + 18 + 2 + 1);
    CHECK(test_child(print_body, "--version", text, sizeof text) == 0);
    CHECK(strncmp(text, "train_test ", 11) == 0);
}

// The manual page and completions name every option and choice.
static void test_help_pages(void) {
    static const struct {
        char *page; // the option that prints it
        const char *parts[5];
    } expected[] = {
        {"--help=man",
         {".TH TRAIN_TEST 1 ", "\ntrain_test \\- trains a test\n",
          "\n.SS Training\n.TP\n\\fB\\-b\\fR, \\fB\\-\\-batch\\fR \\fIN\\fR\nsequences [2]\n",
          "\\fBlinear\\fR, \\fBcosine\\fR, ", "\\fB\\-\\-version\\fR\n"}},
        {"--help=bash",
         {"\ncomplete -F _train_test train_test\n", " -k | --schedule) set -- -W 'linear cosine ",
          " -i | --input) set -- -d ;;\n", " --init) set -- -f ;;\n", " --final-lr "}},
        {"--help=zsh",
         {"#compdef train_test\n",
          "'(-k --schedule)'{-k+,--schedule=}'[learning rate]:KIND:(linear ",
          "'--sink=''[softmax1\\: 1]:X:'", "'(-y --resume)'{-y,--resume}'[resume", ":_files -/'"}},
        {"--help=fish",
         {"complete -c train_test -f\n", " -l schedule -s k -x -a 'linear cosine constant wsd' -d ",
          " -l init -r -F -d 'weights'\n", " -l resume -s y -d 'resume ", " -l tied -d 'flag "}},
    };
    char text[16384];
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        CHECK(test_child(print_body, expected[i].page, text, sizeof text) == 0);
        for (int j = 0; j < 5; j++) CHECK(strstr(text, expected[i].parts[j]));
    }
    check_refused("--help=html", "--help=html: expected one of man|bash|zsh|fish");
}

static void wrapped_body(void *argument) {
    static const Option row = {.letter = 'a',
                               .name = OPT_ATTENTION_DROPOUT,
                               .value = "VALUE-LONGER",
                               .kind = OPTION_TEXT,
                               .group = "Long",
                               .help = "many words that do not fit after a name of that length and "
                                       "so continue in a line below"};
    (void)argument;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Options *o = options_create("x", "");
    options_add(o, &row, 1);
    options_help(o, false);
    options_free(o);
}

static void test_help_wraps(void) {
    char text[4096];
    CHECK(test_child(wrapped_body, NULL, text, sizeof text) == 0);
    CHECK(strstr(text, "\n  -a, --attention-dropout VALUE-LONGER\n                 many words"));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        CHECK(strcspn(line, "\n") <= 79);
}

static void set_body(void *argument) {
    Options *o = create();
    const char *const *const words = argument;
    options_set(o, options_find_name(words[0], strlen(words[0])), words[1],
                "a.safetensors: metadata");
    options_free(o);
}

static void test_set(void) {
    Options *o = create();
    options_set(o, OPT_HEADS, "8", "test");
    options_set(o, OPT_TIED, "true", "test");
    CHECK(options_integer(o, OPT_HEADS) == 8 && options_flag(o, OPT_TIED) &&
          !options_given(o, OPT_HEADS));
    options_free(o);
    CHECK_FAILS(set_body, ((const char *[]){"heads", "0"}), 1,
                "error: a.safetensors: metadata: heads 0: expected an integer from 1 to 1024");
    CHECK_FAILS(set_body, ((const char *[]){"tied", "yes"}), 1, "tied yes: expected true or false");
}

static Safetensors file_of(const Metadata *rows, int count) {
    return (Safetensors){.file = {.path = "a.safetensors"},
                         .metadata = (Metadata *)(uintptr_t)rows,
                         .metadata_count = count};
}

static void test_metadata(void) {
    Options *o = parse("--heads 8 --sink 0.10 -b 3 --tied");
    Metadata *rows = NULL;
    int count = 0;
    options_to_metadata(o, OPTION_MODEL, &rows, &count);
    static const char *const expected[][2] = {{"n_heads", "8"},
                                              {"windows", "auto"},
                                              {"sink", "0.1"},
                                              {"pool", "normalised"},
                                              {"tied", "true"}};
    CHECK(count == 5);
    for (int i = 0; i < count && i < 5; i++) {
        CHECK_TEXT(rows[i].key, expected[i][0]);
        CHECK_TEXT(rows[i].value, expected[i][1]);
    }
    options_to_metadata(o, OPTION_LENGTH, &rows, &count); // steps is not set
    CHECK(count == 5);
    options_free(o);

    const Safetensors file = file_of(rows, count);
    o = parse("--sink 1e-1 -b 5"); // the same value, written differently
    options_from_metadata(o, OPTION_MODEL, &file, "start again");
    options_from_metadata(o, OPTION_TRAINING, &file, "start again"); // none in the file
    CHECK(options_integer(o, OPT_HEADS) == 8 && options_flag(o, OPT_TIED) &&
          options_number(o, OPT_SINK) == 0.1);
    CHECK(options_integer(o, OPT_BATCH) == 5);
    CHECK(!options_given(o, OPT_HEADS) && options_given(o, OPT_SINK));
    options_free(o);
    metadata_free(rows, count);
}

static void contradict_body(void *argument) {
    char heads[] = "n_heads", four[] = "4", pool[] = "pool", odd[] = "normalized";
    const Metadata rows[] = {{heads, four}, {pool, odd}};
    const Safetensors file = file_of(rows, argument ? 1 : 2);
    Options *o = parse(argument ? argument : "");
    options_from_metadata(o, OPTION_MODEL, &file,
                          "drop the option or start a new run with another --output");
    options_free(o);
}

static void test_contradiction(void) {
    CHECK_FAILS(
        contradict_body, "-H 8", 1,
        "--heads 8: a.safetensors has 4; drop the option or start a new run with another --output");
    CHECK_FAILS(contradict_body, NULL, 1,
                "a.safetensors: metadata: pool normalized: expected one of normalised|raw; did you "
                "mean normalised?");
    // The length of training may change.
    char steps[] = "steps", ten[] = "10";
    const Metadata row = {steps, ten};
    const Safetensors file = file_of(&row, 1);
    Options *o = parse("-x 20");
    options_from_metadata(o, OPTION_LENGTH, &file, "");
    CHECK(options_integer(o, OPT_STEPS) == 20);
    options_free(o);
    o = parse("");
    options_from_metadata(o, OPTION_LENGTH, &file, "");
    CHECK(options_integer(o, OPT_STEPS) == 10);
    options_free(o);
}

// A habit is inherited unless the user sets the option.
static void test_habit(void) {
    char rare[] = "rare", seven[] = "7";
    const Metadata row = {rare, seven};
    const Safetensors file = file_of(&row, 1);
    Options *o = parse("-x 20");
    options_from_metadata(o, OPTION_HABIT, &file, NULL);
    CHECK(options_integer(o, OPT_RARE) == 7 && !options_given(o, OPT_RARE));
    options_free(o);
    o = parse("--rare 3");
    options_from_metadata(o, OPTION_HABIT, &file, NULL);
    CHECK(options_integer(o, OPT_RARE) == 3);
    options_free(o);
    // A value that only an earlier version accepted.
    char ten[] = "10";
    const Metadata gone = {rare, ten};
    const Safetensors old = file_of(&gone, 1);
    o = parse("");
    options_from_metadata(o, OPTION_HABIT, &old, NULL);
    CHECK(options_integer(o, OPT_RARE) == 1);
    options_free(o);
}

static void test_json(void) {
    Options *o = parse("-b 3 -l 1e-3 -o a\"b");
    JsonWriter w = {0};
    json_begin(&w, '{');
    options_to_json(o, &w);
    json_end(&w, '}');
    Json *json = json_parse(w.text, w.length, "test");
    CHECK(json_find(json, "batch")->number == 3);
    CHECK(json_find(json, "lr")->number == 1e-3);
    CHECK_TEXT(json_find(json, "output")->string, "a\"b");
    CHECK(json_find(json, "input")->kind == JSON_NULL &&
          json_find(json, "steps")->kind == JSON_NULL);
    CHECK(json_find(json, "resume")->kind == JSON_BOOL && !json_find(json, "resume")->boolean);
    CHECK(!json_find(json, "help") && json->count == 20);
    json_free(json);
    json_writer_free(&w);
    options_free(o);
}

// Parses the options of a command line, then of a file that contains `text`.
static Options *configure(const char *line, const char *text) {
    Options *o = parse(line);
    options_read_config(o, test_file("my.json", text, strlen(text)));
    return o;
}

static void test_given_text(void) {
    static const OptionName none[] = {OPT_NONE};
    static const Option stop = {.name = OPT_STOP,
                                .kind = OPTION_TEXT,
                                .value = "TEXT",
                                .choices = OPTION_AGAIN,
                                .group = "Text",
                                .help = "ends"};
    CommandLine c;
    split("--stop a --dry --stop=-e --stop _ --stop it's --prompt=--dry --temperature 2", &c);
    Options *o = create();
    options_add(o, &stop, 1);
    options_parse(o, c.argc, c.argv, NULL, NULL);
    char *text = options_given_text(o, OPTION_RUN, none);
    CHECK_TEXT(text, " --prompt=--dry --temperature 2 --dry --stop a --stop=-e --stop '' "
                     "--stop 'it'\\''s'");
    free(text);
    options_free(o);
}

static void test_config(void) {
    static const char all[] =
        "{\"batch\": 3, \"lr\": 1e-3, \"tied\": true, \"schedule\": \"wsd\", \"input\": null,"
        " \"steps\": 7, \"output\": \"theirs\", \"resume\": true}";
    Options *o = configure("-b 5", all);
    CHECK(options_integer(o, OPT_BATCH) == 5); // from the command line
    CHECK(options_number(o, OPT_LR) == 1e-3 && options_flag(o, OPT_TIED) &&
          options_integer(o, OPT_STEPS) == 7);
    CHECK_TEXT(options_text(o, OPT_SCHEDULE), "wsd");
    CHECK(options_given(o, OPT_LR) && !options_given(o, OPT_INPUT) && !options_given(o, OPT_HEADS));
    CHECK(!options_text(o, OPT_OUTPUT) && !options_flag(o, OPT_RESUME)); // apply to that run only
    options_free(o);
    o = configure("-x 9", all);
    CHECK(options_integer(o, OPT_STEPS) == 9);
    options_free(o);
    // A false flag counts as not given, as on a command line.
    o = configure("", "{\"dry\": false, \"resume\": false, \"tied\": true, \"rare\": 2}");
    CHECK(!options_given(o, OPT_DRY) && !options_given(o, OPT_RESUME) &&
          options_given(o, OPT_TIED));
    static const OptionName none[] = {OPT_NONE};
    char *text = options_given_text(o, OPTION_HABIT, none);
    CHECK_TEXT(text, " --rare 2");
    free(text);
    options_free(o);
    // Options of earlier versions, which changed no results.
    o = configure("", "{\"zero\": 1, \"ranks-file\": \"meet\", \"batch\": 3}");
    CHECK(options_integer(o, OPT_BATCH) == 3);
    options_free(o);
    // A resumed run is already initialised.
    o = configure("", "{\"init\": \"weights\"}");
    CHECK(options_given(o, OPT_INIT));
    options_free(o);
    o = configure("-y", "{\"init\": \"weights\", \"batch\": 3}");
    CHECK(!options_given(o, OPT_INIT) && options_given(o, OPT_BATCH));
    options_free(o);
    // The options that a run's log stores can be read back; the last line with options counts.
    o = parse("-b 3 -l 7e-5 --windows 4,8 --tied");
    JsonWriter w = {0};
    for (int i = 0; i < 2; i++) {
        json_begin(&w, '{');
        json_open(&w, "options", '{');
        if (i > 0) options_to_json(o, &w);
        json_end(&w, '}');
        json_end(&w, '}');
        if (i == 0) w.text[w.length++] = '\n', w.comma = false;
    }
    options_free(o);
    char *log = format_string("%s\n{\"step\":1}\nnot a line\n", w.text);
    o = configure("", log);
    CHECK(options_integer(o, OPT_BATCH) == 3 && options_number(o, OPT_LR) == 7e-5 &&
          options_flag(o, OPT_TIED));
    CHECK_TEXT(options_text(o, OPT_WINDOWS), "4,8");
    options_free(o);
    free(log);
    json_writer_free(&w);
}

static void config_body(void *text) {
    options_free(configure("", text));
}

static void check_config_refused(const char *text, const char *message) {
    CHECK_FAILS(config_body, (void *)(uintptr_t)text, 1, message);
}

static void test_config_refused(void) {
    check_config_refused("{\"batch\": 3", "my.json");
    check_config_refused("", "my.json");
    check_config_refused("[1]", "expected an object of options");
    check_config_refused("{\"options\": 1}", "expected an object of options");
    check_config_refused(
        "{\"bach\": 3}",
        "my.json: \"bach\" is not an option of this program; did you mean \"batch\"?");
    check_config_refused("{\"help\": true}", "\"help\" is not an option of this program");
    check_config_refused("{\"zzzzzzzzzz\": 1}", "\"zzzzzzzzzz\" is not an option");
    check_config_refused("{\"batch\": 0}", "batch 0: expected an integer from 1 to 65536");
    check_config_refused("{\"batch\": 1.5}", "batch 1.5: expected an integer from 1 to 65536");
    check_config_refused("{\"batch\": 1e300}", "expected an integer from 1 to 65536");
    check_config_refused("{\"batch\": \"3\"}",
                         "my.json: \"batch\": expected an integer from 1 to 65536");
    check_config_refused("{\"batch\": [3]}", "my.json: \"batch\": expected an integer");
    check_config_refused("{\"tied\": 1}", "my.json: \"tied\": expected true or false");
    check_config_refused("{\"windows\": 4}", "my.json: \"windows\": expected a text");
    check_config_refused("{\"schedule\": \"cosin\"}", "did you mean cosine?");
    check_config_refused("{\"batch\": 1, \"batch\": 2}", "batch");
}

// --help counts the options of the group "More", and --help-all explains them.
static void test_help_more(void) {
    char text[8192];
    CHECK(test_child(print_body, "--help", text, sizeof text) == 0);
    CHECK(strstr(text, "\n2 more options: --help-all\n") && !strstr(text, "a rare thing"));
    CHECK(test_child(print_body, "--help-all", text, sizeof text) == 0);
    CHECK(strstr(text, "\nMore:\n      --rare N         a rare thing [1]\n      --dry"));
    CHECK(strstr(text, "\n      --help-all "));
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"defaults", test_defaults},
        {"spellings", test_spellings},
        {"values", test_values},
        {"unknown", test_unknown},
        {"long words", test_long_words},
        {"refused values", test_refused_values},
        {"operands", test_operands},
        {"help", test_help},
        {"help pages", test_help_pages},
        {"help wraps", test_help_wraps},
        {"set", test_set},
        {"metadata", test_metadata},
        {"contradiction", test_contradiction},
        {"habit", test_habit},
        {"json", test_json},
        {"the options given, as a command", test_given_text},
        {"config", test_config},
        {"config refused", test_config_refused},
        {"help more", test_help_more},
    };
    return test_main(argc, argv, "options", cases, sizeof cases / sizeof *cases);
}
