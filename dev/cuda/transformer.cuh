// What both decoders on the GPU share, pre-norm: embedding, normalisation, queries, keys and values, the
// feed-forward network, final norm and classifier, with their memory, --profile's laps and the entries of
// ModelType that need them. A model adds what attends: between q, k, v and the residual stream behind
// attention, of which the next LayerNorm is made in the same kernel. It holds a Transformer as its first
// member.
//
// B batch, T sequence length, M = B*T, C channels, F = 4C inside the feed-forward network, V vocabulary, L
// layers.
#ifndef CUDA_TRANSFORMER_CUH
#define CUDA_TRANSFORMER_CUH

#include "classifier.cuh"
#include "embedding.cuh"
#include "gelu.cuh"
#include "gpu_model.cuh"
#include "residual.cuh"
extern "C" {
#include "layer_parameters.h"
#include "train.h"
}

// Of a layer: where its parameters lie, and the sites of its dropout.
struct TransformerLayer {
    NormParameters norm;
    LinearParameters qkv;
    FfnParameters ffn;
    uint32_t ffn_site;
    bool projects; // a product follows attention, and dropout at this site
    uint32_t projection_site;
};

// What a model is, constant once it is created.
struct TransformerShape {
    size_t layers, channels, vocabulary;
    OuterParameters outer;
    int32_t padding; // the token whose row takes no gradient; -1: none
    uint32_t embedding_site;
    ActivationKind activation;
    bool exact_qkv;            // q, k and v are float32, and made of float32
    unsigned layer_sums;       // sums over rows that a layer needs beside those of its two norms,
    size_t layer_sum_channels; // and how many C they have together
};

// What a layer's forward pass leaves for its backward pass.
struct TransformerActivations {
    float *x_in, *x_middle;               // (M, C) the residual stream before attention and before the FFN
    float *mean1, *rstd1, *mean2, *rstd2; // (M)
    GemmInput qkv;                        // (M, 3C)
    GemmInput hidden, activated;          // (M, F) before and behind the GELU
};

struct Transformer;

// What a model adds.
struct TransformerAttention {
    // From qkv and x_in to x_middle, and `norm`, LayerNorm 2 of it.
    void (*forward)(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l);
    // From dx, and dsublayer_out where there is a projection, to dqkv.
    void (*backward)(Transformer *t, const DeviceBatch *batch, size_t l);
    // The model's own arrays of a layer, shared with layer 0 unless `own`.
    void (*carve_layer)(Transformer *t, Arena *arena, size_t l, bool own);
    void (*carve_backward)(Transformer *t, Arena *arena); // gradients of its own
    size_t (*workspace)(const Transformer *t, size_t l);  // floats
};

struct Transformer {
    GpuModel base;
    TransformerShape is;
    TransformerLayer *plan;         // (L)
    TransformerActivations *layers; // (L); without training, or with --recompute, all share one set but x_in
    float *x_out;                   // (M, C) the residual stream behind the last layer
    float *final_mean, *final_rstd; // (M)
    GemmInput norm_qkv;             // (M, C) what the product for q, k and v reads
    GemmInput norm, final_norm;     // (M, C)
    GemmInput hidden_exact;         // (M, F) float32, with bf16: what the erf form of GELU is taken of
    float *sublayer_out;            // (M, C)
    float *attention;               // working memory
    Classifier classifier;

    float *dx, *dnorm;       // (M, C)
    GemmInput dsublayer_out; // (M, C)
    GemmInput dhidden, dqkv; // (M, F), (M, 3C)
    EmbeddingOrder order;

    const TransformerAttention *attend;
};

// ---- parameters ------------------------------------------------------------------------------------------

static inline const float *transformer_values(const Transformer *t, size_t offset) {
    return t->base.state.values + offset;
}

static inline float *transformer_gradients(const Transformer *t, size_t offset) {
    return t->base.state.gradients + offset;
}

static inline DeviceWeight device_weight(const Transformer *t, const LinearParameters *at) {
    const ParameterState *s = &t->base.state;
    const bool bias = at->bias != NO_PARAMETER;
    return {s->values + at->weight,
            s->rounded ? s->rounded + at->weight : NULL,
            bias ? s->values + at->bias : NULL,
            bias && s->rounded ? s->rounded + at->bias : NULL,
            at->shape.outputs,
            at->shape.inputs,
            at->shape.layout};
}

// The output layer: the token embedding, transposed.
static inline DeviceWeight output_weight(const Transformer *t) {
    LinearParameters at = {};
    at.shape.outputs = t->is.vocabulary;
    at.shape.inputs = t->is.channels;
    at.shape.layout = WEIGHT_OUT_IN;
    at.weight = t->is.outer.token;
    at.bias = t->is.outer.bias;
    return device_weight(t, &at);
}

// ---- memory ----------------------------------------------------------------------------------------------

// All but x_in.
static inline void activations_carve(Transformer *t, TransformerActivations *a, Arena *arena) {
    const size_t M = gpu_rows(&t->base), C = t->is.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    a->x_middle = arena_array<float>(arena, M * C, "activations");
    a->mean1 = arena_array<float>(arena, M, "activations");
    a->rstd1 = arena_array<float>(arena, M, "activations");
    a->mean2 = arena_array<float>(arena, M, "activations");
    a->rstd2 = arena_array<float>(arena, M, "activations");
    a->qkv = arena_matrix(arena, M, 3 * C, in_bf16 && !t->is.exact_qkv, "activations");
    a->hidden = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
    a->activated = arena_matrix(arena, M, 4 * C, in_bf16, "activations");
}

static inline void transformer_carve(GpuModel *model, Arena *arena) {
    Transformer *t = (Transformer *)model;
    const size_t M = gpu_rows(model), C = t->is.channels;
    const bool in_bf16 = model->precision == GPU_BF16, keep = model->training && !model->recompute;
    size_t attention = 0;
    for (size_t l = 0; l < t->is.layers; l++) {
        const bool own = l == 0 || keep;
        if (own)
            activations_carve(t, &t->layers[l], arena);
        else
            t->layers[l] = t->layers[0];
        if (l == 0 || model->training) t->layers[l].x_in = arena_array<float>(arena, M * C, "activations");
        t->attend->carve_layer(t, arena, l, own);
        const size_t needed = t->attend->workspace(t, l);
        if (needed > attention) attention = needed;
    }
    t->x_out = model->training ? arena_array<float>(arena, M * C, "activations") : t->layers[0].x_in;
    t->final_mean = arena_array<float>(arena, M, "activations");
    t->final_rstd = arena_array<float>(arena, M, "activations");
    t->norm = arena_matrix(arena, M, C, in_bf16, "activations");
    t->norm_qkv = in_bf16 && t->is.exact_qkv ? arena_matrix(arena, M, C, false, "activations") : t->norm;
    t->final_norm = arena_matrix(arena, M, C, in_bf16, "activations");
    if (in_bf16 && t->is.activation == GELU_ERF)
        t->hidden_exact = arena_matrix(arena, M, 4 * C, false, "activations");
    t->sublayer_out = arena_array<float>(arena, M * C, "activations");
    t->attention = arena_array<float>(arena, attention, "attention");
    classifier_carve(&t->classifier, arena, &model->device, t->is.vocabulary, C, M);
    if (!model->training) return;
    t->dx = arena_array<float>(arena, M * C, "gradients of activations");
    t->dnorm = arena_array<float>(arena, M * C, "gradients of activations");
    t->dsublayer_out = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
    t->dhidden = arena_matrix(arena, M, 4 * C, in_bf16, "gradients of activations");
    t->dqkv = arena_matrix(arena, M, 3 * C, in_bf16, "gradients of activations");
    t->attend->carve_backward(t, arena);
    // Gain and bias of every LayerNorm, what else layers need, and the output bias.
    const size_t norms = 2 * (2 * t->is.layers + 1);
    partial_sums_carve(&model->sums, arena, (unsigned)(norms + t->is.layers * t->is.layer_sums + 1),
                       (norms + t->is.layers * t->is.layer_sum_channels) * C);
    embedding_order_carve(&t->order, arena, M, t->is.vocabulary, C);
}

// ---- forward ---------------------------------------------------------------------------------------------

// `norm`, LayerNorm of x.
static inline void norm_forward(Transformer *t, const NormParameters *at, GemmInput norm, float *mean,
                                float *rstd, const float *x, size_t m) {
    layernorm_forward(&t->base.device, norm, mean, rstd, x, transformer_values(t, at->gain),
                      transformer_values(t, at->bias), m, t->is.channels);
}

// out = x + dropout(sublayer_out), and its LayerNorm.
static inline void residual_norm_forward(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                         uint32_t site, const NormParameters *at, float *out, GemmInput norm,
                                         float *mean, float *rstd, const float *x) {
    residual_layernorm_forward(&t->base.device, out, norm, mean, rstd, x, t->sublayer_out,
                               transformer_values(t, at->gain), transformer_values(t, at->bias),
                               gpu_dropout(&t->base, work, site), batch->length, batch->batch * batch->length,
                               t->is.channels);
    gpu_lap(&t->base, work, "residual, norm", PROFILE_FORWARD, 0);
}

// From norm_qkv, LayerNorm 1 of x_in, to the FFN's activated hidden layer.
static inline void layer_forward(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = t->is.channels;
    const TransformerActivations *a = &t->layers[l];
    const DeviceWeight up = device_weight(t, &t->plan[l].ffn.up);
    const double square = gpu_square_flops(batch, C);
    gemm_forward(&g->blas, a->qkv, t->norm_qkv, device_weight(t, &t->plan[l].qkv), M);
    gpu_lap(g, work, "qkv", PROFILE_FORWARD, 3 * square);
    t->attend->forward(t, work, batch, l);
    if (t->is.activation == GELU_TANH) {
        gemm_forward_gelu(&g->blas, a->activated, a->hidden, t->norm, up, M);
        gpu_lap(g, work, "ffn up, activation", PROFILE_FORWARD, 4 * square);
        return;
    }
    const GemmInput hidden = g->precision == GPU_BF16 ? t->hidden_exact : a->hidden;
    gemm_forward(&g->blas, hidden, t->norm, up, M);
    gpu_lap(g, work, "ffn up", PROFILE_FORWARD, 4 * square);
    gelu_forward(&g->device, a->activated, a->hidden, hidden, t->is.activation, M, 4 * C);
    gpu_lap(g, work, "activation", PROFILE_FORWARD, 0);
}

// The FFN's output joins the residual stream, and the next LayerNorm, of layer l + 1 or the final one,
// follows.
static inline void layer_end(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    const TransformerActivations *a = &t->layers[l], *next = a + 1;
    const uint32_t site = t->plan[l].ffn_site;
    gemm_forward(&g->blas, float_matrix(t->sublayer_out, t->is.channels), a->activated,
                 device_weight(t, &t->plan[l].ffn.down), batch->batch * batch->length);
    gpu_lap(g, work, "ffn down", PROFILE_FORWARD, 4 * gpu_square_flops(batch, t->is.channels));
    if (l + 1 < t->is.layers)
        residual_norm_forward(t, work, batch, site, &t->plan[l + 1].norm, next->x_in, t->norm_qkv,
                              next->mean1, next->rstd1, a->x_middle);
    else
        residual_norm_forward(t, work, batch, site, &t->is.outer.norm, t->x_out, t->final_norm, t->final_mean,
                              t->final_rstd, a->x_middle);
}

// Leaves the final LayerNorm's output in final_norm.
static inline void layers_forward(Transformer *t, GpuWork work, const DeviceBatch *batch) {
    GpuModel *g = &t->base;
    const TransformerActivations *first = &t->layers[0];
    const NormParameters *norm = &t->plan[0].norm;
    embedding_layernorm_forward(
        &g->device, first->x_in, t->norm_qkv, first->mean1, first->rstd1,
        transformer_values(t, t->is.outer.token), transformer_values(t, t->is.outer.position), batch->inputs,
        transformer_values(t, norm->gain), transformer_values(t, norm->bias),
        gpu_dropout(g, work, t->is.embedding_site), batch->batch, batch->length, t->is.channels);
    gpu_lap(g, work, "embedding", PROFILE_FORWARD, 0);
    for (size_t l = 0; l < t->is.layers; l++) {
        layer_forward(t, work, batch, l);
        layer_end(t, work, batch, l);
    }
}

// ---- backward --------------------------------------------------------------------------------------------

// Behind a LayerNorm's backward pass: its output again where `again`; and where `below`, the gradient to the
// sublayer's output that was added to its input, in dsublayer_out.
static inline LayerNormTail norm_tail(const Transformer *t, const DeviceBatch *batch, bool again, bool below,
                                      uint32_t site) {
    LayerNormTail tail = layernorm_no_tail();
    if (again) tail.norm = t->norm;
    if (below) {
        tail.dbelow = t->dsublayer_out;
        tail.site = gpu_dropout(&t->base, GPU_TRAIN, site);
        tail.length = batch->length;
    }
    return tail;
}

// dx += the gradient to x, or = it where `first`, from dnorm.
static inline void norm_backward(Transformer *t, const DeviceBatch *batch, const NormParameters *at,
                                 const float *x, const float *mean, const float *rstd, bool first,
                                 LayerNormTail tail) {
    layernorm_backward(&t->base.device, &t->base.sums, t->dx, transformer_gradients(t, at->gain),
                       transformer_gradients(t, at->bias), t->dnorm, x, transformer_values(t, at->gain),
                       transformer_values(t, at->bias), mean, rstd, first, tail, batch->batch * batch->length,
                       t->is.channels);
    gpu_lap(&t->base, GPU_TRAIN, tail.dbelow.data ? "residual, norm" : "norm", PROFILE_BACKWARD, 0);
}

// The gradient of a product's bias, where it has one, from that to its result.
static inline void bias_backward(Transformer *t, const LinearParameters *at, GemmInput dy, size_t m) {
    if (at->bias == NO_PARAMETER) return;
    column_sums(&t->base.device, &t->base.sums, transformer_gradients(t, at->bias), dy, m, at->shape.outputs);
    gpu_lap(&t->base, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
}

// What layer_forward() left, again, from x_in.
static inline void layer_again(Transformer *t, const DeviceBatch *batch, size_t l) {
    const TransformerActivations *a = &t->layers[l];
    norm_forward(t, &t->plan[l].norm, t->norm_qkv, a->mean1, a->rstd1, a->x_in, batch->batch * batch->length);
    layer_forward(t, GPU_TRAIN, batch, l);
}

// From dsublayer_out, the gradient to the FFN's output, and dx, that to the residual stream behind it, to dx
// before it, and dsublayer_out of the projection.
static inline void ffn_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    Blas *blas = &g->blas;
    const size_t M = batch->batch * batch->length, C = t->is.channels;
    const TransformerActivations *a = &t->layers[l];
    const TransformerLayer *o = &t->plan[l];
    const DeviceWeight up = device_weight(t, &o->ffn.up), down = device_weight(t, &o->ffn.down);
    const bool fused = t->is.activation == GELU_TANH;
    const char *up_kind = fused ? "ffn up, activation" : "ffn up";
    const double square = gpu_square_flops(batch, C);
    bias_backward(t, &o->ffn.down, t->dsublayer_out, M);
    if (fused)
        gemm_backward_input_gelu(blas, t->dhidden, t->dsublayer_out, down, a->hidden, M);
    else
        gemm_backward_input(blas, t->dhidden, t->dsublayer_out, down, M);
    gemm_backward_weight(blas, transformer_gradients(t, o->ffn.down.weight), t->dsublayer_out, a->activated,
                         down, M);
    gpu_lap(g, GPU_TRAIN, "ffn down", PROFILE_BACKWARD, 8 * square);
    if (!fused) {
        gelu_backward(&g->device, t->dhidden, t->dhidden, a->hidden, t->is.activation, M, 4 * C);
        gpu_lap(g, GPU_TRAIN, "activation", PROFILE_BACKWARD, 0);
    }
    bias_backward(t, &o->ffn.up, t->dhidden, M);
    gemm_backward_input(blas, float_matrix(t->dnorm, C), t->dhidden, up, M);
    gpu_lap(g, GPU_TRAIN, up_kind, PROFILE_BACKWARD, 4 * square);
    norm_backward(t, batch, &o->ffn.norm, a->x_middle, a->mean2, a->rstd2, false,
                  norm_tail(t, batch, true, o->projects, o->projection_site));
    gemm_backward_weight(blas, transformer_gradients(t, o->ffn.up.weight), t->dhidden, t->norm, up, M);
    gpu_lap(g, GPU_TRAIN, up_kind, PROFILE_BACKWARD, 4 * square);
}

// From dx behind attention to dx before it, and dsublayer_out of the layer below.
static inline void attention_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = t->is.channels;
    const TransformerActivations *a = &t->layers[l];
    const TransformerLayer *o = &t->plan[l];
    const DeviceWeight qkv = device_weight(t, &o->qkv);
    const double square = gpu_square_flops(batch, C);
    t->attend->backward(t, batch, l);
    gemm_backward_input(&g->blas, float_matrix(t->dnorm, C), t->dqkv, qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * square);
    norm_backward(t, batch, &o->norm, a->x_in, a->mean1, a->rstd1, false,
                  norm_tail(t, batch, true, l > 0, l > 0 ? t->plan[l - 1].ffn_site : 0));
    gemm_backward_weight(&g->blas, transformer_gradients(t, o->qkv.weight), t->dqkv, t->norm, qkv, M);
    gpu_lap(g, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * square);
}

// From dnorm, the gradient to the final LayerNorm's output, to dx behind the embedding's dropout and the
// gradient of positions; that of tokens is token_backward()'s.
static inline void layers_backward(Transformer *t, const DeviceBatch *batch) {
    GpuModel *g = &t->base;
    const size_t L = t->is.layers;
    norm_backward(t, batch, &t->is.outer.norm, t->x_out, t->final_mean, t->final_rstd, true,
                  norm_tail(t, batch, false, true, t->plan[L - 1].ffn_site));
    for (size_t l = L; l-- > 0;) {
        if (g->recompute && l + 1 < L) layer_again(t, batch, l);
        ffn_backward(t, batch, l);
        attention_backward(t, batch, l);
        gpu_gradients_final(g, batch, t->plan[l].norm.gain,
                            l + 1 < L ? t->plan[l + 1].norm.gain : g->state.total);
    }
    position_backward(&g->device, transformer_gradients(t, t->is.outer.position), t->dx,
                      gpu_dropout(g, GPU_TRAIN, t->is.embedding_site), batch->batch, batch->length,
                      t->is.channels);
    gpu_lap(g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
}

// ---- what the training loop calls ------------------------------------------------------------------------

static inline void transformer_run(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    Transformer *t = (Transformer *)g;
    const size_t M = batch->batch * batch->length, C = t->is.channels;
    const bool bias = t->is.outer.bias != NO_PARAMETER;
    layers_forward(t, work, batch);
    if (work == GPU_FORWARD) {
        classifier_forward(&g->device, &g->blas, &t->classifier, t->final_norm, output_weight(t),
                           batch->targets, M, g->results);
        return;
    }
    classifier_train(&g->device, &g->blas, &g->sums, &t->classifier, t->final_norm, output_weight(t),
                     batch->targets, M, gpu_step(g), float_matrix(t->dnorm, C),
                     transformer_gradients(t, t->is.outer.token),
                     bias ? transformer_gradients(t, t->is.outer.bias) : NULL, g->results);
    gpu_lap(g, work, "classifier", PROFILE_STEP, 6 * (double)M * (double)t->is.vocabulary * (double)C);
    layers_backward(t, batch);
}

// What the models' Config and Offsets have in common.
template <typename Config, typename Offsets>
static inline TransformerShape transformer_shape(const Config *c, const Offsets *o, uint32_t embedding_site) {
    TransformerShape is = {};
    is.layers = c->size.layers;
    is.channels = c->size.channels;
    is.vocabulary = c->size.vocabulary;
    is.outer = o->outer;
    is.padding = -1;
    is.embedding_site = embedding_site;
    return is;
}

// A model that begins with a Transformer: the host's model checks the options. transformer_create() follows.
template <typename Model>
static inline Model *transformer_allocate(const ModelType *host, const ModelSetup *setup) {
    Model *model = (Model *)allocate(1, sizeof(Model), "model");
    gpu_model_create(&model->base.base, host, setup);
    return model;
}

// Memory. layer(l): where its parameters lie.
template <typename Layer>
static inline void transformer_create(Transformer *t, TransformerShape is, const TransformerAttention *attend,
                                      Layer layer) {
    t->is = is;
    t->attend = attend;
    t->plan = (TransformerLayer *)allocate(is.layers, sizeof(TransformerLayer), "layers");
    for (size_t l = 0; l < is.layers; l++) t->plan[l] = layer(l);
    t->layers = (TransformerActivations *)allocate(is.layers, sizeof(TransformerActivations), "layers");
    t->base.run = transformer_run;
    t->base.carve = transformer_carve;
    t->base.given_from = t->plan[0].norm.gain;
    gpu_memory_create(&t->base);
}

static inline void transformer_destroy(Transformer *t) {
    gpu_model_destroy(&t->base);
    embedding_order_free(&t->order);
    free(t->plan);
    free(t->layers);
}

static inline double transformer_train(void *model, const Batch *batch, double scale) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    const DeviceBatch staged = gpu_stage(g, batch, scale);
    gpu_launch(g, GPU_TRAIN, &staged);
    token_backward(&g->device, &t->order, transformer_gradients(t, t->is.outer.token), t->dx, batch->inputs,
                   t->is.padding, staged.batch * staged.length, t->is.channels);
    return gpu_finish_training(g);
}

static inline void transformer_logits(void *model, const Batch *batch, float *logits) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    const DeviceBatch staged = gpu_stage(g, batch, 0);
    gpu_issue(g, GPU_FORWARD, &staged); // the loss is of no use here
    classifier_logits(&g->device, &g->blas, &t->classifier, t->final_norm, output_weight(t),
                      staged.batch * staged.length, logits);
}

// The CPU's entries, those of any model on the GPU, and a transformer's.
static inline ModelType transformer_type(const ModelType *host, const char *program,
                                         void *(*create)(const ModelSetup *), void (*destroy)(void *)) {
    ModelType type = gpu_model_type(host, program);
    type.create = create;
    type.destroy = destroy;
    type.train = transformer_train;
    type.logits = transformer_logits;
    return type;
}

static inline int transformer_main(int argc, char **argv, ModelType type) {
    const int code = train_main(argc, argv, &type);
    gpu_model_type_free(&type);
    return code;
}

// The main() of a model's program; a test includes its source and has one of its own.
#ifdef TESTING
#define TRANSFORMER_MAIN(type)
#else
#define TRANSFORMER_MAIN(type)                                                                               \
    int main(int argc, char **argv) {                                                                        \
        return transformer_main(argc, argv, type);                                                           \
    }
#endif

#endif
