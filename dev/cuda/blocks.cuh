// The blocks of struct Blocks (transformer_plan.h) on the GPU. A block also computes the next
// block's input: one kernel does the residual connection after a sublayer and the norm before the
// next one, so `norm` (or `norm_parts`) holds the next input. In the backward pass it leaves dx and
// the gradient to the output of the previous sublayer. Calls for --profile and --stats are in
// between.
//
// M = B*T rows, C channels, F hidden units in the feed-forward network.
#ifndef CUDA_BLOCKS_CUH
#define CUDA_BLOCKS_CUH

#include "transformer.cuh"

// The part of the batch that a stack processes.
static inline const DeviceBatch *side_of(const BlockPass *pass, size_t stack) {
    return stack + 1 < pass->model->plan.stack_count ? &pass->source : pass->batch;
}

// One stack's part of a pass.
struct Side {
    Transformer *t;
    GpuModel *g;
    GpuWork work;
    const DeviceBatch *batch;
    size_t stack, rows, channels; // M, C
};

static inline Side side_create(const BlockPass *pass, size_t stack) {
    const DeviceBatch *batch = side_of(pass, stack);
    Transformer *t = pass->model;
    return {
        t, &t->base, pass->work, batch, stack, batch->batch * batch->length, t->plan.size.channels};
}

static inline Side layer_side(const BlockPass *pass, size_t l) {
    return side_create(pass, stack_of(pass->model, l));
}

// Dropout at a site of the model.
static inline DropoutSite side_dropout(const Side *s, uint32_t site) {
    return gpu_dropout(s->g, s->work, s->t->plan.dropout, site);
}

// The position of the tokens, on the device, if each is decoded alone; else NULL.
static inline const uint64_t *decoded_position(const Side *s) {
    return s->work == GPU_DECODE ? &gpu_step(s->g)->position : NULL;
}

// FLOPs of a product over the side's rows.
static inline double product_flops(const Side *s, const LinearParameters *linear) {
    return 2 * (double)s->rows * (double)linear->shape.outputs * (double)linear->shape.inputs;
}

// Measures the values of x (M, C) for --stats.
static inline void measure(const Side *s, size_t layer, const char *place, const float *x) {
    statistics_values(&s->g->device, &s->g->statistics, layer, place, x, s->batch->mask, s->rows,
                      s->channels);
}

// Measures the residual stream, which is x if pre-norm.
static inline void measure_stream(const Side *s, size_t layer, const char *place, const float *x) {
    measure(s, layer, place, is_post_norm(s->t) ? s->t->stream : x);
}

// ---- norms and residual connections -----------------------------------------

static inline LayerNormOutput norm_output(const Transformer *t, Matrix norm, float *mean,
                                          float *rstd) {
    return {norm, is_post_norm(t) ? t->stream : NULL, mean, rstd};
}

// The arrays of a residual connection and the norm after it.
struct ResidualArrays {
    const NormParameters *parameters;
    float *out;         // (M, C) the residual stream + dropout(a sublayer's output)
    Matrix norm;        // (M, C) its norm
    float *mean, *rstd; // (M)
    const float *x;     // (M, C) the stream, pre-norm
};

// Before a layer's feed-forward network; after_attention(): before its cross-attention, if any.
static inline ResidualArrays ffn_arrays(const Transformer *t, size_t l, const float *x) {
    const DeviceLayer *a = &t->layers[l];
    return {ffn_norm(t, l), a->x_middle, t->norm, a->mean2, a->rstd2, x};
}

static inline ResidualArrays after_attention(const Transformer *t, size_t l) {
    const DeviceLayer *a = &t->layers[l];
    if (!t->plan.layers[l].crosses) return ffn_arrays(t, l, a->x_in);
    return {cross_norm(t, l), a->cross.x, t->norm, a->cross.mean, a->cross.rstd, a->x_in};
}

// Before the next layer, or after the stack.
static inline ResidualArrays after_ffn(const Transformer *t, size_t l) {
    const size_t stack = stack_of(t, l);
    const DeviceStack *s = &t->stacks[stack];
    const DeviceLayer *a = &t->layers[l], *next = a + 1;
    if (l + 1 == t->plan.stacks[stack].end)
        return {stack_norm(t, stack), s->x_out, s->result, s->mean, s->rstd, a->x_middle};
    return {attention_norm(t, l + 1),
            next->x_in,
            qkv_input(t, l + 1),
            next->mean1,
            next->rstd1,
            a->x_middle};
}

// Computes the norm of `out`.
static inline void norm_forward(const Side *s, const ResidualArrays &a) {
    layernorm_forward(&s->g->device, norm_output(s->t, a.norm, a.mean, a.rstd), a.out,
                      norm_weights(s->t, a.parameters), s->rows, s->channels);
}

// Computes `out` from sublayer_out, and its norm.
static inline void residual_forward(const Side *s, uint32_t site, const ResidualArrays &a) {
    const Transformer *t = s->t;
    const ResidualNorm residual = {a.out,
                                   norm_output(t, a.norm, a.mean, a.rstd),
                                   is_post_norm(t) ? t->stream : a.x,
                                   norm_weights(t, a.parameters),
                                   side_dropout(s, site),
                                   s->batch->length};
    residual_layernorm_forward(&s->g->device, residual, t->sublayer_out, s->rows, s->channels);
    gpu_lap(s->g, s->work, "residual, norm", PROFILE_FORWARD, 0);
}

// Optional outputs of a norm's backward pass. `again`: the norm's output, recomputed. `below`: the
// gradient to the sublayer output that was added to the norm's input.
static inline LayerNormTail norm_tail(const Side *s, Matrix again, Matrix below, uint32_t site) {
    return {again, below, below.data ? side_dropout(s, site) : dropout_none(), s->batch->length};
}

// Backward pass of a norm of x before a sublayer: sets dx to the gradient to the residual stream
// after the sublayer below, from the result of sublayer_input_backward(). For the norm after the
// last layer (`last`): from dnorm only.
static inline void norm_backward(const Side *s, const NormParameters *parameters, const float *x,
                                 const float *mean, const float *rstd, bool last,
                                 LayerNormTail tail) {
    Transformer *t = s->t;
    const LayerNormWeights w = norm_weights(t, parameters);
    if (parameters->gain ==
        NO_PARAMETER) { // post-norm, before a first layer: dx stays, and its output is x
        layernorm_forward(&s->g->device, {tail.norm, NULL, NULL, NULL}, x, w, s->rows, s->channels);
        return;
    }
    const bool through = is_post_norm(t) && !last;
    const LayerNormGradients to = {t->dx, transformer_gradients(t, parameters->gain),
                                   transformer_gradients(t, parameters->bias),
                                   last || is_post_norm(t)};
    layernorm_backward(&s->g->device, &s->g->sums, to, through ? t->dx : t->dnorm,
                       {x, w, mean, rstd}, tail, s->rows, s->channels);
    gpu_lap(s->g, GPU_TRAIN, tail.dbelow.data ? "residual, norm" : "norm", PROFILE_BACKWARD, 0);
}

// ---- products ---------------------------------------------------------------
// Computes the gradient to the input of a sublayer's first product from that to its result.
// Pre-norm: sets dnorm. Post-norm: adds to dx, since the input is the residual stream itself.
static inline void sublayer_input_backward(const Side *s, Matrix dy, DeviceWeight first) {
    Transformer *t = s->t;
    if (is_post_norm(t))
        gemm_backward_input_add(&s->g->blas, float_matrix(t->dx, s->channels), dy, first, s->rows);
    else
        gemm_backward_input(&s->g->blas, float_matrix(t->dnorm, s->channels), dy, first, s->rows);
}

// Computes the gradient of a product's bias, if it has one, from that to its result, over m rows.
static inline void bias_backward(Transformer *t, const LinearParameters *parameters, Matrix dy,
                                 size_t m) {
    if (parameters->bias == NO_PARAMETER) return;
    column_sums(&t->base.device, &t->base.sums, transformer_gradients(t, parameters->bias), dy, m,
                parameters->shape.outputs);
    gpu_lap(&t->base, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
}

// Runs the pending weight products of a group.
static inline void weight_group_backward(Transformer *t, WeightGroup *group) {
    const double flops = (double)group->batch.count * weight_product_flops(&group->lowest);
    if (group->batch.count == 0) return;
    weight_group_run(&t->base.blas, group);
    gpu_lap(&t->base, GPU_TRAIN, group->kind, PROFILE_BACKWARD, flops);
}

// Computes the gradient of a weight from dy (M, N), the gradient to the product's result, and x (M,
// K), the product's input: now, or later with those of lower layers. `kind`: its name in --profile.
static inline void weight_backward(Transformer *t, const char *kind,
                                   const LinearParameters *parameters, Matrix dy, Matrix x,
                                   size_t m) {
    const WeightProduct p = {transformer_gradients(t, parameters->weight), dy, x,
                             device_weight(t, parameters), m};
    if (t->weight_place == WEIGHT_PLACES) fail("a layer of more than %zu products", WEIGHT_PLACES);
    WeightGroup *group = &t->weights[t->weight_place++];
    if (!weight_group_add(group, kind, p)) {
        weight_group_backward(t, group);
        weight_group_add(group, kind, p);
    }
    if (!t->groups_weights) weight_group_backward(t, group);
}

// ---- embedding --------------------------------------------------------------
// The dropout of a stack's embedding, if applied before its norm, or (`after`) after it.
static inline DropoutSite embedding_dropout(const Side *s, bool after) {
    const EmbeddingPlan *plan = &s->t->plan.stacks[s->stack].embedding;
    const bool is_after = is_post_norm(s->t) && plan->norm.gain != NO_PARAMETER;
    return is_after == after ? side_dropout(s, plan->site) : dropout_none();
}

// Applies the embedding's dropout to x (M, C), the output of its norm or the gradient to it.
static inline void drop_embedding(const Side *s, Matrix x) {
    dropout_apply(&s->g->device, x, embedding_dropout(s, true), s->batch->batch, s->batch->length);
}

// Applies dropout to the output of a stack's first norm.
static inline void drop_embedded(const Side *s) {
    drop_embedding(s, qkv_input(s->t, s->t->plan.stacks[s->stack].first));
    drop_embedding(s, float_matrix(s->t->stream, s->channels));
}

// Computes x_in of a stack's first layer, and its norm.
static inline void embed_forward(const BlockPass *pass, size_t stack) {
    const Side s = side_create(pass, stack);
    const Transformer *t = s.t;
    const EmbeddingPlan *plan = &t->plan.stacks[stack].embedding;
    const size_t l = t->plan.stacks[stack].first;
    const DeviceLayer *first = &t->layers[l];
    const EmbeddingRows rows = {transformer_values(t, plan->token),
                                t->sinusoids ? t->sinusoids : transformer_values(t, plan->position),
                                transformer_values(t, plan->type),
                                s.batch->inputs,
                                (unsigned)s.batch->length,
                                (float)plan->scale,
                                decoded_position(&s)};
    embedding_layernorm_forward(&s.g->device, first->x_in,
                                norm_output(t, qkv_input(t, l), first->mean1, first->rstd1), rows,
                                norm_weights(t, attention_norm(t, l)), embedding_dropout(&s, false),
                                s.batch->batch, s.channels);
    drop_embedded(&s);
    measure_stream(&s, 0, RESIDUAL_PLACE, first->x_in);
    gpu_lap(s.g, s.work, "embedding", PROFILE_FORWARD, 0);
}

// Computes the gradients of positions and type from dx, after the embedding's dropout;
// token_backward() computes that of tokens. First runs the pending weight products.
static inline void embed_backward(const BlockPass *pass, size_t stack) {
    const Side s = side_create(pass, stack);
    Transformer *t = s.t;
    const EmbeddingPlan *plan = &t->plan.stacks[stack].embedding;
    const DropoutSite site = embedding_dropout(&s, false);
    const Matrix dx = float_matrix(t->dx, s.channels);
    for (WeightGroup &group : t->weights) weight_group_backward(t, &group);
    if (plan->position == NO_PARAMETER)
        dropout_apply(&s.g->device, dx, site, s.batch->batch, s.batch->length);
    else
        position_backward(&s.g->device, transformer_gradients(t, plan->position), t->dx, site,
                          s.batch->batch, s.batch->length, s.channels);
    if (plan->type != NO_PARAMETER)
        column_sums(&s.g->device, &s.g->sums, transformer_gradients(t, plan->type), dx, s.rows,
                    s.channels);
    gpu_lap(s.g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
}

// ---- attention --------------------------------------------------------------
// A layer's self- or cross-attention, without the products for q, k and v.
struct AttentionSublayer {
    const AttentionPlan *plan;
    DeviceAttentionCall call;
    ResidualArrays after;
    size_t layer;
    const char *const *places; // of --stats
};

static inline AttentionSublayer attention_sublayer(const Side *s, const AttentionPlan *plan,
                                                   DeviceAttentionInput in,
                                                   const DeviceAttended *attended,
                                                   const ResidualArrays &after, size_t layer,
                                                   const char *const *places) {
    const Transformer *t = s->t;
    const bool projects = attention_projects(plan);
    const double rate = t->plan.attention_dropout;
    in.window = plan->window;
    in.dropout = gpu_dropout(s->g, s->work, rate, plan->weight_sites[0]);
    AttentionSublayer a = {plan,
                           {attention_shape(t, plan),
                            in,
                            gpu_dropout(s->g, s->work, rate, plan->weight_sites[1]),
                            {},
                            attended->kept,
                            t->attention,
                            projects ? attended->y : float_matrix(after.out, s->channels),
                            projects ? NULL : after.x,
                            {attended->memory, t->room, &gpu_step(s->g)->count}},
                           after,
                           layer,
                           places};
    for (size_t i = 0; i < ATTENTION_LEARNED; i++)
        a.call.learned[i] = transformer_values(t, plan->learned[i]);
    return a;
}

static inline AttentionSublayer self_sublayer(const Side *s, size_t l) {
    const Transformer *t = s->t;
    const AttentionPlan *plan = &t->plan.layers[l].attention;
    const DeviceAttentionInput in =
        attention_self(plan->prepares ? t->prepared : t->layers[l].qkv, t->plan.size.heads,
                       plan->causal, s->batch->mask, s->batch->batch, s->batch->length);
    return attention_sublayer(s, plan, in, &t->layers[l].attended, after_attention(t, l), l,
                              self_attention_places);
}

static inline AttentionSublayer cross_sublayer(const Side *s, size_t l) {
    const Transformer *t = s->t;
    const DeviceCross *cross = &t->layers[l].cross;
    const DeviceAttentionInput in =
        attention_cross(cross->query, cross->key_value, t->plan.size.heads, s->batch->source.mask,
                        s->batch->batch, s->batch->length, s->batch->source.length);
    return attention_sublayer(s, &t->plan.layers[l].cross, in, &cross->attended,
                              ffn_arrays(t, l, cross->x), l, cross_attention_places);
}

static inline double sublayer_flops(const AttentionSublayer *a) {
    const DeviceAttentionInput *in = &a->call.in;
    return attention_flops(a->plan, in->channels, in->heads, (double)(in->batch * in->queries),
                           (double)in->keys / (in->causal ? 2 : 1));
}

// Computes the residual stream after the sublayer and the next norm from queries, keys and values.
static inline void attention_sublayer_forward(const Side *s, const AttentionSublayer *a) {
    const LinearParameters *projection = &a->plan->projection;
    const DeviceAttentionKernel *kernel = attention_kernel(a->plan);
    (s->work == GPU_DECODE ? kernel->step : kernel->forward)(&s->g->device, &a->call);
    gpu_lap(s->g, s->work, "attention", PROFILE_FORWARD, sublayer_flops(a));
    if (s->g->statistics.to)
        kernel->measure(&s->g->device, &a->call, &s->g->statistics, s->batch->mask, a->layer,
                        a->places + 2);
    if (attention_projects(a->plan)) {
        gemm_forward(&s->g->blas, float_matrix(s->t->sublayer_out, s->channels), a->call.y,
                     device_weight(s->t, projection), s->rows);
        gpu_lap(s->g, s->work, "projection", PROFILE_FORWARD, product_flops(s, projection));
        measure(s, a->layer, a->places[0], s->t->sublayer_out);
        residual_forward(s, a->plan->site, a->after);
    } else {
        norm_forward(s, a->after);
        gpu_lap(s->g, s->work, "norm", PROFILE_FORWARD, 0);
    }
    measure_stream(s, a->layer, a->places[1], a->after.out);
}

// Computes the gradients to queries, keys and values from dprojected, the gradient to the
// projection's output, or from dx if there is no projection.
static inline void attention_sublayer_backward(const Side *s, const AttentionSublayer *a,
                                               Matrix dprojected,
                                               const DeviceAttentionGradients *to) {
    Transformer *t = s->t;
    const LinearParameters *projection = &a->plan->projection;
    Matrix dy = float_matrix(t->dx, s->channels);
    if (attention_projects(a->plan)) {
        dy = t->dattended;
        bias_backward(t, projection, dprojected, s->rows);
        gemm_backward_input(&s->g->blas, dy, dprojected, device_weight(t, projection), s->rows);
        gpu_lap(s->g, GPU_TRAIN, "projection", PROFILE_BACKWARD, product_flops(s, projection));
        weight_backward(t, "projection", projection, dprojected, a->call.y, s->rows);
    }
    float *dlearned[ATTENTION_LEARNED];
    for (size_t i = 0; i < ATTENTION_LEARNED; i++)
        dlearned[i] = transformer_gradients(t, a->plan->learned[i]);
    attention_kernel(a->plan)->backward(&s->g->device, &a->call, to, dlearned, dy);
    gpu_lap(s->g, GPU_TRAIN, "attention", PROFILE_BACKWARD, 2 * sublayer_flops(a));
}

// Computes the gradient to the bias of keys and values, and of queries if the same product computes
// them.
static inline void qkv_bias_backward(Transformer *t, const AttentionPlan *plan,
                                     const LinearParameters *product, Matrix dy, size_t m) {
    const size_t C = t->plan.size.channels, width = product->shape.outputs;
    float *dbias = transformer_gradients(t, product->bias);
    if (!dbias) return;
    if (attention_kernel(plan)->trains_key_bias || plan->prepares) {
        column_sums(&t->base.device, &t->base.sums, dbias, dy, m, width);
    } else { // queries, keys, values; or keys and values
        if (width == 3 * C) column_sums(&t->base.device, &t->base.sums, dbias, dy, m, C);
        column_sums(&t->base.device, &t->base.sums, dbias + width - C,
                    matrix_part(dy, width / C - 1, C), m, C);
    }
    gpu_lap(&t->base, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
}

static inline QueryKeyShape prepared_shape(const Side *s, const AttentionPlan *plan) {
    return query_key_shape(plan, s->channels, s->t->plan.size.heads, s->t->angles);
}

// Computes attention's queries, keys and values, if they differ from the product's output.
static inline void prepare(const Side *s, size_t l) {
    const Transformer *t = s->t;
    const AttentionPlan *plan = &t->plan.layers[l].attention;
    const QueryKeyShape shape = prepared_shape(s, plan);
    if (!plan->prepares) return;
    query_key_forward(&s->g->device, t->prepared, t->layers[l].qkv,
                      transformer_values(t, plan->gains), &shape, s->batch->length,
                      decoded_position(s), s->rows);
    gpu_lap(s->g, s->work, "attention", PROFILE_FORWARD, 0);
}

// Computes the gradient to the product's output from dprepared.
static inline void prepare_backward(const Side *s, size_t l) {
    Transformer *t = s->t;
    const AttentionPlan *plan = &t->plan.layers[l].attention;
    const QueryKeyShape shape = prepared_shape(s, plan);
    if (!plan->prepares) return;
    query_key_backward(&s->g->device, &s->g->sums, t->layers[l].gradients.qkv,
                       transformer_gradients(t, plan->gains), t->dprepared, t->layers[l].qkv,
                       transformer_values(t, plan->gains), &shape, s->batch->length, s->rows);
    gpu_lap(s->g, GPU_TRAIN, "attention", PROFILE_BACKWARD, 0);
}

static inline TokenShift token_shift(const Side *s) {
    return {plan_shifted(&s->t->plan), s->channels, s->batch->length, s->batch->mask};
}

// Returns the input of the product for q, k and v.
static inline Matrix attention_input(const Side *s, size_t l) {
    const Transformer *t = s->t;
    const Matrix norm = qkv_input(t, l);
    const TokenShift shift = token_shift(s);
    if (shift.shifted == 0) return norm;
    Matrix input = t->shifted;
    input.columns = norm.columns;
    if (s->work == GPU_DECODE)
        token_shift_step(&s->g->device, (float *)input.data, (const float *)norm.data,
                         t->before + l * s->rows * shift.shifted, shift, &gpu_step(s->g)->count,
                         s->rows);
    else
        token_shift_forward(&s->g->device, input, norm, shift, s->rows);
    gpu_lap(s->g, s->work, "norm", PROFILE_FORWARD, 0);
    return input;
}

// Computes the gradient to the norm before attention from that to q, k and v.
static inline void attention_input_backward(const Side *s, size_t l) {
    const Transformer *t = s->t;
    const DeviceWeight w = device_weight(t, &t->plan.layers[l].attention.qkv);
    const Matrix dqkv = t->layers[l].gradients.qkv;
    const TokenShift shift = token_shift(s);
    if (shift.shifted == 0) {
        sublayer_input_backward(s, dqkv, w);
        return;
    }
    gemm_backward_input(&s->g->blas, float_matrix(t->sublayer_out, s->channels), dqkv, w, s->rows);
    token_shift_backward(&s->g->device, t->dnorm, t->sublayer_out, shift, s->rows);
}

// Computes x_middle, or cross.x, and the next norm from the norm of x_in.
static inline void attention_forward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    const AttentionSublayer a = self_sublayer(&s, l);
    gemm_forward(&s.g->blas, s.t->layers[l].qkv, attention_input(&s, l), qkv_weight(s.t, l),
                 s.rows);
    gpu_lap(s.g, s.work, "qkv", PROFILE_FORWARD, product_flops(&s, &a.plan->qkv));
    prepare(&s, l);
    attention_sublayer_forward(&s, &a);
}

// Computes dx before attention from dx after it, and the gradient to the output of the FFN of the
// layer below.
static inline void attention_backward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    Transformer *t = s.t;
    const AttentionSublayer a = self_sublayer(&s, l);
    const LinearParameters *product = &a.plan->qkv;
    const DeviceLayer *layer = &t->layers[l];
    const LayerGradients *d = &layer->gradients;
    const bool first = l == t->plan.stacks[s.stack].first;
    const TokenShift shift = token_shift(&s);
    const DeviceAttentionGradients to =
        attention_self_gradients(a.plan->prepares ? t->dprepared : d->qkv);
    prepare(&s, l);
    attention_sublayer_backward(&s, &a, d->projection, &to);
    prepare_backward(&s, l);
    qkv_bias_backward(t, a.plan, product, d->qkv, s.rows);
    attention_input_backward(&s, l);
    gpu_lap(s.g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, product_flops(&s, product));
    if (first) drop_embedding(&s, float_matrix(t->dx, s.channels));
    norm_backward(&s, attention_norm(t, l), layer->x_in, layer->mean1, layer->rstd1, false,
                  norm_tail(&s, shift.shifted > 0 ? t->norm : d->norm_qkv,
                            first ? Matrix{} : t->layers[l - 1].gradients.ffn,
                            first ? 0 : t->plan.layers[l - 1].ffn_site));
    if (shift.shifted > 0) token_shift_forward(&s.g->device, d->norm_qkv, t->norm, shift, s.rows);
    if (first) drop_embedding(&s, d->norm_qkv);
    weight_backward(t, "qkv", product, d->qkv, d->norm_qkv, s.rows);
    gpu_gradients_final(s.g, pass->batch, t->plan.layers[l].first,
                        l + 1 < t->plan.size.layers ? t->plan.layers[l + 1].first
                                                    : s.g->state.total);
}

// ---- cross-attention, to the encoder's result -------------------------------

static inline const char *cross_kind() {
    return "cross query, key, value";
}

// FLOPs of the products for queries, and for keys and values.
static inline double cross_flops(const Side *s) {
    const double C = (double)s->channels, B = (double)s->batch->batch;
    return 2 * B * ((double)s->batch->length + 2 * (double)s->batch->source.length) * C * C;
}

static inline void cross_attention_forward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    Transformer *t = s.t;
    const AttentionSublayer a = cross_sublayer(&s, l);
    const DeviceCross *cross = &t->layers[l].cross;
    gemm_forward(&s.g->blas, cross->query, t->norm, device_weight(t, &a.plan->query), s.rows);
    gemm_forward(&s.g->blas, cross->key_value, t->stacks[0].result,
                 device_weight(t, &a.plan->key_value), pass->source.batch * pass->source.length);
    gpu_lap(s.g, s.work, cross_kind(), PROFILE_FORWARD, cross_flops(&s));
    attention_sublayer_forward(&s, &a);
}

// Computes dx before cross-attention from dx after it, and the gradient to the output of
// self-attention's projection. Adds to dresult.
static inline void cross_attention_backward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    Transformer *t = s.t;
    const AttentionSublayer a = cross_sublayer(&s, l);
    const DeviceCross *cross = &t->layers[l].cross;
    const LayerGradients *d = &t->layers[l].gradients;
    const size_t N = pass->source.batch * pass->source.length;
    const LinearParameters *query = &a.plan->query, *key_value = &a.plan->key_value;
    const DeviceAttentionGradients to = attention_cross_gradients(cross->dquery, cross->dkey_value);
    attention_sublayer_backward(&s, &a, d->before_ffn, &to);
    bias_backward(t, query, cross->dquery, s.rows);
    qkv_bias_backward(t, a.plan, key_value, cross->dkey_value, N);
    gemm_backward_input_add(&s.g->blas, float_matrix(t->dresult, s.channels), cross->dkey_value,
                            device_weight(t, key_value), N);
    weight_backward(t, cross_kind(), key_value, cross->dkey_value, t->stacks[0].result, N);
    sublayer_input_backward(&s, cross->dquery, device_weight(t, query));
    gpu_lap(s.g, GPU_TRAIN, cross_kind(), PROFILE_BACKWARD, cross_flops(&s));
    norm_backward(&s, cross_norm(t, l), cross->x, cross->mean, cross->rstd, false,
                  norm_tail(&s, cross->norm, d->projection, t->plan.layers[l].attention.site));
    weight_backward(t, cross_kind(), query, cross->dquery, cross->norm, s.rows);
}

// The norm after the encoder's last layer is computed with the residual connection before it.
static inline void encoded_forward(const BlockPass *) {}

static inline void encoded_backward(const BlockPass *pass) {
    Transformer *t = pass->model;
    const size_t bytes =
        pass->source.batch * pass->source.length * t->plan.size.channels * sizeof(float);
    CUDA_CHECK(cudaMemcpyAsync(t->dnorm, t->dresult, bytes, cudaMemcpyDeviceToDevice,
                               t->base.device.stream));
}

// ---- feed-forward network ---------------------------------------------------
// Computes the activated hidden layer from `norm`.
static inline void ffn_up(const Side *s, size_t l) {
    const Transformer *t = s->t;
    GpuModel *g = s->g;
    const DeviceLayer *a = &t->layers[l];
    const LinearParameters *linear = &t->plan.layers[l].ffn.up;
    const DeviceWeight up = device_weight(t, linear);
    const double flops = product_flops(s, linear);
    if (activation_is_fused(t)) {
        gemm_forward_gelu(&g->blas, a->activated, a->hidden, t->norm, up, s->rows);
        gpu_lap(g, s->work, "ffn up, activation", PROFILE_FORWARD, flops);
        return;
    }
    const Matrix hidden = g->precision == GPU_BF16 ? t->hidden_exact : a->hidden;
    gemm_forward(&g->blas, hidden, t->norm, up, s->rows);
    gpu_lap(g, s->work, "ffn up", PROFILE_FORWARD, flops);
    activation_forward(&g->device, a->activated, a->hidden, hidden, t->plan.activation, s->rows,
                       t->plan.inner);
    gpu_lap(g, s->work, "activation", PROFILE_FORWARD, 0);
}

// From `norm`, computes the FFN's output, adds it to the residual stream, and computes the next
// norm, of layer l + 1 or after the stack.
static inline void ffn_forward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    const LinearParameters *down = &s.t->plan.layers[l].ffn.down;
    ffn_up(&s, l);
    gemm_forward(&s.g->blas, float_matrix(s.t->sublayer_out, s.channels), s.t->layers[l].activated,
                 device_weight(s.t, down), s.rows);
    gpu_lap(s.g, s.work, "ffn down", PROFILE_FORWARD, product_flops(&s, down));
    measure(&s, l, FFN_PLACE, s.t->sublayer_out);
    residual_forward(&s, s.t->plan.layers[l].ffn_site, after_ffn(s.t, l));
    measure_stream(&s, l + 1, RESIDUAL_PLACE, after_ffn(s.t, l).out);
}

// Computes the gradients to the hidden layer and to the input from that to the output.
static inline void ffn_input_backward(const Side *s, size_t l) {
    Transformer *t = s->t;
    GpuModel *g = s->g;
    const DeviceLayer *a = &t->layers[l];
    const FfnParameters *ffn = &t->plan.layers[l].ffn;
    const Matrix hidden = a->hidden, dffn = a->gradients.ffn, dhidden = a->gradients.hidden;
    const DeviceWeight down = device_weight(t, &ffn->down);
    const double flops = product_flops(s, &ffn->down);
    if (activation_is_fused(t)) {
        gemm_backward_input_gelu(&g->blas, dhidden, dffn, down, hidden, s->rows);
        gpu_lap(g, GPU_TRAIN, "ffn down, activation", PROFILE_BACKWARD, flops);
    } else {
        const Matrix dactivated = t->dactivated.data ? t->dactivated : dhidden;
        gemm_backward_input(&g->blas, dactivated, dffn, down, s->rows);
        gpu_lap(g, GPU_TRAIN, "ffn down", PROFILE_BACKWARD, flops);
        activation_backward(&g->device, dhidden, dactivated, hidden, t->plan.activation, s->rows,
                            t->plan.inner);
        gpu_lap(g, GPU_TRAIN, "activation", PROFILE_BACKWARD, 0);
    }
    sublayer_input_backward(s, dhidden, device_weight(t, &ffn->up));
    gpu_lap(g, GPU_TRAIN, "ffn up", PROFILE_BACKWARD, product_flops(s, &ffn->up));
}

// Begins a stack's backward pass: computes dx and the gradient to the last layer's output from
// dnorm, the gradient to the stack's result.
static inline void stack_backward_begin(const Side *s) {
    Transformer *t = s->t;
    const StackPlan *plan = &t->plan.stacks[s->stack];
    const DeviceStack *stack = &t->stacks[s->stack];
    const size_t last = plan->end - 1;
    t->dx = stack->dx;
    norm_backward(s, stack_norm(t, s->stack), stack->x_out, stack->mean, stack->rstd, true,
                  norm_tail(s, {}, t->layers[last].gradients.ffn, t->plan.layers[last].ffn_site));
}

// Recomputes a layer's kept activations from x_in.
static inline void layer_recompute(const BlockPass *pass, const Side *s, size_t l) {
    Transformer *t = s->t;
    const DeviceLayer *a = &t->layers[l];
    norm_forward(s, {attention_norm(t, l), a->x_in, qkv_input(t, l), a->mean1, a->rstd1, NULL});
    if (l == t->plan.stacks[s->stack].first) drop_embedded(s);
    attention_forward(pass, l);
    if (t->plan.layers[l].crosses) cross_attention_forward(pass, l);
    ffn_up(s, l);
}

// From the gradient to the output and dx, the gradient to the residual stream after it, computes dx
// before it and the gradient to the output of the previous sublayer.
static inline void ffn_backward(const BlockPass *pass, size_t l) {
    const Side s = layer_side(pass, l);
    Transformer *t = s.t;
    const LayerPlan *plan = &t->plan.layers[l];
    const DeviceLayer *a = &t->layers[l];
    const LayerGradients *d = &a->gradients;
    if (l + 1 == t->plan.stacks[s.stack].end) stack_backward_begin(&s);
    t->weight_place = 0;
    if (s.g->recompute && l + 1 < t->plan.size.layers) layer_recompute(pass, &s, l);
    bias_backward(t, &plan->ffn.down, d->ffn, s.rows);
    ffn_input_backward(&s, l);
    bias_backward(t, &plan->ffn.up, d->hidden, s.rows);
    weight_backward(t, "ffn down", &plan->ffn.down, d->ffn, a->activated, s.rows);
    norm_backward(&s, ffn_norm(t, l), a->x_middle, a->mean2, a->rstd2, false,
                  norm_tail(&s, d->norm_ffn, d->before_ffn,
                            plan->crosses ? plan->cross.site : plan->attention.site));
    weight_backward(t, "ffn up", &plan->ffn.up, d->hidden, d->norm_ffn, s.rows);
}

// ---- prediction -------------------------------------------------------------
// Operates on the K rows that are predicted.

static inline void predict_forward(const BlockPass *pass) {
    Transformer *t = pass->model;
    GpuModel *g = &t->base;
    const PredictionPlan *plan = &t->plan.prediction;
    const DevicePrediction *p = &t->prediction;
    const size_t K = pass->batch->chosen, C = t->plan.size.channels;
    const Matrix hidden = float_matrix(p->hidden, C);
    const Matrix result = t->stacks[t->plan.stack_count - 1].result;
    if (pass->batch->rows) rows_gather(&g->device, p->chosen, result, pass->batch->rows, K);
    gemm_forward(&g->blas, hidden, pass->batch->rows ? p->chosen : result,
                 device_weight(t, &plan->transform), K);
    gpu_lap(g, pass->work, "prediction", PROFILE_FORWARD, 2 * (double)K * (double)(C * C));
    activation_forward(&g->device, float_matrix(p->activated, C), hidden, hidden, GELU_ERF, K, C);
    layernorm_forward(&g->device, {p->normal, NULL, p->mean, p->rstd}, p->activated,
                      norm_weights(t, &plan->norm), K, C);
    gpu_lap(g, pass->work, "activation, norm", PROFILE_FORWARD, 0);
    t->predicted = p->normal;
}

// Replaces dnorm, the gradient to the classifier's input, with that to the stack's result.
static inline void predict_backward(const BlockPass *pass) {
    Transformer *t = pass->model;
    GpuModel *g = &t->base;
    const PredictionPlan *plan = &t->plan.prediction;
    const DevicePrediction *p = &t->prediction;
    const DeviceBatch *batch = pass->batch;
    const size_t K = batch->chosen, C = t->plan.size.channels;
    const DeviceWeight transform = device_weight(t, &plan->transform);
    float *dx = t->stacks[t->plan.stack_count - 1].dx; // not yet used for the last layer
    const Matrix dchosen = float_matrix(dx, C),
                 dhidden = t->layers[t->plan.size.layers - 1].gradients.ffn;
    const LayerNormGradients to = {dx, transformer_gradients(t, plan->norm.gain),
                                   transformer_gradients(t, plan->norm.bias), true};
    layernorm_backward(&g->device, &g->sums, to, t->dnorm,
                       {p->activated, norm_weights(t, &plan->norm), p->mean, p->rstd},
                       layernorm_no_tail(), K, C);
    activation_backward(&g->device, dhidden, dchosen, float_matrix(p->hidden, C), GELU_ERF, K, C);
    gpu_lap(g, GPU_TRAIN, "activation, norm", PROFILE_BACKWARD, 0);
    bias_backward(t, &plan->transform, dhidden, K);
    gemm_backward_input(&g->blas, dchosen, dhidden, transform, K);
    gemm_backward_weight(&g->blas, transformer_gradients(t, plan->transform.weight), dhidden,
                         p->chosen, transform, K);
    rows_scatter(&g->device, t->dnorm, dx, batch->rows, K, batch->batch * batch->length, C);
    gpu_lap(g, GPU_TRAIN, "prediction", PROFILE_BACKWARD, 4 * (double)K * (double)(C * C));
}

// C++17 has no designated initialisers, so this is in the order of the struct.
static const Blocks gpu_blocks = {
    embed_forward,           embed_backward,           attention_forward, attention_backward,
    cross_attention_forward, cross_attention_backward, ffn_forward,       ffn_backward,
    encoded_forward,         encoded_backward,         predict_forward,   predict_backward};

#endif
