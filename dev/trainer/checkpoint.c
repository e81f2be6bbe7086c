#include "checkpoint.h"

#include "error.h"
#include "file.h"
#include "huggingface.h"
#include "memory.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Fills one source a parameter: `prefix` and its name, its values in `array`.
static void add_sources(const ParameterTable *table, const char *prefix, const real *array,
                        TensorSource *sources) {
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        sources[i] =
            (TensorSource){format_string("%s%s", prefix, p->name), p->rank, p->shape, array + p->offset};
    }
}

static void sources_free(TensorSource *sources, int count) {
    for (int i = 0; i < count; i++) free((char *)sources[i].name);
    free(sources);
}

static real *read_array(const Run *run, ModelArray which) {
    real *values = allocate(run->type->parameters(run->model)->total, sizeof(real), "checkpoint");
    run->type->read(run->model, which, values);
    return values;
}

static void write_weights(const Run *run, const char *path, int64_t step, const double *val_loss) {
    const ParameterTable *table = run->type->parameters(run->model);
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "format", copy_string("pt"));
    metadata_add(&rows, &count, "model", copy_string(run->type->name));
    metadata_add(&rows, &count, "vocab_size", format_string("%lld", (long long)run->setup.vocabulary));
    metadata_add(&rows, &count, "n_positions", format_string("%lld", (long long)run->setup.positions));
    metadata_add(&rows, &count, "padding_token", format_string("%d", run->setup.padding_token));
    options_to_metadata(run->options, OPTION_MODEL, &rows, &count);
    run->type->describe(run->model, &rows, &count);
    metadata_add(&rows, &count, "step", format_string("%lld", (long long)step));
    if (val_loss) metadata_add(&rows, &count, "val_loss", format_string("%.17g", *val_loss));

    real *values = read_array(run, MODEL_VALUES);
    TensorSource *sources = allocate((size_t)table->count, sizeof(TensorSource), "checkpoint");
    add_sources(table, "", values, sources);
    safetensors_write(path, sources, table->count, rows, count);
    sources_free(sources, table->count);
    free(values);
    metadata_free(rows, count);
}

static void write_state(const Run *run, const char *path, const Progress *progress) {
    const ParameterTable *table = run->type->parameters(run->model);
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "model", copy_string(run->type->name));
    metadata_add(&rows, &count, "step", format_string("%lld", (long long)progress->step));
    metadata_add(&rows, &count, "sequences", format_string("%lld", (long long)progress->sequences));
    metadata_add(&rows, &count, "skipped", format_string("%lld", (long long)progress->skipped));
    metadata_add(&rows, &count, "train_tokens",
                 format_string("%lld", (long long)run->dataset->splits[SPLIT_TRAIN].tokens));
    options_to_metadata(run->options, OPTION_TRAINING, &rows, &count);
    options_to_metadata(run->options, OPTION_LENGTH, &rows, &count);

    real *first = read_array(run, MODEL_FIRST_MOMENT), *second = read_array(run, MODEL_SECOND_MOMENT);
    TensorSource *sources = allocate(2 * (size_t)table->count, sizeof(TensorSource), "checkpoint");
    add_sources(table, "first_moment.", first, sources);
    add_sources(table, "second_moment.", second, sources + table->count);
    safetensors_write(path, sources, 2 * table->count, rows, count);
    sources_free(sources, 2 * table->count);
    free(first);
    free(second);
    metadata_free(rows, count);
}

static char *weights_path(const char *directory, int64_t step) {
    return format_string("%s/step_%08lld.safetensors", directory, (long long)step);
}

static char *state_path(const char *directory, int64_t step) {
    return format_string("%s/step_%08lld.state.safetensors", directory, (long long)step);
}

char *checkpoint_best_path(const char *directory) {
    return format_string("%s/best.safetensors", directory);
}

// The step that a file name of weights stands for; -1: another file.
static int64_t step_of_name(const char *name) {
    long long step;
    int length = 0;
    if (sscanf(name, "step_%lld.safetensors%n", &step, &length) != 1 || length == 0 || name[length])
        return -1;
    return step;
}

static int descending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

// The steps whose pair in DIR is complete, newest first.
static int64_t *complete_steps(const char *directory, size_t *count) {
    *count = 0;
    DIR *dir = opendir(directory);
    if (!dir) {
        if (errno == ENOENT) return NULL;
        fail("%s: cannot be listed: %s", directory, strerror(errno));
    }
    int64_t *steps = NULL;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        const int64_t step = step_of_name(entry->d_name);
        if (step < 0) continue;
        char *state = state_path(directory, step);
        if (file_exists(state)) {
            steps = realloc(steps, (*count + 1) * sizeof(int64_t));
            if (!steps) fail("out of memory while listing %s", directory);
            steps[(*count)++] = step;
        }
        free(state);
    }
    closedir(dir);
    if (steps) qsort(steps, *count, sizeof(int64_t), descending);
    return steps;
}

static void remove_pair(const char *directory, int64_t step) {
    // The weights first: what is left after an interruption is a state alone, which nothing takes for a
    // checkpoint.
    char *paths[] = {weights_path(directory, step), state_path(directory, step)};
    for (int i = 0; i < 2; i++) {
        if (unlink(paths[i]) != 0) warn("%s: cannot be removed: %s", paths[i], strerror(errno));
        free(paths[i]);
    }
}

void checkpoint_save(const Run *run, const char *directory, const Progress *progress, int64_t keep) {
    char *weights = weights_path(directory, progress->step), *state = state_path(directory, progress->step);
    write_state(run, state, progress);
    write_weights(run, weights, progress->step, NULL);
    char *best = checkpoint_best_path(directory);
    if (!file_exists(best)) huggingface_export(run->type, run->model, directory, strrchr(weights, '/') + 1);
    free(best);
    free(weights);
    free(state);
    size_t count;
    int64_t *steps = complete_steps(directory, &count);
    for (size_t i = (size_t)keep; i < count; i++) remove_pair(directory, steps[i]);
    free(steps);
}

void checkpoint_save_best(const Run *run, const char *directory, int64_t step, double val_loss) {
    char *path = checkpoint_best_path(directory);
    write_weights(run, path, step, &val_loss);
    huggingface_export(run->type, run->model, directory, strrchr(path, '/') + 1);
    free(path);
}

int64_t checkpoint_latest(const char *directory, char **weights, char **state) {
    size_t count;
    int64_t *steps = complete_steps(directory, &count);
    const int64_t step = count ? steps[0] : -1;
    free(steps);
    if (step >= 0) {
        *weights = weights_path(directory, step);
        *state = state_path(directory, step);
    }
    return step;
}

double checkpoint_number(const Safetensors *file, const char *key) {
    const char *text = safetensors_metadata(file, key);
    if (!text) fail("%s: metadata has no %s", file->file.path, key);
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        fail("%s: metadata %s is \"%s\", expected a number", file->file.path, key, text);
    return value;
}

int64_t checkpoint_integer(const Safetensors *file, const char *key, int64_t min, int64_t max) {
    const char *text = safetensors_metadata(file, key);
    if (!text) fail("%s: metadata has no %s", file->file.path, key);
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        fail("%s: metadata %s is \"%s\", expected an integer from %lld to %lld", file->file.path, key, text,
             (long long)min, (long long)max);
    return value;
}

void checkpoint_check_type(const Safetensors *file, const ModelType *type) {
    const char *model = safetensors_metadata(file, "model");
    if (!model) fail("%s: its metadata names no model, expected \"%s\"", file->file.path, type->name);
    if (strcmp(model, type->name) != 0)
        fail("%s: holds a model of type %s, this program trains %s", file->file.path, model, type->name);
}

static void shape_text(int rank, const int64_t *shape, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, ")");
}

// Reads tensor prefix+name of every parameter into `array`.
static void read_parameters(const Safetensors *file, const ParameterTable *table, const char *prefix,
                            real *array) {
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        char *name = format_string("%s%s", prefix, p->name);
        const Tensor *tensor = safetensors_find(file, name);
        if (!tensor) fail("%s: tensor %s is missing", file->file.path, name);
        if (tensor->rank != p->rank ||
            memcmp(tensor->shape, p->shape, (size_t)p->rank * sizeof(int64_t)) != 0) {
            char found[128], expected[128];
            shape_text(tensor->rank, tensor->shape, found, sizeof(found));
            shape_text(p->rank, p->shape, expected, sizeof(expected));
            fail("%s: tensor %s has shape %s, expected %s", file->file.path, name, found, expected);
        }
        tensor_read_real(file, tensor, array + p->offset);
        free(name);
    }
}

static void refuse_other_tensors(const Safetensors *file, const ParameterTable *table, const char *model) {
    for (int i = 0; i < file->tensor_count; i++)
        if (!parameter_find(table, file->tensors[i].name))
            fail("%s: tensor %s is not part of this %s model", file->file.path, file->tensors[i].name, model);
}

void checkpoint_load_weights(const Safetensors *file, const Run *run) {
    const ParameterTable *table = run->type->parameters(run->model);
    real *values = allocate(table->total, sizeof(real), "checkpoint");
    read_parameters(file, table, "", values);
    refuse_other_tensors(file, table, run->type->name);
    run->type->write(run->model, MODEL_VALUES, values);
    free(values);
}

void checkpoint_load_state(const Safetensors *file, const Run *run, Progress *progress) {
    const int64_t tokens = run->dataset->splits[SPLIT_TRAIN].tokens;
    const int64_t stored = checkpoint_integer(file, "train_tokens", 0, INT64_MAX);
    if (stored != tokens)
        fail(
            "%s: was trained on %lld tokens, %s has %lld; to train on other data start a new run with --init",
            file->file.path, (long long)stored, run->dataset->name, (long long)tokens);
    progress->step = checkpoint_integer(file, "step", 0, INT64_MAX);
    progress->sequences = checkpoint_integer(file, "sequences", 0, INT64_MAX);
    progress->skipped = checkpoint_integer(file, "skipped", 0, progress->step);
    const ParameterTable *table = run->type->parameters(run->model);
    real *values = allocate(table->total, sizeof(real), "checkpoint");
    read_parameters(file, table, "first_moment.", values);
    run->type->write(run->model, MODEL_FIRST_MOMENT, values);
    read_parameters(file, table, "second_moment.", values);
    run->type->write(run->model, MODEL_SECOND_MOMENT, values);
    free(values);
}
