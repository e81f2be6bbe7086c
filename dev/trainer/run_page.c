#include "run_page.h"

#include "embed.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "text.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

EMBED(page_html, "dev/page/page.html");
EMBED(page_css, "dev/page/page.css");
EMBED(page_js, "dev/page/page.js");

// ---- the steps of a log -----------------------------------------------------

enum { STEP, SECONDS, EPOCH, LOSS, RATE, NORM, SPEED, COLUMNS, POINTS = 1500 };
static const char *const columns[COLUMNS] = {"step", "seconds",   "epoch",       "loss",
                                             "lr",   "grad_norm", "tokens_per_s"};

typedef struct {
    double values[COLUMNS]; // NaN: unknown
} Step;

typedef struct {
    Step *items; // (count) ascending
    size_t count;
} Steps;

// If a run started over, its steps replace the earlier ones.
static void add_step(Steps *s, const Json *line) {
    Step step;
    for (int i = 0; i < COLUMNS; i++) step.values[i] = json_number(line, columns[i], (double)NAN);
    if (isnan(step.values[STEP])) return;
    while (s->count > 0 && s->items[s->count - 1].values[STEP] >= step.values[STEP]) s->count--;
    s->items = grow_list(s->items, s->count, sizeof(Step), "a page");
    s->items[s->count++] = step;
}

// Returns the value of a column for steps (count): the mean of the numbers for loss, norm and
// speed, the last step's value for the others.
static double value_of(const Step *steps, size_t count, int column) {
    const bool mean = column == LOSS || column == NORM || column == SPEED;
    double sum = 0;
    size_t known = 0;
    for (size_t i = mean ? 0 : count - 1; i < count; i++) {
        if (isnan(steps[i].values[column])) continue;
        sum += steps[i].values[column];
        known++;
    }
    return known ? sum / (double)known : (double)NAN;
}

// Writes a list of at most POINTS numbers for each column.
static void write_steps(JsonWriter *w, const Steps *s) {
    const size_t every = s->count / POINTS + 1;
    json_begin(w, '{');
    for (int column = 0; column < COLUMNS; column++) {
        json_open(w, columns[column], '[');
        for (size_t i = 0; i < s->count; i += every)
            json_write_number(
                w, value_of(s->items + i, s->count - i < every ? s->count - i : every, column));
        json_end(w, ']');
    }
    json_end(w, '}');
}

// ---- the page's data, as JSON -----------------------------------------------
// Writes the log lines that are shown unchanged, and returns the steps of the log.
static Steps write_lines(JsonWriter *w, const char *directory) {
    char *path = path_in(directory, "log.jsonl");
    Steps steps = {0};
    FileMap log = {0};
    const bool found = file_try_map(path, &log);
    Text rest = {(const char *)log.data, log.size};
    for (Text line; text_next_line(&rest, &line);) {
        Json *event = json_try_parse(line.data, line.size);
        if (event && json_find(event, "lr")) add_step(&steps, event);
        if (event && (json_find(event, "command") || json_find(event, "val_loss") ||
                      json_find(event, "test_loss")))
            json_write_value(w, event);
        json_free(event);
    }
    if (found) file_unmap(&log);
    free(path);
    return steps;
}

static void write_model(JsonWriter *w, const PageModel *model) {
    json_open(w, "model", '{');
    json_add_string(w, model->obstacle ? "obstacle" : "format",
                    model->obstacle ? model->obstacle : model->format);
    json_add_number(w, "loss", model->loss);
    json_add_number(w, "rounded_loss", model->rounded_loss);
    json_end(w, '}');
}

// Returns the number of steps in the log.
static size_t write_data(JsonWriter *w, const char *directory, const PageModel *model,
                         char *const *samples, int count) {
    const char *name = path_name(directory);
    json_begin(w, '{');
    json_add_string(w, "version", VERSION);
    json_open(w, "samples", '[');
    for (int i = 0; i < count; i++) json_write_string(w, samples[i]);
    json_end(w, ']');
    if (model) write_model(w, model);
    json_open(w, "runs", '[');
    json_begin(w, '{');
    json_add_string(w, "name", *name ? name : directory);
    json_open(w, "lines", '[');
    const Steps steps = write_lines(w, directory);
    json_end(w, ']');
    json_key(w, "steps");
    write_steps(w, &steps);
    json_end(w, '}');
    json_end(w, ']');
    json_end(w, '}');
    free(steps.items);
    return steps.count;
}

// ---- the file ---------------------------------------------------------------
// Escapes JSON for a script element: nothing in it can end the element or begin a comment.
static Bytes escaped(const JsonWriter *json) {
    Bytes out = {0};
    for (const char *at = json->text; *at; at++) {
        char part[8] = {*at};
        if (strchr("<>&", *at)) snprintf(part, sizeof(part), "\\u%04x", (unsigned)*at);
        bytes_append(&out, part, strlen(part));
    }
    return out;
}

static void append_base64(Bytes *out, const Bytes *data) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < data->size; i += 3) {
        const size_t left = data->size - i < 3 ? data->size - i : 3;
        unsigned char bytes[3] = {0};
        char text[4];
        memcpy(bytes, data->data + i, left);
        const unsigned word = (unsigned)bytes[0] << 16 | (unsigned)bytes[1] << 8 | bytes[2];
        for (unsigned j = 0; j < 4; j++)
            text[j] = j <= left ? digits[word >> (18 - 6 * j) & 63] : '=';
        bytes_append(out, text, sizeof(text));
    }
}

// Returns a line for each file: its name and its bytes.
static Bytes files_of(const PageModel *model) {
    Bytes out = {0};
    for (size_t i = 0; model && i < model->count; i++) {
        bytes_append(&out, model->files[i].name, strlen(model->files[i].name));
        bytes_append(&out, " ", 1);
        append_base64(&out, &model->files[i].data);
        bytes_append(&out, "\n", 1);
    }
    return out;
}

// The replacement of {{name}} in page.html.
typedef struct {
    const char *name;
    Text text;
} PagePart;

static Bytes fill_template(const PagePart *parts) {
    Bytes page = {0};
    const Text html = EMBEDDED(page_html);
    const char *at = html.data, *const end = at + html.size;
    for (const char *open; (open = memmem(at, (size_t)(end - at), "{{", 2));) {
        const PagePart *part = parts;
        while (strncmp(open + 2, part->name, strlen(part->name)) != 0) part++;
        bytes_append(&page, at, (size_t)(open - at));
        bytes_append(&page, part->text.data, part->text.size);
        at = open + 2 + strlen(part->name) + 2;
    }
    bytes_append(&page, at, (size_t)(end - at));
    return page;
}

void run_page_write(const char *path, const char *directory, const PageModel *model,
                    char *const *samples, int count) {
    JsonWriter json = {0};
    const size_t steps = write_data(&json, directory, model, samples, count);
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        fail("a page: no random number can be had: %s", strerror(errno));
    char nonce[33];
    snprintf(nonce, sizeof(nonce), "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    Bytes data = escaped(&json), files = files_of(model);
    Bytes page = fill_template((const PagePart[]){{"nonce", {nonce, strlen(nonce)}},
                                                  {"style", EMBEDDED(page_css)},
                                                  {"script", EMBEDDED(page_js)},
                                                  {"data", {data.data, data.size}},
                                                  {"files", {files.data, files.size}}});
    if (steps > 0 || model) atomic_save(path, page.data, page.size);
    bytes_free(&page);
    bytes_free(&files);
    bytes_free(&data);
    json_writer_free(&json);
}
