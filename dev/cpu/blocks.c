#include "blocks.h"

#include "embedding.h"
#include "layernorm.h"
#include "memory.h"
#include "query_key.h"
#include "residual.h"
#include "row_blocks.h"
#include "threads.h"
#include "token_shift.h"
#include <stdlib.h>
#include <string.h>

// ---- passes -----------------------------------------------------------------

BlockPass pass_forward(CpuModel *model, const Batch *batch, bool train, Statistics *statistics) {
    BlockPass pass = {.model = model,
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

BlockPass pass_backward(const BlockPass *forward) {
    BlockPass pass = *forward;
    pass.part = PROFILE_BACKWARD;
    return pass;
}

BlockPass pass_source(const BlockPass *pass, Batch *source) {
    const Batch *batch = pass->batch;
    *source = (Batch){.batch = batch->batch,
                      .length = batch->source.length,
                      .inputs = batch->source.tokens,
                      .mask = batch->source.mask,
                      .step = batch->step,
                      .first_row = batch->first_row,
                      .last = batch->last};
    BlockPass of_source = *pass;
    of_source.batch = source;
    of_source.rows = (size_t)(source->batch * source->length);
    of_source.first = (uint64_t)(source->first_row * source->length);
    return of_source;
}

static const Dropout *dropout_of(const BlockPass *pass, double rate, uint32_t site,
                                 Dropout *memory) {
    if (!pass->train || !(rate > 0)) return NULL;
    *memory = dropout_create(rate, pass->model->seed, pass->batch->step, site);
    return memory;
}

const Dropout *pass_dropout(const BlockPass *pass, uint32_t site, Dropout *memory) {
    return dropout_of(pass, pass->model->dropout, site, memory);
}

const real *pass_values(const BlockPass *pass, size_t offset) {
    return offset == NO_PARAMETER ? NULL : pass->model->state.values + offset;
}

real *pass_gradients(const BlockPass *pass, size_t offset) {
    return offset == NO_PARAMETER ? NULL : pass->model->state.gradients + offset;
}

void pass_final(const BlockPass *pass, size_t offset) {
    const ParameterState *state = &pass->model->state;
    if (pass->batch->last) reduction_final(state->reduction, state->gradients, offset);
}

real *pass_lookups(const BlockPass *pass, size_t token) {
    const Lookups *l = &pass->model->lookups;
    if (!l->gradients || !pass->batch->last) return pass_gradients(pass, token);
    for (size_t i = 0; i < pass->rows; i++) l->touched[pass->batch->inputs[i]] = 1;
    return l->gradients;
}

void pass_lap(const BlockPass *pass, const char *kind, double flops) {
    profile_lap(pass->profile, kind, pass->part, flops);
}

void pass_measure(const BlockPass *pass, size_t layer, const char *place, const real *x,
                  size_t channels) {
    statistics_add(pass->statistics, layer, place, x, pass->batch->mask, pass->rows, channels);
}

void stream_carve(real **x, Arena *arena, size_t blocks, size_t rows, size_t channels, bool keep) {
    for (size_t i = 0; i <= blocks; i++)
        x[i] = i == 0 || keep ? arena_reals(arena, rows, channels, "activations") : x[0];
}

// ---- layer normalisation ----------------------------------------------------

static bool is_norm(const Norm *norm) {
    return norm->parameters.gain != NO_PARAMETER;
}

void norm_carve(Norm *norm, Arena *arena, size_t rows) {
    if (!is_norm(norm)) return;
    norm->mean = arena_reals(arena, rows, 1, "activations");
    norm->rstd = arena_reals(arena, rows, 1, "activations");
}

// Stores the residual stream in the type that a product reads.
static void stream_store(const BlockPass *pass, Matrix y, const real *x) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pass->rows; i++) gemm_input_store(y, i, 0, x + i * y.columns, y.columns);
}

void norm_forward(const BlockPass *pass, const Norm *norm, Matrix y, const real *x) {
    if (!is_norm(norm)) {
        stream_store(pass, y, x);
        return;
    }
    layernorm_forward(y, norm->mean, norm->rstd, x, pass_values(pass, norm->parameters.gain),
                      pass_values(pass, norm->parameters.bias), norm->parameters.epsilon,
                      pass->rows, norm->parameters.channels);
    pass_lap(pass, "norm", 0);
}

void norm_backward(const BlockPass *pass, const Norm *norm, real *dx, const real *dy,
                   const real *x) {
    if (!is_norm(norm)) {
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < pass->rows * norm->parameters.channels; i++) dx[i] += dy[i];
        return;
    }
    layernorm_backward(dx, pass_gradients(pass, norm->parameters.gain),
                       pass_gradients(pass, norm->parameters.bias), dy, x,
                       pass_values(pass, norm->parameters.gain), norm->mean, norm->rstd, pass->rows,
                       norm->parameters.channels);
    pass_lap(pass, "norm", 0);
}

// ---- token embedding --------------------------------------------------------

void embed_carve(Embedding *e, CpuModel *model, size_t length) {
    Arena *arena = model->arena;
    const size_t C = e->channels;
    if (e->plan.type != NO_PARAMETER) {
        e->places = arena_reals(arena, length, C, "activations");
        if (model->training) e->dplaces = arena_reals(arena, length, C, "gradients");
    }
    e->norm.parameters = e->plan.norm;
    norm_carve(&e->norm, arena, model->rows);
    if (is_norm(&e->norm)) e->sum = arena_reals(arena, model->rows, C, "activations");
}

// Returns what is added to the tokens of a sequence (T, C).
static const real *embed_places(const BlockPass *pass, const Embedding *e) {
    const real *position = e->sinusoids ? e->sinusoids : pass_values(pass, e->plan.position),
               *type = pass_values(pass, e->plan.type);
    const size_t C = e->channels, T = (size_t)pass->batch->length;
    if (!type) return position;
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < C; c++) e->places[t * C + c] = position[t * C + c] + type[c];
    return e->places;
}

// Applies dropout to x (M, C).
static void embed_dropout(const BlockPass *pass, const Dropout *dropout, real *x, size_t channels) {
    if (!dropout) return;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < pass->rows; row++)
        dropout_apply(dropout, (pass->first + row) * channels, channels, x + row * channels);
}

void embed_forward(const BlockPass *pass, const Embedding *e, real *x) {
    Dropout memory;
    const Dropout *dropout = pass_dropout(pass, e->plan.site, &memory);
    const bool normed = is_norm(&e->norm);
    embedding_forward(normed ? e->sum : x, pass_values(pass, e->plan.token), (real)e->plan.scale,
                      embed_places(pass, e), pass->batch, normed ? NULL : dropout, e->channels);
    if (normed) {
        pass_lap(pass, "embedding", 0);
        norm_forward(pass, &e->norm, (Matrix){x, e->channels, false}, e->sum);
        embed_dropout(pass, dropout, x, e->channels);
    }
    pass_measure(pass, 0, RESIDUAL_PLACE, x, e->channels);
    pass_lap(pass, "embedding", 0);
}

// Computes the gradients of positions and type from the gradient to their sum.
static void embed_places_backward(const BlockPass *pass, const Embedding *e) {
    const size_t C = e->channels, T = (size_t)pass->batch->length;
    real *dposition = pass_gradients(pass, e->plan.position),
         *dtype = pass_gradients(pass, e->plan.type);
    for (size_t t = 0; t < T; t++) {
        for (size_t c = 0; c < C; c++) {
            dposition[t * C + c] += e->dplaces[t * C + c];
            dtype[c] += e->dplaces[t * C + c];
        }
    }
}

void embed_backward(const BlockPass *pass, const Embedding *e) {
    Dropout memory;
    const Dropout *dropout = pass_dropout(pass, e->plan.site, &memory);
    const size_t C = e->channels;
    const bool normed = is_norm(&e->norm), typed = e->plan.type != NO_PARAMETER;
    real *dsum = normed ? pass->work->dnorm : pass->work->dx;
    if (normed) {
        embed_dropout(pass, dropout, pass->work->dx, C);
        memset(dsum, 0, pass->rows * C * sizeof(real));
        norm_backward(pass, &e->norm, dsum, pass->work->dx, e->sum);
    }
    if (typed) memset(e->dplaces, 0, (size_t)pass->batch->length * C * sizeof(real));
    embedding_backward(pass_lookups(pass, e->plan.token), (real)e->plan.scale,
                       typed ? e->dplaces : pass_gradients(pass, e->plan.position), dsum,
                       pass->batch, normed ? NULL : dropout, e->plan.padding, C);
    if (typed) embed_places_backward(pass, e);
    pass_lap(pass, "embedding", 0);
}

// ---- products ---------------------------------------------------------------

Linear linear_create(CpuModel *model, Gemm *gemm, const LinearParameters *parameters,
                     const char *kind) {
    return (Linear){.parameters = *parameters,
                    .kind = kind,
                    .gemm = gemm,
                    .weight = cpu_model_weight(model, gemm, parameters->shape.outputs,
                                               parameters->shape.inputs, parameters->shape.layout,
                                               parameters->weight)};
}

static double linear_flops(const BlockPass *pass, const Linear *linear) {
    return 2 * (double)pass->rows * (double)linear->parameters.shape.outputs *
           (double)linear->parameters.shape.inputs;
}

void linear_forward(const BlockPass *pass, const Linear *linear, real *y, Matrix x) {
    gemm_forward(linear->gemm, y, x, linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward_input(const BlockPass *pass, const Linear *linear, real *dx, Matrix dy) {
    gemm_backward_input(linear->gemm, dx, dy, linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

// Like linear_backward_input(), but adds to dx.
static void linear_backward_input_add(const BlockPass *pass, const Linear *linear, real *dx,
                                      Matrix dy) {
    gemm_backward_input_add(linear->gemm, dx, dy, linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward_weight(const BlockPass *pass, const Linear *linear, Matrix dy, Matrix x) {
    gemm_backward_weight(linear->gemm, pass_gradients(pass, linear->parameters.weight), dy, x,
                         linear->weight, pass->rows);
    pass_lap(pass, linear->kind, linear_flops(pass, linear));
}

void linear_backward(const BlockPass *pass, const Linear *linear, real *dx, Matrix dy, Matrix x) {
    linear_backward_input(pass, linear, dx, dy);
    linear_backward_weight(pass, linear, dy, x);
}

// ---- around a sublayer ------------------------------------------------------

void sublayer_carve(Sublayer *s, CpuModel *model, bool input) {
    const size_t M = model->rows, C = s->norm.parameters.channels;
    norm_carve(&s->norm, model->arena, M);
    if (input) s->input = gemm_input_carve(model->gemm, model->arena, M, C, "activations");
    if (s->order == POST_NORM) s->sum = arena_reals(model->arena, M, C, "activations");
}

// Computes the input of f from x.
static void sublayer_input(const BlockPass *pass, const Sublayer *s, Matrix input, const real *x) {
    if (s->order == PRE_NORM)
        norm_forward(pass, &s->norm, input, x);
    else
        stream_store(pass, input, x);
    if (s->shifted > 0)
        token_shift_forward(input, s->shifted, pass->batch->mask, pass->rows,
                            (size_t)pass->batch->length);
}

void sublayer_begin(const BlockPass *pass, const Sublayer *s, const real *x) {
    sublayer_input(pass, s, s->input, x);
}

// Measures f(x), which is y plus the bias.
static void measure_sublayer(const BlockPass *pass, const Sublayer *s, const real *y) {
    const real *bias = pass_values(pass, s->bias);
    const size_t C = s->norm.parameters.channels;
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

void sublayer_residual(const BlockPass *pass, const Sublayer *s, real *out, const real *x,
                       const real *y) {
    const size_t C = s->norm.parameters.channels;
    Dropout dropout;
    measure_sublayer(pass, s, y);
    residual_forward(s->order == PRE_NORM ? out : s->sum, x, y, pass_values(pass, s->bias),
                     pass_dropout(pass, s->site, &dropout), pass->first, pass->rows, C);
    pass_lap(pass, "residual", 0);
    if (s->order == POST_NORM) norm_forward(pass, &s->norm, (Matrix){out, C, false}, s->sum);
    pass_measure(pass, s->after_layer, s->after, out, C);
}

// The same for rows begin to begin + rows on the calling thread, without measuring; y (rows, C).

static void norm_rows_forward(const BlockPass *pass, const Norm *norm, Matrix y, const real *x,
                              size_t begin, size_t rows) {
    const size_t C = norm->parameters.channels;
    layernorm_rows_forward(gemm_input_rows(y, begin), norm->mean + begin, norm->rstd + begin,
                           x + begin * C, pass_values(pass, norm->parameters.gain),
                           pass_values(pass, norm->parameters.bias), norm->parameters.epsilon, rows,
                           C);
}

static void sublayer_rows_begin(const BlockPass *pass, const Sublayer *s, const real *x,
                                size_t begin, size_t rows) {
    const size_t C = s->norm.parameters.channels;
    if (s->order == PRE_NORM)
        norm_rows_forward(pass, &s->norm, s->input, x, begin, rows);
    else
        gemm_input_store_rows(s->input, begin, 0, x + begin * C, rows, C);
}

static void sublayer_rows_residual(const BlockPass *pass, const Sublayer *s, real *out,
                                   const real *x, const real *y, size_t begin, size_t rows) {
    const size_t C = s->norm.parameters.channels, at = begin * C;
    Dropout dropout;
    residual_rows_forward((s->order == PRE_NORM ? out : s->sum) + at, x + at, y,
                          pass_values(pass, s->bias), pass_dropout(pass, s->site, &dropout),
                          pass->first + begin, rows, C);
    if (s->order == POST_NORM)
        norm_rows_forward(pass, &s->norm, (Matrix){out, C, false}, s->sum, begin, rows);
}

void sublayer_residual_backward(const BlockPass *pass, const Sublayer *s) {
    Dropout dropout;
    if (s->order == POST_NORM)
        norm_backward(pass, &s->norm, pass->work->dx, pass->work->dx, s->sum);
    residual_backward(pass->work->doutput, pass_gradients(pass, s->bias), pass->work->dx,
                      pass_dropout(pass, s->site, &dropout), pass->first, pass->rows,
                      s->norm.parameters.channels);
    pass_lap(pass, "residual", 0);
}

void sublayer_begin_backward(const BlockPass *pass, const Sublayer *s, const Linear *first,
                             Matrix dy, const real *x, bool again) {
    const Workspace *w = pass->work;
    if (s->order == PRE_NORM)
        linear_backward_input(pass, first, w->dnorm, dy);
    else
        linear_backward_input_add(pass, first, w->dx, dy);
    if (s->shifted > 0)
        token_shift_backward(w->dnorm, s->norm.parameters.channels, s->shifted, pass->batch->mask,
                             pass->rows, (size_t)pass->batch->length);
    if (again) sublayer_begin(pass, s, x);
    linear_backward_weight(pass, first, dy, s->input);
    if (s->order == PRE_NORM) norm_backward(pass, &s->norm, w->dx, w->dnorm, x);
}

// ---- attention --------------------------------------------------------------

static size_t largest_window(const LayerPlan *layers, size_t count, AttentionKind kind) {
    size_t largest = 0;
    for (size_t l = 0; l < count; l++) {
        const AttentionPlan *a = &layers[l].attention;
        if (a->kind == kind && a->window > largest) largest = a->window;
    }
    return largest;
}

void attention_shared_create(AttentionShared *shared, CpuModel *model, const ModelSizes *size,
                             const LayerPlan *layers, size_t count, size_t batch, size_t length) {
    *shared = (AttentionShared){.channels = size->channels, .heads = size->heads};
    for (size_t l = 0; l < count; l++) shared->prepares |= layers[l].attention.prepares;
    for (size_t l = 0; l < count; l++) {
        const AttentionPlan *const plans[] = {&layers[l].attention, &layers[l].cross};
        for (size_t i = 0; i < (layers[l].crosses ? 2 : 1); i++) {
            const AttentionShape shape = {plans[i],
                                          size->channels,
                                          size->heads,
                                          batch,
                                          length,
                                          model->rows,
                                          largest_window(layers, count, plans[i]->kind),
                                          gemm_precision(model->gemm)};
            attention_memory_add(&shared->memory, &shape);
            if (attention_types[plans[i]->kind].exact && !shared->gemm)
                shared->gemm = gemm_create(PRECISION_FLOAT32);
        }
    }
}

void attention_shared_carve(AttentionShared *s, CpuModel *m) {
    const size_t M = m->rows, C = s->channels;
    attention_memory_carve(&s->memory, m->arena, m->training);
    if (s->prepares) {
        s->prepared = arena_reals(m->arena, M, 3 * C, "activations");
        if (m->training) s->dprepared = arena_reals(m->arena, M, 3 * C, "gradients of activations");
    }
    if (!s->gemm) return;
    s->input = gemm_input_carve(s->gemm, m->arena, M, C, "activations");
    if (m->training) s->again = gemm_input_carve(m->gemm, m->arena, M, C, "activations");
}

void attention_shared_free(AttentionShared *s) {
    attention_memory_free(&s->memory);
    gemm_free(s->gemm);
}

// For self- or cross-attention. names: what --stats calls its result, the stream after it, its
// weights and its scores.
static AttentionSublayer attention_sublayer(CpuModel *model, const AttentionShared *shared,
                                            const AttentionPlan *plan, NormOrder order,
                                            size_t layer, const char *const names[4]) {
    AttentionSublayer a = {.sublayer = {.order = order,
                                        .layer = layer,
                                        .place = names[0],
                                        .after_layer = layer,
                                        .after = names[1],
                                        .site = plan->site,
                                        .bias = plan->projection.bias,
                                        .shifted = plan->shifted,
                                        .norm.parameters = plan->norm},
                           .plan = plan,
                           .shared = shared,
                           .names = names + 2};
    if (attention_projects(plan))
        a.projection = linear_create(model, model->gemm, &plan->projection, "projection");
    return a;
}

static void attention_sublayer_carve(AttentionSublayer *a, CpuModel *model) {
    const size_t M = model->rows, C = a->shared->channels;
    const AttentionKernel *kernel = attention_kernel(a->plan->kind);
    if (attention_projects(a->plan))
        a->attended = gemm_input_carve(model->gemm, model->arena, M, C, "activations");
    if (kernel->kept)
        a->kept = arena_reals(model->arena, kernel->kept(M, C, a->shared->heads), 1, "activations");
}

// Both dropouts of a call.
typedef struct {
    Dropout sites[2];
} AttentionDropout;

static AttentionCall attention_call(const BlockPass *pass, const AttentionSublayer *a,
                                    const AttentionInput *in, AttentionDropout *dropout) {
    const AttentionPlan *plan = a->plan;
    const double rate = pass->model->attention_dropout;
    AttentionCall call = {.plan = plan,
                          .channels = a->shared->channels,
                          .heads = a->shared->heads,
                          .memory = a->shared->memory.memory[plan->kind],
                          .kept = a->kept,
                          .in = *in,
                          .y = a->attended};
    for (size_t i = 0; i < ATTENTION_LEARNED; i++)
        call.learned[i] = pass_values(pass, plan->learned[i]);
    call.in.dropout = dropout_of(pass, rate, plan->weight_sites[0], &dropout->sites[0]);
    call.in.first_row = (uint64_t)pass->batch->first_row;
    if (attention_types[plan->kind].pools)
        call.dropout = dropout_of(pass, rate, plan->weight_sites[1], &dropout->sites[1]);
    return call;
}

static double attention_sublayer_flops(const AttentionSublayer *a, const AttentionInput *in) {
    const double keys = (double)in->keys;
    return attention_flops(a->plan, a->shared->channels, a->shared->heads,
                           (double)in->batch * (double)in->queries, in->causal ? keys / 2 : keys);
}

void attention_sublayer_forward(const BlockPass *pass, const AttentionSublayer *a,
                                const AttentionInput *in, real *out, const real *x) {
    const AttentionKernel *kernel = attention_kernel(a->plan->kind);
    const bool projects = attention_projects(a->plan);
    AttentionDropout dropout;
    AttentionCall call = attention_call(pass, a, in, &dropout);
    if (!projects) {
        call.out = out;
        call.x = x;
    }
    kernel->forward(&call);
    pass_lap(pass, "attention", attention_sublayer_flops(a, in));
    if (pass->statistics)
        kernel->measure(&call, pass->batch->mask, pass->statistics, a->sublayer.layer, a->names);
    if (!projects) {
        pass_measure(pass, a->sublayer.after_layer, a->sublayer.after, out, a->shared->channels);
        return;
    }
    linear_forward(pass, &a->projection, pass->work->output, a->attended);
    sublayer_residual(pass, &a->sublayer, out, x, pass->work->output);
}

void attention_sublayer_backward(const BlockPass *pass, const AttentionSublayer *a,
                                 const AttentionGradients *gradients, const AttentionInput *in) {
    const Workspace *w = pass->work;
    AttentionDropout dropout;
    const AttentionCall call = attention_call(pass, a, in, &dropout);
    real *dlearned[ATTENTION_LEARNED];
    for (size_t i = 0; i < ATTENTION_LEARNED; i++)
        dlearned[i] = pass_gradients(pass, a->plan->learned[i]);
    const bool projects = attention_projects(a->plan);
    if (projects) {
        sublayer_residual_backward(pass, &a->sublayer);
        linear_backward(pass, &a->projection, w->dattended, w->doutput, a->attended);
    }
    attention_kernel(a->plan->kind)
        ->backward(&call, gradients, dlearned, projects ? w->dattended : w->dx);
    pass_lap(pass, "attention", 2 * attention_sublayer_flops(a, in));
}

static bool is_exact(const AttentionBlock *b) {
    return attention_types[b->common.plan->kind].exact;
}

void attention_block_create(AttentionBlock *b, CpuModel *model, const AttentionShared *shared,
                            const AttentionPlan *plan, NormOrder order, size_t layer) {
    b->common = attention_sublayer(model, shared, plan, order, layer, self_attention_places);
    b->qkv = linear_create(model, model->gemm, &plan->qkv, "qkv");
    if (is_exact(b)) b->exact = linear_create(model, shared->gemm, &plan->qkv, "qkv");
}

// All layers share the input of the product for queries, keys and values if it is float32.
void attention_block_carve(AttentionBlock *b, CpuModel *model) {
    sublayer_carve(&b->common.sublayer, model, !is_exact(b));
    attention_sublayer_carve(&b->common, model);
    b->projected =
        arena_reals(model->arena, model->rows, b->qkv.parameters.shape.outputs, "activations");
}

static AttentionInput self_input(const BlockPass *pass, const AttentionBlock *b) {
    const Batch *batch = pass->batch;
    const AttentionPlan *plan = b->common.plan;
    const bool biased = attention_kernel(plan->kind)->adds_bias && !plan->prepares;
    const real *bias = biased ? pass_values(pass, plan->qkv.bias) : NULL;
    AttentionInput in = attention_self(plan->prepares ? b->common.shared->prepared : b->projected,
                                       bias, b->common.shared->channels, plan->causal, batch->mask,
                                       (size_t)batch->batch, (size_t)batch->length);
    in.window = plan->window;
    return in;
}

// Computes the input of attention from the product's output, for layers where they differ.
static void prepare(const BlockPass *pass, const AttentionBlock *b) {
    const AttentionPlan *plan = b->common.plan;
    const AttentionShared *s = b->common.shared;
    const QueryKeyShape shape = query_key_shape(plan, s->channels, s->heads, s->angles);
    query_key_forward(s->prepared, b->projected, pass_values(pass, plan->qkv.bias),
                      pass_values(pass, plan->gains), &shape, (size_t)pass->batch->length,
                      pass->rows);
    pass_lap(pass, "attention", 0);
}

// dqkv (M, (H + 2H') D), from the gradient to the input of attention.
static void prepare_backward(const BlockPass *pass, const AttentionBlock *b, Matrix dqkv) {
    const AttentionPlan *plan = b->common.plan;
    const AttentionShared *s = b->common.shared;
    const QueryKeyShape shape = query_key_shape(plan, s->channels, s->heads, s->angles);
    query_key_backward(dqkv, pass_gradients(pass, plan->qkv.bias),
                       pass_gradients(pass, plan->gains), s->dprepared, b->projected,
                       pass_values(pass, plan->qkv.bias), pass_values(pass, plan->gains), &shape,
                       (size_t)pass->batch->length, pass->rows);
    pass_lap(pass, "attention", 0);
}

// Computes queries, keys and values, and adds their bias if the kind does not add it.
static void project(const BlockPass *pass, const AttentionBlock *b, const real *x) {
    const AttentionPlan *plan = b->common.plan;
    const Matrix input = is_exact(b) ? b->common.shared->input : b->common.sublayer.input;
    const real *bias = pass_values(pass, plan->qkv.bias);
    const size_t N = 3 * b->common.shared->channels;
    sublayer_input(pass, &b->common.sublayer, input, x);
    linear_forward(pass, is_exact(b) ? &b->exact : &b->qkv, b->projected, input);
    if (plan->prepares) {
        prepare(pass, b);
        return;
    }
    if (!bias || attention_kernel(plan->kind)->adds_bias) return;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pass->rows; i++)
        for (size_t n = 0; n < N; n++) b->projected[i * N + n] += bias[n];
}

void attention_block_forward(const BlockPass *pass, const AttentionBlock *b, real *out,
                             const real *x) {
    const AttentionInput in = self_input(pass, b);
    project(pass, b, x);
    attention_sublayer_forward(pass, &b->common, &in, out, x);
}

void attention_block_backward(const BlockPass *pass, const AttentionBlock *b, const real *x) {
    const size_t C = b->common.shared->channels;
    const bool prepares = b->common.plan->prepares;
    const AttentionInput in = self_input(pass, b);
    Matrix dqkv = pass->work->dqkv;
    dqkv.columns = b->qkv.parameters.shape.outputs;
    const AttentionGradients gradients =
        prepares
            ? attention_self_gradients((Matrix){b->common.shared->dprepared, 3 * C, false}, NULL, C)
            : attention_self_gradients(dqkv, pass_gradients(pass, b->qkv.parameters.bias), C);
    if (prepares) prepare(pass, b);
    attention_sublayer_backward(pass, &b->common, &gradients, &in);
    if (prepares) prepare_backward(pass, b, dqkv);
    Sublayer s = b->common.sublayer;
    if (is_exact(b)) s.input = b->common.shared->again;
    sublayer_begin_backward(pass, &s, &b->qkv, dqkv, x, is_exact(b));
}

// ---- cross-attention --------------------------------------------------------

void encoded_carve(Encoded *e, CpuModel *model) {
    const size_t N = model->rows, C = e->norm.parameters.channels;
    norm_carve(&e->norm, model->arena, N);
    e->result = gemm_input_carve(model->gemm, model->arena, N, C, "activations");
    if (model->training) e->dresult = arena_reals(model->arena, N, C, "gradients of activations");
}

void encoded_forward(const BlockPass *source, const Encoded *e, const real *x) {
    norm_forward(source, &e->norm, e->result, x);
    if (source->train)
        memset(e->dresult, 0, source->rows * e->norm.parameters.channels * sizeof(real));
}

void encoded_backward(const BlockPass *source, const Encoded *e, const real *x) {
    memset(source->work->dx, 0, source->rows * e->norm.parameters.channels * sizeof(real));
    norm_backward(source, &e->norm, source->work->dx, e->dresult, x);
}

void cross_attention_block_create(CrossAttentionBlock *b, CpuModel *model,
                                  const AttentionShared *shared, const Encoded *encoded,
                                  const AttentionPlan *plan, NormOrder order, size_t layer) {
    b->encoded = encoded;
    b->query = linear_create(model, model->gemm, &plan->query, "cross query");
    b->key_value = linear_create(model, model->gemm, &plan->key_value, "cross key, value");
    b->common = attention_sublayer(model, shared, plan, order, layer, cross_attention_places);
}

void cross_attention_block_carve(CrossAttentionBlock *b, CpuModel *model) {
    const size_t C = b->common.shared->channels;
    sublayer_carve(&b->common.sublayer, model, true);
    attention_sublayer_carve(&b->common, model);
    b->queries = arena_reals(model->arena, model->rows, C, "activations");
    b->key_values = arena_reals(model->arena, model->rows, 2 * C, "activations");
}

static AttentionInput cross_input(const BlockPass *pass, const CrossAttentionBlock *b) {
    const Batch *batch = pass->batch, *from = pass->source->batch;
    return attention_cross(b->queries, pass_values(pass, b->query.parameters.bias), b->key_values,
                           pass_values(pass, b->key_value.parameters.bias),
                           b->common.shared->channels, from->mask, (size_t)batch->batch,
                           (size_t)batch->length, (size_t)from->length);
}

void cross_attention_block_forward(const BlockPass *pass, const CrossAttentionBlock *b, real *out,
                                   const real *x) {
    const AttentionInput in = cross_input(pass, b);
    sublayer_begin(pass, &b->common.sublayer, x);
    linear_forward(pass, &b->query, b->queries, b->common.sublayer.input);
    linear_forward(pass->source, &b->key_value, b->key_values, b->encoded->result);
    attention_sublayer_forward(pass, &b->common, &in, out, x);
}

void cross_attention_block_backward(const BlockPass *pass, const CrossAttentionBlock *b,
                                    const real *x) {
    const Workspace *w = pass->work;
    const AttentionInput in = cross_input(pass, b);
    const AttentionGradients gradients = attention_cross_gradients(
        w->dquery, pass_gradients(pass, b->query.parameters.bias), w->dkey_value,
        pass_gradients(pass, b->key_value.parameters.bias), b->common.shared->channels);
    attention_sublayer_backward(pass, &b->common, &gradients, &in);
    linear_backward_input_add(pass->source, &b->key_value, b->encoded->dresult, w->dkey_value);
    linear_backward_weight(pass->source, &b->key_value, w->dkey_value, b->encoded->result);
    sublayer_begin_backward(pass, &b->common.sublayer, &b->query, w->dquery, x, false);
}

// ---- feed-forward network ---------------------------------------------------

void ffn_block_create(FfnBlock *b, CpuModel *model, const FfnParameters *parameters,
                      ActivationKind activation, NormOrder order, size_t layer, uint32_t site) {
    *b = (FfnBlock){.sublayer = {.order = order,
                                 .layer = layer,
                                 .place = FFN_PLACE,
                                 .after_layer = layer + 1,
                                 .after = RESIDUAL_PLACE,
                                 .site = site,
                                 .bias = parameters->down.bias,
                                 .norm.parameters = parameters->norm},
                    .activation = activation,
                    .up = linear_create(model, model->gemm, &parameters->up, "ffn"),
                    .down = linear_create(model, model->gemm, &parameters->down, "ffn")};
}

void ffn_block_carve(FfnBlock *b, CpuModel *model) {
    const size_t M = model->rows, C = b->up.parameters.shape.inputs,
                 N = b->up.parameters.shape.outputs, F = b->down.parameters.shape.inputs;
    sublayer_carve(&b->sublayer, model, true);
    b->kept = model->training && !ffn_remade(gemm_precision(model->gemm), C, F);
    if (!b->kept) return;
    b->hidden = arena_reals(model->arena, M, N, "activations");
    b->activated = gemm_input_carve(model->gemm, model->arena, M, F, "activations");
}

// Prefetches what the residual stream needs next, while the activation computes: the memory that
// this row is written to, and the row at the same position in the next FFN_ROWS rows.
static void ffn_row_ahead(const BlockPass *pass, const real *out, const real *x, size_t row,
                          size_t channels) {
    enum { LINE = 64 / sizeof(real) };
    const size_t next = row + FFN_ROWS;
    for (size_t c = 0; c < channels; c += LINE) {
        __builtin_prefetch(out + row * channels + c, 1);
        if (next < pass->rows) __builtin_prefetch(x + next * channels + c, 0, 2);
    }
}

// A thread takes FFN_ROWS rows at a time through the whole sublayer: normalisation, first product,
// activation, second product and residual connection. The numbers in between stay in its cache.
// f(x) is kept for all rows only if it is measured. Processes rows begin to begin + rows.
static void ffn_rows_forward(const BlockPass *pass, const FfnBlock *b, real *out, const real *x,
                             size_t begin, size_t rows) {
    const Workspace *w = pass->work;
    const size_t C = b->down.parameters.shape.outputs, N = b->up.parameters.shape.outputs,
                 F = b->down.parameters.shape.inputs;
    const size_t own = (size_t)thread_index() * FFN_ROWS;
    Gemm *gemm = pass->model->serial[thread_index()];
    real *hidden = b->kept ? b->hidden + begin * N : w->hidden + own * N;
    const Matrix activated =
        b->kept ? gemm_input_rows(b->activated, begin) : gemm_input_rows(w->activated, own);
    real *output = w->output + (pass->statistics ? begin : own) * C;
    sublayer_rows_begin(pass, &b->sublayer, x, begin, rows);
    gemm_forward(gemm, hidden, gemm_input_rows(b->sublayer.input, begin), b->up.weight, rows);
    for (size_t row = 0; row < rows; row++) {
        ffn_row_ahead(pass, out, x, begin + row, C);
        activation_rows_forward(gemm_input_rows(activated, row), hidden + row * N,
                                pass_values(pass, b->up.parameters.bias), b->activation, 1, F);
    }
    gemm_forward(gemm, output, activated, b->down.weight, rows);
    sublayer_rows_residual(pass, &b->sublayer, out, x, output, begin, rows);
}

// dbias (N) += the gradient to the bias; or NULL.
static void ffn_rows_backward(const BlockPass *pass, const FfnBlock *b, real *dbias, size_t begin,
                              size_t rows) {
    const Workspace *w = pass->work;
    const size_t C = b->down.parameters.shape.outputs, N = b->up.parameters.shape.outputs,
                 F = b->down.parameters.shape.inputs;
    const size_t own = (size_t)thread_index() * FFN_ROWS;
    Gemm *gemm = pass->model->serial[thread_index()];
    real *dactivated = w->dactivated + own * F,
         *hidden = b->kept ? b->hidden + begin * N : w->hidden + own * N;
    const Matrix dhidden = gemm_input_rows(w->dhidden, begin);
    Matrix again = {0}; // where the activation's output is recomputed
    if (!b->kept) {
        again = gemm_input_rows(w->activated, begin);
        gemm_forward(gemm, hidden, gemm_input_rows(b->sublayer.input, begin), b->up.weight, rows);
    }
    gemm_backward_input(gemm, dactivated, gemm_input_rows(w->doutput, begin), b->down.weight, rows);
    activation_rows_backward(dhidden, again, dbias, dactivated, hidden,
                             pass_values(pass, b->up.parameters.bias), b->activation, rows, F);
    if (b->sublayer.order == PRE_NORM)
        gemm_backward_input(gemm, w->dnorm + begin * C, dhidden, b->up.weight, rows);
    else
        gemm_backward_input_add(gemm, w->dx + begin * C, dhidden, b->up.weight, rows);
}

static size_t ffn_rows(const BlockPass *pass, size_t begin) {
    return pass->rows - begin < FFN_ROWS ? pass->rows - begin : FFN_ROWS;
}

static void ffn_lap(const BlockPass *pass, const FfnBlock *b) {
    pass_lap(pass, "ffn", linear_flops(pass, &b->up) + linear_flops(pass, &b->down));
}

void ffn_block_forward(const BlockPass *pass, const FfnBlock *b, real *out, const real *x) {
    const Sublayer *s = &b->sublayer;
#pragma omp parallel for schedule(static)
    for (size_t begin = 0; begin < pass->rows; begin += FFN_ROWS)
        ffn_rows_forward(pass, b, out, x, begin, ffn_rows(pass, begin));
    ffn_lap(pass, b);
    measure_sublayer(pass, s, pass->work->output);
    pass_measure(pass, s->after_layer, s->after, out, s->norm.parameters.channels);
}

void ffn_block_backward(const BlockPass *pass, const FfnBlock *b, const real *x) {
    const Workspace *w = pass->work;
    const size_t N = b->up.parameters.shape.outputs, parts = (pass->rows + FFN_ROWS - 1) / FFN_ROWS;
    real *dbias = pass_gradients(pass, b->up.parameters.bias);
    real *partial =
        dbias ? allocate(parts * N, sizeof(real), "bias gradients") : NULL; // (parts, N)
    sublayer_residual_backward(pass, &b->sublayer);
#pragma omp parallel for schedule(static)
    for (size_t part = 0; part < parts; part++)
        ffn_rows_backward(pass, b, partial ? partial + part * N : NULL, part * FFN_ROWS,
                          ffn_rows(pass, part * FFN_ROWS));
    if (dbias) row_parts_add(dbias, partial, parts, N);
    free(partial);
    ffn_lap(pass, b);
    linear_backward_weight(pass, &b->down, w->doutput, b->kept ? b->activated : w->activated);
    linear_backward_weight(pass, &b->up, w->dhidden, b->sublayer.input);
    if (b->sublayer.order == PRE_NORM) norm_backward(pass, &b->sublayer.norm, w->dx, w->dnorm, x);
}

// ---- the rows that have a target --------------------------------------------

void chosen_carve(ChosenRows *c, CpuModel *m) {
    c->rows = arena_array(m->arena, m->rows, sizeof(*c->rows), "activations");
    c->targets = arena_array(m->arena, m->rows, sizeof(*c->targets), "activations");
}

BlockPass chosen_pass(const BlockPass *pass, const ChosenRows *c, bool all, Batch *batch) {
    size_t count = 0;
    for (size_t i = 0; i < pass->rows; i++) {
        const int32_t target = all ? 0 : pass->batch->targets[i];
        if (target < 0) continue;
        c->rows[count] = i;
        c->targets[count++] = target;
    }
    *batch = *pass->batch;
    batch->targets = c->targets;
    BlockPass chosen = *pass;
    chosen.batch = batch;
    chosen.rows = count;
    return chosen;
}

const real *chosen_forward(const BlockPass *chosen, const ChosenRows *rows, const real *x,
                           size_t channels) {
    real *out = chosen->work->output;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < chosen->rows; i++)
        memcpy(out + i * channels, x + rows->rows[i] * channels, channels * sizeof(real));
    return out;
}

void chosen_backward(const BlockPass *pass, const BlockPass *chosen, const ChosenRows *rows,
                     const real *gradients, size_t channels) {
    real *dx = pass->work->dx;
    memset(dx, 0, pass->rows * channels * sizeof(real));
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < chosen->rows; i++)
        memcpy(dx + rows->rows[i] * channels, gradients + i * channels, channels * sizeof(real));
    pass_lap(chosen, "embedding", 0);
}

// ---- prediction -------------------------------------------------------------

void prediction_create(PredictionBlock *b, CpuModel *model, const PredictionPlan *plan) {
    b->transform = linear_create(model, model->gemm, &plan->transform, "prediction");
}

void prediction_carve(PredictionBlock *b, CpuModel *m) {
    const char *what = "activations";
    const size_t M = m->rows, C = b->transform.parameters.shape.inputs;
    b->input = gemm_input_carve(m->gemm, m->arena, M, C, what);
    b->hidden = arena_reals(m->arena, M, C, what);
    b->activated = arena_reals(m->arena, M, C, what);
}

void prediction_forward(const BlockPass *chosen, const PredictionBlock *b, const ChosenRows *rows,
                        const real *x) {
    const size_t C = b->transform.parameters.shape.inputs;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < chosen->rows; i++)
        gemm_input_store(b->input, i, 0, x + rows->rows[i] * C, C);
    linear_forward(chosen, &b->transform, b->hidden, b->input);
    activation_forward((Matrix){b->activated, C, false}, b->hidden,
                       pass_values(chosen, b->transform.parameters.bias), GELU_ERF, chosen->rows,
                       C);
    pass_lap(chosen, "activation", 0);
}

void prediction_backward(const BlockPass *chosen, const PredictionBlock *b) {
    const size_t C = b->transform.parameters.shape.inputs;
    const Workspace *w = chosen->work;
    activation_backward(w->doutput, pass_gradients(chosen, b->transform.parameters.bias), w->dx,
                        b->hidden, pass_values(chosen, b->transform.parameters.bias), GELU_ERF,
                        chosen->rows, C);
    pass_lap(chosen, "activation", 0);
    linear_backward(chosen, &b->transform, w->dnorm, w->doutput, b->input);
}

// ---- final normalisation and classifier -------------------------------------

void head_create(OutputHead *h, CpuModel *model, const NormParameters *norm, size_t weight,
                 size_t bias, size_t vocabulary) {
    *h = (OutputHead){
        .norm.parameters = *norm, .weight = weight, .bias = bias, .vocabulary = vocabulary};
    h->classifier =
        classifier_create(model->gemm, vocabulary, norm->channels, model->rows, model->training);
    model->classifier = h->classifier;
    model->classifier_weight = weight;
}

void head_carve(OutputHead *h, CpuModel *model) {
    classifier_carve(h->classifier, model->arena);
    norm_carve(&h->norm, model->arena, model->rows);
    h->normal = gemm_input_carve(model->gemm, model->arena, model->rows,
                                 h->norm.parameters.channels, "activations");
    h->losses = arena_reals(model->arena, model->rows, 1, "activations");
}

double head_forward(const BlockPass *pass, const OutputHead *h, const real *x) {
    norm_forward(pass, &h->norm, h->normal, x);
    return classifier_forward(h->classifier, h->normal, pass_values(pass, h->bias),
                              pass->batch->targets, pass->rows, h->losses);
}

void head_logits(const BlockPass *pass, const OutputHead *h, const real *x, real *logits) {
    norm_forward(pass, &h->norm, h->normal, x);
    classifier_logits(h->classifier, h->normal, pass_values(pass, h->bias), pass->rows, logits);
}

double head_train(const BlockPass *forward, const BlockPass *backward, const OutputHead *h,
                  const real *x, double scale) {
    const Workspace *w = forward->work;
    norm_forward(forward, &h->norm, h->normal, x);
    const double loss = classifier_train(h->classifier, h->normal, pass_values(forward, h->bias),
                                         forward->batch->targets, forward->rows, scale, w->dnorm,
                                         pass_gradients(forward, h->weight),
                                         h->bias_fixed ? NULL : pass_gradients(forward, h->bias));
    profile_lap(forward->profile, "classifier", PROFILE_STEP,
                6.0 * (double)forward->rows * (double)h->vocabulary *
                    (double)h->norm.parameters.channels);
    if (backward->batch->last)
        reduction_early(forward->model->state.reduction, forward->model->state.gradients);
    memset(w->dx, 0, forward->rows * h->norm.parameters.channels * sizeof(real));
    norm_backward(backward, &h->norm, w->dx, w->dnorm, x);
    return loss;
}
