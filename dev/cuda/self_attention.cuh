// Self-attention of the kinds that --attention names, and the projection behind it: what GPT-2 and BERT add
// to a Transformer. Such a model holds a SelfAttention as its first member.
#ifndef CUDA_SELF_ATTENTION_CUH
#define CUDA_SELF_ATTENTION_CUH

#include "attention.cuh"
#include "transformer.cuh"

// What a layer's attention leaves for its backward pass.
struct Attended {
    GemmInput y;      // (M, C)
    float *logsumexp; // (B, H, T) of the softmax kinds
};

struct SelfAttention {
    Transformer base;
    DeviceAttention kind;
    bool causal;
    size_t heads;                    // H
    const TransformerParameters *at; // (L)
    uint32_t site;                   // of the dropout: three a layer, of weights, projection and FFN
    Attended *attended;              // (L)
    GemmInput dattended;             // (M, C)
};

static inline void self_attention_carve_layer(Transformer *t, Arena *arena, size_t l, bool own) {
    SelfAttention *m = (SelfAttention *)t;
    const size_t M = gpu_rows(&t->base);
    if (!own) {
        m->attended[l] = m->attended[0];
        return;
    }
    m->attended[l].y = arena_matrix(arena, M, t->is.channels, t->base.precision == GPU_BF16, "activations");
    if (!m->kind.cosine) m->attended[l].logsumexp = arena_array<float>(arena, M * m->heads, "activations");
}

static inline void self_attention_carve(Transformer *t, Arena *arena) {
    if (!t->base.training) return;
    ((SelfAttention *)t)->dattended = arena_matrix(arena, gpu_rows(&t->base), t->is.channels,
                                                   t->base.precision == GPU_BF16, "gradients of activations");
}

static inline size_t self_attention_workspace(const Transformer *t, size_t) {
    const SelfAttention *m = (const SelfAttention *)t;
    return attention_workspace(&m->kind, t->base.batch, t->base.length, t->is.channels, m->heads);
}

static inline DeviceAttentionInput self_attention_input(const SelfAttention *m, GpuWork work,
                                                        const DeviceBatch *batch, size_t l) {
    DeviceAttentionInput in =
        attention_self(m->base.layers[l].qkv, m->heads, m->causal, batch->mask, batch->batch, batch->length);
    in.dropout = gpu_dropout(&m->base.base, work, m->site + 3 * (uint32_t)l);
    return in;
}

// (H) cosine: what the power of n is learned as, or NULL.
static inline const float *self_attention_learned(const SelfAttention *m, size_t l) {
    return transformer_values(&m->base, m->at[l].attention.norm_const);
}

static inline double self_attention_flops(const SelfAttention *m, const DeviceBatch *batch) {
    return attention_flops(m->kind.cosine, m->base.is.channels, m->heads,
                           (double)(batch->batch * batch->length),
                           (double)batch->length / (m->causal ? 2 : 1));
}

static inline void self_attend(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    const SelfAttention *m = (const SelfAttention *)t;
    GpuModel *g = &t->base;
    const TransformerActivations *a = &t->layers[l];
    const Attended *attended = &m->attended[l];
    const DeviceAttentionInput in = self_attention_input(m, work, batch, l);
    attention_forward(&g->device, &m->kind, attended->y, attended->logsumexp, self_attention_learned(m, l),
                      &in, t->attention);
    gpu_lap(g, work, "attention", PROFILE_FORWARD, self_attention_flops(m, batch));
    gemm_forward(&g->blas, float_matrix(t->sublayer_out, t->is.channels), attended->y,
                 device_weight(t, &m->at[l].attention.projection), batch->batch * batch->length);
    gpu_lap(g, work, "projection", PROFILE_FORWARD, gpu_square_flops(batch, t->is.channels));
    residual_norm_forward(t, work, batch, t->plan[l].projection_site, &t->plan[l].ffn.norm, a->x_middle,
                          t->norm, a->mean2, a->rstd2, a->x_in);
}

// Gradients to the bias of q, k and v.
static inline void qkv_bias_backward(SelfAttention *m, const DeviceBatch *batch, size_t l) {
    Transformer *t = &m->base;
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = t->is.channels;
    float *dbias = transformer_gradients(t, m->at[l].attention.qkv.bias);
    if (attention_trains_key_bias(&m->kind)) {
        column_sums(&g->device, &g->sums, dbias, t->dqkv, M, 3 * C);
        return;
    }
    column_sums(&g->device, &g->sums, dbias, t->dqkv, M, C);
    column_sums(&g->device, &g->sums, dbias + 2 * C, matrix_part(t->dqkv, 2, C), M, C);
}

static inline void self_attend_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    SelfAttention *m = (SelfAttention *)t;
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length;
    const LinearParameters *at = &m->at[l].attention.projection;
    const Attended *attended = &m->attended[l];
    const DeviceWeight projection = device_weight(t, at);
    const DeviceAttentionInput in = self_attention_input(m, GPU_TRAIN, batch, l);
    const DeviceAttentionGradients gradients = attention_self_gradients(t->dqkv);
    bias_backward(t, at, t->dsublayer_out, M);
    gemm_backward_input(&g->blas, m->dattended, t->dsublayer_out, projection, M);
    gemm_backward_weight(&g->blas, transformer_gradients(t, at->weight), t->dsublayer_out, attended->y,
                         projection, M);
    gpu_lap(g, GPU_TRAIN, "projection", PROFILE_BACKWARD, 2 * gpu_square_flops(batch, t->is.channels));
    attention_backward(&g->device, &m->kind, &gradients,
                       transformer_gradients(t, m->at[l].attention.norm_const), m->dattended, attended->y,
                       attended->logsumexp, self_attention_learned(m, l), &in, t->attention);
    qkv_bias_backward(m, batch, l);
    gpu_lap(g, GPU_TRAIN, "attention", PROFILE_BACKWARD, 2 * self_attention_flops(m, batch));
}

// A layer as the Transformer has it. Post-norm, what normalises a sublayer's result stands before the next
// one; `embedding`: the norm before the first.
static inline TransformerLayer self_attention_layer(const SelfAttention *m, size_t l, bool post_norm,
                                                    const NormParameters *embedding) {
    const TransformerParameters *at = &m->at[l];
    const uint32_t site = m->site + 3 * (uint32_t)l;
    TransformerLayer layer = {
        transformer_first(at), at->attention.norm, at->attention.qkv, at->ffn, site + 2, true, site + 1};
    if (post_norm) {
        layer.norm = l > 0 ? m->at[l - 1].ffn.norm : *embedding;
        layer.ffn.norm = at->attention.norm;
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

// Memory. m->kind, causal, heads, at and site are set; embedding: post-norm, the norm before the first layer.
static inline void self_attention_create(SelfAttention *m, TransformerShape is, const TransformerParts &parts,
                                         const NormParameters *embedding) {
    m->attended = (Attended *)allocate(is.layers, sizeof(Attended), "layers");
    is.layer_sums = 5; // the biases of q and of v (or of all three), and behind attention and in the FFN
    is.layer_sum_width = 5 * is.channels + is.inner;
    if (is.post_norm) is.outer.norm = m->at[is.layers - 1].ffn.norm;
    transformer_create(&m->base, is, parts,
                       [&](size_t l) { return self_attention_layer(m, l, is.post_norm, embedding); });
}

static inline void self_attention_destroy(void *model) {
    SelfAttention *m = (SelfAttention *)model;
    transformer_destroy(&m->base);
    free(m->attended);
    free(m);
}

#endif
