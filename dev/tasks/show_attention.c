#include "show_attention.h"

#include "error.h"
#include "memory.h"
#include "picture.h"
#include "text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 24, LABELS = 110 }; // points of a weight, and of the words next to a panel

// The weights (layers, rows, columns) while the translation is read, and how many layers there are.
static double *attention_of(const Run *run, const int32_t *source, size_t columns,
                            const Hypothesis *translation, size_t *layers) {
    const ModelType *type = run->type;
    const size_t rows = translation->count;
    uint8_t *mask = allocate(columns, 1, "attention");
    memset(mask, 1, columns);
    const Batch batch = {.batch = 1, .source = {(int64_t)columns, source, mask}};
    void *decoder = type->translator_create(run->model, &batch, 1, (int64_t)rows);
    *layers = type->translator_watch(decoder, NULL);
    double *weights = allocate(*layers * rows * columns, sizeof(double), "attention");
    type->translator_watch(decoder, weights);
    for (size_t i = 0; i < rows; i++)
        type->decode(decoder, i > 0 ? &translation->tokens[i - 1] : &run->dataset->padding, NULL);
    type->decoder_destroy(decoder);
    free(mask);
    return weights;
}

// A token's text in gnuplot's quotes; what is no text there is left out.
static void write_label(FILE *f, const Dataset *dataset, int32_t token) {
    size_t size;
    char *text = tokenizer_decode(dataset->tokenizer, &token, 1, &size);
    fputc('\'', f);
    for (size_t i = 0, length; token != dataset->end && i < size; i += length) {
        length = utf8_length((Text){text + i, size - i});
        if (text[i] == '\'') fputc('\'', f);
        if (length > 0 && (unsigned char)text[i] >= ' ') fwrite(text + i, 1, length, f);
        if (length == 0) length = 1;
    }
    fputs(token == dataset->end ? "(end)'" : "'", f);
    free(text);
}

static void write_labels(FILE *f, const Dataset *dataset, const char *axis, const int32_t *tokens,
                         size_t count) {
    fprintf(f, "set %s (", axis);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", f);
        write_label(f, dataset, tokens[i]);
        fprintf(f, " %zu", i);
    }
    fprintf(f, ")\n");
}

static void write_panel(FILE *f, const double *weights, size_t layer, size_t rows, size_t columns) {
    fprintf(f, "$layer << END\n");
    for (size_t i = 0; i < rows * columns; i++)
        fprintf(f, "%.4f%c", weights[i], (i + 1) % columns == 0 ? '\n' : ' ');
    fprintf(f, "END\nset title 'layer %zu'\nplot $layer matrix with image notitle\n", layer + 1);
}

void show_attention_check(const char *path) {
    const char *obstacle = picture_obstacle(path);
    if (obstacle) fail("--show-attention %s: %s", path, obstacle);
}

void show_attention(const Run *run, const char *path, const int32_t *source, size_t count,
                    const Hypothesis *translation) {
    size_t layers;
    double *weights = attention_of(run, source, count, translation, &layers);
    const size_t rows = translation->count, across = (size_t)ceil(sqrt((double)layers)),
                 down = (layers + across - 1) / across;
    Picture picture;
    picture_begin(&picture, path, (int)(across * (LABELS + CELL * count)),
                  (int)(down * (LABELS + CELL * rows)));
    FILE *f = picture.commands.file;
    fprintf(f,
            "set palette defined (0 'white', 1 '#08306b')\nset cbrange [0:1]\nunset colorbox\n"
            "set xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\n",
            count - 1, rows - 1);
    write_labels(f, run->dataset, "xtics rotate by 45 right", source, count);
    write_labels(f, run->dataset, "ytics", translation->tokens, rows);
    fprintf(f, "set multiplot layout %zu,%zu\n", down, across);
    for (size_t l = 0; l < layers; l++) write_panel(f, weights + l * rows * count, l, rows, count);
    free(weights);
    if (picture_finish(&picture) != PICTURE_DRAWN)
        fail("--show-attention %s: gnuplot drew nothing", path);
}
