#include "page_model.h"

#include "checkpoint.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "safetensors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 10000000, OTHER = 400000, MOST = 64000000 }; // bytes: page; page without model; model

static size_t base64_size(size_t size) {
    return (size + 2) / 3 * 4;
}

// ---- weights ----------------------------------------------------------------
// Returns a description of the weights without any tensors: metadata alone.
static Bytes header_create(const Run *run) {
    JsonWriter w = {0};
    Bytes out = {0};
    Metadata *rows = NULL;
    int count = 0;
    checkpoint_describe(run, &rows, &count);
    json_begin(&w, '{');
    json_open(&w, "__metadata__", '{');
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].key, "data") == 0) continue; // a path on this machine
        json_add_string(&w, rows[i].key, rows[i].value);
    }
    json_end(&w, '}');
    json_end(&w, '}');
    const uint64_t length = w.length;
    bytes_append(&out, &length, sizeof(length));
    bytes_append(&out, w.text, w.length);
    json_writer_free(&w);
    metadata_free(rows, count);
    return out;
}

// Appends a row (n) as int8; rounded: the values that the page then uses.
static void append_rounded(Bytes *out, const real *row, size_t n, real *rounded) {
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double size = fabs((double)row[i]); // with fmax() gcc 12 fails on arm64
        largest = size > largest ? size : largest;
    }
    const float scale = largest > 0 ? (float)(largest / 127) : 1;
    bytes_append(out, &scale, sizeof(scale));
    for (size_t i = 0; i < n; i++) {
        const int8_t byte = (int8_t)lround((double)row[i] / (double)scale);
        bytes_append(out, &byte, 1);
        rounded[i] = page_weight(byte, scale);
    }
}

// rounded (total): the values that the page uses; NULL: all weights are stored in float32.
static Bytes weights_create(const ParameterTable *table, const real *values, real *rounded) {
    Bytes out = {0};
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        const size_t n = p->size / (size_t)p->shape[0], end = p->offset + p->size;
        for (size_t at = p->offset; at < end; at += n) {
            if (rounded && p->rank > 1) {
                append_rounded(&out, values + at, n, rounded + at);
                continue;
            }
            for (size_t j = at; j < at + n; j++) {
                const float value = (float)values[j];
                bytes_append(&out, &value, sizeof(value));
                if (rounded) rounded[j] = (real)value;
            }
        }
    }
    return out;
}

// Returns the loss of the weights in the page.
static double measure_rounded(Run *run, const real *values, const real *rounded) {
    Evaluation result = {.loss = NAN};
    run->type->write(run->model, MODEL_VALUES, rounded);
    const bool ended =
        evaluate(run, SPLIT_VAL, options_integer(run->options, OPT_VAL_BATCHES), &result);
    run->type->write(run->model, MODEL_VALUES, values);
    return ended ? result.loss : (double)NAN;
}

// ---- files ------------------------------------------------------------------
static void add_file(PageModel *model, const char *name, const void *data, size_t size) {
    PageFile file = {.name = copy_string(name)};
    bytes_append(&file.data, data, size);
    model->files = grow_list(model->files, model->count, sizeof(PageFile), "a page");
    model->files[model->count++] = file;
}

static void add_copy(PageModel *model, const char *directory, const char *name) {
    char *path = path_in(directory, name);
    FileMap file = file_map(path);
    add_file(model, name, file.data, file.size);
    file_unmap(&file);
    free(path);
}

// Adds the tokenizer's one file, or all files of a Hugging Face tokenizer.
static bool add_tokenizer(PageModel *model, TokenizerKind kind, const char *directory) {
    if (kind == TOKENIZER_BYTE) return true;
    char *path = directory ? tokenizer_model(kind, directory) : NULL;
    if (!path) return false;
    size_t count = 0;
    char **names = directory_list(directory, &count);
    const char *only = strcmp(path, directory) == 0 ? NULL : path_name(path);
    for (size_t i = 0; i < count; i++)
        if (only ? strcmp(names[i], only) == 0 : tokenizer_has_file(names[i]))
            add_copy(model, directory, names[i]);
    directory_list_free(names, count);
    free(path);
    return true;
}

// Returns why the model cannot be in the page; NULL: it can.
static const char *find_obstacle(const Run *run) {
    const ModelType *type = run->type;
    if (page_wasm().size == 0)
        return "The program was built without it. Install clang, lld, wasi-libc and "
               "libclang-rt-dev-wasm32 (Debian's names; the last one may have a number, as in "
               "libclang-rt-14-dev-wasm32), and make it again.";
    if (!run->dataset->tokenizer) return "The data have no tokenizer.";
    if (!type->decoder_create && !type->translator_create && run->dataset->mask < 0)
        return "It neither writes nor translates, and there is no token to hide others with.";
    if (base64_size(type->parameters(run->model)->parameters) > MOST)
        return "It has too many parameters for a page.";
    return NULL;
}

PageModel page_model_create(Run *run, const char *directory, double loss) {
    PageModel model = {.loss = loss, .rounded_loss = loss, .obstacle = find_obstacle(run)};
    if (model.obstacle) return model;
    const TokenizerKind kind = tokenizer_kind(run->dataset->tokenizer);
    const ParameterTable *table = run->type->parameters(run->model);
    const Text wasm = page_wasm();
    const bool exact =
        OTHER + base64_size(wasm.size) + base64_size(table->parameters * sizeof(float)) <= ROOM;
    real *values = allocate(table->total, sizeof(real), "a page"),
         *rounded = exact ? NULL : allocate(table->total, sizeof(real), "a page");
    run->type->read(run->model, MODEL_VALUES, values);
    Bytes header = header_create(run), weights = weights_create(table, values, rounded);
    model.format = exact ? "float32" : "int8";
    add_file(&model, "decoder.wasm.gz", wasm.data, wasm.size);
    add_file(&model, "model.safetensors", header.data, header.size);
    add_file(&model, exact ? "weights.float32" : "weights.int8", weights.data, weights.size);
    bytes_free(&header);
    bytes_free(&weights);
    if (!isnan(loss) && rounded) model.rounded_loss = measure_rounded(run, values, rounded);
    if (!add_tokenizer(&model, kind, directory) &&
        !add_tokenizer(&model, kind, run->dataset->name) &&
        !add_tokenizer(&model, kind,
                       run->weights ? safetensors_metadata(run->weights, "data") : NULL))
        model.obstacle = "The files of its tokenizer were not found.";
    free(rounded);
    free(values);
    return model;
}

void page_model_free(PageModel *model) {
    for (size_t i = 0; i < model->count; i++) {
        free(model->files[i].name);
        bytes_free(&model->files[i].data);
    }
    free(model->files);
}
