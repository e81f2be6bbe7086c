#include "report.h"

#include "error.h"
#include "file.h"
#include "json.h"
#include "log.h"
#include "memory.h"
#include "picture.h"
#include "text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double step, loss;
} Point;

// What a log says.
typedef struct {
    Json *best, *test; // the last evaluation that was best, and the test; NULL: none
    Json **commands;   // (command_count) lines that say how the run was started or went on
    size_t command_count;
    Point *losses, *evaluations; // those that are numbers
    size_t loss_count, evaluation_count;
    double *speeds; // (step_count) tokens/s
    size_t step_count;
    double step, epoch, seconds; // at the end
} Summary;

static double number(const Json *line, const char *key, double otherwise) {
    const Json *value = json_find(line, key);
    return value && value->kind == JSON_NUMBER ? value->number : otherwise;
}

static const char *text(const Json *line, const char *key) {
    const Json *value = line ? json_find(line, key) : NULL;
    return value && value->kind == JSON_STRING ? value->string : "";
}

// A loss that is no number, as a step that was skipped has it, is no point.
static Point *add_point(Point *points, size_t *count, const Json *line, const char *loss) {
    const Point point = {number(line, "step", 0), number(line, loss, NAN)};
    if (isnan(point.loss)) return points;
    points = grow_list(points, *count, sizeof(Point), "a report");
    points[(*count)++] = point;
    return points;
}

static void add_step(Summary *s, const Json *line) {
    s->losses = add_point(s->losses, &s->loss_count, line, "loss");
    s->speeds = grow_list(s->speeds, s->step_count, sizeof(double), "a report");
    s->speeds[s->step_count++] = number(line, "tokens_per_s", 0);
    s->step = number(line, "step", 0);
    s->epoch = number(line, "epoch", 0);
    s->seconds = number(line, "seconds", 0);
}

// Keeps the line where `which` is to be the last of its kind.
static bool keep(Json **which, Json *line) {
    json_free(*which);
    *which = line;
    return true;
}

// Whether the line was kept.
static bool add_line(Summary *s, Json *line) {
    if (line->kind != JSON_OBJECT) return false;
    if (json_find(line, "lr")) add_step(s, line);
    if (json_find(line, "val_loss")) {
        s->evaluations = add_point(s->evaluations, &s->evaluation_count, line, "val_loss");
        return json_find(line, "best") && keep(&s->best, line);
    }
    if (json_find(line, "test_loss")) return keep(&s->test, line);
    if (!*text(line, "command")) return false;
    s->commands = grow_list(s->commands, s->command_count, sizeof(Json *), "a report");
    s->commands[s->command_count++] = line;
    return true;
}

static Summary summary_create(const FileMap *log) {
    Summary s = {0};
    const char *at = (const char *)log->data, *const end = at + log->size;
    for (const char *newline; at < end && (newline = memchr(at, '\n', (size_t)(end - at)));
         at = newline + 1) {
        Json *line = json_try_parse(at, (size_t)(newline - at));
        if (line && !add_line(&s, line)) json_free(line);
    }
    return s;
}

static void summary_free(Summary *s) {
    for (size_t i = 0; i < s->command_count; i++) json_free(s->commands[i]);
    json_free(s->best);
    json_free(s->test);
    free(s->commands);
    free(s->losses);
    free(s->evaluations);
    free(s->speeds);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// ---- the picture ------------------------------------------------------------
// Means of as many steps as make a point for every two columns of the picture.
static void write_losses(FILE *f, const Summary *s) {
    enum { POINTS = 500 };
    const size_t every = s->loss_count / POINTS + 1;
    for (size_t i = 0; i < s->loss_count; i += every) {
        const size_t count = s->loss_count - i < every ? s->loss_count - i : every;
        double sum = 0;
        for (size_t j = i; j < i + count; j++) sum += s->losses[j].loss;
        fprintf(f, "%g %g\n", s->losses[i + count - 1].step, sum / (double)count);
    }
}

static void write_plot(FILE *f, const Summary *s) {
    // The beginning falls so steeply that nothing else would be seen.
    const Point early = s->losses[s->loss_count / 50];
    fprintf(f,
            "set xlabel 'step'\nset ylabel 'loss (nats per token)'\nset yrange [*:%g]\n"
            "set grid lt 1 lc rgb 0xdddddd\n$train << END\n",
            1.02 * early.loss);
    write_losses(f, s);
    fprintf(f, "END\n");
    if (s->evaluation_count) fprintf(f, "$val << END\n");
    for (size_t i = 0; i < s->evaluation_count; i++)
        fprintf(f, "%g %g\n", s->evaluations[i].step, s->evaluations[i].loss);
    if (s->evaluation_count) fprintf(f, "END\n");
    fprintf(f, "plot $train with lines lc rgb 0x56b4e9 title 'training'");
    if (s->evaluation_count)
        fprintf(f, ", $val with linespoints lw 2 pt 7 ps 0.7 lc rgb 0x0072b2 title 'validation'");
    fprintf(f, "\n");
}

// Whether there is a picture.
static bool draw_curve(const char *directory, const Summary *s) {
    if (s->loss_count < REPORT_CURVE_STEPS) return false;
    char *path = format_string("%s/curve.png", directory);
    Picture picture;
    const bool begun = picture_begin(&picture, path, 800, 480);
    free(path);
    if (!begun) return false;
    write_plot(picture.commands.file, s);
    return picture_finish(&picture) == PICTURE_DRAWN;
}

// ---- the text ---------------------------------------------------------------
// A row of the first table; `|` would end its cell.
static void write_row(FILE *f, const char *name, const char *value) {
    if (!*value) return;
    fprintf(f, "| %s | ", name);
    for (; *value; value++) fprintf(f, *value == '|' ? "\\|" : "%c", *value);
    fprintf(f, " |\n");
}

static void write_facts(FILE *f, const Summary *s) {
    static const char *const rows[] = {"model",    "data",   "plan",   "processor",
                                       "products", "memory", "version"};
    const Json *last = s->command_count ? s->commands[s->command_count - 1] : NULL;
    fprintf(f, "| | |\n|---|---|\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        write_row(f, rows[i], text(last, rows[i]));
    char *trained, duration[32];
    format_duration(s->seconds, duration);
    trained = format_string("%.0f steps, %.4g epochs, %s", s->step, s->epoch, duration);
    write_row(f, "trained", trained);
    free(trained);
    qsort(s->speeds, s->step_count, sizeof(double), ascending);
    char *speed = format_string("%.0f tokens/s, the middle one of the steps",
                                s->speeds[(s->step_count - 1) / 2]);
    write_row(f, "speed", speed);
    free(speed);
}

static void write_commands(FILE *f, const Summary *s) {
    for (size_t i = 0; i < s->command_count; i++)
        fprintf(f, "    %s\n", text(s->commands[i], "command"));
    fprintf(f, "\n");
}

static const char *unit_name(const char *key) {
    static const char *const names[][2] = {{"loss", "loss, nats per token"},
                                           {"ppl", "perplexity per token"},
                                           {"bpb", "bits per byte"},
                                           {"word_ppl", "perplexity per word"},
                                           {"pseudo_ppl", "pseudo-perplexity"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(key, names[i][0]) == 0) return names[i][1];
    return key;
}

static void write_cell(FILE *f, const Json *line, const char *split, const char *unit) {
    char *key = format_string("%s_%s", split, unit);
    const Json *value = line ? json_find(line, key) : NULL;
    const bool found = value && value->kind == JSON_NUMBER;
    if (!found)
        fprintf(f, " - |");
    else if (value->number >= 1e4 || strcmp(unit, "tokens") == 0)
        fprintf(f, " %.0f |", value->number);
    else
        fprintf(f, " %.*f |", value->number >= 100 ? 1 : 4, value->number);
    free(key);
}

// Every unit that the evaluations know, and how many tokens that was.
static void write_results(FILE *f, const Summary *s) {
    const Json *line = s->best ? s->best : s->test;
    if (!line) return;
    const char *split = s->best ? "val_" : "test_";
    fprintf(f, "\n| | validation");
    if (s->best) fprintf(f, ", best: step %.0f", number(s->best, "step", 0));
    fprintf(f, " | test |\n|---|---|---|\n");
    for (size_t i = 0; i < line->count; i++) {
        const char *key = line->keys[i], *unit = key + strlen(split);
        if (strncmp(key, split, strlen(split)) != 0 || strcmp(unit, "ms") == 0) continue;
        fprintf(f, "| %s |", unit_name(unit));
        write_cell(f, s->best, "val", unit);
        write_cell(f, s->test, "test", unit);
        fprintf(f, "\n");
    }
}

// An indented block: no text can end it.
static void write_sample(FILE *f, const char *sample) {
    fprintf(f, "\n    ");
    for (Text left = {sample, strlen(sample)}; left.size > 0;) {
        const size_t length = utf8_length(left), taken = length ? length : 1;
        if (length)
            fwrite(left.data, 1, length, f);
        else
            fprintf(f, "\xef\xbf\xbd"); // a byte that is not UTF-8
        if (*left.data == '\n') fprintf(f, "    ");
        left = (Text){left.data + taken, left.size - taken};
    }
    fprintf(f, "\n");
}

void report_write(const char *directory, char *const *samples, int count) {
    char *path = format_string("%s/log.jsonl", directory);
    FileMap log = file_map(path);
    Summary s = summary_create(&log);
    file_unmap(&log);
    free(path);
    if (s.step_count > 0) {
        const bool drawn = draw_curve(directory, &s);
        const char *name = path_name(directory);
        Page page;
        page_open(&page);
        fprintf(page.file, "# %s\n\n", *name ? name : directory);
        write_commands(page.file, &s);
        write_facts(page.file, &s);
        write_results(page.file, &s);
        if (drawn) fprintf(page.file, "\n![loss by step](curve.png)\n");
        if (count > 0) fprintf(page.file, "\n## Samples\n");
        for (int i = 0; i < count; i++) {
            write_sample(page.file, samples[i]);
            if (i + 1 < count) fprintf(page.file, "\n---\n");
        }
        page_close(&page);
        path = format_string("%s/report.md", directory);
        AtomicFile *file = atomic_open(path);
        atomic_write(file, page.text, page.size);
        atomic_commit(file);
        free(page.text);
        free(path);
    }
    summary_free(&s);
}
