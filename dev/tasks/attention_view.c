#include "attention_view.h"

#include "error.h"
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Decoding does not see a whole text at once, so this is a second instance of the model, set up for
// batches.
struct AttentionView {
    const ModelType *type;
    void *model;
    int32_t *targets; // (length) all -1: no targets
};

AttentionView *attention_view_create(const Run *run, size_t length) {
    AttentionView *view = allocate(1, sizeof(*view), "a view of attention");
    ModelSetup setup = run->setup;
    setup.batch = 1;
    setup.length = (int64_t)length;
    setup.rows = 0;
    setup.float32 = true;
    view->type = run->type;
    if (!view->type->statistics)
        fail_usage("--show-attention: %s does not show its attention", view->type->program);
    view->model = view->type->create(&setup);
    view->targets = allocate(length, sizeof(int32_t), "a view of attention");
    for (size_t i = 0; i < length; i++) view->targets[i] = -1;
    real *copy;
    const real *values = model_view(run->type, run->model, MODEL_VALUES, &copy);
    view->type->write(view->model, MODEL_VALUES, values);
    free(copy);
    return view;
}

void attention_view_free(AttentionView *view) {
    if (!view) return;
    view->type->destroy(view->model);
    free(view->targets);
    free(view);
}

void attention_view_write(AttentionView *view, const Batch *batch, size_t query, size_t first,
                          JsonWriter *w) {
    Batch asked = *batch;
    asked.targets = view->targets;
    Statistics statistics = {.keeps = true, .query = query, .first = first};
    view->type->statistics(view->model, &asked, &statistics);
    statistics_weights_to_json(&statistics, w);
    statistics_free(&statistics);
}

void attention_view_print(const Run *run, AttentionView *view, const Batch *batch, size_t query,
                          size_t first, int32_t token) {
    size_t size;
    char *text = tokenizer_decode(run->dataset->tokenizer, &token, 1, &size);
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_text(&w, "token", text, size);
    json_key(&w, "attention");
    attention_view_write(view, batch, query, first, &w);
    json_end(&w, '}');
    puts(w.text);
    json_writer_free(&w);
    free(text);
}

void show_text_attention(Run *run) {
    const Dataset *dataset = run->dataset;
    const char *text = options_text(run->options, OPT_SHOW_ATTENTION);
    if (!dataset->tokenizer) fail("%s: has no tokenizer, so no text can be read", dataset->name);
    int32_t *tokens;
    const size_t count = tokenizer_encode(dataset->tokenizer, text, strlen(text), 0, &tokens);
    if (count == 0 || (int64_t)count > run->setup.positions)
        fail("--show-attention: %zu tokens, expected 1 to the model's %lld positions", count,
             (long long)run->setup.positions);
    AttentionView *view = attention_view_create(run, count);
    const Batch batch = {.batch = 1, .length = (int64_t)count, .inputs = tokens};
    for (size_t i = 0; i < count; i++) attention_view_print(run, view, &batch, i, 0, tokens[i]);
    attention_view_free(view);
    free(tokens);
}
