#include "log.h"
#include "clock.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "stop.h"
#include "streams.h"
#include "terminal.h"
#include "text.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EPOCH, STEP, LOSS, RATE, NORM, SPEED, TIME_LEFT, PEAK, FIELDS }; // of a progress line

struct Log {
    char *path; // of log.jsonl; NULL: only the terminal
    int file;
    bool json;          // log lines go to standard output, and nothing else does
    JsonWriter line;    // the open object
    bool terminal;      // stdout is a terminal
    bool progress;      // the cursor is after a progress line
    bool stepped;       // a step was reported
    int widths[FIELDS]; // largest so far of a progress line's values
    double time_offset; // "seconds" minus the clock
    BestLoss best;      // of the lines that were kept
    char *validation;   // id of the validation split of `best`; NULL: unknown
};

// ---- log.jsonl --------------------------------------------------------------

// The lines of a log that are kept.
typedef struct {
    char *text;
    size_t size;
    double seconds;   // the largest
    BestLoss best;    // the last
    char *validation; // id of the validation split of `best`, allocated; NULL: unknown
    size_t damaged;   // number of the first line that is not JSON; 0: none so far
} Kept;

static void keep(Kept *kept, Text line) {
    memcpy(kept->text + kept->size, line.data, line.size);
    kept->size += line.size;
}

// Returns whether the resumed run will write this line again.
static bool will_be_rewritten(const Json *object, unsigned again) {
    const bool statistics = strcmp(json_text(object, "event"), "statistics") == 0;
    return ((again & LOG_END) && (statistics || json_find(object, "test_loss"))) ||
           ((again & LOG_EVALUATION) && json_find(object, "val_loss"));
}

// Records the validation split of a start or resumption. A new split resets the best loss.
static void keep_validation(Kept *kept, const Json *object) {
    const char *id = json_text(object, "val_id");
    if (!*id) return;
    if (kept->validation && strcmp(kept->validation, id) != 0) kept->best = (BestLoss){INFINITY, 0};
    free(kept->validation);
    kept->validation = copy_string(id);
}

// Keeps a line, which ends with its newline, unless it belongs to a later step or will be
// rewritten. Exits with an error if a line to keep follows a damaged one.
static void prune_line(Kept *kept, const char *path, size_t number, Text line, int64_t resume_step,
                       unsigned again) {
    Json *object = json_try_parse(line.data, line.size);
    const double step = object ? json_number(object, "step", -1) : 0;
    if (!object) {
        if (!kept->damaged) kept->damaged = number;
    } else if (step <= (double)resume_step &&
               !(step == (double)resume_step && will_be_rewritten(object, again))) {
        if (kept->damaged)
            fail("%s, line %zu: is damaged, and good lines follow", path, kept->damaged);
        keep(kept, line);
        keep_validation(kept, object);
        kept->seconds = fmax(kept->seconds, json_number(object, "seconds", 0));
        if (json_find(object, "best"))
            kept->best = (BestLoss){json_number(object, "val_loss", kept->best.loss),
                                    (int64_t)fmin(json_number(object, "val_tokens", 0), 1e18)};
    }
    json_free(object);
}

// Removes a last line that was cut off or damaged and, if resume_step >= 0, the lines of later
// steps and those of this step that will be rewritten. The returned `text` is already freed.
static Kept prune(const char *path, int64_t resume_step, unsigned again) {
    FileMap file = file_map(path);
    Text rest = {(const char *)file.data, file.size}, line;
    Kept kept = {.text = allocate(file.size, 1, "the log"), .best = {INFINITY, 0}};
    size_t number = 1;
    for (; text_next_line(&rest, &line); number++)
        if (resume_step >= 0)
            prune_line(&kept, path, number, line, resume_step, again);
        else
            keep(&kept, line);
    if (line.size > 0 && !kept.damaged) kept.damaged = number;
    if (kept.damaged) warn("%s, line %zu: was damaged and is cut off", path, kept.damaged);
    const bool changed = kept.size != file.size;
    file_unmap(&file);
    if (changed) atomic_save(path, kept.text, kept.size);
    free(kept.text);
    return kept;
}

Log *log_open(const char *directory, int64_t resume_step, unsigned again) {
    Log *log = allocate(1, sizeof *log, "the log");
    log->terminal = terminal_is_used();
    Kept kept = {.best = {INFINITY, 0}};
    if (directory) {
        log->path = path_in(directory, "log.jsonl");
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
    log->line.text[log->line.length] = '\n'; // replaces NUL: one write() for the whole line
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

// Drops meaningless digits to keep the log short. `scale` is 1000 for three decimals.
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

// ---- terminal output --------------------------------------------------------

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

const char *format_count(double value, char *text) {
    char digits[32], *out = text;
    const int length = snprintf(digits, sizeof digits, "%.0f", fmin(fmax(value, 0), 1e15));
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return text;
}

const char *format_about(double value, char *text) {
    static const char *const units[] = {"", "K", "M", "B"};
    int unit = 0;
    for (; unit < 3 && value >= 999.5; unit++) value /= 1000;
    const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, 32, "%.*f%s", decimals, value, units[unit]);
    return text;
}

// Formats a value into text (at least 32 bytes), with an exponent only from 1e6 on.
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
    if (log->progress) terminal_clear_line(stdout);
    log->progress = false;
}

static void format_clock(double seconds, char *text) {
    const double whole = round(seconds);
    if (whole >= 0 && whole < 1e9)
        snprintf(text, 32, "%.0f:%02.0f:%02.0f", floor(whole / 3600), floor(fmod(whole, 3600) / 60),
                 fmod(whole, 60));
    else
        snprintf(text, 32, "?");
}

// A field of a progress line. Its value is padded on the left to the largest width so far, so that
// the following fields keep their columns.
typedef struct {
    const char *before, *after;
    char value[64]; // empty: field omitted
} Field;

static void format_fields(const StepReport *report, Field fields[FIELDS]) {
    const char *const names[FIELDS][2] = {
        [EPOCH] = {"epoch ", ""},   [STEP] = {"step ", ""},    [LOSS] = {"loss ", ""},
        [RATE] = {"lr ", ""},       [NORM] = {"|g| ", ""},     [SPEED] = {"", " tok/s"},
        [TIME_LEFT] = {"ETA ", ""}, [PEAK] = {"", "% of peak"}};
    const size_t size = sizeof fields[0].value;
    for (int i = 0; i < FIELDS; i++) fields[i] = (Field){names[i][0], names[i][1], ""};
    char done[32], planned[32];
    format_value(report->epoch, 2, done);
    format_value(report->epochs, 2, planned);
    // Progress is padded to the width of the total. Epochs are omitted if fewer than 0.1 are
    // planned: two decimals would be too coarse.
    if (!(report->epochs > 0))
        snprintf(fields[EPOCH].value, size, "%s", done);
    else if (report->epochs >= 0.1)
        snprintf(fields[EPOCH].value, size, "%*s/%s", (int)strlen(planned), done, planned);
    snprintf(planned, sizeof planned, "%lld", (long long)report->steps);
    snprintf(fields[STEP].value, size, "%*lld/%s", (int)strlen(planned), (long long)report->step,
             planned);
    format_value(report->loss, 4, fields[LOSS].value);
    snprintf(fields[RATE].value, size, "%.1e", report->learning_rate);
    format_value(report->gradient_norm, 2, fields[NORM].value);
    format_count(report->tokens_per_second, fields[SPEED].value);
    format_clock(report->step < report->steps ? report->seconds_left : 0, fields[TIME_LEFT].value);
    if (report->peak_fraction > 0)
        snprintf(fields[PEAK].value, size, "%.0f", 100 * report->peak_fraction);
}

// Prints the fields separated by two spaces. Omits the less important ones if the line is wider
// than `columns`.
static void print_step(Log *log, const StepReport *report, int columns) {
    static const int less_important[] = {PEAK, NORM, RATE, EPOCH, SPEED, TIME_LEFT, STEP};
    Field fields[FIELDS];
    char line[FIELDS * (sizeof fields[0].value + 16)];
    format_fields(report, fields);
    for (int i = 0; i < FIELDS; i++) {
        const int length = (int)strlen(fields[i].value);
        if (length > log->widths[i]) log->widths[i] = length;
    }
    for (size_t dropped = 0;;) {
        int length = 0;
        for (int i = 0; i < FIELDS; i++) {
            if (*fields[i].value)
                length += snprintf(line + length, sizeof line - (size_t)length, "%s%s%*s%s",
                                   length ? "  " : "", fields[i].before, log->widths[i],
                                   fields[i].value, fields[i].after);
        }
        if (length <= columns || dropped == sizeof less_important / sizeof *less_important) break;
        *fields[less_important[dropped++]].value = '\0';
    }
    printf("%.*s", columns, line);
}

void log_step(Log *log, const StepReport *report, int64_t every) {
    if (log->path) write_step(log, report);
    const bool last = report->step >= report->steps;
    const bool due = !log->stepped || last || (every > 0 && report->step % every == 0);
    log->stepped = true;
    if (log->terminal && !last && !terminal_is_ready()) return;
    if (log->terminal) {
        clear_progress(log);
        print_step(log, report, terminal_columns(stdout));
        log->progress = true;
        if (last) { // keep the line
            printf("\n");
            log->progress = false;
        }
    } else if (due) {
        print_step(log, report, INT_MAX);
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
    char *line = step >= 0 ? format_string("step %lld  ", (long long)step) : copy_string("");
    format_value(result->loss, 4, text);
    append_format(&line, "%s loss %s", split, text);
    if (result->training > 0) {
        format_value(result->training, 4, text);
        append_format(&line, "  train %s", text);
    }
    for (int i = 0; i < result->metric_count; i++) {
        const Metric *metric = &result->metrics[i];
        if (!metric->before) continue;
        format_value(metric->value, metric->decimals, text);
        append_format(&line, "  %s%s%s", metric->before, text, metric->after);
    }
    format_duration(result->seconds, text);
    const char *mark = best ? "  best" : "";
    const size_t columns = (size_t)terminal_columns(stdout), size = strlen(line) + strlen(mark);
    if (size > columns || size + strlen("  in ") + strlen(text) <= columns) // else omitted
        append_format(&line, "  in %s", text);
    append_format(&line, "%s", mark);
    terminal_print(stdout, line, "  ", 2);
    free(line);
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
    for (int i = 0; i < count; i++) {
        char *line = format_string("  %-*s  %s", width, rows[i].key, rows[i].value);
        for (char *c = line; c < line + 2 + strlen(rows[i].key); c++)
            if (*c == '_') *c = ' ';
        terminal_print(stdout, line, " ", width + 4);
        free(line);
    }
    log_flush();
}

void log_row(const char *name, const char *value) {
    char *line = format_string("%-*s  %s", LOG_NAME, name, value);
    terminal_print(stdout, line, " ", LOG_NAME + 2);
    free(line);
    log_flush();
}

void log_close(Log *log) {
    if (log->progress) printf("\n"); // the shell's prompt starts on a new line
    log_flush();
    if (log->path && close(log->file) != 0)
        fail("%s: cannot write: %s", log->path, strerror(errno));
    json_writer_free(&log->line);
    free(log->validation);
    free(log->path);
    free(log);
}
