#include "blocks.h"

#include "embedding.h"
#include "layernorm.h"
#include "memory.h"
#include "residual.h"
#include <stdlib.h>
#include <string.h>

// ---- passes ------------------------------------------------------------------------------------------

Pass pass_forward(CpuModel *model, const Batch *batch, bool train, Statistics *statistics) {
    Pass pass = {.model = model,
                 .work = &model->work,
                 .batch = batch,
                 .rows = (size_t)(batch->batch * batch->length),
                 .first = (uint64_t)(batch->first_row * batch->length),
                 .train = train,
                 .profile = train ? model->profile : NULL,
                 .part = PROFILE_FORWARD,
                 .statistics = statistics};
    cpu_model_pack(model);
    profile_lap(pass.profile, "pack weights", PROFILE_FORWARD, 0);
    return pass;
}

Pass pass_backward(const Pass *forward) {
    Pass pass = *forward;
    pass.part = PROFILE_BACKWARD;
    return pass;
}

const Dropout *pass_dropout(const Pass *pass, uint32_t site, Dropout *memory) {
    if (!pass->train || !(pass->model->dropout > 0)) return NULL;
    *memory = dropout_create(pass->model->dropout, pass->model->seed, pass->batch->step, site);
    return memory;
}

const real *pass_values(const Pass *pass, size_t offset) {
    return offset == NO_PARAMETER ? NULL : pass->model->state.values + offset;
}

real *pass_gradients(const Pass *pass, size_t offset) {
    return offset == NO_PARAMETER ? NULL : pass->model->state.gradients + offset;
}

void pass_lap(const Pass *pass, const char *kind, double flops) {
    profile_lap(pass->profile, kind, pass->part, flops);
}

void pass_measure(const Pass *pass, size_t layer, const char *place, const real *x, size_t channels) {
    statistics_add(pass->statistics, layer, place, x, pass->batch->mask, pass->rows, channels);
}

real **stream_create(Arena *arena, size_t blocks, size_t rows, size_t channels, bool keep) {
    real **x = allocate(blocks + 1, sizeof(*x), "layers");
    for (size_t i = 0; i <= blocks; i++) {
        if (i == 0 || keep)
            arena_reals(arena, &x[i], rows, channels, "activations");
        else
            arena_alias(arena, &x[i]);
    }
    return x;
}

// ---- token embedding ---------------------------------------------------------------------------------

void embed_forward(const Pass *pass, const Embedding *e, real *x) {
    Dropout dropout;
    embedding_forward(x, pass_values(pass, e->token), pass_values(pass, e->position), pass->batch,
                      pass_dropout(pass, e->site, &dropout), e->channels);
    pass_measure(pass, 0, "residual", x, e->channels);
    pass_lap(pass, "embedding", 0);
}

void embed_backward(const Pass *pass, const Embedding *e) {
    Dropout dropout;
    embedding_backward(pass_gradients(pass, e->token), pass_gradients(pass, e->position), pass->work->dx,
                       pass->batch, pass_dropout(pass, e->site, &dropout), e->padding, e->channels);
    pass_lap(pass, "embedding", 0);
}

// ---- layer normalisation -----------------------------------------------------------------------------

void norm_plan(Norm *norm, Arena *arena, size_t rows) {
    arena_reals(arena, &norm->mean, rows, 1, "activations");
    arena_reals(arena, &norm->rstd, rows, 1, "activations");
}

void norm_forward(const Pass *pass, const Norm *norm, GemmInput y, const real *x) {
    layernorm_forward(y, norm->mean, norm->rstd, x, pass_values(pass, norm->at.gain),
                      pass_values(pass, norm->at.bias), norm->at.epsilon, pass->rows, norm->at.channels);
    pass_lap(pass, "norm", 0);
}

void norm_backward(const Pass *pass, const Norm *norm, real *dx, const real *dy, const real *x) {
    layernorm_backward(dx, pass_gradients(pass, norm->at.gain), pass_gradients(pass, norm->at.bias), dy, x,
                       pass_values(pass, norm->at.gain), norm->mean, norm->rstd, pass->rows,
                       norm->at.channels);
    pass_lap(pass, "norm", 0);
}

// ---- products ----------------------------------------------------------------------------------------

Linear linear_create(CpuModel *model, Gemm *gemm, const LinearParameters *at, const char *kind) {
    return (Linear){.at = *at,
                    .kind = kind,
                    .gemm = gemm,
                    .weight = cpu_model_weight(model, gemm, at->shape.outputs, at->shape.inputs,
                                               at->shape.layout, at->weight)};
}

static double linear_flops(const Pass *pass, const Linear *linear) {
    return 2 * (double)pass->rows * (double)linear->at.shape.outputs * (double)linear->at.shape.inputs;
}

void linear_forward(const Pass *pass, const Linear *linear, real *y, GemmInput x) {
    gemm_forward(linear->gemm, y, x, linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward_input(const Pass *pass, const Linear *linear, real *dx, GemmInput dy) {
    gemm_backward_input(linear->gemm, dx, dy, linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward_weight(const Pass *pass, const Linear *linear, GemmInput dy, GemmInput x) {
    gemm_backward_weight(linear->gemm, pass_gradients(pass, linear->at.weight), dy, x, linear->weight,
                         pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward(const Pass *pass, const Linear *linear, real *dx, GemmInput dy, GemmInput x) {
    linear_backward_input(pass, linear, dx, dy);
    linear_backward_weight(pass, linear, dy, x);
}

// ---- around a sublayer -------------------------------------------------------------------------------

void sublayer_plan(Sublayer *s, CpuModel *model) {
    const size_t M = model->rows, C = s->norm.at.channels;
    norm_plan(&s->norm, model->arena, M);
    gemm_input_plan(&s->input, model->gemm, model->arena, M, C, "activations");
    if (s->order == POST_NORM) arena_reals(model->arena, &s->sum, M, C, "activations");
}

// The residual stream as a product reads it.
static void stream_store(const Pass *pass, GemmInput y, const real *x) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pass->rows; i++) gemm_input_store(y, i, 0, x + i * y.columns, y.columns);
}

void sublayer_begin(const Pass *pass, const Sublayer *s, const real *x) {
    if (s->order == PRE_NORM)
        norm_forward(pass, &s->norm, s->input, x);
    else
        stream_store(pass, s->input, x);
}

// f(x), bias added to y.
static void measure_sublayer(const Pass *pass, const Sublayer *s, const real *y) {
    const real *bias = pass_values(pass, s->bias);
    const size_t C = s->norm.at.channels;
    if (!pass->statistics) return;
    if (!bias) {
        pass_measure(pass, s->layer, s->place, y, C);
        return;
    }
    real *row = allocate(C, sizeof(real), "statistics");
    for (size_t i = 0; i < pass->rows; i++) {
        for (size_t c = 0; c < C; c++) row[c] = y[i * C + c] + bias[c];
        statistics_add(pass->statistics, s->layer, s->place, row,
                       pass->batch->mask ? pass->batch->mask + i : NULL, 1, C);
    }
    free(row);
}

void sublayer_end(const Pass *pass, const Sublayer *s, real *out, const real *x, const real *y) {
    const size_t C = s->norm.at.channels;
    Dropout dropout;
    measure_sublayer(pass, s, y);
    residual_forward(s->order == PRE_NORM ? out : s->sum, x, y, pass_values(pass, s->bias),
                     pass_dropout(pass, s->site, &dropout), pass->first, pass->rows, C);
    pass_lap(pass, "residual", 0);
    if (s->order == POST_NORM) norm_forward(pass, &s->norm, (GemmInput){out, C, false}, s->sum);
    pass_measure(pass, s->after_layer, s->after, out, C);
}

// In place: the gradient to a normalisation's result becomes that to what it read.
static void norm_backward_stream(const Pass *pass, const Norm *norm, const real *x) {
    const size_t bytes = pass->rows * norm->at.channels * sizeof(real);
    memcpy(pass->work->dnorm, pass->work->dx, bytes);
    memset(pass->work->dx, 0, bytes);
    norm_backward(pass, norm, pass->work->dx, pass->work->dnorm, x);
}

void sublayer_end_backward(const Pass *pass, const Sublayer *s) {
    Dropout dropout;
    if (s->order == POST_NORM) norm_backward_stream(pass, &s->norm, s->sum);
    residual_backward(pass->work->doutput, pass_gradients(pass, s->bias), pass->work->dx,
                      pass_dropout(pass, s->site, &dropout), pass->first, pass->rows, s->norm.at.channels);
    pass_lap(pass, "residual", 0);
}

void sublayer_begin_backward(const Pass *pass, const Sublayer *s, const Linear *first, GemmInput dy,
                             const real *x) {
    const Workspace *w = pass->work;
    if (s->order == PRE_NORM) {
        linear_backward(pass, first, w->dnorm, dy, s->input);
        norm_backward(pass, &s->norm, w->dx, w->dnorm, x);
        return;
    }
    gemm_backward_input_add(first->gemm, w->dx, dy, first->weight, pass->rows);
    pass_lap(pass, first->kind, linear_flops(pass, first));
    linear_backward_weight(pass, first, dy, s->input);
}

// ---- attention ---------------------------------------------------------------------------------------

void attention_block_create(AttentionBlock *b, CpuModel *model, const Attention *attention,
                            const AttentionParameters *at, NormOrder order, size_t layer,
                            const uint32_t sites[2]) {
    *b = (AttentionBlock){.sublayer = {.order = order,
                                       .layer = layer,
                                       .place = "attention",
                                       .after_layer = layer,
                                       .after = "residual_middle",
                                       .site = sites[1],
                                       .bias = at->projection.bias,
                                       .norm.at = at->norm},
                          .attention = attention,
                          .at = *at,
                          .site = sites[0],
                          .qkv = linear_create(model, model->gemm, &at->qkv, "qkv"),
                          .projection = linear_create(model, model->gemm, &at->projection, "projection")};
}

void attention_block_plan(AttentionBlock *b, CpuModel *model) {
    const size_t M = model->rows, C = b->attention->channels;
    sublayer_plan(&b->sublayer, model);
    arena_reals(model->arena, &b->projected, M, 3 * C, "activations");
    gemm_input_plan(&b->attended, model->gemm, model->arena, M, C, "activations");
    arena_reals(model->arena, &b->logsumexp, M, b->attention->heads, "activations");
}

static AttentionInput attention_input(const Pass *pass, const AttentionBlock *b, Dropout *dropout) {
    const Batch *batch = pass->batch;
    AttentionInput in =
        attention_self(b->projected, pass_values(pass, b->at.qkv.bias), b->attention->channels,
                       b->attention->causal, batch->mask, (size_t)batch->batch, (size_t)batch->length);
    in.dropout = pass_dropout(pass, b->site, dropout);
    in.first_row = (uint64_t)batch->first_row;
    return in;
}

static double block_attention_flops(const Pass *pass, const AttentionBlock *b) {
    const Attention *a = b->attention;
    const double length = (double)pass->batch->length;
    return attention_flops(a->cosine, a->channels, a->heads, (double)pass->rows,
                           a->causal ? length / 2 : length);
}

static void measure_attention(const Pass *pass, const AttentionBlock *b, const AttentionInput *in) {
    if (!pass->statistics) return;
    Measurement *m = statistics_find(pass->statistics, b->sublayer.layer, "attention_weights");
    attention_measure(b->attention, pass_values(pass, b->at.norm_const), in, pass->batch->mask, m);
}

void attention_block_forward(const Pass *pass, const AttentionBlock *b, real *out, const real *x) {
    const Workspace *w = pass->work;
    Dropout dropout;
    const AttentionInput in = attention_input(pass, b, &dropout);
    sublayer_begin(pass, &b->sublayer, x);
    linear_forward(pass, &b->qkv, b->projected, b->sublayer.input);
    attention_forward(b->attention, b->attended, b->logsumexp, pass_values(pass, b->at.norm_const), &in);
    pass_lap(pass, "attention", block_attention_flops(pass, b));
    measure_attention(pass, b, &in);
    linear_forward(pass, &b->projection, w->output, b->attended);
    sublayer_end(pass, &b->sublayer, out, x, w->output);
}

void attention_block_backward(const Pass *pass, const AttentionBlock *b, const real *x) {
    const Workspace *w = pass->work;
    Dropout dropout;
    const AttentionInput in = attention_input(pass, b, &dropout);
    const AttentionGradients gradients =
        attention_self_gradients(w->dqkv, pass_gradients(pass, b->at.qkv.bias), b->attention->channels);
    sublayer_end_backward(pass, &b->sublayer);
    linear_backward(pass, &b->projection, w->dattended, w->doutput, b->attended);
    attention_backward(b->attention, &gradients, pass_gradients(pass, b->at.norm_const), w->dattended,
                       b->attended, b->logsumexp, pass_values(pass, b->at.norm_const), &in);
    pass_lap(pass, "attention", 2 * block_attention_flops(pass, b));
    sublayer_begin_backward(pass, &b->sublayer, &b->qkv, w->dqkv, x);
}

// ---- feed-forward network ----------------------------------------------------------------------------

void ffn_block_create(FfnBlock *b, CpuModel *model, const FfnParameters *at, ActivationKind activation,
                      NormOrder order, size_t layer, uint32_t site) {
    *b = (FfnBlock){.sublayer = {.order = order,
                                 .layer = layer,
                                 .place = "ffn",
                                 .after_layer = layer + 1,
                                 .after = "residual",
                                 .site = site,
                                 .bias = at->down.bias,
                                 .norm.at = at->norm},
                    .activation = activation,
                    .up = linear_create(model, model->gemm, &at->up, "ffn up"),
                    .down = linear_create(model, model->gemm, &at->down, "ffn down")};
}

void ffn_block_plan(FfnBlock *b, CpuModel *model) {
    const size_t M = model->rows, F = b->up.at.shape.outputs;
    sublayer_plan(&b->sublayer, model);
    arena_reals(model->arena, &b->hidden, M, F, "activations");
    gemm_input_plan(&b->activated, model->gemm, model->arena, M, F, "activations");
}

void ffn_block_forward(const Pass *pass, const FfnBlock *b, real *out, const real *x) {
    const Workspace *w = pass->work;
    sublayer_begin(pass, &b->sublayer, x);
    linear_forward(pass, &b->up, b->hidden, b->sublayer.input);
    activation_forward(b->activated, b->hidden, pass_values(pass, b->up.at.bias), b->activation, pass->rows,
                       b->activated.columns);
    pass_lap(pass, "activation", 0);
    linear_forward(pass, &b->down, w->output, b->activated);
    sublayer_end(pass, &b->sublayer, out, x, w->output);
}

void ffn_block_backward(const Pass *pass, const FfnBlock *b, const real *x) {
    const Workspace *w = pass->work;
    sublayer_end_backward(pass, &b->sublayer);
    linear_backward(pass, &b->down, w->dactivated, w->doutput, b->activated);
    activation_backward(w->dhidden, pass_gradients(pass, b->up.at.bias), w->dactivated, b->hidden,
                        pass_values(pass, b->up.at.bias), b->activation, pass->rows, b->activated.columns);
    pass_lap(pass, "activation", 0);
    sublayer_begin_backward(pass, &b->sublayer, &b->up, w->dhidden, x);
}

// ---- final normalisation and classifier --------------------------------------------------------------

void head_create(Head *h, CpuModel *model, const NormParameters *norm, size_t weight, size_t bias,
                 size_t vocabulary) {
    *h = (Head){.norm.at = *norm, .weight = weight, .bias = bias, .vocabulary = vocabulary};
    h->classifier =
        classifier_plan(model->gemm, model->arena, vocabulary, norm->channels, model->rows, model->training);
    model->classifier = h->classifier;
    model->classifier_weight = weight;
}

void head_plan(Head *h, CpuModel *model) {
    norm_plan(&h->norm, model->arena, model->rows);
    gemm_input_plan(&h->normal, model->gemm, model->arena, model->rows, h->norm.at.channels, "activations");
}

double head_forward(const Pass *pass, const Head *h, const real *x) {
    norm_forward(pass, &h->norm, h->normal, x);
    return classifier_forward(h->classifier, h->normal, pass_values(pass, h->bias), pass->batch->targets,
                              pass->rows);
}

void head_logits(const Pass *pass, const Head *h, const real *x, real *logits) {
    norm_forward(pass, &h->norm, h->normal, x);
    classifier_logits(h->classifier, h->normal, pass_values(pass, h->bias), pass->rows, logits);
}

double head_train(const Pass *forward, const Pass *backward, const Head *h, const real *x, double scale) {
    const Workspace *w = forward->work;
    norm_forward(forward, &h->norm, h->normal, x);
    const double loss = classifier_train(
        h->classifier, h->normal, pass_values(forward, h->bias), forward->batch->targets, forward->rows,
        scale, w->dnorm, pass_gradients(forward, h->weight), pass_gradients(forward, h->bias));
    profile_lap(forward->profile, "classifier", PROFILE_STEP,
                6.0 * (double)forward->rows * (double)h->vocabulary * (double)h->norm.at.channels);
    memset(w->dx, 0, forward->rows * h->norm.at.channels * sizeof(real));
    norm_backward(backward, &h->norm, w->dx, w->dnorm, x);
    return loss;
}
