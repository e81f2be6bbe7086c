#include "page_model.h"

#include "bf16.h"
#include "checkpoint.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "safetensors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 10000000, OTHER = 400000, MOST = 64000000 }; // bytes: of a page; without its model

typedef enum { FLOAT32, BFLOAT16, INT8 } Format;
static const char *const format_names[] = {"float32", "bfloat16", "int8"};
static const char *const type_names[] = {"F32", "BF16", "U8"};
static const size_t type_sizes[] = {4, 2, 1};

static size_t base64_size(size_t size) {
    return (size + 2) / 3 * 4;
}

// The most exact one with which the page has no more than ROOM bytes.
static Format choose_format(const ParameterTable *table) {
    Format format = FLOAT32;
    while (format < INT8 && OTHER + base64_size(page_wasm().size) +
                                    base64_size(type_sizes[format] * table->parameters) >
                                ROOM)
        format++;
    return format;
}

// ---- weights ----------------------------------------------------------------
// A parameter in the format, or the scales of one (scale).
typedef struct {
    const Parameter *parameter;
    Format format;
    bool scale;
    size_t count;
} PageTensor;

static size_t row_size(const Parameter *p) {
    return p->size / (size_t)p->shape[0];
}

static float row_scale(const Parameter *p, const real *values, size_t row) {
    const size_t n = row_size(p);
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double size = fabs((double)values[p->offset + row * n + i]);
        largest = size > largest ? size : largest;
    }
    return largest > 0 ? (float)(largest / 127) : 1;
}

static uint8_t to_int8(real value, float scale) {
    return (uint8_t)(128 + lround((double)value / (double)scale));
}

// A value as the page has it; scale: of its row.
static real rounded(Format format, real value, float scale) {
    if (format == FLOAT32) return (real)(float)value;
    const float shown =
        format == INT8 ? (float)(to_int8(value, scale) - 128) * scale : (float)value;
    return (real)float_from_bf16(bf16_from_float(shown));
}

static void append_tensor(Bytes *out, const PageTensor *t, const real *values) {
    const Parameter *p = t->parameter;
    const size_t n = t->scale ? 1 : row_size(p);
    float scale = 1;
    for (size_t i = 0; i < t->count; i++) {
        if (i % n == 0 && (t->scale || t->format == INT8)) scale = row_scale(p, values, i / n);
        const real value = values[p->offset + i];
        const float exact = t->scale ? scale : (float)value;
        const uint16_t half = bf16_from_float(exact);
        const uint8_t byte = t->format == INT8 ? to_int8(value, scale) : 0;
        const void *const data[] = {&exact, &half, &byte};
        bytes_append(out, data[t->format], type_sizes[t->format]);
    }
}

static void round_tensor(const PageTensor *t, real *out, const real *values) {
    const Parameter *p = t->parameter;
    const size_t n = row_size(p);
    float scale = 1;
    for (size_t i = 0; i < t->count; i++) {
        if (i % n == 0 && t->format == INT8) scale = row_scale(p, values, i / n);
        out[p->offset + i] = rounded(t->format, values[p->offset + i], scale);
    }
}

// Those of the model, (*count).
static PageTensor *tensors_create(const ParameterTable *table, Format format, size_t *count) {
    PageTensor *tensors = NULL;
    *count = 0;
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        const bool matrix = p->rank > 1;
        const PageTensor rows[] = {{p, matrix ? format : FLOAT32, false, p->size},
                                   {p, FLOAT32, true, (size_t)p->shape[0]}};
        for (int j = 0; j <= (matrix && format == INT8); j++) {
            tensors = grow_list(tensors, *count, sizeof(PageTensor), "a page");
            tensors[(*count)++] = rows[j];
        }
    }
    return tensors;
}

static void write_shape(JsonWriter *w, const PageTensor *t) {
    json_key(w, "shape");
    json_begin(w, '[');
    for (int i = 0; i < (t->scale ? 1 : t->parameter->rank); i++)
        json_write_integer(w, t->parameter->shape[i]);
    json_end(w, ']');
}

static JsonWriter header_create(const Run *run, const PageTensor *tensors, size_t count) {
    JsonWriter w = {0};
    Metadata *rows = NULL;
    int row_count = 0;
    size_t at = 0;
    checkpoint_describe(run, &rows, &row_count);
    json_begin(&w, '{');
    json_key(&w, "__metadata__");
    json_begin(&w, '{');
    for (int i = 0; i < row_count; i++) {
        if (strcmp(rows[i].key, "data") == 0) continue; // a path of this machine
        json_key(&w, rows[i].key);
        json_write_string(&w, rows[i].value);
    }
    json_end(&w, '}');
    for (size_t i = 0; i < count; i++) {
        const PageTensor *t = &tensors[i];
        char *name = format_string("%s%s", t->parameter->name, t->scale ? ".scale" : "");
        const size_t end = at + t->count * type_sizes[t->format];
        json_key(&w, name);
        json_begin(&w, '{');
        json_key(&w, "dtype");
        json_write_string(&w, type_names[t->format]);
        write_shape(&w, t);
        json_key(&w, "data_offsets");
        json_begin(&w, '[');
        json_write_integer(&w, (int64_t)at);
        json_write_integer(&w, (int64_t)end);
        json_end(&w, ']');
        json_end(&w, '}');
        at = end;
        free(name);
    }
    json_end(&w, '}');
    metadata_free(rows, row_count);
    return w;
}

static Bytes weights_create(const Run *run, const PageTensor *tensors, size_t count,
                            const real *values) {
    Bytes out = {0};
    JsonWriter header = header_create(run, tensors, count);
    for (int i = 0; i < 8; i++) {
        const char byte = (char)(header.length >> 8 * i);
        bytes_append(&out, &byte, 1);
    }
    bytes_append(&out, header.text, header.length);
    for (size_t i = 0; i < count; i++) append_tensor(&out, &tensors[i], values);
    json_writer_free(&header);
    return out;
}

// The loss of what the page has.
static double measure_rounded(Run *run, const PageTensor *tensors, size_t count,
                              const real *values) {
    const size_t total = run->type->parameters(run->model)->total;
    real *exact = allocate(total, sizeof(real), "a page"),
         *page = allocate(total, sizeof(real), "a page");
    Evaluation result = {.loss = NAN};
    memcpy(exact, values, total * sizeof(real)); // values may be the model's own
    for (size_t i = 0; i < count; i++)
        if (!tensors[i].scale) round_tensor(&tensors[i], page, exact);
    run->type->write(run->model, MODEL_VALUES, page);
    const bool ended =
        evaluate(run, SPLIT_VAL, options_integer(run->options, OPT_VAL_BATCHES), &result);
    run->type->write(run->model, MODEL_VALUES, exact);
    free(exact);
    free(page);
    return ended ? result.loss : (double)NAN;
}

// ---- files ------------------------------------------------------------------
static void add_file(PageModel *model, const char *name, Bytes data) {
    model->files = grow_list(model->files, model->count, sizeof(PageFile), "a page");
    model->files[model->count++] = (PageFile){copy_string(name), data};
}

static void add_copy(PageModel *model, const char *directory, const char *name) {
    char *path = format_string("%s/%s", directory, name);
    FileMap file = file_map(path);
    Bytes data = {0};
    bytes_append(&data, file.data, file.size);
    add_file(model, name, data);
    file_unmap(&file);
    free(path);
}

// The tokenizer's one file, or all that Hugging Face has in its place.
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

// Why the model cannot be in the page; NULL: it can.
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
    const Format format = choose_format(table);
    const Text wasm = page_wasm();
    Bytes decoder = {0};
    real *copy;
    const real *values = model_view(run->type, run->model, MODEL_VALUES, &copy);
    size_t count;
    PageTensor *tensors = tensors_create(table, format, &count);
    model.format = format_names[format];
    bytes_append(&decoder, wasm.data, wasm.size);
    add_file(&model, "decoder.wasm", decoder);
    add_file(&model, "model.safetensors", weights_create(run, tensors, count, values));
    if (!isnan(loss) && format != FLOAT32)
        model.rounded_loss = measure_rounded(run, tensors, count, values);
    if (!add_tokenizer(&model, kind, directory) &&
        !add_tokenizer(&model, kind, run->dataset->name) &&
        !add_tokenizer(&model, kind,
                       run->weights ? safetensors_metadata(run->weights, "data") : NULL))
        model.obstacle = "The files of its tokenizer were not found.";
    free(tensors);
    free(copy);
    return model;
}

void page_model_free(PageModel *model) {
    for (size_t i = 0; i < model->count; i++) {
        free(model->files[i].name);
        bytes_free(&model->files[i].data);
    }
    free(model->files);
}
