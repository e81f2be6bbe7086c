// Fastformer on the GPU: the model of train_fastformer.c, whose options, parameters, decoding,
// statistics and description it takes; forward and backward pass in CUDA. Both programs read and
// write the same checkpoints, and drop the same elements.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, L layers.
//
// Products read bf16 (or float32, with --precision fp32 and tf32); the residual stream, statistics
// and gradients of parameters are float32. The product that makes q, k and v reads float32, or two
// bf16 numbers for each (parts.cuh): q and k go through an exponential of scores up to the rescale,
// which magnifies their rounding (TF32: gradients of fastformer_sharp off by 0.055, where 0.05 is
// allowed). So does what the GELU is taken of, or gradients of w_k are off by 0.06, not 0.04; what
// the backward pass needs of it is bf16.

#include "additive_attention.cuh"
#include "transformer.cuh"
extern "C" {
#include "fastformer.h"
#include "train.h"
}

// What a layer's attention keeps for its backward pass.
struct Pooled {
    float *query, *key;     // (B, H, T, D)
    float *r_query, *r_key; // (B, H, T)
};

struct Fastformer {
    Transformer base;
    const FastformerConfig *config;
    const FastformerParameters *offsets;
    Pooled *pooled; // (L)
};

static AdditiveAttention layer_attention(const Fastformer *f, size_t l) {
    const FastformerConfig *c = f->config;
    const GpuModel *g = &f->base.base;
    return {c->size.channels, c->size.heads, c->windows[l], c->rescale,
            c->sink,          c->pool_raw,   g->batch,      g->length};
}

static void carve_layer(Transformer *t, DeviceArena *arena, size_t l, bool own) {
    Fastformer *f = (Fastformer *)t;
    Pooled *p = &f->pooled[l];
    const size_t M = gpu_rows(&t->base), C = f->config->size.channels, H = f->config->size.heads;
    if (!own) {
        *p = f->pooled[0];
        return;
    }
    p->query = arena_array<float>(arena, M * C, "activations");
    p->key = arena_array<float>(arena, M * C, "activations");
    p->r_query = arena_array<float>(arena, M * H, "activations");
    p->r_key = arena_array<float>(arena, M * H, "activations");
}

static void carve(Transformer *, DeviceArena *) {}

static size_t attention_workspace(const Transformer *t, size_t l) {
    const AdditiveAttention attention = layer_attention((const Fastformer *)t, l);
    return additive_attention_workspace(&t->base.device, &attention, t->base.training);
}

static AdditiveInput attention_input(const Fastformer *f, GpuWork work, const DeviceBatch *batch,
                                     size_t l) {
    const Transformer *t = &f->base;
    const LayerOffsets *o = &f->offsets->layers[l];
    const Pooled *p = &f->pooled[l];
    return {(const float *)t->layers[l].qkv.data,
            {transformer_values(t, o->query_attn), transformer_values(t, o->key_attn)},
            batch->mask,
            gpu_dropout(&t->base, work, dropout_site(l, SITE_QUERY)),
            gpu_dropout(&t->base, work, dropout_site(l, SITE_KEY)),
            p->query,
            p->key,
            p->r_query,
            p->r_key,
            t->attention,
            batch->batch,
            batch->length};
}

static void attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const Fastformer *f = (const Fastformer *)t;
    const AdditiveAttention attention = layer_attention(f, l);
    additive_attention_forward(&t->base.device, &attention, t->layers[l].x_middle,
                               t->layers[l].x_in, attention_input(f, work, batch, l));
    gpu_lap(&t->base, work, "attention", PROFILE_FORWARD, 0);
}

static void attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    const Fastformer *f = (const Fastformer *)t;
    const LayerOffsets *o = &f->offsets->layers[l];
    const AdditiveAttention attention = layer_attention(f, l);
    additive_attention_backward(
        &t->base.device, &attention, t->gradients[l].qkv, transformer_gradients(t, o->query_attn),
        transformer_gradients(t, o->key_attn), t->dx, attention_input(f, GPU_TRAIN, batch, l));
    gpu_lap(&t->base, GPU_TRAIN, "attention", PROFILE_BACKWARD, 0);
}

static void *fastformer_create(const ModelSetup *setup) {
    Fastformer *f = transformer_allocate<Fastformer>(&fastformer, setup);
    const FastformerConfig *c = f->config = fastformer_config(f->base.base.host);
    const FastformerParameters *o = f->offsets = fastformer_offsets(f->base.base.host);
    f->pooled = (Pooled *)allocate(c->size.layers, sizeof(Pooled), "layers");
    TransformerShape shape =
        transformer_shape(&c->size, &o->outer, dropout_site(0, SITE_EMBEDDING), c->padding);
    shape.activation = GELU_ERF;
    shape.exact_qkv = true;
    const TransformerParts parts = {
        attend, attend_backward, carve_layer, carve, attention_workspace, NULL, NULL};
    transformer_create(&f->base, shape, parts, [&](size_t l) {
        const LayerOffsets *layer = &o->layers[l];
        return TransformerLayer{layer->norm.gain,          layer->norm, layer->qkv, layer->ffn,
                                dropout_site(l, SITE_FFN), false,       0,          0};
    });
    return f;
}

static void fastformer_destroy(void *model) {
    Fastformer *f = (Fastformer *)model;
    transformer_destroy(&f->base);
    free(f->pooled);
    free(f);
}

ModelType fastformer_on_gpu() {
    return transformer_type(&fastformer, "train_fastformercu", fastformer_create,
                            fastformer_destroy);
}

TRANSFORMER_MAIN(fastformer_on_gpu())
