// BERT on the GPU: the model of train_bert.c, whose options, parameters, statistics and description
// it takes; forward and backward pass in CUDA. Both programs read and write the same checkpoints,
// and drop the same elements.
//
// M = B*T rows, C channels, K rows that are predicted (masked.h).
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual
// stream, statistics and gradients of parameters are float32.

#include "chosen_rows.cuh"
#include "self_attention.cuh"
extern "C" {
#include "bert.h"
#include "train.h"
}

struct Bert {
    SelfAttention base;
    const PredictionPlan *prediction;
    Matrix chosen;      // (K, C) of the last LayerNorm
    float *hidden;      // (K, C) before the GELU
    float *activated;   // (K, C)
    Matrix normal;      // (K, C) what the classifier reads
    float *mean, *rstd; // (K)
};

static void carve(Transformer *t, DeviceArena *arena) {
    Bert *b = (Bert *)t;
    const size_t M = gpu_rows(&t->base), C = t->shape.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    self_attention_carve(t, arena);
    b->chosen = arena_matrix(arena, M, C, in_bf16, "activations");
    b->hidden = arena_array<float>(arena, M * C, "activations");
    b->activated = arena_array<float>(arena, M * C, "activations");
    b->normal = arena_matrix(arena, M, C, in_bf16, "activations");
    b->mean = arena_array<float>(arena, M, "activations");
    b->rstd = arena_array<float>(arena, M, "activations");
}

static Matrix predict(Transformer *t, GpuWork work, const DeviceBatch *batch) {
    const Bert *b = (const Bert *)t;
    const Device *d = &t->base.device;
    const PredictionPlan *o = b->prediction;
    const size_t K = batch->chosen, C = t->shape.channels;
    const Matrix hidden = float_matrix(b->hidden, C);
    if (batch->rows) rows_gather(d, b->chosen, transformer_result(t), batch->rows, K);
    gemm_forward(&t->base.blas, hidden, batch->rows ? b->chosen : transformer_result(t),
                 device_weight(t, &o->transform), K);
    gpu_lap(&t->base, work, "prediction", PROFILE_FORWARD, 2 * (double)K * (double)(C * C));
    activation_forward(d, float_matrix(b->activated, C), hidden, hidden, GELU_ERF, K, C);
    layernorm_forward(d, {b->normal, NULL, b->mean, b->rstd}, b->activated,
                      norm_weights(t, &o->norm), K, C);
    gpu_lap(&t->base, work, "activation, norm", PROFILE_FORWARD, 0);
    return b->normal;
}

static void predict_backward(Transformer *t, const DeviceBatch *batch) {
    const Bert *b = (const Bert *)t;
    GpuModel *g = &t->base;
    const PredictionPlan *o = b->prediction;
    const size_t K = batch->chosen, C = t->shape.channels;
    const DeviceWeight transform = device_weight(t, &o->transform);
    const Matrix dchosen = float_matrix(t->dx, C),
                 dhidden = t->gradients[t->shape.layers - 1].ffn; // free yet
    const LayerNormWeights w = norm_weights(t, &o->norm);
    const LayerNormGradients to = {t->dx, transformer_gradients(t, o->norm.gain),
                                   transformer_gradients(t, o->norm.bias), true};
    layernorm_backward(&g->device, &g->sums, to, t->dnorm, {b->activated, w, b->mean, b->rstd},
                       layernorm_no_tail(), K, C);
    activation_backward(&g->device, dhidden, dchosen, float_matrix(b->hidden, C), GELU_ERF, K, C);
    gpu_lap(g, GPU_TRAIN, "activation, norm", PROFILE_BACKWARD, 0);
    bias_backward(t, &o->transform, dhidden, K);
    gemm_backward_input(&g->blas, dchosen, dhidden, transform, K);
    gemm_backward_weight(&g->blas, transformer_gradients(t, o->transform.weight), dhidden,
                         b->chosen, transform, K);
    rows_scatter(&g->device, t->dnorm, t->dx, batch->rows, K, batch->batch * batch->length, C);
    gpu_lap(g, GPU_TRAIN, "prediction", PROFILE_BACKWARD, 4 * (double)K * (double)(C * C));
}

static void *bert_create(const ModelSetup *setup) {
    Bert *b = transformer_allocate<Bert>(&bert, setup);
    SelfAttention *m = &b->base;
    GpuModel *g = &m->base.base;
    const TransformerPlan *plan = transformer_plan(g->host);
    b->prediction = &plan->prediction;
    TransformerShape shape = transformer_shape(plan);
    shape.outer_sums = 4; // the type; of the prediction, bias, and gain and bias of its norm
    shape.outer_sum_width = 4 * plan->size.channels;
    TransformerParts parts = self_attention_parts();
    parts.carve = carve;
    parts.predict = predict;
    parts.predict_backward = predict_backward;
    g->chooses = true;
    self_attention_choose(m, plan);
    self_attention_create(m, shape, parts, [&](size_t l) {
        return self_attention_layer(&plan->layers[l], l > 0 ? &plan->layers[l - 1].ffn.norm
                                                            : &plan->stacks[0].embedding.norm);
    });
    return b;
}

ModelType bert_on_gpu() {
    return transformer_type(&bert, "train_bertcu", bert_create, self_attention_destroy);
}

TRANSFORMER_MAIN(bert_on_gpu())
