// Self-attention of the kinds that --attention names, and the projection after it: what GPT-2,
// BERT and the encoder-decoder add to a Transformer. Such a model holds a SelfAttention as its
// first member.
#ifndef CUDA_SELF_ATTENTION_CUH
#define CUDA_SELF_ATTENTION_CUH

#include "attention.cuh"
#include "transformer.cuh"

// What a layer's attention keeps for its backward pass.
struct Attended {
    Matrix y;    // (M, C)
    float *kept; // attention_kept()
};

struct SelfAttention {
    Transformer base;
    DeviceAttention kind;
    size_t heads;           // H
    const LayerPlan *plans; // (L)
    Attended *attended;     // (L)
    Matrix dattended;       // (M, C)
};

// What self- and cross-attention have in common: all but what queries, keys and values are made of.
struct AttentionSublayer {
    const AttentionPlan *plan;
    const DeviceAttention *kind;
    DeviceAttentionInput in;
    const LinearParameters *projection;
    size_t learned; // what attention.cuh calls so; or NO_PARAMETER
    Attended attended;
    Matrix dprojected; // (M, C) backward: the gradient to the projection's output
};

static inline double attention_sublayer_flops(const AttentionSublayer *a) {
    const DeviceAttentionInput *in = &a->in;
    return attention_flops(a->plan, in->channels, in->heads, (double)(in->batch * in->queries),
                           (double)in->keys / (in->causal ? 2 : 1));
}

// From queries, keys and values to sublayer_out.
static inline void attention_sublayer_forward(Transformer *t, GpuWork work,
                                              const AttentionSublayer *a) {
    GpuModel *g = &t->base;
    const size_t M = a->in.batch * a->in.queries, C = t->shape.channels;
    attention_forward(&g->device, a->kind, a->attended.y, a->attended.kept,
                      transformer_values(t, a->learned), &a->in, t->attention);
    gpu_lap(g, work, "attention", PROFILE_FORWARD, attention_sublayer_flops(a));
    gemm_forward(&g->blas, float_matrix(t->sublayer_out, C), a->attended.y,
                 device_weight(t, a->projection), M);
    gpu_lap(g, work, "projection", PROFILE_FORWARD, 2 * (double)M * (double)(C * C));
}

// From dprojected to the gradients to queries, keys and values.
static inline void attention_sublayer_backward(Transformer *t, const AttentionSublayer *a,
                                               const DeviceAttentionGradients *gradients,
                                               Matrix dattended) {
    GpuModel *g = &t->base;
    const size_t M = a->in.batch * a->in.queries, C = t->shape.channels;
    bias_backward(t, a->projection, a->dprojected, M);
    gemm_backward_input(&g->blas, dattended, a->dprojected, device_weight(t, a->projection), M);
    gpu_lap(g, GPU_TRAIN, "projection", PROFILE_BACKWARD, 2 * (double)M * (double)(C * C));
    weight_backward(t, "projection", a->projection, a->dprojected, a->attended.y, M);
    attention_backward(&g->device, a->kind, gradients, transformer_gradients(t, a->learned),
                       dattended, a->attended.y, a->attended.kept,
                       transformer_values(t, a->learned), &a->in, t->attention);
    gpu_lap(g, GPU_TRAIN, "attention", PROFILE_BACKWARD, 2 * attention_sublayer_flops(a));
}

static inline Attended attended_carve(const SelfAttention *m, DeviceArena *arena) {
    const GpuModel *g = &m->base.base;
    const size_t C = m->base.shape.channels,
                 kept = attention_kept(&m->kind, g->batch, g->length, C, m->heads);
    return {arena_matrix(arena, gpu_rows(g), C, g->precision == GPU_BF16, "activations"),
            kept > 0 ? arena_array<float>(arena, kept, "activations") : NULL};
}

static inline void self_attention_carve_layer(Transformer *t, DeviceArena *arena, size_t l,
                                              bool own) {
    SelfAttention *m = (SelfAttention *)t;
    m->attended[l] = own ? attended_carve(m, arena) : m->attended[0];
}

static inline void self_attention_carve(Transformer *t, DeviceArena *arena) {
    if (!t->base.training) return;
    ((SelfAttention *)t)->dattended =
        arena_matrix(arena, gpu_rows(&t->base), t->shape.channels, t->base.precision == GPU_BF16,
                     "gradients of activations");
}

static inline size_t self_attention_workspace(const Transformer *t, size_t) {
    const SelfAttention *m = (const SelfAttention *)t;
    return attention_workspace(&t->base.device, &m->kind, t->base.batch, t->base.length,
                               t->shape.channels, m->heads, t->base.precision == GPU_BF16);
}

static inline AttentionSublayer self_attention_sublayer(const SelfAttention *m, GpuWork work,
                                                        const DeviceBatch *batch, size_t l) {
    const GpuModel *g = &m->base.base;
    const AttentionPlan *plan = &m->plans[l].attention;
    DeviceAttentionInput in = attention_self(m->base.layers[l].qkv, m->heads, plan->causal,
                                             batch->mask, batch->batch, batch->length);
    in.dropout = gpu_dropout_of(g, work, g->attention_dropout, m->base.plan[l].weights_site);
    return {plan,
            &m->kind,
            in,
            &plan->projection,
            plan->learned[0],
            m->attended[l],
            m->base.gradients[l].projection};
}

static inline void self_attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const TransformerActivations *a = &t->layers[l];
    const AttentionSublayer sublayer =
        self_attention_sublayer((const SelfAttention *)t, work, batch, l);
    attention_sublayer_forward(t, work, &sublayer);
    residual_norm_forward(t, work, batch, t->plan[l].projection_site, &t->plan[l].ffn.norm,
                          {a->x_middle, t->norm, a->mean2, a->rstd2, a->x_in});
}

// Gradients to the bias of q, k and v.
static inline void qkv_bias_backward(SelfAttention *m, const DeviceBatch *batch, size_t l) {
    Transformer *t = &m->base;
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = t->shape.channels;
    const Matrix dqkv = t->gradients[l].qkv;
    float *dbias = transformer_gradients(t, m->plans[l].attention.qkv.bias);
    if (attention_trains_key_bias(&m->kind)) {
        column_sums(&g->device, &g->sums, dbias, dqkv, M, 3 * C);
        return;
    }
    column_sums(&g->device, &g->sums, dbias, dqkv, M, C);
    column_sums(&g->device, &g->sums, dbias + 2 * C, matrix_part(dqkv, 2, C), M, C);
}

static inline void self_attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    SelfAttention *m = (SelfAttention *)t;
    const AttentionSublayer sublayer = self_attention_sublayer(m, GPU_TRAIN, batch, l);
    const DeviceAttentionGradients gradients = attention_self_gradients(t->gradients[l].qkv);
    attention_sublayer_backward(t, &sublayer, &gradients, m->dattended);
    qkv_bias_backward(m, batch, l);
    gpu_lap(&t->base, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
}

// A layer as the Transformer has it. `below`: post-norm, the norm after the layer below or the
// embedding. The norm of a sublayer's result is then that before the next one.
static inline TransformerLayer self_attention_layer(const LayerPlan *plan,
                                                    const NormParameters *below) {
    const AttentionPlan *attention = &plan->attention;
    TransformerLayer layer = {plan->first,
                              attention->norm,
                              attention->qkv,
                              plan->ffn,
                              plan->ffn_site,
                              true,
                              attention->weight_sites[0],
                              attention->site};
    if (below) {
        layer.norm = *below;
        layer.ffn.norm = attention->norm;
    }
    return layer;
}

// What these models add where they predict from the last norm.
static inline TransformerParts self_attention_parts() {
    return {self_attend,
            self_attend_backward,
            self_attention_carve_layer,
            self_attention_carve,
            self_attention_workspace,
            NULL,
            NULL};
}

// What layers attend with.
static inline void self_attention_choose(SelfAttention *m, const TransformerPlan *plan) {
    const AttentionKind kind = plan->layers[0].attention.kind;
    refuse_layers(plan, kind == ATTENTION_ADDITIVE ? ATTENTION_SOFTMAX : kind, false);
    m->kind = attention_of_plan(&plan->layers[0].attention);
    m->heads = plan->size.heads;
    m->plans = plan->layers;
}

// Memory, after self_attention_choose(). layer(l): as of self_attention_layer().
template <typename Layer>
static inline void self_attention_create(SelfAttention *m, TransformerShape shape,
                                         const TransformerParts &parts, Layer layer) {
    m->attended = (Attended *)allocate(shape.layers, sizeof(Attended), "layers");
    shape.layer_sums =
        5; // the biases of q and of v (or of all three), and after attention and in the FFN
    shape.layer_sum_width = 5 * shape.channels + shape.inner;
    transformer_create(&m->base, shape, parts, layer);
}

static inline void self_attention_destroy(void *model) {
    SelfAttention *m = (SelfAttention *)model;
    transformer_destroy(&m->base);
    free(m->attended);
    free(m);
}

#endif
