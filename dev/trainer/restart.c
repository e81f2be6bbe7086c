#include "restart.h"

#include "checkpoint.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "run_data.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT "log.jsonl.before"

// Returns the last "start" event of a log; NULL: none.
static Json *start_event(const char *path) {
    FileMap file;
    if (!file_try_map(path, &file)) return NULL;
    Text log = {(const char *)file.data, file.size};
    static const char mark[] = "{\"event\":\"start\"";
    Json *found = NULL;
    for (Text line; text_next_line(&log, &line);) {
        if (line.size < sizeof(mark) || memcmp(line.data, mark, sizeof(mark) - 1) != 0) continue;
        Json *event = json_try_parse(line.data, line.size);
        const Json *options = event ? json_find(event, "options") : NULL;
        const bool usable = options && options->kind == JSON_OBJECT;
        json_free(usable ? found : event);
        if (usable) found = event;
    }
    file_unmap(&file);
    return found;
}

// Returns that event of a log that restart_find_log() found on rank 0, perhaps of another machine.
static Json *read_start_event(const char *path) {
    Json *event = start_event(path);
    if (!event) fail("%s: cannot be read, or names no start of a run", path);
    return event;
}

char *restart_find_log(const char *directory) {
    static const char *const names[] = {"log.jsonl", KEPT};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = path_in(directory, names[i]);
        Json *event = start_event(path);
        json_free(event);
        if (event) return path;
        free(path);
    }
    return NULL;
}

// Paths in a log are relative to the directory in which the run was started.
static void resolve_path(Options *options, OptionName name, const char *start) {
    char here[4096];
    const char *path = options_text(options, name);
    if (!path || options_given(options, name) || path[0] == '/' || !*start) return;
    if (recall_named(path)) return; // no path: the sequences are generated
    if (getcwd(here, sizeof(here)) && strcmp(here, start) == 0) return;
    char *resolved = path_in(start, path);
    options_set(options, name, resolved, options_name(name));
    free(resolved);
}

void restart_options(const char *log, Options *options, const ModelType *type) {
    Json *event = read_start_event(log);
    const char *model = json_text(event, "model");
    const size_t length = strlen(type->name);
    if (*model && (strncmp(model, type->name, length) != 0 || model[length] != ','))
        fail("%s: is of a model of type %.*s, this program trains %s", log,
             (int)strcspn(model, ","), model, type->name);
    options_from_log_event(options, json_find(event, "options"), log,
                           "drop the option, or choose another --output");
    resolve_path(options, OPT_INPUT, json_text(event, "directory"));
    resolve_path(options, OPT_INIT, json_text(event, "directory"));
    json_free(event);
}

void restart_check_data(const char *log, const char *directory, const Dataset *dataset) {
    Json *event = read_start_event(log);
    const char *stored = json_text(event, "data");
    char *sizes = run_data_sizes(dataset), *path = checkpoint_best_path(directory);
    const size_t m = strlen(stored), n = strlen(sizes);
    if (m < n || strcmp(stored + m - n, sizes) != 0)
        fail("%s: its run was trained on %s; the data of %s now have %s; give the data it was "
             "trained on with --input, or choose another --output",
             log, stored, dataset->name, sizes);
    char *id = run_data_validation_id(dataset);
    const char *stored_id = json_text(event, "val_id"); // "" in older logs
    if (*stored_id && strcmp(stored_id, id) != 0)
        fail("%s: its run was trained on other data than %s now has; give them with --input, or "
             "choose another --output",
             log, dataset->name);
    free(id);
    Safetensors *best = safetensors_try_open(path);
    if (best) run_data_check_tokenizer(best, dataset);
    safetensors_close(best);
    free(path);
    free(sizes);
    json_free(event);
}

// Returns the last step of a log; 0: none.
static int64_t last_step(const char *path) {
    FILE *file = fopen(path, "r");
    long long last = 0, step;
    char *line = NULL;
    size_t room = 0;
    while (file && getline(&line, &room, file) >= 0)
        if (sscanf(line, "{\"step\":%lld", &step) == 1 && step > last) last = step;
    free(line);
    if (file) fclose(file);
    return last;
}

void restart_keep_log(const char *directory) {
    char *log = path_in(directory, "log.jsonl"), *kept = path_in(directory, KEPT);
    if (last_step(log) > last_step(kept) && rename(log, kept) != 0)
        fail("%s: cannot be renamed to %s: %s", log, kept, strerror(errno));
    free(log);
    free(kept);
}

void restart_forget_log(const char *directory, int64_t step) {
    char *kept = path_in(directory, KEPT);
    if (access(kept, F_OK) == 0 && last_step(kept) <= step) unlink(kept);
    free(kept);
}
