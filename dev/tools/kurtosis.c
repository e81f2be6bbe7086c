// kurtosis: how far the tensors of a checkpoint are from normal distributions.
#include "error.h"
#include "json.h"
#include "memory.h"
#include "moments.h"
#include "options.h"
#include "safetensors.h"
#include "streams.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const Option rows[] = {
    {.name = OPT_JSON, .kind = OPTION_FLAG, .group = "Output",
     .help = "print a JSON array, one object per tensor"},
};
// clang-format on

// Bytes of a number of a floating-point type; 0: an integer type.
static size_t floating_width(TensorType type) {
    switch (type) {
    case TENSOR_F64:
        return 8;
    case TENSOR_F32:
        return 4;
    case TENSOR_F16:
    case TENSOR_BF16:
        return 2;
    default:
        return 0;
    }
}

// Piece by piece, so that memory does not grow with the tensor.
static Moments tensor_moments(const Safetensors *file, const Tensor *tensor) {
    enum { PIECE = 4096 };
    double values[PIECE];
    Moments moments = {0};
    for (size_t start = 0; start < tensor->count; start += PIECE) {
        Tensor piece = *tensor;
        piece.count = tensor->count - start < PIECE ? tensor->count - start : PIECE;
        piece.data = (const char *)tensor->data + start * floating_width(tensor->type);
        tensor_read_double(file, &piece, values);
        moments_add(&moments, values, piece.count);
    }
    return moments;
}

// ---- table ------------------------------------------------------------------
// A name from a file without what a terminal would act on; fresh memory.
static char *printable(const char *name) {
    char *text = copy_string(name);
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
    return text;
}

static int name_width(const Safetensors *file) {
    enum { MIN = 6, MAX = 60 }; // a longer name moves its own line only
    size_t width = MIN;
    for (int i = 0; i < file->tensor_count; i++) {
        const size_t length = strlen(file->tensors[i].name);
        if (length > width && length <= MAX) width = length;
    }
    return (int)width;
}

static void print_row(const char *name, int width, const Moments *m) {
    const char *undefined = m->count > 0 ? "nan" : "-";
    char mean[32], deviation[32], ratio[32], kurtosis[32], *text = printable(name);
    moments_format(moments_mean(m), undefined, mean);
    moments_format(moments_deviation(m), undefined, deviation);
    moments_format(moments_largest_deviation(m), "-", ratio);
    moments_format(moments_kurtosis(m), "-", kurtosis);
    printf("%-*s %11lld %11s %10s %11s %10s\n", width, text, (long long)m->count, mean, deviation,
           ratio, kurtosis);
    free(text);
}

static void print_table(const Safetensors *file) {
    const int width = name_width(file);
    int skipped = 0;
    printf("%s\n", file->file.path);
    printf("%-*s %11s %11s %10s %11s %10s\n", width, "tensor", "n", "mean", "std", "max|x|/std",
           "kurtosis");
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = &file->tensors[i];
        if (floating_width(tensor->type) == 0) {
            skipped++;
            continue;
        }
        const Moments moments = tensor_moments(file, tensor);
        print_row(tensor->name, width, &moments);
    }
    if (skipped > 0) printf("integers left out: %d tensor%s\n", skipped, skipped > 1 ? "s" : "");
}

// ---- JSON -------------------------------------------------------------------
// The tensors of a file as objects of the open array, one line each.
static void print_json(const Safetensors *file, bool *first) {
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = &file->tensors[i];
        if (floating_width(tensor->type) == 0) continue;
        const Moments moments = tensor_moments(file, tensor);
        JsonWriter w = {0};
        json_begin(&w, '{');
        json_key(&w, "file");
        json_write_string(&w, file->file.path);
        json_key(&w, "tensor");
        json_write_string(&w, tensor->name);
        moments_to_json(&moments, &w);
        json_end(&w, '}');
        printf("%s%s", *first ? "" : ",\n", w.text);
        *first = false;
        json_writer_free(&w);
    }
}

int main(int argc, char **argv) {
    streams_open();
    const char **files;
    int count;
    Options *options =
        options_create("kurtosis", "Mean, deviation, largest number and excess kurtosis of every "
                                   "tensor in the safetensors files that are given.");
    options_add(options, rows, sizeof(rows) / sizeof(*rows));
    options_parse(options, argc, argv, &files, &count);
    if (count == 0) fail_usage("found no file, expected one or more: kurtosis FILE.safetensors...");
    const bool json = options_flag(options, OPT_JSON);
    bool first = true;
    if (json) printf("[");
    for (int i = 0; i < count; i++) {
        Safetensors *file = safetensors_open(files[i]);
        if (json)
            print_json(file, &first);
        else
            print_table(file);
        safetensors_close(file);
    }
    if (json) printf("]\n");
    streams_flush();
    free(files);
    options_free(options);
    return 0;
}
