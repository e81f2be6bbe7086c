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
    const TransformerPlan *plan;
    size_t first;     // layer of the decoder
    Crossed *crossed; // of its layers
    float *sinusoids; // (positions, C)
};

// ---- parameters -------------------------------------------------------------

static const AttentionPlan *cross_plan(const Translate *m, size_t l) {
    return &m->plan->layers[l].cross;
}

// The norm before a layer's cross-attention: post-norm, that after its self-attention.
static const NormParameters *cross_norm(const Translate *m, size_t l) {
    return m->plan->order == POST_NORM ? &m->plan->layers[l].attention.norm
                                       : &cross_plan(m, l)->norm;
}

// ---- memory -----------------------------------------------------------------

static void carve_layer(Transformer *t, DeviceArena *arena, size_t l, bool own) {
    Translate *m = (Translate *)t;
    const size_t M = gpu_rows(&t->base), C = t->shape.channels, first = m->first;
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
    m->sinusoids = arena_array<float>(arena, m->plan->size.positions * C, "positions");
    t->sinusoids = m->sinusoids;
    for (size_t l = 0; t->base.training && l < m->plan->size.layers - m->first; l++) {
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
        LayerGradients *d = &t->gradients[m->first + l];
        d->before_ffn = gradients_matrix(t, arena, d->ffn);
    }
}

// ---- the decoder's attention: to its own tokens, then to the encoder's result ----

static AttentionSublayer cross_sublayer(const Translate *m, GpuWork work, const DeviceBatch *batch,
                                        size_t l) {
    const GpuModel *g = &m->base.base.base;
    const AttentionPlan *parameters = cross_plan(m, l);
    const Crossed *crossed = &m->crossed[l - m->first];
    DeviceAttentionInput in =
        attention_cross(crossed->query, crossed->key_value, m->plan->size.heads, batch->source.mask,
                        batch->batch, batch->length, batch->source.length);
    in.dropout = gpu_dropout_of(g, work, g->attention_dropout, parameters->weight_sites[0]);
    return {parameters,
            &m->base.kind,
            in,
            &parameters->projection,
            parameters->learned[0],
            crossed->attended,
            m->base.base.gradients[l].before_ffn};
}

// FLOP of the products of queries, and of keys and values.
static double cross_flops(const Translate *m, const DeviceBatch *batch) {
    const double C = (double)m->plan->size.channels;
    return 2 * (double)batch->batch * ((double)batch->length + 2 * (double)batch->source.length) *
           C * C;
}

static void attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const Translate *m = (const Translate *)t;
    if (l < m->first) {
        self_attend(t, work, batch, l);
        return;
    }
    GpuModel *g = &t->base;
    const TransformerActivations *a = &t->layers[l];
    const AttentionPlan *parameters = cross_plan(m, l);
    const Crossed *crossed = &m->crossed[l - m->first];
    const AttentionSublayer self = self_attention_sublayer(&m->base, work, batch, l),
                            cross = cross_sublayer(m, work, batch, l);
    attention_sublayer_forward(t, work, &self);
    residual_norm_forward(t, work, batch, m->plan->layers[l].attention.site, cross_norm(m, l),
                          {crossed->x, t->norm, crossed->mean, crossed->rstd, a->x_in});
    gemm_forward(&g->blas, crossed->query, t->norm, device_weight(t, &parameters->query),
                 batch->batch * batch->length);
    gemm_forward(&g->blas, crossed->key_value, t->stacks[0].result,
                 device_weight(t, &parameters->key_value), batch->batch * batch->source.length);
    gpu_lap(g, work, "cross query, key, value", PROFILE_FORWARD, cross_flops(m, batch));
    attention_sublayer_forward(t, work, &cross);
    residual_norm_forward(t, work, batch, parameters->site, &t->plan[l].ffn.norm,
                          {a->x_middle, t->norm, a->mean2, a->rstd2, crossed->x});
}

// Gradients of the products of queries, keys and values, and dresult +=; from dquery and dkey_value
// to dx after self-attention, and the gradient to its projection's output.
static void cross_products_backward(Translate *m, const DeviceBatch *batch, size_t l) {
    Transformer *t = &m->base.base;
    GpuModel *g = &t->base;
    const AttentionPlan *parameters = cross_plan(m, l);
    const Crossed *crossed = &m->crossed[l - m->first];
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
    norm_backward(t, batch, cross_norm(m, l), crossed->x, crossed->mean, crossed->rstd, false,
                  norm_tail(t, batch, crossed->norm, t->gradients[l].projection,
                            m->plan->layers[l].attention.site));
    weight_backward(t, kind, &parameters->query, crossed->dquery, crossed->norm, M);
}

static void attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    Translate *m = (Translate *)t;
    if (l >= m->first) {
        const Crossed *crossed = &m->crossed[l - m->first];
        const AttentionSublayer cross = cross_sublayer(m, GPU_TRAIN, batch, l);
        const DeviceAttentionGradients gradients =
            attention_cross_gradients(crossed->dquery, crossed->dkey_value);
        attention_sublayer_backward(t, &cross, &gradients, m->base.dattended);
        cross_products_backward(m, batch, l);
    }
    self_attend_backward(t, batch, l);
}

// ---- the model --------------------------------------------------------------

// A layer of the decoder has its FFN's norm after cross-attention.
static TransformerLayer layer_of(const Translate *m, size_t l) {
    const TransformerPlan *plan = m->plan;
    const bool post = plan->order == POST_NORM;
    const NormParameters none = no_norm(plan->size.channels),
                         *below = l == 0 || l == m->first ? &none : &plan->layers[l - 1].ffn.norm;
    TransformerLayer layer = self_attention_layer(&plan->layers[l], post ? below : NULL);
    if (l < m->first) return layer;
    if (post) layer.ffn.norm = cross_plan(m, l)->norm;
    layer.projection_site = cross_plan(m, l)->site; // of the projection before the FFN
    return layer;
}

static void upload_sinusoids(const Translate *m) {
    const ModelSizes *size = &m->plan->size;
    const Device *d = &m->base.base.base.device;
    const size_t count = size->positions * size->channels;
    if (gpu_rows(&m->base.base.base) == 0) return; // only decoding, which is the CPU's
    float *values = (float *)allocate(count, sizeof(float), "positions");
    sinusoidal_positions(values, size->positions, size->channels);
    CUDA_CHECK(cudaMemcpyAsync(m->sinusoids, values, count * sizeof(float), cudaMemcpyHostToDevice,
                               d->stream));
    device_synchronize(d);
    free(values);
}

static void *translate_create(const ModelSetup *setup) {
    Translate *m = transformer_allocate<Translate>(&translate, setup);
    GpuModel *g = &m->base.base.base;
    const TransformerPlan *plan = m->plan = transformer_plan(g->host);
    const size_t D = plan->size.layers - (m->first = plan->stacks[1].first);
    m->crossed = (Crossed *)allocate(D, sizeof(Crossed), "layers");
    g->attention_dropout = plan->attention_dropout;
    self_attention_choose(&m->base, plan);
    TransformerShape shape = transformer_shape(plan);
    shape.outer_sums =
        (unsigned)(5 * D); // of cross-attention: norm, biases of queries, values and projection
    shape.outer_sum_width = 5 * D * plan->size.channels;
    TransformerParts parts = self_attention_parts();
    parts.attend = attend;
    parts.attend_backward = attend_backward;
    parts.carve_layer = carve_layer;
    parts.carve = carve;
    self_attention_create(&m->base, shape, parts, [&](size_t l) { return layer_of(m, l); });
    upload_sinusoids(m);
    return m;
}

static void translate_destroy(void *model) {
    Translate *m = (Translate *)model;
    free(m->crossed);
    self_attention_destroy(m);
}

ModelType translate_on_gpu() {
    return transformer_type(&translate, "train_translatecu", translate_create, translate_destroy);
}

TRANSFORMER_MAIN(translate_on_gpu())
