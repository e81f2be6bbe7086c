#include "log.h"
#include "clock.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "stop.h"
#include "streams.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct Log {
    char *path; // of log.jsonl; NULL: only the terminal
    int file;
    bool json;          // standard output has its lines, and nothing for the user
    JsonWriter line;    // the object that is open
    bool terminal;      // is stdout one?
    bool progress;      // the cursor is after a progress line
    bool stepped;       // a step was reported
    double time_offset; // "seconds" minus the clock
    BestLoss best;      // of the lines that were kept,
    char *validation;   // on the split of that id; NULL: unknown
};

// ---- log.jsonl --------------------------------------------------------------

static double member_number(const Json *object, const char *key, double otherwise) {
    const Json *value = object->kind == JSON_OBJECT ? json_find(object, key) : NULL;
    return value && value->kind == JSON_NUMBER ? value->number : otherwise;
}

// What is kept of a log.
typedef struct {
    char *text;
    size_t size;
    double seconds;   // the greatest
    BestLoss best;    // the last,
    char *validation; // of evaluations on the split of that id, fresh; NULL: unknown
    size_t damaged;   // number of the first line that is no JSON; 0: none so far
} Kept;

static void keep(Kept *kept, const char *line, size_t size) {
    memcpy(kept->text + kept->size, line, size);
    kept->size += size;
}

// Whether a line is one that comes again.
static bool will_be_rewritten(const Json *object, unsigned again) {
    const Json *event = json_find(object, "event");
    const bool statistics =
        event && event->kind == JSON_STRING && strcmp(event->string, "statistics") == 0;
    return ((again & LOG_END) && (statistics || json_find(object, "test_loss"))) ||
           ((again & LOG_EVALUATION) && json_find(object, "val_loss"));
}

// What a start or resumption says of the validation split, on another one than before.
static void keep_validation(Kept *kept, const Json *object) {
    const Json *id = json_find(object, "val_id");
    if (!id || id->kind != JSON_STRING) return;
    if (kept->validation && strcmp(kept->validation, id->string) != 0)
        kept->best = (BestLoss){INFINITY, 0};
    free(kept->validation);
    kept->validation = copy_string(id->string);
}

// Keeps a line, which ends with its newline, unless it is of a later step, or comes again. A
// damaged one must not be followed by one that is kept.
static void prune_line(Kept *kept, const char *path, size_t number, const char *line, size_t size,
                       int64_t resume_step, unsigned again) {
    Json *object = json_try_parse(line, size);
    const double step = object ? member_number(object, "step", -1) : 0;
    if (!object) {
        if (!kept->damaged) kept->damaged = number;
    } else if (step <= (double)resume_step &&
               !(step == (double)resume_step && will_be_rewritten(object, again))) {
        if (kept->damaged)
            fail("%s, line %zu: is damaged, and good lines follow", path, kept->damaged);
        keep(kept, line, size);
        keep_validation(kept, object);
        kept->seconds = fmax(kept->seconds, member_number(object, "seconds", 0));
        if (json_find(object, "best"))
            kept->best = (BestLoss){member_number(object, "val_loss", kept->best.loss),
                                    (int64_t)fmin(member_number(object, "val_tokens", 0), 1e18)};
    }
    json_free(object);
}

// Removes a last line that was cut off or damaged and, with resume_step >= 0, the lines of later
// steps. And what comes again at that step. The text of what is returned is gone.
static Kept prune(const char *path, int64_t resume_step, unsigned again) {
    FileMap file = file_map(path);
    const char *text = (const char *)file.data, *const end = text + file.size;
    Kept kept = {.text = allocate(file.size, 1, "the log"), .best = {INFINITY, 0}};
    size_t number = 1;
    for (const char *newline; text < end && (newline = memchr(text, '\n', (size_t)(end - text)));
         number++) {
        const size_t size = (size_t)(newline + 1 - text);
        if (resume_step >= 0)
            prune_line(&kept, path, number, text, size, resume_step, again);
        else
            keep(&kept, text, size);
        text += size;
    }
    if (text < end && !kept.damaged) kept.damaged = number;
    if (kept.damaged) warn("%s, line %zu: was damaged and is cut off", path, kept.damaged);
    const bool changed = kept.size != file.size;
    file_unmap(&file);
    if (changed) {
        AtomicFile *rewritten = atomic_open(path);
        atomic_write(rewritten, kept.text, kept.size);
        atomic_commit(rewritten);
    }
    free(kept.text);
    return kept;
}

Log *log_open(const char *directory, int64_t resume_step, unsigned again) {
    Log *log = allocate(1, sizeof *log, "the log");
    // Open MPI gives rank 0 a terminal of its own, whatever takes its output, and a pipe for
    // errors.
    log->terminal = isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
    Kept kept = {.best = {INFINITY, 0}};
    if (directory) {
        log->path = format_string("%s/log.jsonl", directory);
        if (file_exists(log->path)) kept = prune(log->path, resume_step, again);
        log->file = open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (log->file < 0) fail("%s: cannot write: %s", log->path, strerror(errno));
    }
    log->best = kept.best;
    log->validation = kept.validation;
    log->time_offset = kept.seconds - clock_seconds();
    return log;
}

Log *log_open_json(void) {
    Log *log = allocate(1, sizeof *log, "the log");
    log->json = true;
    log->time_offset = -clock_seconds();
    return log;
}

BestLoss log_best(const Log *log, const char *validation) {
    const bool same = !log->validation || strcmp(log->validation, validation) == 0;
    return same ? log->best : (BestLoss){INFINITY, 0};
}

double log_seconds(const Log *log) {
    return clock_seconds() + log->time_offset;
}

JsonWriter *log_begin(Log *log) {
    json_begin(&log->line, '{');
    return &log->line;
}

void log_end(Log *log) {
    json_end(&log->line, '}');
    log->line.text[log->line.length] = '\n'; // in the place of NUL: one write() for the whole line
    const char *text = log->line.text;
    size_t left = log->path ? log->line.length + 1 : 0;
    if (log->json) {
        fwrite(text, 1, log->line.length + 1, stdout);
        log_flush();
    }
    while (left > 0) {
        const ssize_t written = write(log->file, text, left);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("%s: cannot write: %s", log->path, strerror(errno));
        text += written;
        left -= (size_t)written;
    }
    json_writer_free(&log->line);
}

void log_sync(Log *log) {
    if (log->path) file_sync(log->file, log->path);
}

// Digits that mean nothing would only make the log long: `scale` is 1000 to keep three after the
// point.
static void write_rounded(JsonWriter *w, const char *key, double value, double scale) {
    json_add_number(w, key, round(value * scale) / scale);
}

static void write_seconds(const Log *log, JsonWriter *w) {
    write_rounded(w, "seconds", log_seconds(log), 1e3);
}

static void write_step(Log *log, const StepReport *report) {
    JsonWriter *w = log_begin(log);
    json_add_integer(w, "step", report->step);
    write_rounded(w, "epoch", report->epoch, 1e6);
    json_add_number(w, "loss", report->loss);
    json_add_number(w, "lr", report->learning_rate);
    json_add_number(w, "grad_norm", report->gradient_norm);
    write_rounded(w, "ms", report->milliseconds, 1e3);
    write_rounded(w, "tokens_per_s", report->tokens_per_second, 10);
    if (report->peak_fraction > 0) write_rounded(w, "peak_fraction", report->peak_fraction, 1e4);
    write_seconds(log, w);
    log_end(log);
}

// Writes "SPLIT_NAME": value.
static void write_result(JsonWriter *w, const char *split, const char *name, double value) {
    char *key = format_string("%s_%s", split, name);
    json_add_number(w, key, value);
    free(key);
}

void evaluation_add(Evaluation *result, Metric metric) {
    assert(result->metric_count < EVALUATION_METRICS);
    result->metrics[result->metric_count++] = metric;
}

static void write_evaluation(Log *log, int64_t step, const char *split, const Evaluation *result,
                             bool best) {
    JsonWriter *w = log_begin(log);
    if (step >= 0) json_add_integer(w, "step", step);
    write_result(w, split, "loss", result->loss);
    for (int i = 0; i < result->metric_count; i++)
        write_result(w, split, result->metrics[i].key, result->metrics[i].value);
    write_result(w, split, "tokens", (double)result->tokens);
    write_result(w, split, "ms", round(result->seconds * 1e3));
    if (best) json_add_bool(w, "best", true);
    write_seconds(log, w);
    char *parameters = format_string("%016llx", (unsigned long long)result->parameters);
    json_add_string(w, "parameters", parameters);
    free(parameters);
    log_end(log);
}

// ---- what the user sees -----------------------------------------------------

void format_duration(double seconds, char *text) {
    const double minutes = round(seconds / 60), hours = round(seconds / 3600);
    if (!(seconds >= 0 && seconds < 1e12))
        snprintf(text, 32, "?");
    else if (seconds < 59.95)
        snprintf(text, 32, "%.1fs", seconds);
    else if (round(seconds) < 3600)
        snprintf(text, 32, "%.0fm %02.0fs", floor(round(seconds) / 60), fmod(round(seconds), 60));
    else if (minutes < 24 * 60)
        snprintf(text, 32, "%.0fh %02.0fm", floor(minutes / 60), fmod(minutes, 60));
    else
        snprintf(text, 32, "%.0fd %02.0fh", floor(hours / 24), fmod(hours, 24));
}

// "12,345" into text (at least 32 bytes).
static void format_count(double value, char *text) {
    char digits[32];
    const int length = snprintf(digits, sizeof digits, "%.0f", fmin(fmax(value, 0), 1e15));
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *text++ = ',';
        *text++ = digits[i];
    }
    *text = '\0';
}

// Into text (at least 32 bytes): plain digits where they are few.
static void format_value(double value, int decimals, char *text) {
    if (isnan(value))
        snprintf(text, 32, "nan"); // not "-nan"
    else
        snprintf(text, 32, fabs(value) < 1e6 ? "%.*f" : "%.*e", decimals, value);
}

void log_flush(void) {
    const int cause = streams_error();
    if (cause == EPIPE)
        stop_request(SIGPIPE);
    else if (cause && cause != EIO && !isatty(STDOUT_FILENO))
        fail("standard output: cannot write: %s", strerror(cause));
}

static void clear_progress(Log *log) {
    if (log->progress) printf("\r\033[K");
    log->progress = false;
}

// Columns that a progress line may fill: all but the last, where a terminal may wrap.
static int terminal_width(void) {
    struct winsize size;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (known ? size.ws_col : 80) - 1;
}

enum { EPOCH, STEP, LOSS, RATE, NORM, SPEED, PEAK, TIME_LEFT, FIELDS, FIELD_SIZE = 80 };

static void format_fields(const StepReport *report, char fields[FIELDS][FIELD_SIZE]) {
    char text[32], planned[32] = "";
    memset(fields, 0, (size_t)FIELDS * FIELD_SIZE);
    format_value(report->epoch, 2, text);
    if (report->epochs > 0) snprintf(planned, sizeof planned, "/%.4g", report->epochs);
    snprintf(fields[EPOCH], FIELD_SIZE, "epoch %s%s", text, planned);
    snprintf(fields[STEP], FIELD_SIZE, "step %lld/%lld", (long long)report->step,
             (long long)report->steps);
    format_value(report->loss, 4, text);
    snprintf(fields[LOSS], FIELD_SIZE, "loss %s", text);
    snprintf(fields[RATE], FIELD_SIZE, "lr %.1e", report->learning_rate);
    format_value(report->gradient_norm, 2, text);
    snprintf(fields[NORM], FIELD_SIZE, "|g| %s", text);
    format_count(report->tokens_per_second, text);
    snprintf(fields[SPEED], FIELD_SIZE, "%s tok/s", text);
    if (report->peak_fraction > 0)
        snprintf(fields[PEAK], FIELD_SIZE, "%.0f%% of peak", 100 * report->peak_fraction);
    format_duration(report->seconds_left, text);
    if (report->step < report->steps) snprintf(fields[TIME_LEFT], FIELD_SIZE, "ETA %s", text);
}

// Joins the fields by two spaces; where they would pass `width`, the less important ones are left
// out.
static void print_step(const StepReport *report, int width) {
    static const int less_important[] = {PEAK, NORM, RATE, EPOCH, SPEED, TIME_LEFT, STEP};
    char fields[FIELDS][FIELD_SIZE], line[FIELDS * (FIELD_SIZE + 2)];
    format_fields(report, fields);
    size_t dropped = 0;
    for (;;) {
        int length = 0;
        for (int i = 0; i < FIELDS; i++) {
            if (*fields[i])
                length += snprintf(line + length, sizeof line - (size_t)length, "%s%s",
                                   length ? "  " : "", fields[i]);
        }
        if (length <= width || dropped == sizeof less_important / sizeof *less_important) break;
        *fields[less_important[dropped++]] = '\0';
    }
    printf("%.*s", width, line);
}

// A terminal that is stopped (Ctrl-S), or whose other side has more to do (mpirun that ends), does
// not hold up the training.
static bool terminal_is_ready(void) {
    struct pollfd end = {STDOUT_FILENO, POLLOUT, 0};
    return poll(&end, 1, 0) > 0;
}

void log_step(Log *log, const StepReport *report, int64_t every) {
    if (log->path) write_step(log, report);
    const bool last = report->step >= report->steps;
    const bool due = !log->stepped || last || (every > 0 && report->step % every == 0);
    log->stepped = true;
    if (log->terminal && !last && !terminal_is_ready()) return;
    if (log->terminal) {
        clear_progress(log);
        print_step(report, terminal_width());
        log->progress = true;
        if (last) { // stays
            printf("\n");
            log->progress = false;
        }
    } else if (due) {
        print_step(report, INT_MAX);
        printf("\n");
    }
    log_flush();
}

void log_evaluation(Log *log, int64_t step, const char *split, const Evaluation *result,
                    bool best) {
    char text[32];
    if (log->path || log->json) write_evaluation(log, step, split, result, best);
    if (log->json) return;
    clear_progress(log);
    if (step >= 0) printf("step %lld  ", (long long)step);
    format_value(result->loss, 4, text);
    printf("%s loss %s", split, text);
    for (int i = 0; i < result->metric_count; i++) {
        const Metric *metric = &result->metrics[i];
        format_value(metric->value, metric->decimals, text);
        printf("  %s%s%s", metric->before, text, metric->after);
    }
    format_duration(result->seconds, text);
    printf("  in %s%s\n", text, best ? "  best so far" : "");
    log_flush();
}

void log_line(Log *log, const char *format, ...) {
    va_list arguments;
    if (log->json) return;
    clear_progress(log);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    log_flush();
}

void log_table(const char *title, const Metadata *rows, int count) {
    int width = 0;
    for (int i = 0; i < count; i++) {
        if ((int)strlen(rows[i].key) > width) width = (int)strlen(rows[i].key);
    }
    printf("%s\n", title);
    for (int i = 0; i < count; i++) printf("  %-*s  %s\n", width, rows[i].key, rows[i].value);
    log_flush();
}

void log_close(Log *log) {
    if (log->progress) printf("\n"); // the prompt of the shell belongs below
    log_flush();
    if (log->path && close(log->file) != 0)
        fail("%s: cannot write: %s", log->path, strerror(errno));
    json_writer_free(&log->line);
    free(log->validation);
    free(log->path);
    free(log);
}
