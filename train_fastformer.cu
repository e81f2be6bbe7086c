// Fastformer on the GPU: the model of train_fastformer.c, whose options, parameters, decoding, statistics and
// description it takes; forward and backward pass in CUDA. Both programs read and write the same checkpoints,
// and drop the same elements.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers.
//
// Products read bf16 (or float32, with --precision fp32 and tf32); the residual stream, statistics and
// gradients of parameters are float32. The product that makes q, k and v always reads float32: q and k go
// through an exponential of scores up to the rescale, which magnifies their rounding. So does what the GELU
// is taken of, or gradients of w_k are off by 0.06, not 0.04; what the backward pass needs of it is bf16.

#include "additive_attention.cuh"
#include "classifier.cuh"
#include "embedding.cuh"
#include "gelu.cuh"
#include "gpu_model.cuh"
#include "residual.cuh"
extern "C" {
#include "fastformer.h"
#include "train.h"
}

// What a layer's forward pass leaves for its backward pass.
struct Activations {
    float *x_in, *x_middle;               // (M, C) the residual stream before attention and before the FFN
    float *mean1, *rstd1, *mean2, *rstd2; // (M)
    float *qkv;                           // (M, 3C)
    float *pooled_query, *pooled_key;     // (B, H, T, D)
    float *r_query, *r_key;               // (B, H, T)
    GemmInput hidden, activated;          // (M, 4C) before and behind the GELU
};

struct LayerWeights {
    DeviceWeight qkv, up, down;
    const float *norm1_gain, *norm1_bias, *norm2_gain, *norm2_bias; // (C)
    const float *query_attn, *key_attn;                             // (H, D)
};

struct Fastformer {
    GpuModel base;
    const Config *config;
    const Offsets *offsets;
    LayerWeights *weights; // (L)
    DeviceWeight token;    // (V, C) and the output bias
    Activations *layers;   // (L); without training, or with --recompute, all share one set but for x_in
    float *x_out;          // (M, C) the residual stream behind the last layer
    float *final_mean, *final_rstd;
    GemmInput norm_exact;       // (M, C) float32: what the product for q, k and v reads
    GemmInput norm, final_norm; // (M, C)
    GemmInput hidden_exact;     // (M, 4C) float32 with bf16: what the GELU is taken of
    float *ffn_out;             // (M, C)
    float *attention;           // working memory
    Classifier classifier;

    float *dx, *dnorm;       // (M, C)
    GemmInput dffn_out;      // (M, C)
    GemmInput dhidden, dqkv; // (M, 4C), (M, 3C)
    EmbeddingOrder order;
};

// ---------------------------------------------------------------------------------------------------------------------
// Memory

static AdditiveAttention layer_attention(const Fastformer *f, size_t l) {
    const Config *c = f->config;
    return {c->channels, c->heads,    c->windows[l], c->rescale,
            c->sink,     c->pool_raw, f->base.batch, f->base.length};
}

// All but x_in.
static void activations_carve(Fastformer *f, Activations *a, Arena *arena) {
    const size_t M = gpu_rows(&f->base), C = f->config->channels, H = f->config->heads;
    const bool in_bf16 = f->base.precision == GPU_BF16;
    a->x_middle = arena_array<float>(arena, M * C, "activations");
    a->mean1 = arena_array<float>(arena, M, "activations");
    a->rstd1 = arena_array<float>(arena, M, "activations");
    a->mean2 = arena_array<float>(arena, M, "activations");
    a->rstd2 = arena_array<float>(arena, M, "activations");
    a->qkv = arena_array<float>(arena, M * 3 * C, "activations");
    a->pooled_query = arena_array<float>(arena, M * C, "activations");
    a->pooled_key = arena_array<float>(arena, M * C, "activations");
    a->r_query = arena_array<float>(arena, M * H, "activations");
    a->r_key = arena_array<float>(arena, M * H, "activations");
    a->hidden = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
    a->activated = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
}

static void forward_carve(Fastformer *f, Arena *arena) {
    const GpuModel *g = &f->base;
    const Config *c = f->config;
    const size_t M = gpu_rows(g), C = c->channels;
    const bool in_bf16 = g->precision == GPU_BF16;
    size_t attention = 0;
    for (size_t l = 0; l < c->layers; l++) {
        if (l == 0 || (g->training && !g->recompute))
            activations_carve(f, &f->layers[l], arena);
        else
            f->layers[l] = f->layers[0];
        if (l == 0 || g->training) f->layers[l].x_in = arena_array<float>(arena, M * C, "activations");
        const AdditiveAttention a = layer_attention(f, l);
        const size_t needed = additive_attention_workspace(&g->device, &a, g->training);
        if (needed > attention) attention = needed;
    }
    f->x_out = g->training ? arena_array<float>(arena, M * C, "activations") : f->layers[0].x_in;
    f->final_mean = arena_array<float>(arena, M, "activations");
    f->final_rstd = arena_array<float>(arena, M, "activations");
    f->norm = arena_matrix(arena, M, C, in_bf16, "activations");
    f->norm_exact = in_bf16 ? arena_matrix(arena, M, C, false, "activations") : f->norm;
    f->final_norm = arena_matrix(arena, M, C, in_bf16, "activations");
    if (in_bf16) f->hidden_exact = arena_matrix(arena, M, 4 * C, false, "activations");
    f->ffn_out = arena_array<float>(arena, M * C, "activations");
    f->attention = arena_array<float>(arena, attention, "attention");
    classifier_carve(&f->classifier, arena, &g->device, c->vocabulary, C, M);
}

static void backward_carve(Fastformer *f, Arena *arena) {
    GpuModel *g = &f->base;
    const size_t M = gpu_rows(g), C = f->config->channels, L = f->config->layers;
    const bool in_bf16 = g->precision == GPU_BF16;
    f->dx = arena_array<float>(arena, M * C, "gradients of activations");
    f->dnorm = arena_array<float>(arena, M * C, "gradients of activations");
    f->dffn_out = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
    f->dhidden = arena_matrix(arena, M, 4 * C, in_bf16, "gradients of activations");
    f->dqkv = arena_matrix(arena, M, 3 * C, in_bf16, "gradients of activations");
    const unsigned sums = 2 * (2 * (unsigned)L + 1);         // gain and bias of every LayerNorm
    partial_sums_carve(&g->sums, arena, sums + 1, sums * C); // and the output bias
    embedding_order_carve(&f->order, arena, M, f->config->vocabulary, C);
}

static DeviceWeight weight_at(const ParameterState *s, size_t offset, size_t n, size_t k) {
    return {s->values + offset, s->rounded ? s->rounded + offset : NULL, NULL, NULL, n, k, WEIGHT_OUT_IN};
}

static void weights_find(Fastformer *f) {
    const ParameterState *s = &f->base.state;
    const size_t C = f->config->channels;
    for (size_t l = 0; l < f->config->layers; l++) {
        const LayerOffsets *o = &f->offsets->layers[l];
        f->weights[l] = {weight_at(s, o->qkv.weight, 3 * C, C),
                         weight_at(s, o->ffn.up.weight, 4 * C, C),
                         weight_at(s, o->ffn.down.weight, C, 4 * C),
                         s->values + o->norm.gain,
                         s->values + o->norm.bias,
                         s->values + o->ffn.norm.gain,
                         s->values + o->ffn.norm.bias,
                         s->values + o->query_attn,
                         s->values + o->key_attn};
    }
    f->token = weight_at(s, f->offsets->token, f->config->vocabulary, C);
    f->token.bias = s->values + f->offsets->output_bias;
    if (s->rounded) f->token.bias_rounded = s->rounded + f->offsets->output_bias;
}

static void fastformer_carve(GpuModel *model, Arena *arena) {
    Fastformer *f = (Fastformer *)model;
    forward_carve(f, arena);
    if (model->training) backward_carve(f, arena);
    if (arena->memory) weights_find(f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// From norm_exact, LayerNorm 1 of x_in, to the FFN's activated hidden layer.
static void layer_forward(Fastformer *f, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &f->base;
    const size_t M = batch->batch * batch->length, C = f->config->channels;
    const Activations *a = &f->layers[l];
    const LayerWeights *w = &f->weights[l];
    const AdditiveAttention attention = layer_attention(f, l);
    const DropoutSite query = gpu_dropout(g, work, dropout_site(l, SITE_QUERY)),
                      key = gpu_dropout(g, work, dropout_site(l, SITE_KEY));
    const double square = gpu_square_flops(batch, C);
    gemm_forward(&g->blas, float_matrix(a->qkv, 3 * C), f->norm_exact, w->qkv, M);
    gpu_lap(g, work, "qkv", PROFILE_FORWARD, 3 * square);
    additive_attention_forward(&g->device, &attention, a->x_middle, a->pooled_query, a->r_query,
                               a->pooled_key, a->r_key, a->x_in, a->qkv, w->query_attn, w->key_attn,
                               batch->mask, &query, &key, f->attention, batch->batch, batch->length);
    gpu_lap(g, work, "attention", PROFILE_FORWARD, 0);
    layernorm_forward(&g->device, f->norm, a->mean2, a->rstd2, a->x_middle, w->norm2_gain, w->norm2_bias, M,
                      C);
    gpu_lap(g, work, "norm", PROFILE_FORWARD, 0);
    const GemmInput hidden = g->precision == GPU_BF16 ? f->hidden_exact : a->hidden;
    gemm_forward(&g->blas, hidden, f->norm, w->up, M);
    gpu_lap(g, work, "ffn up", PROFILE_FORWARD, 4 * square);
    gelu_forward(&g->device, a->activated, a->hidden, hidden, GELU_ERF, M, 4 * C);
    gpu_lap(g, work, "gelu", PROFILE_FORWARD, 0);
}

// The FFN's output joins the residual stream, and the next LayerNorm, of layer l + 1 or the final one,
// follows.
static void layer_end(Fastformer *f, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &f->base;
    const size_t M = batch->batch * batch->length, C = f->config->channels;
    const Activations *a = &f->layers[l];
    const DropoutSite site = gpu_dropout(g, work, dropout_site(l, SITE_FFN));
    gemm_forward(&g->blas, float_matrix(f->ffn_out, C), a->activated, f->weights[l].down, M);
    gpu_lap(g, work, "ffn down", PROFILE_FORWARD, 4 * gpu_square_flops(batch, C));
    if (l + 1 < f->config->layers) {
        const Activations *next = &f->layers[l + 1];
        residual_layernorm_forward(&g->device, next->x_in, f->norm_exact, next->mean1, next->rstd1,
                                   a->x_middle, f->ffn_out, f->weights[l + 1].norm1_gain,
                                   f->weights[l + 1].norm1_bias, site, batch->length, M, C);
    } else {
        const float *values = g->state.values;
        residual_layernorm_forward(&g->device, f->x_out, f->final_norm, f->final_mean, f->final_rstd,
                                   a->x_middle, f->ffn_out, values + f->offsets->final_norm.gain,
                                   values + f->offsets->final_norm.bias, site, batch->length, M, C);
    }
    gpu_lap(g, work, "residual, norm", PROFILE_FORWARD, 0);
}

// Leaves the final LayerNorm's output in final_norm.
static void layers_forward(Fastformer *f, GpuWork work, const DeviceBatch *batch) {
    GpuModel *g = &f->base;
    const float *values = g->state.values;
    embedding_layernorm_forward(&g->device, f->layers[0].x_in, f->norm_exact, f->layers[0].mean1,
                                f->layers[0].rstd1, values + f->offsets->token, values + f->offsets->position,
                                batch->inputs, f->weights[0].norm1_gain, f->weights[0].norm1_bias,
                                gpu_dropout(g, work, dropout_site(0, SITE_EMBEDDING)), batch->batch,
                                batch->length, f->config->channels);
    gpu_lap(g, work, "embedding", PROFILE_FORWARD, 0);
    for (size_t l = 0; l < f->config->layers; l++) {
        layer_forward(f, work, batch, l);
        layer_end(f, work, batch, l);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// What layer_forward() left, again, from x_in.
static void layer_again(Fastformer *f, const DeviceBatch *batch, size_t l) {
    const Activations *a = &f->layers[l];
    layernorm_forward(&f->base.device, f->norm_exact, a->mean1, a->rstd1, a->x_in, f->weights[l].norm1_gain,
                      f->weights[l].norm1_bias, batch->batch * batch->length, f->config->channels);
    layer_forward(f, GPU_TRAIN, batch, l);
}

// From dffn_out, the gradient to the FFN's output, and dx, that to the residual stream behind it.
static void ffn_backward(Fastformer *f, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &f->base;
    const size_t M = batch->batch * batch->length, C = f->config->channels;
    const Activations *a = &f->layers[l];
    const LayerWeights *w = &f->weights[l];
    const LayerOffsets *o = &f->offsets->layers[l];
    float *gradients = g->state.gradients;
    const double square = gpu_square_flops(batch, C);
    gemm_backward_input(&g->blas, f->dhidden, f->dffn_out, w->down, M);
    gemm_backward_weight(&g->blas, gradients + o->ffn.down.weight, f->dffn_out, a->activated, w->down, M);
    gpu_lap(g, GPU_TRAIN, "ffn down", PROFILE_BACKWARD, 8 * square);
    gelu_backward(&g->device, f->dhidden, f->dhidden, a->hidden, GELU_ERF, M, 4 * C);
    gpu_lap(g, GPU_TRAIN, "gelu", PROFILE_BACKWARD, 0);
    gemm_backward_input(&g->blas, float_matrix(f->dnorm, C), f->dhidden, w->up, M);
    gpu_lap(g, GPU_TRAIN, "ffn up", PROFILE_BACKWARD, 4 * square);
    LayerNormTail tail = layernorm_no_tail();
    tail.norm = f->norm;
    layernorm_backward(&g->device, &g->sums, f->dx, gradients + o->ffn.norm.gain,
                       gradients + o->ffn.norm.bias, f->dnorm, a->x_middle, w->norm2_gain, w->norm2_bias,
                       a->mean2, a->rstd2, false, tail, M, C);
    gpu_lap(g, GPU_TRAIN, "norm", PROFILE_BACKWARD, 0);
    gemm_backward_weight(&g->blas, gradients + o->ffn.up.weight, f->dhidden, f->norm, w->up, M);
    gpu_lap(g, GPU_TRAIN, "ffn up", PROFILE_BACKWARD, 4 * square);
}

// From dx behind the attention to dx before it, and dffn_out of the layer below.
static void attention_backward(Fastformer *f, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &f->base;
    const size_t M = batch->batch * batch->length, C = f->config->channels;
    const Activations *a = &f->layers[l];
    const LayerWeights *w = &f->weights[l];
    const LayerOffsets *o = &f->offsets->layers[l];
    float *gradients = g->state.gradients;
    const AdditiveAttention attention = layer_attention(f, l);
    const DropoutSite query = gpu_dropout(g, GPU_TRAIN, dropout_site(l, SITE_QUERY)),
                      key = gpu_dropout(g, GPU_TRAIN, dropout_site(l, SITE_KEY));
    additive_attention_backward(&g->device, &attention, f->dqkv, gradients + o->query_attn,
                                gradients + o->key_attn, f->dx, a->pooled_query, a->r_query, a->pooled_key,
                                a->r_key, a->qkv, w->query_attn, w->key_attn, batch->mask, &query, &key,
                                f->attention, batch->batch, batch->length);
    gpu_lap(g, GPU_TRAIN, "attention", PROFILE_BACKWARD, 0);
    gemm_backward_input(&g->blas, float_matrix(f->dnorm, C), f->dqkv, w->qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * gpu_square_flops(batch, C));
    LayerNormTail tail = layernorm_no_tail();
    tail.norm = f->norm;
    if (l > 0) {
        tail.dbelow = f->dffn_out;
        tail.site = gpu_dropout(g, GPU_TRAIN, dropout_site(l - 1, SITE_FFN));
        tail.length = batch->length;
    }
    layernorm_backward(&g->device, &g->sums, f->dx, gradients + o->norm.gain, gradients + o->norm.bias,
                       f->dnorm, a->x_in, w->norm1_gain, w->norm1_bias, a->mean1, a->rstd1, false, tail, M,
                       C);
    gpu_lap(g, GPU_TRAIN, "residual, norm", PROFILE_BACKWARD, 0);
    gemm_backward_weight(&g->blas, gradients + o->qkv.weight, f->dqkv, f->norm, w->qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * gpu_square_flops(batch, C));
}

// From dnorm, the gradient to the final LayerNorm's output, to dx behind the embedding's dropout and the
// gradient of positions; that of tokens is token_backward()'s.
static void layers_backward(Fastformer *f, const DeviceBatch *batch) {
    GpuModel *g = &f->base;
    const size_t M = batch->batch * batch->length, C = f->config->channels, L = f->config->layers;
    const float *values = g->state.values;
    float *gradients = g->state.gradients;
    LayerNormTail tail = layernorm_no_tail();
    tail.dbelow = f->dffn_out;
    tail.site = gpu_dropout(g, GPU_TRAIN, dropout_site(L - 1, SITE_FFN));
    tail.length = batch->length;
    layernorm_backward(&g->device, &g->sums, f->dx, gradients + f->offsets->final_norm.gain,
                       gradients + f->offsets->final_norm.bias, f->dnorm, f->x_out,
                       values + f->offsets->final_norm.gain, values + f->offsets->final_norm.bias,
                       f->final_mean, f->final_rstd, true, tail, M, C);
    gpu_lap(g, GPU_TRAIN, "residual, norm", PROFILE_BACKWARD, 0);
    for (size_t l = L; l-- > 0;) {
        if (g->recompute && l + 1 < L) layer_again(f, batch, l);
        ffn_backward(f, batch, l);
        attention_backward(f, batch, l);
    }
    position_backward(&g->device, gradients + f->offsets->position, f->dx,
                      gpu_dropout(g, GPU_TRAIN, dropout_site(0, SITE_EMBEDDING)), batch->batch, batch->length,
                      C);
    gpu_lap(g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
}

static void fastformer_run(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    Fastformer *f = (Fastformer *)g;
    const size_t M = batch->batch * batch->length, C = f->config->channels;
    layers_forward(f, work, batch);
    if (work == GPU_FORWARD) {
        classifier_forward(&g->device, &g->blas, &f->classifier, f->final_norm, f->token, batch->targets, M,
                           g->results);
        return;
    }
    classifier_train(&g->device, &g->blas, &g->sums, &f->classifier, f->final_norm, f->token, batch->targets,
                     M, gpu_step(g), float_matrix(f->dnorm, C), g->state.gradients + f->offsets->token,
                     g->state.gradients + f->offsets->output_bias, g->results);
    gpu_lap(g, work, "classifier", PROFILE_STEP, 6 * (double)M * (double)f->config->vocabulary * (double)C);
    layers_backward(f, batch);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the training loop calls

static void *fastformer_create(const ModelSetup *setup) {
    Fastformer *f = (Fastformer *)allocate(1, sizeof(Fastformer), "model");
    gpu_model_create(&f->base, &fastformer, setup);
    f->base.run = fastformer_run;
    f->base.carve = fastformer_carve;
    f->config = fastformer_config(f->base.host);
    f->offsets = fastformer_offsets(f->base.host);
    f->weights = (LayerWeights *)allocate(f->config->layers, sizeof(LayerWeights), "layers");
    f->layers = (Activations *)allocate(f->config->layers, sizeof(Activations), "layers");
    gpu_memory_create(&f->base);
    return f;
}

static void fastformer_destroy(void *model) {
    Fastformer *f = (Fastformer *)model;
    gpu_model_destroy(&f->base);
    embedding_order_free(&f->order);
    free(f->weights);
    free(f->layers);
    free(f);
}

static double fastformer_train(void *model, const Batch *batch, double scale) {
    Fastformer *f = (Fastformer *)model;
    GpuModel *g = &f->base;
    const DeviceBatch staged = gpu_stage(g, batch, scale);
    gpu_launch(g, GPU_TRAIN, &staged);
    token_backward(&g->device, &f->order, g->state.gradients + f->offsets->token, f->dx, batch->inputs,
                   f->config->padding, staged.batch * staged.length, f->config->channels);
    return gpu_finish_training(g);
}

static void fastformer_logits(void *model, const Batch *batch, float *logits) {
    Fastformer *f = (Fastformer *)model;
    GpuModel *g = &f->base;
    const DeviceBatch staged = gpu_stage(g, batch, 0);
    gpu_issue(g, GPU_FORWARD, &staged); // the loss is of no use here
    classifier_logits(&g->device, &g->blas, &f->classifier, f->final_norm, f->token,
                      staged.batch * staged.length, logits);
}

static ModelType fastformer_on_gpu() {
    ModelType type = gpu_model_type(&fastformer, "train_fastformercu");
    type.create = fastformer_create;
    type.destroy = fastformer_destroy;
    type.train = fastformer_train;
    type.logits = fastformer_logits;
    return type;
}

#ifndef TESTING
int main(int argc, char **argv) {
    ModelType type = fastformer_on_gpu();
    const int code = train_main(argc, argv, &type);
    gpu_model_type_free(&type);
    return code;
}
#endif
