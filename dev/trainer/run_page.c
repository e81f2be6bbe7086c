#include "run_page.h"

#include "embed.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "text.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

EMBED(page_html, "dev/page/page.html");
EMBED(page_css, "dev/page/page.css");
EMBED(page_js, "dev/page/page.js");

// ---- what a log says --------------------------------------------------------

enum { STEP, SECONDS, EPOCH, LOSS, RATE, NORM, SPEED, COLUMNS, POINTS = 1500 };
static const char *const columns[COLUMNS] = {"step", "seconds",   "epoch",       "loss",
                                             "lr",   "grad_norm", "tokens_per_s"};

typedef struct {
    double values[COLUMNS]; // NaN: not known
} Step;

typedef struct {
    Step *steps; // (step_count) ascending
    size_t step_count;
    Json **starts, **evaluations; // lines: where the run started or was resumed; of validation
    size_t start_count, evaluation_count;
    Json *best, *test; // the best of the evaluations, NULL: none; the test, NULL: none
} LogSummary;

static double number(const Json *line, const char *key) {
    const Json *value = json_find(line, key);
    return value && value->kind == JSON_NUMBER ? value->number : NAN;
}

// A run that began again counts from there.
static void add_step(LogSummary *s, const Json *line) {
    Step step;
    for (int i = 0; i < COLUMNS; i++) step.values[i] = number(line, columns[i]);
    if (isnan(step.values[STEP])) return;
    while (s->step_count > 0 && s->steps[s->step_count - 1].values[STEP] >= step.values[STEP])
        s->step_count--;
    s->steps = grow_list(s->steps, s->step_count, sizeof(Step), "a page");
    s->steps[s->step_count++] = step;
}

static bool keep(Json ***lines, size_t *count, Json *line) {
    *lines = grow_list(*lines, *count, sizeof(Json *), "a page");
    (*lines)[(*count)++] = line;
    return true;
}

// Whether the line was kept.
static bool add_line(LogSummary *s, Json *line) {
    if (line->kind != JSON_OBJECT) return false;
    if (json_find(line, "command")) return keep(&s->starts, &s->start_count, line);
    if (json_find(line, "lr")) add_step(s, line);
    if (json_find(line, "val_loss")) {
        const Json *best = json_find(line, "best");
        if (best && best->kind == JSON_BOOL) s->best = line;
        return keep(&s->evaluations, &s->evaluation_count, line);
    }
    if (!json_find(line, "test_loss")) return false;
    json_free(s->test);
    s->test = line;
    return true;
}

static LogSummary summary_create(const char *directory) {
    char *path = format_string("%s/log.jsonl", directory);
    LogSummary s = {0};
    FileMap log;
    if (file_try_map(path, &log)) {
        const char *at = (const char *)log.data, *const end = at + log.size;
        for (const char *newline; at < end && (newline = memchr(at, '\n', (size_t)(end - at)));
             at = newline + 1) {
            Json *line = json_try_parse(at, (size_t)(newline - at));
            if (line && !add_line(&s, line)) json_free(line);
        }
        file_unmap(&log);
    }
    free(path);
    return s;
}

static void summary_free(LogSummary *s) {
    for (size_t i = 0; i < s->start_count; i++) json_free(s->starts[i]);
    for (size_t i = 0; i < s->evaluation_count; i++) json_free(s->evaluations[i]);
    json_free(s->test);
    free(s->starts);
    free(s->evaluations);
    free(s->steps);
}

// ---- the same as JSON -------------------------------------------------------
// Of steps [first, last): loss, norm and speed are the mean of those that are numbers, the other
// columns the last step's.
static double mean_of(const Step *steps, size_t first, size_t last, int column) {
    if (column != LOSS && column != NORM && column != SPEED) return steps[last - 1].values[column];
    double sum = 0;
    size_t count = 0;
    for (size_t i = first; i < last; i++) {
        if (isnan(steps[i].values[column])) continue;
        sum += steps[i].values[column];
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

static void write_rounded(JsonWriter *w, double value) {
    char digits[32];
    snprintf(digits, sizeof(digits), "%.6g", value);
    json_write_number(w, strtod(digits, NULL));
}

// A list for each column, of at most POINTS numbers.
static void write_steps(JsonWriter *w, const LogSummary *s) {
    const size_t every = s->step_count / POINTS + 1;
    json_begin(w, '{');
    for (int column = 0; column < COLUMNS; column++) {
        json_key(w, columns[column]);
        json_begin(w, '[');
        for (size_t i = 0; i < s->step_count; i += every) {
            const size_t left = s->step_count - i, count = left < every ? left : every;
            write_rounded(w, mean_of(s->steps, i, i + count, column));
        }
        json_end(w, ']');
    }
    json_end(w, '}');
}

// At most POINTS of them, the last one and the best always.
static void write_evaluations(JsonWriter *w, const LogSummary *s) {
    const size_t every = s->evaluation_count / POINTS + 1;
    json_begin(w, '[');
    for (size_t i = 0; i < s->evaluation_count; i++)
        if (i % every == 0 || i + 1 == s->evaluation_count || s->evaluations[i] == s->best)
            json_write_value(w, s->evaluations[i]);
    json_end(w, ']');
}

static void write_line(JsonWriter *w, const char *key, const Json *line) {
    if (!line) return;
    json_key(w, key);
    json_write_value(w, line);
}

static void write_run(JsonWriter *w, const char *name, const LogSummary *s) {
    json_begin(w, '{');
    json_key(w, "name");
    json_write_string(w, name);
    json_key(w, "starts");
    json_begin(w, '[');
    for (size_t i = 0; i < s->start_count; i++) json_write_value(w, s->starts[i]);
    json_end(w, ']');
    json_key(w, "steps");
    write_steps(w, s);
    json_key(w, "evaluations");
    write_evaluations(w, s);
    write_line(w, "best", s->best);
    write_line(w, "test", s->test);
    json_end(w, '}');
}

static void write_model(JsonWriter *w, const PageModel *model) {
    json_begin(w, '{');
    json_key(w, model->obstacle ? "obstacle" : "format");
    json_write_string(w, model->obstacle ? model->obstacle : model->format);
    json_key(w, "loss");
    json_write_number(w, model->loss);
    json_key(w, "rounded_loss");
    json_write_number(w, model->rounded_loss);
    json_key(w, "files");
    json_begin(w, '[');
    for (size_t i = 0; i < model->count; i++) {
        json_begin(w, '{');
        json_key(w, "name");
        json_write_string(w, model->files[i].name);
        json_key(w, "size");
        json_write_integer(w, (int64_t)model->files[i].data.size);
        json_end(w, '}');
    }
    json_end(w, ']');
    json_end(w, '}');
}

static JsonWriter page_data(const char *directory, const LogSummary *s, const PageModel *model,
                            char *const *samples, int count) {
    JsonWriter w = {0};
    const char *name = path_name(directory);
    json_begin(&w, '{');
    json_key(&w, "version");
    json_write_string(&w, VERSION);
    json_key(&w, "runs");
    json_begin(&w, '[');
    write_run(&w, *name ? name : directory, s);
    json_end(&w, ']');
    json_key(&w, "samples");
    json_begin(&w, '[');
    for (int i = 0; i < count; i++) json_write_string(&w, samples[i]);
    json_end(&w, ']');
    if (model) json_key(&w, "model");
    if (model) write_model(&w, model);
    json_end(&w, '}');
    return w;
}

// ---- the file ---------------------------------------------------------------
// JSON inside of a script element: nothing in it can end the element, or begin a comment.
static void append_json(Bytes *page, const JsonWriter *json) {
    for (const char *at = json->text, *end = at + json->length; at < end; at++) {
        const bool separator = end - at >= 3 && (memcmp(at, "\xe2\x80\xa8", 3) == 0 ||
                                                 memcmp(at, "\xe2\x80\xa9", 3) == 0);
        if (!separator && !strchr("<>&", *at)) {
            bytes_append(page, at, 1);
            continue;
        }
        char escape[8];
        snprintf(escape, sizeof(escape), "\\u%04x",
                 separator ? 0x2000u + (unsigned char)at[2] - 0x80 : (unsigned)*at);
        bytes_append(page, escape, 6);
        at += separator ? 2 : 0;
    }
}

static void append_base64(Bytes *page, const unsigned char *data, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t length = (size + 2) / 3 * 4;
    char *out = bytes_reserve(page, length);
    for (size_t i = 0; i < size; i += 3) {
        const uint32_t left = (uint32_t)(size - i),
                       word = (uint32_t)data[i] << 16 |
                              (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                              (left > 2 ? (uint32_t)data[i + 2] : 0);
        for (unsigned j = 0; j < 4; j++)
            *out++ = j <= left ? digits[word >> (18 - 6 * j) & 63] : '=';
    }
    page->size += length;
}

static void append_text(Bytes *page, Text text) {
    bytes_append(page, text.data, text.size);
}

// What takes the place of {{name}} in page.html.
static void append_part(Bytes *page, Text name, const char *nonce, const JsonWriter *data,
                        const PageModel *model) {
    static const char *const names[] = {"nonce", "style", "script", "data", "files"};
    size_t part = 0;
    while (strlen(names[part]) != name.size || memcmp(names[part], name.data, name.size) != 0)
        part++;
    if (part == 0) append_text(page, (Text){nonce, strlen(nonce)});
    if (part == 1) append_text(page, EMBEDDED(page_css));
    if (part == 2) append_text(page, EMBEDDED(page_js));
    if (part == 3) append_json(page, data);
    for (size_t i = 0; part == 4 && model && i < model->count; i++) {
        append_base64(page, (const unsigned char *)model->files[i].data.data,
                      model->files[i].data.size);
        bytes_append(page, "\n", 1);
    }
}

static Bytes page_create(const JsonWriter *data, const PageModel *model) {
    Bytes page = {0};
    unsigned char random[16];
    char nonce[2 * sizeof(random) + 1];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        fail("a page: no random number can be had: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(random); i++) snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    const Text html = EMBEDDED(page_html);
    const char *at = html.data, *const end = at + html.size;
    for (const char *open; (open = memmem(at, (size_t)(end - at), "{{", 2));) {
        append_text(&page, (Text){at, (size_t)(open - at)});
        const char *close = memmem(open, (size_t)(end - open), "}}", 2);
        append_part(&page, (Text){open + 2, (size_t)(close - open) - 2}, nonce, data, model);
        at = close + 2;
    }
    append_text(&page, (Text){at, (size_t)(end - at)});
    return page;
}

void run_page_write(const char *path, const char *directory, const PageModel *model,
                    char *const *samples, int count) {
    LogSummary s = summary_create(directory);
    if (s.step_count > 0 || model) {
        JsonWriter data = page_data(directory, &s, model, samples, count);
        Bytes page = page_create(&data, model);
        AtomicFile *file = atomic_open(path);
        atomic_write(file, page.data, page.size);
        atomic_commit(file);
        bytes_free(&page);
        json_writer_free(&data);
    }
    summary_free(&s);
}
