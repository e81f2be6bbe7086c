// The encoder-decoder Transformer on the GPU: the model of train_translate.c, whose options,
// parameters, decoding, statistics and description it takes; forward and backward pass in CUDA.
// Both programs read and write the same checkpoints, and drop the same elements.
//
// B sentences; M = B*T rows of the target, N = B*S of the source, C channels, H heads. Layers count
// through both stacks, the encoder's first.
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual
// stream, statistics and gradients of parameters are float32.

#include "self_attention.cuh"
extern "C" {
#include "embedding.h"
#include "train.h"
#include "translate.h"
}

// What the cross-attention of a decoder's layer keeps for its backward pass.
struct Crossed {
    float *x;           // (M, C) what is normalised before it
    float *mean, *rstd; // (M)
    Matrix query;       // (M, C)
    Matrix key_value;   // (N, 2C)
    Attended attended;
    Matrix dquery,
        dkey_value; // (M, C), (N, 2C); these and `norm` shared or not as LayerGradients are
    Matrix norm;    // (M, C) what the product for queries read, again
};

struct Translate {
    SelfAttention base;
    const TranslateConfig *config;
    const TranslateParameters *offsets;
    TransformerParameters *layers; // (encoder_layers + decoder_layers) self-attention and FFN
    Crossed *crossed;              // (decoder_layers)
    float *sinusoids;              // (positions, C)
};

// ---- parameters -------------------------------------------------------------

static const CrossAttentionParameters *cross_parameters(const Translate *m, size_t l) {
    return &m->offsets->decoder[l - m->config->encoder_layers].cross;
}

// The norm before a layer's cross-attention: post-norm, that after its self-attention.
static const NormParameters *cross_norm(const Translate *m, size_t l) {
    return m->config->order == POST_NORM ? &m->layers[l].attention.norm
                                         : &cross_parameters(m, l)->norm;
}

// Dropout of a layer of the decoder.
static uint32_t layer_site(const Translate *m, size_t l, uint32_t site) {
    return decoder_site(m->config, l - m->config->encoder_layers, site);
}

// ---- memory -----------------------------------------------------------------

static void carve_layer(Transformer *t, DeviceArena *arena, size_t l, bool own) {
    Translate *m = (Translate *)t;
    const size_t M = gpu_rows(&t->base), C = t->shape.channels, first = m->config->encoder_layers;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    self_attention_carve_layer(t, arena, l, own);
    if (l < first) return;
    Crossed *crossed = &m->crossed[l - first];
    if (!own && l > first) {
        *crossed = m->crossed[0];
        return;
    }
    crossed->x = arena_array<float>(arena, M * C, "activations");
    crossed->mean = arena_array<float>(arena, M, "activations");
    crossed->rstd = arena_array<float>(arena, M, "activations");
    crossed->query = arena_matrix(arena, M, C, in_bf16, "activations");
    crossed->key_value = arena_matrix(arena, M, 2 * C, in_bf16, "activations");
    crossed->attended = attended_carve(&m->base, arena);
}

static void carve(Transformer *t, DeviceArena *arena) {
    Translate *m = (Translate *)t;
    const size_t M = gpu_rows(&t->base), C = t->shape.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    self_attention_carve(t, arena);
    m->sinusoids = arena_array<float>(arena, m->config->positions * C, "positions");
    t->sinusoids = m->sinusoids;
    for (size_t l = 0; t->base.training && l < m->config->decoder_layers; l++) {
        Crossed *crossed = &m->crossed[l];
        if (l > 0 && !t->groups_weights) {
            crossed->dquery = m->crossed[0].dquery;
            crossed->dkey_value = m->crossed[0].dkey_value;
            crossed->norm = t->norm;
            continue;
        }
        crossed->dquery = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
        crossed->dkey_value = arena_matrix(arena, M, 2 * C, in_bf16, "gradients of activations");
        crossed->norm = gradients_matrix(t, arena, t->norm);
        LayerGradients *d = &t->gradients[m->config->encoder_layers + l];
        d->before_ffn = gradients_matrix(t, arena, d->ffn);
    }
}

// ---- the decoder's attention: to its own tokens, then to the encoder's result ----

static AttentionSublayer cross_sublayer(const Translate *m, GpuWork work, const DeviceBatch *batch,
                                        size_t l) {
    const GpuModel *g = &m->base.base.base;
    const CrossAttentionParameters *parameters = cross_parameters(m, l);
    const Crossed *crossed = &m->crossed[l - m->config->encoder_layers];
    DeviceAttentionInput in =
        attention_cross(crossed->query, crossed->key_value, m->config->heads, batch->source.mask,
                        batch->batch, batch->length, batch->source.length);
    in.dropout = gpu_dropout_of(g, work, g->attention_dropout, layer_site(m, l, 2));
    return {&m->base.kind,           in,
            &parameters->projection, parameters->exponent,
            crossed->attended,       m->base.base.gradients[l].before_ffn};
}

// FLOP of the products of queries, and of keys and values.
static double cross_flops(const Translate *m, const DeviceBatch *batch) {
    const double C = (double)m->config->channels;
    return 2 * (double)batch->batch * ((double)batch->length + 2 * (double)batch->source.length) *
           C * C;
}

static void attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const Translate *m = (const Translate *)t;
    if (l < m->config->encoder_layers) {
        self_attend(t, work, batch, l);
        return;
    }
    GpuModel *g = &t->base;
    const TransformerActivations *a = &t->layers[l];
    const CrossAttentionParameters *parameters = cross_parameters(m, l);
    const Crossed *crossed = &m->crossed[l - m->config->encoder_layers];
    const AttentionSublayer self = self_attention_sublayer(&m->base, work, batch, l),
                            cross = cross_sublayer(m, work, batch, l);
    attention_sublayer_forward(t, work, &self);
    residual_norm_forward(t, work, batch, layer_site(m, l, 1), cross_norm(m, l),
                          {crossed->x, t->norm, crossed->mean, crossed->rstd, a->x_in});
    gemm_forward(&g->blas, crossed->query, t->norm, device_weight(t, &parameters->query),
                 batch->batch * batch->length);
    gemm_forward(&g->blas, crossed->key_value, t->stacks[0].result,
                 device_weight(t, &parameters->key_value), batch->batch * batch->source.length);
    gpu_lap(g, work, "cross query, key, value", PROFILE_FORWARD, cross_flops(m, batch));
    attention_sublayer_forward(t, work, &cross);
    residual_norm_forward(t, work, batch, layer_site(m, l, 3), &t->plan[l].ffn.norm,
                          {a->x_middle, t->norm, a->mean2, a->rstd2, crossed->x});
}

// Gradients of the products of queries, keys and values, and dresult +=; from dquery and dkey_value
// to dx after self-attention, and the gradient to its projection's output.
static void cross_products_backward(Translate *m, const DeviceBatch *batch, size_t l) {
    Transformer *t = &m->base.base;
    GpuModel *g = &t->base;
    const CrossAttentionParameters *parameters = cross_parameters(m, l);
    const Crossed *crossed = &m->crossed[l - m->config->encoder_layers];
    const size_t M = batch->batch * batch->length, N = batch->batch * batch->source.length,
                 C = t->shape.channels;
    static const char *const kind = "cross query, key, value";
    bias_backward(t, &parameters->query, crossed->dquery, M);
    // That of the keys' bias is 0: attention.cuh.
    column_sums(&g->device, &g->sums, transformer_gradients(t, parameters->key_value.bias) + C,
                matrix_part(crossed->dkey_value, 1, C), N, C);
    gemm_backward_input_add(&g->blas, float_matrix(t->dresult, C), crossed->dkey_value,
                            device_weight(t, &parameters->key_value), N);
    weight_backward(t, kind, &parameters->key_value, crossed->dkey_value, t->stacks[0].result, N);
    sublayer_input_backward(t, crossed->dquery, device_weight(t, &parameters->query), M);
    gpu_lap(g, GPU_TRAIN, kind, PROFILE_BACKWARD, cross_flops(m, batch));
    norm_backward(
        t, batch, cross_norm(m, l), crossed->x, crossed->mean, crossed->rstd, false,
        norm_tail(t, batch, crossed->norm, t->gradients[l].projection, layer_site(m, l, 1)));
    weight_backward(t, kind, &parameters->query, crossed->dquery, crossed->norm, M);
}

static void attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    Translate *m = (Translate *)t;
    if (l >= m->config->encoder_layers) {
        const Crossed *crossed = &m->crossed[l - m->config->encoder_layers];
        const AttentionSublayer cross = cross_sublayer(m, GPU_TRAIN, batch, l);
        const DeviceAttentionGradients gradients =
            attention_cross_gradients(crossed->dquery, crossed->dkey_value);
        attention_sublayer_backward(t, &cross, &gradients, m->base.dattended);
        cross_products_backward(m, batch, l);
    }
    self_attend_backward(t, batch, l);
}

// ---- the model --------------------------------------------------------------

static TransformerShape shape(const Translate *m) {
    const TranslateConfig *c = m->config;
    const TranslateParameters *o = m->offsets;
    const size_t E = c->encoder_layers, D = c->decoder_layers, C = c->channels;
    const bool post = c->order == POST_NORM;
    TransformerShape shape = {};
    shape.layers = E + D;
    shape.channels = C;
    shape.inner = c->inner;
    shape.vocabulary = c->vocabulary;
    shape.stacks[0] = {0, E, post ? o->encoder[E - 1].ffn.norm : o->encoder_norm, SITE_SOURCE};
    shape.stacks[1] = {E, E + D, post ? o->decoder[D - 1].self.ffn.norm : o->decoder_norm,
                       SITE_TARGET};
    shape.stack_count = 2;
    shape.outer.token = o->token;
    shape.outer.bias = o->bias;
    shape.fixed_bias = true;
    shape.embedding_scale = sqrt((double)C);
    shape.type = NO_PARAMETER;
    shape.padding = -1; // the decoder begins with the padding token, which learns
    shape.post_norm = post;
    shape.smoothing = c->smoothing;
    shape.activation = c->activation;
    shape.outer_sums =
        (unsigned)(5 * D); // of cross-attention: norm, biases of queries, values and projection
    shape.outer_sum_width = 5 * D * C;
    return shape;
}

// Layer l of both stacks. A layer of the decoder has its FFN's norm after cross-attention.
static TransformerLayer layer_of(const Translate *m, size_t l) {
    const size_t E = m->config->encoder_layers;
    const bool post = m->config->order == POST_NORM;
    const NormParameters none = no_norm(m->config->channels),
                         *below = l == 0 || l == E ? &none : &m->layers[l - 1].ffn.norm;
    const uint32_t site = l < E ? encoder_site(l) : layer_site(m, l, 0);
    TransformerLayer layer = self_attention_layer(&m->layers[l], site, post ? below : NULL);
    if (l < E) return layer;
    if (post) layer.ffn.norm = cross_parameters(m, l)->norm;
    layer.ffn_site = layer_site(m, l, 4);
    layer.projection_site = layer_site(m, l, 3); // of the projection before the FFN
    return layer;
}

static void upload_sinusoids(const Translate *m) {
    const TranslateConfig *c = m->config;
    const Device *d = &m->base.base.base.device;
    const size_t count = c->positions * c->channels;
    if (gpu_rows(&m->base.base.base) == 0) return; // only decoding, which is the CPU's
    float *values = (float *)allocate(count, sizeof(float), "positions");
    sinusoidal_positions(values, c->positions, c->channels);
    CUDA_CHECK(cudaMemcpyAsync(m->sinusoids, values, count * sizeof(float), cudaMemcpyHostToDevice,
                               d->stream));
    device_synchronize(d);
    free(values);
}

static void *translate_create(const ModelSetup *setup) {
    Translate *m = transformer_allocate<Translate>(&translate, setup);
    GpuModel *g = &m->base.base.base;
    const TranslateConfig *c = m->config = translate_config(g->host);
    const TranslateParameters *o = m->offsets = translate_offsets(g->host);
    const size_t E = c->encoder_layers, D = c->decoder_layers;
    m->layers = (TransformerParameters *)allocate(E + D, sizeof(TransformerParameters), "layers");
    for (size_t l = 0; l < E + D; l++)
        m->layers[l] = l < E ? o->encoder[l] : o->decoder[l - E].self;
    m->crossed = (Crossed *)allocate(D, sizeof(Crossed), "layers");
    g->attention_dropout = c->attention_dropout;
    m->base.causal = E;
    m->base.heads = c->heads;
    m->base.parameters = m->layers;
    TransformerParts parts = self_attention_parts();
    parts.attend = attend;
    parts.attend_backward = attend_backward;
    parts.carve_layer = carve_layer;
    parts.carve = carve;
    self_attention_create(&m->base, shape(m), parts, [&](size_t l) { return layer_of(m, l); });
    upload_sinusoids(m);
    return m;
}

static void translate_destroy(void *model) {
    Translate *m = (Translate *)model;
    free(m->layers);
    free(m->crossed);
    self_attention_destroy(m);
}

ModelType translate_on_gpu() {
    return transformer_type(&translate, "train_translatecu", translate_create, translate_destroy);
}

TRANSFORMER_MAIN(translate_on_gpu())
