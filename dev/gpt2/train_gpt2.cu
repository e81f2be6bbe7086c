// GPT-2 on the GPU: the model of train_gpt2.c, whose options, parameters, decoding, statistics and
// description it takes; forward and backward pass in CUDA. Both programs read and write the same checkpoints,
// and drop the same elements.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers.
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual stream,
// statistics and gradients of parameters are float32.

#include "classifier.cuh"
#include "cosine_attention.cuh"
#include "embedding.cuh"
#include "gpu_model.cuh"
#include "residual.cuh"
#include "softmax_attention.cuh"
extern "C" {
#include "gpt2.h"
#include "train.h"
}

// What a layer's forward pass leaves for its backward pass.
struct Activations {
    float *x_in, *x_middle;               // (M, C) the residual stream before attention and before the FFN
    float *mean1, *rstd1, *mean2, *rstd2; // (M)
    GemmInput qkv, attended;              // (M, 3C), (M, C) what attention reads and gives
    float *logsumexp;                     // (B, H, T) of the softmax kinds
    GemmInput hidden, activated;          // (M, 4C) before and behind the GELU
};

struct LayerWeights {
    DeviceWeight qkv, proj, up, down;
    const float *norm1_gain, *norm1_bias, *norm2_gain, *norm2_bias; // (C)
    const float *norm_const;                                        // (H) cosine with a learned power: m
};

struct Gpt2 {
    GpuModel base;
    const Config *config;
    const Offsets *offsets;
    LayerWeights *weights; // (L)
    DeviceWeight token;    // (V, C)
    Activations *layers;   // (L); without training, or with --recompute, all share one set but for x_in
    float *x_out;          // (M, C) the residual stream behind the last layer
    float *final_mean, *final_rstd;
    GemmInput norm, final_norm; // (M, C)
    float *sublayer_out;        // (M, C)
    float *attention;           // working memory
    Classifier classifier;

    float *dx, *dnorm;                  // (M, C)
    GemmInput dsublayer_out, dattended; // (M, C)
    GemmInput dhidden, dqkv;            // (M, 4C), (M, 3C)
    EmbeddingOrder order;
};

// ---------------------------------------------------------------------------------------------------------------------
// Memory

// All but x_in.
static void activations_carve(Gpt2 *m, Activations *a, Arena *arena) {
    const size_t M = gpu_rows(&m->base), C = m->config->channels;
    const bool in_bf16 = m->base.precision == GPU_BF16;
    a->x_middle = arena_array<float>(arena, M * C, "activations");
    a->mean1 = arena_array<float>(arena, M, "activations");
    a->rstd1 = arena_array<float>(arena, M, "activations");
    a->mean2 = arena_array<float>(arena, M, "activations");
    a->rstd2 = arena_array<float>(arena, M, "activations");
    a->qkv = arena_matrix(arena, M, 3 * C, in_bf16, "activations");
    a->attended = arena_matrix(arena, M, C, in_bf16, "activations");
    if (!m->config->cosine) a->logsumexp = arena_array<float>(arena, M * m->config->heads, "activations");
    a->hidden = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
    a->activated = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
}

static size_t attention_workspace(const Gpt2 *m) {
    const GpuModel *g = &m->base;
    const Config *c = m->config;
    return c->cosine ? cosine_attention_workspace(g->batch, g->length, c->channels, c->heads)
                     : softmax_attention_workspace(g->batch, g->length, c->heads);
}

static void forward_carve(Gpt2 *m, Arena *arena) {
    const GpuModel *g = &m->base;
    const Config *c = m->config;
    const size_t M = gpu_rows(g), C = c->channels;
    const bool in_bf16 = g->precision == GPU_BF16;
    for (size_t l = 0; l < c->layers; l++) {
        if (l == 0 || (g->training && !g->recompute))
            activations_carve(m, &m->layers[l], arena);
        else
            m->layers[l] = m->layers[0];
        if (l == 0 || g->training) m->layers[l].x_in = arena_array<float>(arena, M * C, "activations");
    }
    m->x_out = g->training ? arena_array<float>(arena, M * C, "activations") : m->layers[0].x_in;
    m->final_mean = arena_array<float>(arena, M, "activations");
    m->final_rstd = arena_array<float>(arena, M, "activations");
    m->norm = arena_matrix(arena, M, C, in_bf16, "activations");
    m->final_norm = arena_matrix(arena, M, C, in_bf16, "activations");
    m->sublayer_out = arena_array<float>(arena, M * C, "activations");
    m->attention = arena_array<float>(arena, attention_workspace(m), "attention");
    classifier_carve(&m->classifier, arena, &g->device, c->vocabulary, C, M);
}

static void backward_carve(Gpt2 *m, Arena *arena) {
    GpuModel *g = &m->base;
    const size_t M = gpu_rows(g), C = m->config->channels, L = m->config->layers;
    const bool in_bf16 = g->precision == GPU_BF16;
    m->dx = arena_array<float>(arena, M * C, "gradients of activations");
    m->dnorm = arena_array<float>(arena, M * C, "gradients of activations");
    m->dsublayer_out = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
    m->dattended = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
    m->dhidden = arena_matrix(arena, M, 4 * C, in_bf16, "gradients of activations");
    m->dqkv = arena_matrix(arena, M, 3 * C, in_bf16, "gradients of activations");
    // Gain and bias of every LayerNorm; of each layer the biases of q, of v (or of all three), and of the
    // products behind attention and in the FFN.
    partial_sums_carve(&g->sums, arena, 2 * (2 * (unsigned)L + 1) + 5 * (unsigned)L,
                       (2 * (2 * L + 1) + 9 * L) * C);
    embedding_order_carve(&m->order, arena, M, m->config->vocabulary, C);
}

// Hugging Face's Conv1D: (in, out).
static DeviceWeight weight_at(const ParameterState *s, size_t offset, size_t bias, size_t n, size_t k) {
    const bf16 *rounded = s->rounded;
    return {s->values + offset,
            rounded ? rounded + offset : NULL,
            s->values + bias,
            rounded ? rounded + bias : NULL,
            n,
            k,
            WEIGHT_IN_OUT};
}

static void weights_find(Gpt2 *m) {
    const ParameterState *s = &m->base.state;
    const size_t C = m->config->channels;
    for (size_t l = 0; l < m->config->layers; l++) {
        const LayerOffsets *o = &m->offsets->layers[l];
        m->weights[l] = {weight_at(s, o->attention.qkv.weight, o->attention.qkv.bias, 3 * C, C),
                         weight_at(s, o->attention.projection.weight, o->attention.projection.bias, C, C),
                         weight_at(s, o->ffn.up.weight, o->ffn.up.bias, 4 * C, C),
                         weight_at(s, o->ffn.down.weight, o->ffn.down.bias, C, 4 * C),
                         s->values + o->attention.norm.gain,
                         s->values + o->attention.norm.bias,
                         s->values + o->ffn.norm.gain,
                         s->values + o->ffn.norm.bias,
                         m->config->learned_power ? s->values + o->attention.norm_const : NULL};
    }
    m->token = {s->values + m->offsets->token,
                s->rounded ? s->rounded + m->offsets->token : NULL,
                NULL,
                NULL,
                m->config->vocabulary,
                C,
                WEIGHT_OUT_IN};
}

static void gpt2_carve(GpuModel *model, Arena *arena) {
    Gpt2 *m = (Gpt2 *)model;
    forward_carve(m, arena);
    if (model->training) backward_carve(m, arena);
    if (arena->memory) weights_find(m);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

static void attention_forward(Gpt2 *m, GpuWork work, const DeviceBatch *batch, size_t l) {
    const Device *d = &m->base.device;
    const Activations *a = &m->layers[l];
    const Config *c = m->config;
    const DropoutSite weights = gpu_dropout(&m->base, work, dropout_site(l, SITE_ATTENTION));
    if (c->cosine)
        cosine_attention_forward(d, a->attended, a->qkv, m->weights[l].norm_const, (float)c->power,
                                 batch->mask, m->attention, batch->batch, batch->length, c->heads);
    else
        softmax_attention_forward(d, a->attended, a->logsumexp, a->qkv, batch->mask, &weights, c->sink,
                                  batch->batch, batch->length, c->heads);
}

// From `norm`, LayerNorm 1 of x_in, to the FFN's activated hidden layer.
static void layer_forward(Gpt2 *m, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &m->base;
    const size_t M = batch->batch * batch->length, C = m->config->channels;
    const Activations *a = &m->layers[l];
    const LayerWeights *w = &m->weights[l];
    const DropoutSite site = gpu_dropout(g, work, dropout_site(l, SITE_PROJECTION));
    const double square = gpu_square_flops(batch, C);
    gemm_forward(&g->blas, a->qkv, m->norm, w->qkv, M);
    gpu_lap(g, work, "qkv", PROFILE_FORWARD, 3 * square);
    attention_forward(m, work, batch, l);
    gpu_lap(g, work, "attention", PROFILE_FORWARD,
            gpt2_attention_flops(m->config, batch->batch, batch->length));
    gemm_forward(&g->blas, float_matrix(m->sublayer_out, C), a->attended, w->proj, M);
    gpu_lap(g, work, "projection", PROFILE_FORWARD, square);
    residual_layernorm_forward(&g->device, a->x_middle, m->norm, a->mean2, a->rstd2, a->x_in, m->sublayer_out,
                               w->norm2_gain, w->norm2_bias, site, batch->length, M, C);
    gpu_lap(g, work, "residual, norm", PROFILE_FORWARD, 0);
    gemm_forward_gelu(&g->blas, a->activated, a->hidden, m->norm, w->up, M);
    gpu_lap(g, work, "ffn up, gelu", PROFILE_FORWARD, 4 * square);
}

// The FFN's output joins the residual stream, and the next LayerNorm, of layer l + 1 or the final one,
// follows.
static void layer_end(Gpt2 *m, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &m->base;
    const size_t M = batch->batch * batch->length, C = m->config->channels;
    const Activations *a = &m->layers[l];
    const DropoutSite site = gpu_dropout(g, work, dropout_site(l, SITE_FFN));
    gemm_forward(&g->blas, float_matrix(m->sublayer_out, C), a->activated, m->weights[l].down, M);
    gpu_lap(g, work, "ffn down", PROFILE_FORWARD, 4 * gpu_square_flops(batch, C));
    if (l + 1 < m->config->layers) {
        const Activations *next = &m->layers[l + 1];
        residual_layernorm_forward(&g->device, next->x_in, m->norm, next->mean1, next->rstd1, a->x_middle,
                                   m->sublayer_out, m->weights[l + 1].norm1_gain,
                                   m->weights[l + 1].norm1_bias, site, batch->length, M, C);
    } else {
        const float *values = g->state.values;
        residual_layernorm_forward(&g->device, m->x_out, m->final_norm, m->final_mean, m->final_rstd,
                                   a->x_middle, m->sublayer_out, values + m->offsets->final_norm.gain,
                                   values + m->offsets->final_norm.bias, site, batch->length, M, C);
    }
    gpu_lap(g, work, "residual, norm", PROFILE_FORWARD, 0);
}

// Leaves the final LayerNorm's output in final_norm.
static void layers_forward(Gpt2 *m, GpuWork work, const DeviceBatch *batch) {
    GpuModel *g = &m->base;
    const float *values = g->state.values;
    embedding_layernorm_forward(&g->device, m->layers[0].x_in, m->norm, m->layers[0].mean1,
                                m->layers[0].rstd1, values + m->offsets->token, values + m->offsets->position,
                                batch->inputs, m->weights[0].norm1_gain, m->weights[0].norm1_bias,
                                gpu_dropout(g, work, dropout_site(0, SITE_EMBEDDING)), batch->batch,
                                batch->length, m->config->channels);
    gpu_lap(g, work, "embedding", PROFILE_FORWARD, 0);
    for (size_t l = 0; l < m->config->layers; l++) {
        layer_forward(m, work, batch, l);
        layer_end(m, work, batch, l);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// What layer_forward() left, again, from x_in.
static void layer_again(Gpt2 *m, const DeviceBatch *batch, size_t l) {
    const Activations *a = &m->layers[l];
    layernorm_forward(&m->base.device, m->norm, a->mean1, a->rstd1, a->x_in, m->weights[l].norm1_gain,
                      m->weights[l].norm1_bias, batch->batch * batch->length, m->config->channels);
    layer_forward(m, GPU_TRAIN, batch, l);
}

// From dsublayer_out, the gradient to the FFN's output, and dx, that to the residual stream behind it, to dx
// before it, and dsublayer_out of attention.
static void ffn_backward(Gpt2 *m, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &m->base;
    const size_t M = batch->batch * batch->length, C = m->config->channels;
    const Activations *a = &m->layers[l];
    const LayerWeights *w = &m->weights[l];
    const LayerOffsets *o = &m->offsets->layers[l];
    float *gradients = g->state.gradients;
    const double square = gpu_square_flops(batch, C);
    column_sums(&g->device, &g->sums, gradients + o->ffn.down.bias, m->dsublayer_out, M, C);
    gpu_lap(g, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
    gemm_backward_input_gelu(&g->blas, m->dhidden, m->dsublayer_out, w->down, a->hidden, M);
    gemm_backward_weight(&g->blas, gradients + o->ffn.down.weight, m->dsublayer_out, a->activated, w->down,
                         M);
    gpu_lap(g, GPU_TRAIN, "ffn down", PROFILE_BACKWARD, 8 * square);
    column_sums(&g->device, &g->sums, gradients + o->ffn.up.bias, m->dhidden, M, 4 * C);
    gpu_lap(g, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
    gemm_backward_input(&g->blas, float_matrix(m->dnorm, C), m->dhidden, w->up, M);
    gpu_lap(g, GPU_TRAIN, "ffn up, gelu", PROFILE_BACKWARD, 4 * square);
    LayerNormTail tail = {m->norm, m->dsublayer_out,
                          gpu_dropout(g, GPU_TRAIN, dropout_site(l, SITE_PROJECTION)), batch->length};
    layernorm_backward(&g->device, &g->sums, m->dx, gradients + o->ffn.norm.gain,
                       gradients + o->ffn.norm.bias, m->dnorm, a->x_middle, w->norm2_gain, w->norm2_bias,
                       a->mean2, a->rstd2, false, tail, M, C);
    gpu_lap(g, GPU_TRAIN, "residual, norm", PROFILE_BACKWARD, 0);
    gemm_backward_weight(&g->blas, gradients + o->ffn.up.weight, m->dhidden, m->norm, w->up, M);
    gpu_lap(g, GPU_TRAIN, "ffn up, gelu", PROFILE_BACKWARD, 4 * square);
}

// Columns of dqkv from part 0 (q), 1 (k) or 2 (v) on.
static GemmInput qkv_part(GemmInput dqkv, size_t part, size_t channels) {
    const size_t size = dqkv.bf16 ? sizeof(bf16) : sizeof(float);
    return {(char *)dqkv.data + part * channels * size, dqkv.columns, dqkv.bf16};
}

// dqkv from dattended; gradients to the bias of q, k, v and to m.
static void attention_backward(Gpt2 *m, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &m->base;
    const Activations *a = &m->layers[l];
    const Config *c = m->config;
    const size_t M = batch->batch * batch->length, C = c->channels;
    const LayerOffsets *o = &m->offsets->layers[l];
    float *gradients = g->state.gradients, *dbias = gradients + o->attention.qkv.bias;
    const DropoutSite weights = gpu_dropout(g, GPU_TRAIN, dropout_site(l, SITE_ATTENTION));
    if (c->cosine)
        cosine_attention_backward(&g->device, m->dqkv, gradients + o->attention.norm_const, m->dattended,
                                  a->qkv, m->weights[l].norm_const, (float)c->power, batch->mask,
                                  m->attention, batch->batch, batch->length, c->heads);
    else
        softmax_attention_backward(&g->device, m->dqkv, m->dattended, a->attended, a->logsumexp, a->qkv,
                                   batch->mask, &weights, m->attention, batch->batch, batch->length,
                                   c->heads);
    if (c->cosine || c->sink > 0) {
        column_sums(&g->device, &g->sums, dbias, m->dqkv, M, 3 * C);
        return;
    }
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no weight. Its
    // gradient is 0; what would come out is rounding, of which AdamW would make full steps.
    column_sums(&g->device, &g->sums, dbias, m->dqkv, M, C);
    column_sums(&g->device, &g->sums, dbias + 2 * C, qkv_part(m->dqkv, 2, C), M, C);
}

// From dsublayer_out and dx behind attention to dx before it, and dsublayer_out of the layer below.
static void attention_layer_backward(Gpt2 *m, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &m->base;
    const size_t M = batch->batch * batch->length, C = m->config->channels;
    const Activations *a = &m->layers[l];
    const LayerWeights *w = &m->weights[l];
    const LayerOffsets *o = &m->offsets->layers[l];
    float *gradients = g->state.gradients;
    const double square = gpu_square_flops(batch, C);
    column_sums(&g->device, &g->sums, gradients + o->attention.projection.bias, m->dsublayer_out, M, C);
    gpu_lap(g, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
    gemm_backward_input(&g->blas, m->dattended, m->dsublayer_out, w->proj, M);
    gemm_backward_weight(&g->blas, gradients + o->attention.projection.weight, m->dsublayer_out, a->attended,
                         w->proj, M);
    gpu_lap(g, GPU_TRAIN, "projection", PROFILE_BACKWARD, 2 * square);
    attention_backward(m, batch, l);
    gpu_lap(g, GPU_TRAIN, "attention", PROFILE_BACKWARD,
            2 * gpt2_attention_flops(m->config, batch->batch, batch->length));
    gemm_backward_input(&g->blas, float_matrix(m->dnorm, C), m->dqkv, w->qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * square);
    LayerNormTail tail = layernorm_no_tail();
    tail.norm = m->norm;
    if (l > 0) {
        tail.dbelow = m->dsublayer_out;
        tail.site = gpu_dropout(g, GPU_TRAIN, dropout_site(l - 1, SITE_FFN));
        tail.length = batch->length;
    }
    layernorm_backward(&g->device, &g->sums, m->dx, gradients + o->attention.norm.gain,
                       gradients + o->attention.norm.bias, m->dnorm, a->x_in, w->norm1_gain, w->norm1_bias,
                       a->mean1, a->rstd1, false, tail, M, C);
    gpu_lap(g, GPU_TRAIN, "residual, norm", PROFILE_BACKWARD, 0);
    gemm_backward_weight(&g->blas, gradients + o->attention.qkv.weight, m->dqkv, m->norm, w->qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * square);
}

// From dnorm, the gradient to the final LayerNorm's output, to dx behind the embedding's dropout and the
// gradient of positions; that of tokens is token_backward()'s.
static void layers_backward(Gpt2 *m, const DeviceBatch *batch) {
    GpuModel *g = &m->base;
    const size_t M = batch->batch * batch->length, C = m->config->channels, L = m->config->layers;
    const float *values = g->state.values;
    float *gradients = g->state.gradients;
    LayerNormTail tail = layernorm_no_tail();
    tail.dbelow = m->dsublayer_out;
    tail.site = gpu_dropout(g, GPU_TRAIN, dropout_site(L - 1, SITE_FFN));
    tail.length = batch->length;
    layernorm_backward(&g->device, &g->sums, m->dx, gradients + m->offsets->final_norm.gain,
                       gradients + m->offsets->final_norm.bias, m->dnorm, m->x_out,
                       values + m->offsets->final_norm.gain, values + m->offsets->final_norm.bias,
                       m->final_mean, m->final_rstd, true, tail, M, C);
    gpu_lap(g, GPU_TRAIN, "residual, norm", PROFILE_BACKWARD, 0);
    for (size_t l = L; l-- > 0;) {
        if (g->recompute && l + 1 < L) layer_again(m, batch, l);
        ffn_backward(m, batch, l);
        attention_layer_backward(m, batch, l);
    }
    position_backward(&g->device, gradients + m->offsets->position, m->dx,
                      gpu_dropout(g, GPU_TRAIN, dropout_site(0, SITE_EMBEDDING)), batch->batch, batch->length,
                      C);
    gpu_lap(g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
}

static void gpt2_run(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    Gpt2 *m = (Gpt2 *)g;
    const size_t M = batch->batch * batch->length, C = m->config->channels;
    layers_forward(m, work, batch);
    if (work == GPU_FORWARD) {
        classifier_forward(&g->device, &g->blas, &m->classifier, m->final_norm, m->token, batch->targets, M,
                           g->results);
        return;
    }
    classifier_train(&g->device, &g->blas, &g->sums, &m->classifier, m->final_norm, m->token, batch->targets,
                     M, gpu_step(g), float_matrix(m->dnorm, C), g->state.gradients + m->offsets->token, NULL,
                     g->results);
    gpu_lap(g, work, "classifier", PROFILE_STEP, 6 * (double)M * (double)m->config->vocabulary * (double)C);
    layers_backward(m, batch);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the training loop calls

static void *gpt2_create(const ModelSetup *setup) {
    Gpt2 *m = (Gpt2 *)allocate(1, sizeof(Gpt2), "model");
    gpu_model_create(&m->base, &gpt2, setup);
    m->base.run = gpt2_run;
    m->base.carve = gpt2_carve;
    m->config = gpt2_config(m->base.host);
    m->offsets = gpt2_offsets(m->base.host);
    m->weights = (LayerWeights *)allocate(m->config->layers, sizeof(LayerWeights), "layers");
    m->layers = (Activations *)allocate(m->config->layers, sizeof(Activations), "layers");
    gpu_memory_create(&m->base);
    return m;
}

static void gpt2_destroy(void *model) {
    Gpt2 *m = (Gpt2 *)model;
    gpu_model_destroy(&m->base);
    embedding_order_free(&m->order);
    free(m->weights);
    free(m->layers);
    free(m);
}

static double gpt2_train(void *model, const Batch *batch, double scale) {
    Gpt2 *m = (Gpt2 *)model;
    GpuModel *g = &m->base;
    const DeviceBatch staged = gpu_stage(g, batch, scale);
    gpu_launch(g, GPU_TRAIN, &staged);
    // GPT-2 has no padding token: every lookup takes a gradient.
    token_backward(&g->device, &m->order, g->state.gradients + m->offsets->token, m->dx, batch->inputs, -1,
                   staged.batch * staged.length, m->config->channels);
    return gpu_finish_training(g);
}

static void gpt2_logits(void *model, const Batch *batch, float *logits) {
    Gpt2 *m = (Gpt2 *)model;
    GpuModel *g = &m->base;
    const DeviceBatch staged = gpu_stage(g, batch, 0);
    gpu_issue(g, GPU_FORWARD, &staged); // the loss is of no use here
    classifier_logits(&g->device, &g->blas, &m->classifier, m->final_norm, m->token,
                      staged.batch * staged.length, logits);
}

static ModelType gpt2_on_gpu() {
    ModelType type = gpu_model_type(&gpt2, "train_gpt2cu");
    type.create = gpt2_create;
    type.destroy = gpt2_destroy;
    type.train = gpt2_train;
    type.logits = gpt2_logits;
    return type;
}

#ifndef TESTING
int main(int argc, char **argv) {
    ModelType type = gpt2_on_gpu();
    const int code = train_main(argc, argv, &type);
    gpu_model_type_free(&type);
    return code;
}
#endif
