#include "transformer.h"

#include "embedding.h"
#include "memory.h"
#include "query_key.h"
#include <stdlib.h>
#include <string.h>

// ---- the blocks -------------------------------------------------------------

static const Transformer *model_of(const BlockPass *pass) {
    return (const Transformer *)pass->model;
}

// The pass over a stack's side of the batch: source or target.
static const BlockPass *side(const BlockPass *pass, size_t stack) {
    return stack + 1 < model_of(pass)->plan.stack_count ? pass->source : pass;
}

static void block_embed_forward(const BlockPass *pass, size_t stack) {
    const Transformer *t = model_of(pass);
    embed_forward(side(pass, stack), &t->embeddings[stack], t->streams[stack][0]);
}

static void block_embed_backward(const BlockPass *pass, size_t stack) {
    embed_backward(side(pass, stack), &model_of(pass)->embeddings[stack]);
}

static void block_attention_forward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    attention_block_forward(side(pass, layer->stack), &layer->attention, layer->x[1], layer->x[0]);
}

static void block_attention_backward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    attention_block_backward(side(pass, layer->stack), &layer->attention, layer->x[0]);
    pass_final(pass, model_of(pass)->plan.layers[l].first);
}

static void block_cross_forward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    cross_attention_block_forward(pass, &layer->cross, layer->x[2], layer->x[1]);
}

static void block_cross_backward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    cross_attention_block_backward(pass, &layer->cross, layer->x[1]);
}

// The residual stream before a layer's feed-forward network, and after it.
static real **ffn_stream(const BlockPass *pass, size_t l) {
    const Transformer *t = model_of(pass);
    return t->layers[l].x + (t->plan.layers[l].crosses ? 2 : 1);
}

static void block_ffn_forward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    real **x = ffn_stream(pass, l);
    ffn_block_forward(side(pass, layer->stack), &layer->ffn, x[1], x[0]);
}

static void block_ffn_backward(const BlockPass *pass, size_t l) {
    const TransformerLayer *layer = &model_of(pass)->layers[l];
    ffn_block_backward(side(pass, layer->stack), &layer->ffn, ffn_stream(pass, l)[0]);
}

static const real *last_x(const Transformer *t, size_t stack) {
    return t->streams[stack][t->blocks[stack]];
}

static void block_encoded_forward(const BlockPass *pass) {
    const Transformer *t = model_of(pass);
    encoded_forward(pass->source, &t->encoded, last_x(t, 0));
}

static void block_encoded_backward(const BlockPass *pass) {
    const Transformer *t = model_of(pass);
    encoded_backward(pass->source, &t->encoded, last_x(t, 0));
}

static void block_predict_forward(const BlockPass *pass) {
    const Transformer *t = model_of(pass);
    if (pass->chosen->rows > 0)
        prediction_forward(pass->chosen, &t->prediction, &t->chosen,
                           last_x(t, t->plan.stack_count - 1));
}

static void block_predict_backward(const BlockPass *pass) {
    const Transformer *t = model_of(pass);
    prediction_backward(pass->chosen, &t->prediction);
    chosen_backward(pass, pass->chosen, &t->chosen, pass->work->dnorm, t->plan.size.channels);
}

const Blocks cpu_blocks = {.embed_forward = block_embed_forward,
                           .embed_backward = block_embed_backward,
                           .attention_forward = block_attention_forward,
                           .attention_backward = block_attention_backward,
                           .cross_attention_forward = block_cross_forward,
                           .cross_attention_backward = block_cross_backward,
                           .ffn_forward = block_ffn_forward,
                           .ffn_backward = block_ffn_backward,
                           .encoded_forward = block_encoded_forward,
                           .encoded_backward = block_encoded_backward,
                           .predict_forward = block_predict_forward,
                           .predict_backward = block_predict_backward};

// ---- the model --------------------------------------------------------------

static bool predicts(const Transformer *t) {
    return t->plan.prediction.transform.weight != NO_PARAMETER;
}

static void layer_create(Transformer *t, size_t l) {
    CpuModel *m = &t->model;
    const LayerPlan *plan = &t->plan.layers[l];
    const NormOrder order = t->plan.order;
    TransformerLayer *layer = &t->layers[l];
    attention_block_create(&layer->attention, m, &t->attention, &plan->attention, order, l);
    if (plan->crosses)
        cross_attention_block_create(&layer->cross, m, &t->attention, &t->encoded, &plan->cross,
                                     order, l);
    ffn_block_create(&layer->ffn, m, &plan->ffn, t->plan.activation, order, l, plan->ffn_site);
}

// Creates the layers of a stack, and the array of pointers to the residual stream that they pass
// through.
static void stack_create(Transformer *t, size_t stack) {
    const StackPlan *plan = &t->plan.stacks[stack];
    size_t *blocks = &t->blocks[stack];
    for (size_t l = plan->first; l < plan->end; l++) *blocks += t->plan.layers[l].crosses ? 3 : 2;
    t->streams[stack] = allocate(*blocks + 1, sizeof(real *), "layers");
    real **x = t->streams[stack];
    for (size_t l = plan->first; l < plan->end; l++) {
        t->layers[l].stack = stack;
        t->layers[l].x = x;
        layer_create(t, l);
        x += t->plan.layers[l].crosses ? 3 : 2;
    }
    t->embeddings[stack] = (Embedding){.plan = plan->embedding, .channels = t->plan.size.channels};
}

static void head_create_planned(Transformer *t) {
    const StackPlan *last = &t->plan.stacks[t->plan.stack_count - 1];
    CpuModel *m = &t->model;
    if (predicts(t)) prediction_create(&t->prediction, m, &t->plan.prediction);
    head_create(&t->head, m, predicts(t) ? &t->plan.prediction.norm : &last->norm, t->plan.output,
                t->plan.bias, t->plan.size.vocabulary);
    t->head.bias_fixed = t->plan.bias_fixed;
    classifier_smooth(t->head.classifier, t->plan.smoothing);
}

// Creates the parts that process batches.
static void parts_create(Transformer *t) {
    CpuModel *m = &t->model;
    t->layers = allocate(t->plan.size.layers, sizeof(TransformerLayer), "layers");
    attention_shared_create(&t->attention, m, &t->plan.size, t->plan.layers, t->plan.size.layers,
                            t->batch, t->length);
    for (size_t i = 0; i < t->plan.stack_count; i++) stack_create(t, i);
    if (t->plan.stack_count > 1) t->encoded.norm.parameters = t->plan.stacks[0].norm;
    head_create_planned(t);
}

// Layers share their activations if nothing is kept for a backward pass.
static void stack_carve(Transformer *t, size_t stack) {
    CpuModel *m = &t->model;
    const StackPlan *plan = &t->plan.stacks[stack];
    t->embeddings[stack].sinusoids = t->sinusoids;
    embed_carve(&t->embeddings[stack], m, t->length);
    stream_carve(t->streams[stack], m->arena, t->blocks[stack], m->rows, t->plan.size.channels,
                 m->training);
    ArenaUnion shared = arena_union(m->arena);
    for (size_t l = plan->first; l < plan->end; l++) {
        attention_block_carve(&t->layers[l].attention, m);
        if (t->plan.layers[l].crosses) cross_attention_block_carve(&t->layers[l].cross, m);
        ffn_block_carve(&t->layers[l].ffn, m);
        if (!m->training) arena_member(m->arena, &shared);
    }
    arena_close(m->arena, &shared);
}

static bool has_positions(const Transformer *t, PositionKind kind) {
    return t->plan.stacks[0].embedding.positions == kind;
}

static void transformer_carve(void *model) {
    Transformer *t = model;
    CpuModel *m = &t->model;
    const ModelSizes *size = &t->plan.size;
    if (has_positions(t, POSITIONS_SINUSOIDAL))
        t->sinusoids = arena_reals(m->arena, size->positions, size->channels, "positions");
    if (has_positions(t, POSITIONS_ROTARY))
        t->angles = arena_reals(m->arena, size->positions, size->head_size, "positions");
    if (m->rows == 0) return;
    t->attention.angles = t->angles;
    attention_shared_carve(&t->attention, m);
    stack_carve(t, 0);
    if (t->plan.stack_count > 1) {
        encoded_carve(&t->encoded, m);
        stack_carve(t, 1);
    }
    chosen_carve(&t->chosen, m);
    if (predicts(t)) prediction_carve(&t->prediction, m);
    head_carve(&t->head, m);
    cpu_model_carve_workspace(m, size->channels,
                              activation_inputs(t->plan.activation) * t->plan.inner, t->plan.inner);
}

void *transformer_create(const ModelSetup *setup) {
    Transformer *t = allocate(1, sizeof(Transformer), "model");
    CpuModel *m = &t->model;
    t->type = setup->type->transformer;
    t->plan = t->type->plan(setup, &m->state.table);
    t->batch = (size_t)setup->batch;
    t->length = (size_t)setup->length;
    cpu_model_create(m, setup);
    m->attention_dropout = t->plan.attention_dropout;
    if (m->rows > 0) parts_create(t);
    cpu_model_allocate(m, transformer_carve);
    if (has_positions(t, POSITIONS_SINUSOIDAL))
        sinusoidal_positions(t->sinusoids, t->plan.size.positions, t->plan.size.channels);
    if (has_positions(t, POSITIONS_ROTARY))
        rotary_angles(t->angles, plan_rotary(&t->plan), t->plan.size.positions,
                      t->plan.size.head_size);
    return t;
}

void transformer_destroy(void *model) {
    Transformer *t = model;
    attention_shared_free(&t->attention);
    cpu_model_destroy(&t->model);
    translator_memory_free(&t->translator);
    for (size_t i = 0; i < MAX_STACKS; i++) free(t->streams[i]);
    free(t->layers);
    plan_free(&t->plan);
    free(t);
}

const TransformerPlan *transformer_plan(const void *model) {
    return &((const Transformer *)model)->plan;
}

// ---- passes -----------------------------------------------------------------

// A pass, and its passes over the source and over the rows that are classified.
typedef struct {
    BlockPass pass, source, chosen;
    Batch of_source, of_chosen;
} WholePass;

// all: classify every row.
static void whole_pass(WholePass *w, Transformer *t, const Batch *batch, bool train, bool all,
                       Statistics *statistics) {
    w->pass = pass_forward(&t->model, batch, train, statistics);
    if (t->plan.stack_count > 1) {
        w->source = pass_source(&w->pass, &w->of_source);
        w->pass.source = &w->source;
    }
    w->chosen = chosen_pass(&w->pass, &t->chosen, all || statistics, &w->of_chosen);
    if (predicts(t) || w->chosen.rows < w->pass.rows) w->pass.chosen = &w->chosen;
}

static void whole_pass_backward(WholePass *w) {
    w->pass = pass_backward(&w->pass);
    w->source = pass_backward(&w->source);
    w->chosen = pass_backward(&w->chosen);
}

// The pass over the classified rows.
static const BlockPass *head_pass(const WholePass *w) {
    return w->pass.chosen ? w->pass.chosen : &w->pass;
}

// Runs all layers. Returns the head's input.
static const real *layers_forward(const Transformer *t, const WholePass *w) {
    t->type->forward(&cpu_blocks, &w->pass, &t->plan);
    if (predicts(t)) return t->prediction.activated;
    const real *x = last_x(t, t->plan.stack_count - 1);
    return w->pass.chosen ? chosen_forward(w->pass.chosen, &t->chosen, x, t->plan.size.channels)
                          : x;
}

// Moves the losses of the classified rows, the first K, to their places among all M; the others
// become 0.
static void place_losses(const Transformer *t, const WholePass *w) {
    if (!w->pass.chosen) return;
    size_t left = w->pass.chosen->rows;
    for (size_t i = w->pass.rows; i-- > 0;) {
        const bool has = left > 0 && t->chosen.rows[left - 1] == i;
        t->head.losses[i] = has ? t->head.losses[--left] : 0;
    }
}

// Counts the rows whose target has the largest logit, among those that the head has normalised.
static int64_t count_correct(const Transformer *t, const BlockPass *pass) {
    enum { ROWS = 64 };
    const size_t V = t->plan.size.vocabulary;
    real *logits = allocate(ROWS, V * sizeof(real), "logits");
    int64_t correct = 0;
    for (size_t first = 0; first < pass->rows; first += ROWS) {
        const size_t left = pass->rows - first, count = left < ROWS ? left : ROWS;
        const int32_t *targets = pass->batch->targets + first;
        bool asked = false;
        for (size_t i = 0; i < count; i++) asked |= targets[i] >= 0;
        if (!asked) continue;
        classifier_logits(t->head.classifier, gemm_input_rows(t->head.normal, first),
                          pass_values(pass, t->plan.bias), count, logits);
#pragma omp parallel for schedule(static) reduction(+ : correct)
        for (size_t i = 0; i < count; i++) {
            if (targets[i] < 0) continue;
            const real *row = logits + i * V, target = row[targets[i]];
            size_t better = 0; // NaN counts as better
            for (size_t v = 0; v < V; v++) better += !(row[v] <= target);
            correct += better == 0;
        }
    }
    free(logits);
    return correct;
}

double transformer_forward(void *model, const Batch *batch) {
    Transformer *t = model;
    WholePass w = {0};
    whole_pass(&w, t, batch, false, false, NULL);
    const real *x = layers_forward(t, &w);
    const BlockPass *pass = head_pass(&w);
    const double loss = pass->rows > 0 ? head_forward(pass, &t->head, x) : 0;
    t->correct = batch->counts_correct ? count_correct(t, pass) : 0;
    place_losses(t, &w);
    return loss;
}

double transformer_train(void *model, const Batch *batch, double scale) {
    Transformer *t = model;
    WholePass w = {0};
    whole_pass(&w, t, batch, true, false, NULL);
    const real *x = layers_forward(t, &w);
    const BlockPass forward = *head_pass(&w);
    if (forward.rows == 0) return 0;
    whole_pass_backward(&w);
    const double loss = head_train(&forward, head_pass(&w), &t->head, x, scale);
    if (w.pass.chosen && !predicts(t)) {
        const size_t C = t->plan.size.channels;
        memcpy(w.pass.work->dnorm, w.pass.work->dx, forward.rows * C * sizeof(real));
        chosen_backward(&w.pass, w.pass.chosen, &t->chosen, w.pass.work->dnorm, C);
    }
    t->type->backward(&cpu_blocks, &w.pass, &t->plan);
    return loss;
}

void transformer_logits(void *model, const Batch *batch, real *logits) {
    Transformer *t = model;
    WholePass w = {0};
    whole_pass(&w, t, batch, false, true, NULL);
    const real *x = layers_forward(t, &w);
    head_logits(head_pass(&w), &t->head, x, logits);
}

void transformer_statistics(void *model, const Batch *batch, Statistics *statistics) {
    Transformer *t = model;
    WholePass w = {0};
    whole_pass(&w, t, batch, false, false, statistics);
    layers_forward(t, &w);
}

int64_t transformer_correct(const void *model) {
    return ((const Transformer *)model)->correct;
}

const real *transformer_token_losses(const void *model) {
    return ((const Transformer *)model)->head.losses;
}

double transformer_unsmoothed(const void *model) {
    return classifier_unsmoothed(((const Transformer *)model)->head.classifier);
}

double transformer_state_bytes(const void *model, int64_t tokens) {
    return plan_state_bytes(transformer_plan(model), tokens);
}

double transformer_flops_per_token(const void *model, int64_t length, double targets) {
    const TransformerPlan *plan = transformer_plan(model);
    return plan_layers_flops(plan, &plan->stacks[0], length) +
           6 * targets * (double)plan->size.channels * (double)plan->size.vocabulary;
}
