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
    const TransformerPlan *plan;
    Pooled *pooled; // (L)
};

static AdditiveAttention layer_attention(const Fastformer *f, size_t l) {
    const AttentionPlan *a = &f->plan->layers[l].attention;
    const GpuModel *g = &f->base.base;
    return {f->plan->size.channels, f->plan->size.heads, a->window, (real)a->rescale,
            (real)a->sink,          a->pool_raw,         g->batch,  g->length};
}

static void carve_layer(Transformer *t, DeviceArena *arena, size_t l, bool own) {
    Fastformer *f = (Fastformer *)t;
    Pooled *p = &f->pooled[l];
    const size_t M = gpu_rows(&t->base), C = f->plan->size.channels, H = f->plan->size.heads;
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
    const AttentionPlan *o = &f->plan->layers[l].attention;
    const Pooled *p = &f->pooled[l];
    return {(const float *)t->layers[l].qkv.data,
            {transformer_values(t, o->learned[0]), transformer_values(t, o->learned[1])},
            batch->mask,
            gpu_dropout(&t->base, work, o->weight_sites[0]),
            gpu_dropout(&t->base, work, o->weight_sites[1]),
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
    const AttentionPlan *o = &f->plan->layers[l].attention;
    const AdditiveAttention attention = layer_attention(f, l);
    additive_attention_backward(
        &t->base.device, &attention, t->gradients[l].qkv, transformer_gradients(t, o->learned[0]),
        transformer_gradients(t, o->learned[1]), t->dx, attention_input(f, GPU_TRAIN, batch, l));
    gpu_lap(&t->base, GPU_TRAIN, "attention", PROFILE_BACKWARD, 0);
}

static void *fastformer_create(const ModelSetup *setup) {
    Fastformer *f = transformer_allocate<Fastformer>(&fastformer, setup);
    const TransformerPlan *plan = f->plan = transformer_plan(f->base.base.host);
    refuse_layers(plan, ATTENTION_ADDITIVE, true);
    f->pooled = (Pooled *)allocate(plan->size.layers, sizeof(Pooled), "layers");
    TransformerShape shape = transformer_shape(plan);
    shape.exact_qkv = true;
    const TransformerParts parts = {
        attend, attend_backward, carve_layer, carve, attention_workspace, NULL, NULL};
    transformer_create(&f->base, shape, parts, [&](size_t l) {
        const LayerPlan *layer = &plan->layers[l];
        return TransformerLayer{layer->first,
                                layer->attention.norm,
                                layer->attention.qkv,
                                layer->ffn,
                                layer->ffn_site,
                                false,
                                0,
                                0};
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
