#include "file.h"
#include "log.h"
#include "memory.h"
#include "streams.h"
#include "test.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

static const StepReport step_787 = {.step = 787,
                                    .steps = 16000,
                                    .epoch = 1.2345,
                                    .epochs = 25,
                                    .loss = 5.1234,
                                    .learning_rate = 4.8e-4,
                                    .gradient_norm = 0.53,
                                    .milliseconds = 331.77777,
                                    .tokens_per_second = 12345.4,
                                    .peak_fraction = 0.7123456,
                                    .seconds_left = 3720};
static const Evaluation evaluation = {.loss = 5.25,
                                      .training = 4.75,
                                      .tokens = 268152,
                                      .seconds = 12.34,
                                      .metrics = {{"ppl", "ppl ", "", 2, 190.566},
                                                  {"bpb", "", " bits/byte", 4, 1.5},
                                                  {"word_ppl", "word ppl ", "", 2, 250.125}},
                                      .metric_count = 3};

// Returns log.jsonl of the test's directory as one string.
static char *read_log(void) {
    char *path = format_string("%s/log.jsonl", test_directory());
    FileMap file = file_map(path);
    char *text = allocate(file.size + 1, 1, "the log");
    memcpy(text, file.data, file.size);
    file_unmap(&file);
    free(path);
    return text;
}

// Removes the fields that depend on the clock.
static void drop_seconds(char *text) {
    for (char *at; (at = strstr(text, ",\"seconds\":"));) {
        const char *end = at + strcspn(at, "}");
        memmove(at, end, strlen(end) + 1);
    }
}

static void run_quietly(void (*body)(void *), void *argument) {
    char errors[1024];
    CHECK(test_child(body, argument, errors, sizeof errors) == 0);
    CHECK_TEXT(errors, "");
}

static void write_body(void *argument) {
    streams_silence();
    Log *log = log_open(argument, -1, 0);
    JsonWriter *w = log_begin(log);
    json_add_string(w, "event", "start \"\n");
    log_end(log);
    log_step(log, &step_787, 10);
    StepReport broken = {.step = 788, .steps = 16000, .loss = NAN, .gradient_norm = INFINITY};
    log_step(log, &broken, 10);
    log_evaluation(log, 788, "val", &evaluation, true);
    const Evaluation bare = {.loss = 1000,
                             .tokens = 3,
                             .metrics = {{"ppl", "ppl ", "", 2, INFINITY}},
                             .metric_count = 1};
    log_evaluation(log, -1, "test", &bare, false);
    log_close(log);
}

static void test_objects(void) {
    run_quietly(write_body, (void *)(uintptr_t)test_directory());
    char *text = read_log();
    CHECK(strstr(text, "\"seconds\":"));
    drop_seconds(text);
    CHECK_TEXT(text, "{\"event\":\"start \\\"\\n\"}\n"
                     "{\"step\":787,\"epoch\":1.2345,\"loss\":5.1234,\"lr\":0.00048,\"grad_norm\":"
                     "0.53,\"ms\":331.778,"
                     "\"tokens_per_s\":12345.4,\"peak_fraction\":0.7123}\n"
                     "{\"step\":788,\"epoch\":0,\"loss\":null,\"lr\":0,\"grad_norm\":null,\"ms\":0,"
                     "\"tokens_per_s\":0}\n"
                     "{\"step\":788,\"val_loss\":5.25,\"val_ppl\":190.566,\"val_bpb\":1.5,\"val_"
                     "word_ppl\":250.125,"
                     "\"val_tokens\":268152,\"val_ms\":12340,\"best\":true}\n"
                     "{\"test_loss\":1000,\"test_ppl\":null,\"test_tokens\":3,\"test_ms\":0}\n");
    free(text);
}

// Two logs write to one file: every line is complete.
static void append_body(void *argument) {
    streams_silence();
    Log *a = log_open(argument, -1, 0), *b = log_open(argument, -1, 0);
    for (int i = 0; i < 100; i++) log_step(i % 3 ? a : b, &step_787, 10);
    log_close(a);
    log_close(b);
}

static void test_append(void) {
    run_quietly(append_body, (void *)(uintptr_t)test_directory());
    char *text = read_log();
    int lines = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) && *line; lines++)
        json_free(json_parse(line, strlen(line), "log.jsonl"));
    CHECK(lines == 100);
    free(text);
}

typedef struct {
    const char *directory;
    int64_t resume_step;
    unsigned again;
} OpenCall;

static void open_body(void *argument) {
    const OpenCall *call = argument;
    log_close(log_open(call->directory, call->resume_step, call->again));
}

// warning: text that stderr must contain; "": stderr must be empty.
static void check_pruned(const char *before, int64_t resume_step, const char *after,
                         const char *warning) {
    char errors[1024];
    test_file("log.jsonl", before, strlen(before));
    OpenCall call = {test_directory(), resume_step, 0};
    CHECK(test_child(open_body, &call, errors, sizeof errors) == 0);
    if (*warning)
        CHECK(strstr(errors, warning));
    else
        CHECK_TEXT(errors, "");
    char *text = read_log();
    CHECK_TEXT(text, after);
    free(text);
}

static void test_resume(void) {
    static const char all[] =
        "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2,\"val_loss\":1}\n{\"step\":3}"
        "\n{\"x\":3}\n{\"step\"";
    check_pruned(all, -1,
                 "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2,\"val_loss\":1}\n{\"step\":3}\n{"
                 "\"x\":3}\n",
                 "log.jsonl, line 6: was damaged and is cut off");
    check_pruned(all, 2,
                 "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2,\"val_loss\":1}\n{\"x\":3}\n",
                 "line 6");
    check_pruned(all, 0, "{\"event\":\"start\"}\n{\"x\":3}\n", "line 6");
    check_pruned("{\"step\":1}\n[3]\n", 1, "{\"step\":1}\n[3]\n", "");
    check_pruned("{\"step\":1}", 1, "", "line 1");
    check_pruned("", 1, "", "");
}

static void best_body(void *argument) {
    const OpenCall *call = argument;
    Log *log = log_open(call->directory, call->resume_step, call->again);
    const BestLoss best = log_best(log, "here");
    fprintf(stderr, "%g of %lld", best.loss, (long long)best.tokens);
    log_close(log);
}

// Lines that are written again at the step of resumption appear once; all others are kept.
static void test_resume_again(void) {
    static const char before[] =
        "{\"step\":1,\"test_loss\":3}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
        "{\"step\":2,\"val_loss\":1,\"val_tokens\":9,\"best\":true}\n"
        "{\"step\":2,\"test_loss\":2}\n{\"event\":\"statistics\",\"step\":2}\n{\"event\":3}\n";
    check_pruned(before, 2, before, "");
    OpenCall call = {test_directory(), 2, LOG_END};
    run_quietly(open_body, &call);
    char *text = read_log(), best[64];
    CHECK_TEXT(text, "{\"step\":1,\"test_loss\":3}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
                     "{\"step\":2,\"val_loss\":1,\"val_tokens\":9,\"best\":true}\n{\"event\":3}\n");
    free(text);
    call.again = 0;
    CHECK(test_child(best_body, &call, best, sizeof best) == 0);
    CHECK_TEXT(best, "1 of 9");
    call.again = LOG_EVALUATION;
    CHECK(test_child(best_body, &call, best, sizeof best) == 0);
    CHECK_TEXT(best, "2 of 0");
    text = read_log();
    CHECK_TEXT(
        text,
        "{\"step\":1,\"test_loss\":3}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n{\"event\":3}\n");
    free(text);
}

// Losses on another validation split are not compared.
static void test_resume_other_validation(void) {
    static const struct {
        const char *lines, *best;
    } cases[] = {
        {"{\"step\":1,\"val_loss\":2,\"best\":true}\n", "2 of 0"}, // from before ids existed
        {"{\"event\":\"start\"}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
         "{\"event\":\"resume\",\"val_id\":\"here\"}\n",
         "2 of 0"},
        {"{\"event\":\"start\",\"val_id\":\"here\"}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
         "{\"event\":\"resume\",\"val_id\":\"here\"}\n",
         "2 of 0"},
        {"{\"event\":\"start\",\"val_id\":\"there\"}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n",
         "inf of 0"},
        {"{\"event\":\"start\",\"val_id\":\"there\"}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
         "{\"event\":\"resume\",\"val_id\":\"here\"}\n",
         "inf of 0"},
        {"{\"event\":\"start\",\"val_id\":\"there\"}\n{\"step\":1,\"val_loss\":2,\"best\":true}\n"
         "{\"event\":\"resume\",\"val_id\":\"here\"}\n{\"step\":2,\"val_loss\":3,\"best\":true}\n",
         "3 of 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char best[64];
        OpenCall call = {test_directory(), 2, 0};
        test_file("log.jsonl", cases[i].lines, strlen(cases[i].lines));
        CHECK(test_child(best_body, &call, best, sizeof best) == 0);
        CHECK_TEXT(best, cases[i].best);
    }
}

// What a power loss may leave at the end, with or without a newline.
static void test_resume_damaged(void) {
    static const char *const tails[] = {
        "{\"step\":2,\n",    "\x01\xff\n", "{} {}\n{\"st\n", "\"\\u12\n", "[[[1,{\"a\":\n",
        "x\n{\"step\":3}\n", "\n"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        char *before = format_string("{\"step\":1}\n%s", tails[i]);
        check_pruned(before, 1, "{\"step\":1}\n", "log.jsonl, line 2: was damaged and is cut off");
        free(before);
    }
}

static void test_resume_broken(void) {
    static const char broken[] = "{\"step\":1}\n{\"step\":\n{\"step\":2}\n";
    test_file("log.jsonl", broken, strlen(broken));
    OpenCall call = {test_directory(), 2, 0};
    CHECK_FAILS(open_body, &call, 1, "log.jsonl, line 2: is damaged, and good lines follow");
    char *text = read_log();
    CHECK_TEXT(text, broken);
    free(text);
}

static void resume_clock_body(void *argument) {
    streams_silence();
    Log *log = log_open(argument, 1, 0);
    log_step(log, &step_787, 10);
    log_close(log);
}

// "seconds" continues from the last line kept.
static void test_resume_clock(void) {
    static const char before[] = "{\"step\":1,\"seconds\":1000}\n{\"step\":2,\"seconds\":2000}\n";
    test_file("log.jsonl", before, strlen(before));
    run_quietly(resume_clock_body, (void *)(uintptr_t)test_directory());
    char *text = read_log();
    const char *last = strrchr(text, '{');
    Json *json = json_parse(last, strlen(last), "log.jsonl");
    CHECK_CLOSE(json_find(json, "seconds")->number, 1005, 5);
    json_free(json);
    free(text);
}

static void full_body(void *argument) {
    streams_silence();
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {300, 300};
    setrlimit(RLIMIT_FSIZE, &limit);
    Log *log = log_open(argument, -1, 0);
    for (int i = 0; i < 100; i++) log_step(log, &step_787, 10);
}

static void full_output_body(void *argument) {
    (void)argument;
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    Log *log = log_open(NULL, -1, 0);
    log_line(log, "hello");
}

static void test_full_disk(void) {
    CHECK_FAILS(full_body, (void *)(uintptr_t)test_directory(), 1,
                "log.jsonl: cannot write: File too large");
    OpenCall call = {test_directory(), 0, 0};
    char errors[1024]; // the truncated line does not stop a resumed run
    CHECK(test_child(open_body, &call, errors, sizeof errors) == 0 && strstr(errors, "is cut off"));
    CHECK_FAILS(full_output_body, NULL, 1,
                "standard output: cannot write: No space left on device");
    call.directory = "/nowhere/at/all";
    CHECK_FAILS(open_body, &call, 1,
                "/nowhere/at/all/log.jsonl: cannot write: No such file or directory");
}

// ---- the terminal -----------------------------------------------------------

static void report(Log *log) {
    StepReport step = step_787;
    for (step.step = 787; step.step <= 792; step.step++) log_step(log, &step, 5);
    log_line(log, "hello %d", 5);
    log_step(log, &step, 5);
    log_evaluation(log, 793, "val", &evaluation, true);
    const Evaluation bare = {.loss = NAN,
                             .tokens = 3,
                             .seconds = 4000,
                             .metrics = {{"ppl", "ppl ", "", 2, -NAN}, {"hidden", NULL, "", 2, 1}},
                             .metric_count = 2};
    log_evaluation(log, -1, "test", &bare, false);
    step.step = step.steps;
    step.peak_fraction = 0;
    log_step(log, &step, 5);
    log_step(log, &step_787, 5);
}

// Writes to the pipe that test_child() reads.
static void pipe_body(void *argument) {
    (void)argument;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    char name[] = "model", long_name[] = "parameters", value[] = "fastformer", count[] = "5,123";
    log_table("training", (const Metadata[]){{name, value}, {long_name, count}}, 2);
    Log *log = log_open(NULL, -1, 0);
    report(log);
    log_close(log);
}

#define STEP_LINE(number)                                                                          \
    "epoch  1.23/25.00  step " number                                                              \
    "/16000  loss 5.1234  lr 4.8e-04  |g| 0.53  12,345 tok/s  ETA 1:02:00  71% of peak\n"
#define RESULT_LINES                                                                               \
    "step 793  val loss 5.2500  train 4.7500  ppl 190.57  1.5000 bits/byte  word ppl 250.12  "     \
    "in 12.3s  best\n"                                                                             \
    "test loss nan  ppl nan  in 1h 07m\n"

static void test_pipe(void) {
    char text[4096];
    CHECK(test_child(pipe_body, NULL, text, sizeof text) == 0);
    CHECK_TEXT(text, "training\n  model       fastformer\n  parameters  5,123\n" STEP_LINE("  787")
                         STEP_LINE("  790") "hello 5\n" RESULT_LINES
                                            "epoch  1.23/25.00  step 16000/16000  loss 5.1234  lr "
                                            "4.8e-04  |g| 0.53  12,345 tok/s  ETA 0:00:00\n");
}

typedef struct {
    int master, terminal;
    bool errors; // stderr goes to the terminal, too
    void (*report)(Log *);
} Terminal;

static void terminal_body(void *argument) {
    const Terminal *t = argument;
    dup2(t->terminal, STDOUT_FILENO);
    if (t->errors) dup2(t->terminal, STDERR_FILENO);
    Log *log = log_open(NULL, -1, 0);
    t->report(log);
    log_close(log);
}

static void report_step(Log *log) {
    log_step(log, &step_787, 1);
    log_step(log, &step_787, 1);
}

// Computes what a terminal finally shows. Fails if a line extends beyond the last column but one.
static void show(const char *bytes, int columns, char *screen) {
    char line[512] = "";
    int column = 0;
    for (const char *c = bytes; *c; c++) {
        if (strncmp(c, "\033[K", 3) == 0) {
            line[column] = '\0';
            c += 2;
        } else if (*c == '\r') {
            column = 0;
        } else if (*c == '\n') {
            screen += sprintf(screen, "%s\n", line);
            *line = '\0';
        } else {
            CHECK(column < columns - 1);
            if (!line[column]) line[column + 1] = '\0';
            line[column++] = *c;
        }
    }
    sprintf(screen, "%s", line);
}

static void check_outputs(int columns, bool errors, void (*body)(Log *), const char *expected) {
    Terminal t = {.report = body, .errors = errors, .master = posix_openpt(O_RDWR | O_NOCTTY)};
    if (t.master < 0 || grantpt(t.master) != 0 || unlockpt(t.master) != 0) {
        test_fail(__FILE__, __LINE__, "no pseudo-terminal");
        return;
    }
    t.terminal = open(ptsname(t.master), O_RDWR | O_NOCTTY);
    const struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = 24};
    ioctl(t.terminal, TIOCSWINSZ, &size);
    run_quietly(terminal_body, &t);
    char bytes[4096] = "", screen[4096];
    fcntl(t.master, F_SETFL, O_NONBLOCK);
    for (ssize_t used = 0, got;
         (got = read(t.master, bytes + used, sizeof bytes - 1 - (size_t)used)) > 0;)
        used += got;
    close(t.master);
    close(t.terminal);
    show(bytes, columns ? columns : 80, screen);
    CHECK_TEXT(screen, expected);
}

static void check_terminal(int columns, void (*body)(Log *), const char *expected) {
    check_outputs(columns, true, body, expected);
}

static void test_terminal(void) {
    check_terminal(120, report,
                   "hello 5\n" RESULT_LINES "epoch  1.23/25.00  step 16000/16000  loss 5.1234  lr "
                   "4.8e-04  |g| 0.53  12,345 tok/s  ETA 0:00:00\n" STEP_LINE("  787"));
}

// As under mpirun: lines without cursor movement.
static void test_terminal_without_errors(void) {
    check_outputs(200, false, report_step, STEP_LINE("  787") STEP_LINE("  787"));
}

// Fields that do not fit are left out, the least important first.
static void test_narrow_terminal(void) {
    static const char wide[] = "epoch  1.23/25.00  step   787/16000  loss 5.1234  ";
    char *narrow = format_string("%s12,345 tok/s  ETA 1:02:00\n", wide);
    check_terminal(0, report_step, narrow); // unknown: 80 columns
    free(narrow);
    narrow = format_string("%slr 4.8e-04  |g| 0.53  12,345 tok/s  ETA 1:02:00\n", wide);
    check_terminal(101, report_step, narrow);
    free(narrow);
    check_terminal(113, report_step, STEP_LINE("  787"));
    check_terminal(66, report_step, "step   787/16000  loss 5.1234  12,345 tok/s  ETA 1:02:00\n");
    check_terminal(42, report_step, "step   787/16000  loss 5.1234\n");
    check_terminal(29, report_step, "loss 5.1234\n");
    check_terminal(8, report_step, "loss 5.\n");
    check_terminal(1, report_step, "\n");
}

// Fields keep their columns when values become shorter; an unknown value leaves no gap.
static void report_steady(Log *log) {
    StepReport step = step_787;
    const double speeds[] = {12345, 9876, 12345}, norms[] = {10.5, 1.25, 0};
    for (int i = 0; i < 3; i++) {
        step.tokens_per_second = speeds[i];
        step.gradient_norm = norms[i];
        step.peak_fraction = i < 2 ? 0.05 * (1 + 19 * i) : 0;
        step.seconds_left = 100.0 / (1 + i);
        step.epoch = step.epochs = i < 2 ? 25 : 0.0999;
        step.learning_rate = NAN;
        log_step(log, &step, 1);
        log_line(log, "|");
    }
}

static void steady_body(void *argument) {
    (void)argument;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Log *log = log_open(NULL, -1, 0);
    report_steady(log);
    log_close(log);
}

static void test_steady_columns(void) {
    char text[4096];
    CHECK(test_child(steady_body, NULL, text, sizeof text) == 0);
    CHECK_TEXT(text, "epoch 25.00/25.00  step   787/16000  loss 5.1234  lr nan  |g| 10.50  12,345 "
                     "tok/s  ETA 0:01:40  5% of peak\n|\n"
                     "epoch 25.00/25.00  step   787/16000  loss 5.1234  lr nan  |g|  1.25   9,876 "
                     "tok/s  ETA 0:00:50  100% of peak\n|\n"
                     "step   787/16000  loss 5.1234  lr nan  |g|  0.00  12,345 tok/s  ETA "
                     "0:00:33\n|\n");
}

// The line of an evaluation drops its time if it does not fit, then breaks between fields.
static void report_evaluation(Log *log) {
    Evaluation result = evaluation;
    result.metric_count = 2;
    log_evaluation(log, 793, "val", &result, true);
    log_evaluation(log, 123456, "val", &evaluation, true);
}

static void test_evaluation_lines(void) {
    check_terminal(80, report_evaluation,
                   "step 793  val loss 5.2500  train 4.7500  ppl 190.57  1.5000 bits/byte  best\n"
                   "step 123456  val loss 5.2500  train 4.7500  ppl 190.57  1.5000 bits/byte\n"
                   "  word ppl 250.12  in 12.3s  best\n");
}

static void report_rows(Log *log) {
    (void)log;
    log_row("data", "one-million 1,234,567 tokens of a text");
    log_row("model", "averyverylongwordalone and more");
    char key[] = "a_key", value[] = "some more words";
    log_table("title", (const Metadata[]){{key, value}}, 1);
}

static void test_broken_rows(void) {
    check_terminal(0, report_rows,
                   "data    one-million 1,234,567 tokens of a text\n"
                   "model   averyverylongwordalone and more\n"
                   "title\n  a key  some more words\n");
    check_terminal(32, report_rows,
                   "data    one-million 1,234,567\n        tokens of a text\n"
                   "model   averyverylongwordalone\n        and more\n"
                   "title\n  a key  some more words\n");
}

static void check_duration(double seconds, const char *expected) {
    char text[32];
    format_duration(seconds, text);
    CHECK_TEXT(text, expected);
}

static void test_durations(void) {
    check_duration(0, "0.0s");
    check_duration(12.34, "12.3s");
    check_duration(59.96, "1m 00s");
    check_duration(200, "3m 20s");
    check_duration(3599.6, "1h 00m");
    check_duration(3720, "1h 02m");
    check_duration(86399, "1d 00h");
    check_duration(100 * 3600, "4d 04h");
    check_duration(1e11, "1157407d 10h");
    check_duration(1e300, "?");
    check_duration(-1, "?");
    check_duration(NAN, "?");
}

static void test_counts(void) {
    static const struct {
        double value;
        const char *exact, *about;
    } cases[] = {{0, "0", "0"},
                 {999, "999", "999"},
                 {1000, "1,000", "1.00K"},
                 {99960, "99,960", "100K"},
                 {999499, "999,499", "999K"},
                 {999500, "999,500", "1.00M"},
                 {1111513, "1,111,513", "1.11M"},
                 {12e12, "12,000,000,000,000", "12000B"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        format_count(cases[i].value, text);
        CHECK_TEXT(text, cases[i].exact);
        format_about(cases[i].value, text);
        CHECK_TEXT(text, cases[i].about);
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"objects", test_objects},
        {"append", test_append},
        {"resume", test_resume},
        {"resume damaged", test_resume_damaged},
        {"resume finished", test_resume_again},
        {"resume: another validation split", test_resume_other_validation},
        {"resume broken", test_resume_broken},
        {"resume clock", test_resume_clock},
        {"full disk", test_full_disk},
        {"pipe", test_pipe},
        {"terminal", test_terminal},
        {"a terminal for standard output alone", test_terminal_without_errors},
        {"narrow terminal", test_narrow_terminal},
        {"steady columns", test_steady_columns},
        {"lines of evaluations", test_evaluation_lines},
        {"rows that break", test_broken_rows},
        {"durations", test_durations},
        {"counts", test_counts},
    };
    return test_main(argc, argv, "log", cases, sizeof cases / sizeof *cases);
}
