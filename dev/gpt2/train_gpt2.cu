// GPT-2 on the GPU: the model of train_gpt2.c, whose options, parameters, decoding, statistics and
// description it takes; forward and backward pass in CUDA. Both programs read and write the same checkpoints,
// and drop the same elements.
//
// B batch, T sequence length, M = B*T, C channels, H heads, L layers.
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual stream,
// statistics and gradients of parameters are float32.

#include "cosine_attention.cuh"
#include "softmax_attention.cuh"
#include "transformer.cuh"
extern "C" {
#include "gpt2.h"
}

// What a layer's attention leaves for its backward pass.
struct Attended {
    GemmInput y;      // (M, C)
    float *logsumexp; // (B, H, T) of the softmax kinds
};

struct Gpt2 {
    Transformer base;
    const Config *config;
    const Offsets *offsets;
    Attended *attended;  // (L)
    GemmInput dattended; // (M, C)
};

static void carve_layer(Transformer *t, Arena *arena, size_t l, bool own) {
    Gpt2 *m = (Gpt2 *)t;
    const size_t M = gpu_rows(&t->base);
    if (!own) {
        m->attended[l] = m->attended[0];
        return;
    }
    m->attended[l].y =
        arena_matrix(arena, M, m->config->size.channels, t->base.precision == GPU_BF16, "activations");
    if (!m->config->attention.cosine)
        m->attended[l].logsumexp = arena_array<float>(arena, M * m->config->size.heads, "activations");
}

static void carve_backward(Transformer *t, Arena *arena) {
    Gpt2 *m = (Gpt2 *)t;
    m->dattended = arena_matrix(arena, gpu_rows(&t->base), m->config->size.channels,
                                t->base.precision == GPU_BF16, "gradients of activations");
}

static size_t attention_workspace(const Transformer *t, size_t) {
    const GpuModel *g = &t->base;
    const Config *c = ((const Gpt2 *)t)->config;
    return c->attention.cosine
               ? cosine_attention_workspace(g->batch, g->length, c->size.channels, c->size.heads)
               : softmax_attention_workspace(g->batch, g->length, c->size.heads);
}

// (H) cosine: what the power of n is learned as, or NULL.
static const float *norm_const(const Gpt2 *m, size_t l) {
    return m->config->attention.learned_power
               ? transformer_values(&m->base, m->offsets->layers[l].attention.norm_const)
               : NULL;
}

static void attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const Gpt2 *m = (const Gpt2 *)t;
    GpuModel *g = &t->base;
    const Config *c = m->config;
    const TransformerActivations *a = &t->layers[l];
    const AttentionParameters *o = &m->offsets->layers[l].attention;
    const Attended *attended = &m->attended[l];
    const DropoutSite weights = gpu_dropout(g, work, dropout_site(l, SITE_ATTENTION));
    if (c->attention.cosine)
        cosine_attention_forward(&g->device, attended->y, a->qkv, norm_const(m, l), (float)c->attention.power,
                                 batch->mask, t->attention, batch->batch, batch->length, c->size.heads);
    else
        softmax_attention_forward(&g->device, attended->y, attended->logsumexp, a->qkv, batch->mask, &weights,
                                  c->attention.sink, batch->batch, batch->length, c->size.heads);
    gpu_lap(g, work, "attention", PROFILE_FORWARD, gpt2_attention_flops(c, batch->batch, batch->length));
    gemm_forward(&g->blas, float_matrix(t->sublayer_out, c->size.channels), attended->y,
                 device_weight(t, &o->projection), batch->batch * batch->length);
    gpu_lap(g, work, "projection", PROFILE_FORWARD, gpu_square_flops(batch, c->size.channels));
    residual_norm_forward(t, work, batch, dropout_site(l, SITE_PROJECTION), &t->plan[l].ffn.norm, a->x_middle,
                          t->norm, a->mean2, a->rstd2, a->x_in);
}

// Columns of dqkv from part 0 (q), 1 (k) or 2 (v) on.
static GemmInput qkv_part(GemmInput dqkv, size_t part, size_t channels) {
    const size_t size = dqkv.bf16 ? sizeof(bf16) : sizeof(float);
    return {(char *)dqkv.data + part * channels * size, dqkv.columns, dqkv.bf16};
}

// Gradients to the bias of q, k and v.
static void qkv_bias_backward(Gpt2 *m, const DeviceBatch *batch, size_t l) {
    Transformer *t = &m->base;
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = m->config->size.channels;
    float *dbias = transformer_gradients(t, m->offsets->layers[l].attention.qkv.bias);
    if (m->config->attention.cosine || m->config->attention.sink > 0) {
        column_sums(&g->device, &g->sums, dbias, t->dqkv, M, 3 * C);
        return;
    }
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no weight. Its
    // gradient is 0; what would come out is rounding, of which AdamW would make full steps.
    column_sums(&g->device, &g->sums, dbias, t->dqkv, M, C);
    column_sums(&g->device, &g->sums, dbias + 2 * C, qkv_part(t->dqkv, 2, C), M, C);
}

static void attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    Gpt2 *m = (Gpt2 *)t;
    GpuModel *g = &t->base;
    const Config *c = m->config;
    const size_t M = batch->batch * batch->length;
    const TransformerActivations *a = &t->layers[l];
    const AttentionParameters *o = &m->offsets->layers[l].attention;
    const Attended *attended = &m->attended[l];
    const DeviceWeight projection = device_weight(t, &o->projection);
    const DropoutSite weights = gpu_dropout(g, GPU_TRAIN, dropout_site(l, SITE_ATTENTION));
    bias_backward(t, &o->projection, t->dsublayer_out, M);
    gemm_backward_input(&g->blas, m->dattended, t->dsublayer_out, projection, M);
    gemm_backward_weight(&g->blas, transformer_gradients(t, o->projection.weight), t->dsublayer_out,
                         attended->y, projection, M);
    gpu_lap(g, GPU_TRAIN, "projection", PROFILE_BACKWARD, 2 * gpu_square_flops(batch, c->size.channels));
    if (c->attention.cosine)
        cosine_attention_backward(&g->device, t->dqkv, transformer_gradients(t, o->norm_const), m->dattended,
                                  a->qkv, norm_const(m, l), (float)c->attention.power, batch->mask,
                                  t->attention, batch->batch, batch->length, c->size.heads);
    else
        softmax_attention_backward(&g->device, t->dqkv, m->dattended, attended->y, attended->logsumexp,
                                   a->qkv, batch->mask, &weights, t->attention, batch->batch, batch->length,
                                   c->size.heads);
    qkv_bias_backward(m, batch, l);
    gpu_lap(g, GPU_TRAIN, "attention", PROFILE_BACKWARD,
            2 * gpt2_attention_flops(c, batch->batch, batch->length));
}

static void *gpt2_create(const ModelSetup *setup) {
    static const TransformerAttention attention = {attend, attend_backward, carve_layer, carve_backward,
                                                   attention_workspace};
    Gpt2 *m = transformer_allocate<Gpt2>(&gpt2, setup);
    const Config *c = m->config = gpt2_config(m->base.base.host);
    const Offsets *o = m->offsets = gpt2_offsets(m->base.base.host);
    m->attended = (Attended *)allocate(c->size.layers, sizeof(Attended), "layers");
    TransformerShape is = transformer_shape(c, o, dropout_site(0, SITE_EMBEDDING));
    is.activation = GELU_TANH;
    is.layer_sums = 5; // the biases of q and of v (or of all three), and behind attention and in the FFN
    is.layer_sum_channels = 9; // 3 + 1 + 4 + 1
    transformer_create(&m->base, is, &attention, [&](size_t l) {
        const AttentionParameters *a = &o->layers[l].attention;
        return TransformerLayer{a->norm,
                                a->qkv,
                                o->layers[l].ffn,
                                dropout_site(l, SITE_FFN),
                                true,
                                dropout_site(l, SITE_PROJECTION)};
    });
    return m;
}

static void gpt2_destroy(void *model) {
    Gpt2 *m = (Gpt2 *)model;
    transformer_destroy(&m->base);
    free(m->attended);
    free(m);
}

static ModelType gpt2_on_gpu() {
    return transformer_type(&gpt2, "train_gpt2cu", gpt2_create, gpt2_destroy);
}

TRANSFORMER_MAIN(gpt2_on_gpu())
