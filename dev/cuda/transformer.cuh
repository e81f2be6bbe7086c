// What models share on the GPU, of one stack of layers or of an encoder and a decoder: embedding,
// normalisation, queries, keys and values, the feed-forward network and classifier, with their
// memory, --profile's laps and the entries of ModelType that need them. A model adds what attends:
// between q, k, v and the residual stream after attention, of which the next LayerNorm is made in
// the same kernel. It holds a Transformer as its first member.
//
// Pre-norm (Fastformer, GPT-2) and post-norm (BERT, the first Transformer) have their LayerNorms in
// the same places, before each sublayer and after the last one. Pre-norm, the residual stream
// bypasses them, and they read the stream; post-norm, it passes through them, and they read a sum
// that nothing else reads.
//
// B batch, T sequence length, M = B*T, C channels, F inside the feed-forward network, V vocabulary,
// L layers.
#ifndef CUDA_TRANSFORMER_CUH
#define CUDA_TRANSFORMER_CUH

#include "activation.cuh"
#include "embedding.cuh"
#include "gpu_model.cuh"
#include "residual.cuh"
#include "weight_groups.cuh"
extern "C" {
#include "transformer_plan.h"
}

// The parameters outside of the layers: token embedding (V, C), which is the output's weight, too;
// positions (positions, C); bias (V) of the logits, or NO_PARAMETER.
struct OuterParameters {
    size_t token, position, bias;
};

// Of a layer: where its parameters are, and the sites of its dropout.
struct TransformerLayer {
    size_t first;        // parameter: those from here on are final after the layer's backward pass
    NormParameters norm; // before queries, keys and values are made
    LinearParameters qkv;
    FfnParameters ffn; // its norm: before the network
    uint32_t ffn_site;
    bool projects; // a product follows attention, and dropout at the second site
    uint32_t weights_site, projection_site;
};

// Layers that follow each other, with their embedding and what follows the last one.
struct StackShape {
    size_t first, end;   // of all layers
    NormParameters norm; // after the last
    uint32_t embedding_site;
};

// What a model is, constant once it is created.
struct TransformerShape {
    size_t layers, channels, inner, vocabulary; // L, C, F, V
    StackShape stacks[2]; // an encoder before the one whose result is classified
    size_t stack_count;
    OuterParameters outer;
    double embedding_scale;
    size_t type;      // (C) that is added to all tokens; or NO_PARAMETER
    int32_t padding;  // the token whose row takes no gradient; -1: none
    bool post_norm;   // and then the embedding's dropout follows its norm, if it has one
    double smoothing; // of the targets
    bool fixed_bias;  // that of the logits is not trained
    ActivationKind activation;
    bool exact_qkv;         // q, k and v are float32, and made of float32
    unsigned layer_sums;    // sums over rows that a layer needs in addition to its two norms',
    size_t layer_sum_width; // and how many numbers they have together;
    unsigned outer_sums;    // those outside of layers, without the final norm's and output bias's
    size_t outer_sum_width;
};

// What a layer's forward pass keeps for its backward pass.
struct TransformerActivations {
    float *x_in, *x_middle; // (M, C) what is normalised before attention and before the FFN
    float *mean1, *rstd1, *mean2, *rstd2; // (M)
    Matrix qkv;                           // (M, 3C)
    Matrix hidden, activated;             // (M, F) before and after the activation
};

// What a layer's backward pass keeps for the products for the gradients of its weights. Where
// these do not wait (weights_wait()), all layers share one set, and its gradients of (M, C) are one
// matrix.
struct LayerGradients {
    Matrix ffn, before_ffn; // (M, C) to the output of the FFN, and of the sublayer before it
    Matrix
        projection; // (M, C) to the output of self-attention's projection, if that is another one
    Matrix hidden, qkv; // (M, F), (M, 3C)
    Matrix norm_ffn,
        norm_qkv; // (M, C) not gradients: what FFN and product for q, k and v read, again
};

// Memory of a stack.
struct Stack {
    float *x_out;         // (M, C) what is normalised after the last layer
    float *mean, *rstd;   // (M)
    Matrix result;        // (M, C) the norm of that
    float *dx;            // (M, C) the gradient to the residual stream
    EmbeddingOrder order; // of its tokens
};

struct Transformer;

// What a model adds.
struct TransformerParts {
    // From qkv and x_in to x_middle; and, where a product follows attention, `norm`, LayerNorm 2 of
    // it.
    void (*attend)(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l);
    // From dx, and before_ffn of the layer's gradients where there is a projection, to their qkv.
    void (*attend_backward)(Transformer *t, const DeviceBatch *batch, size_t l);
    // The model's own arrays of a layer, shared with layer 0 unless `own`; and those outside of
    // layers.
    void (*carve_layer)(Transformer *t, DeviceArena *arena, size_t l, bool own);
    void (*carve)(Transformer *t, DeviceArena *arena);
    size_t (*workspace)(const Transformer *t, size_t l); // floats
    // From the last stack's result (M, C) to what the classifier reads of the rows that are
    // predicted (chosen, C); and from the gradient to that, in dnorm, to that to the result, in
    // dnorm. NULL: the classifier reads the result.
    Matrix (*predict)(Transformer *t, GpuWork work, const DeviceBatch *batch);
    void (*predict_backward)(Transformer *t, const DeviceBatch *batch);
};

struct Transformer {
    GpuModel base;
    TransformerShape shape;
    TransformerLayer *plan; // (L)
    TransformerActivations
        *layers; // (L); without training, or with --recompute, all share one set but x_in
    Stack stacks[2];
    float *stream;          // (M, C) post-norm: the residual stream
    const float *sinusoids; // (positions, C), or NULL: positions are learned
    Matrix
        norm_qkv; // (M, C) what the product for q, k and v reads; exact and bf16: its parts (M, 3C)
    bf16 *qkv_parts;     // (L, 3C, 3C) those of that product's weights, or NULL
    Matrix norm;         // (M, C)
    Matrix hidden_exact; // (M, F) float32, with bf16, for activations that are kernels of their own
    float *sublayer_out; // (M, C)
    float *attention;    // working memory
    Matrix predicted;    // (chosen, C) what the classifier reads
    Classifier classifier;

    float *dx;      // (M, C) of the stack that is passed through
    float *dnorm;   // (M, C)
    float *dresult; // (M, C) to the encoder's result: 0 after the forward pass, the decoder adds
                    // to it
    LayerGradients *gradients; // (L)
    bool groups_weights;       // products for gradients of weights wait for each other
    WeightGroups weights;

    TransformerParts parts;
};

// ---- parameters -------------------------------------------------------------
// Where a parameter's values and gradients are; NULL for NO_PARAMETER.
static inline const float *transformer_values(const Transformer *t, size_t offset) {
    return offset == NO_PARAMETER ? NULL : t->base.state.values + offset;
}

static inline float *transformer_gradients(const Transformer *t, size_t offset) {
    return offset == NO_PARAMETER ? NULL : t->base.state.gradients + offset;
}

// The result that is classified.
static inline Matrix transformer_result(const Transformer *t) {
    return t->stacks[t->shape.stack_count - 1].result;
}

static inline LayerNormWeights norm_weights(const Transformer *t,
                                            const NormParameters *parameters) {
    return {transformer_values(t, parameters->gain), transformer_values(t, parameters->bias),
            parameters->epsilon};
}

static inline DeviceWeight device_weight(const Transformer *t, const LinearParameters *parameters) {
    const ParameterState *s = &t->base.state;
    const bool bias = parameters->bias != NO_PARAMETER;
    return {s->values + parameters->weight,
            s->rounded ? s->rounded + parameters->weight : NULL,
            bias ? s->values + parameters->bias : NULL,
            bias && s->rounded ? s->rounded + parameters->bias : NULL,
            parameters->shape.outputs,
            parameters->shape.inputs,
            parameters->shape.layout};
}

// The output layer: the token embedding, transposed.
static inline DeviceWeight output_weight(const Transformer *t) {
    LinearParameters parameters = {};
    parameters.shape.outputs = t->shape.vocabulary;
    parameters.shape.inputs = t->shape.channels;
    parameters.shape.layout = WEIGHT_OUT_IN;
    parameters.weight = t->shape.outer.token;
    parameters.bias = t->shape.outer.bias;
    return device_weight(t, &parameters);
}

// The weight of a layer's product for q, k and v, for norm_qkv.
static inline DeviceWeight qkv_weight(const Transformer *t, size_t l) {
    DeviceWeight w = device_weight(t, &t->plan[l].qkv);
    if (!t->qkv_parts) return w;
    w.rounded = t->qkv_parts + l * PARTS_COLUMNS * w.n * w.k;
    w.k *= PARTS_COLUMNS;
    return w;
}

// The parts of all layers' weights as they are.
static inline void qkv_parts_forward(const Transformer *t) {
    const LinearParameters *first = &t->plan[0].qkv;
    const size_t step = t->shape.layers > 1 ? t->plan[1].qkv.weight - first->weight : 0;
    for (size_t l = 0; l < t->shape.layers; l++)
        if (t->plan[l].qkv.weight != first->weight + l * step ||
            first->shape.layout != WEIGHT_OUT_IN)
            fail("weights of layers lie at different distances");
    weight_parts(&t->base.device, t->qkv_parts, transformer_values(t, first->weight), step,
                 t->shape.layers, first->shape.outputs, first->shape.inputs);
}

// Whether the activation is part of a product.
static inline bool activation_is_fused(const Transformer *t) {
    return t->shape.activation == GELU_TANH;
}

// ---- memory -----------------------------------------------------------------
// All but x_in.
static inline void activations_carve(Transformer *t, TransformerActivations *a,
                                     DeviceArena *arena) {
    const size_t M = gpu_rows(&t->base), C = t->shape.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    a->x_middle = arena_array<float>(arena, M * C, "activations");
    a->mean1 = arena_array<float>(arena, M, "activations");
    a->rstd1 = arena_array<float>(arena, M, "activations");
    a->mean2 = arena_array<float>(arena, M, "activations");
    a->rstd2 = arena_array<float>(arena, M, "activations");
    a->qkv = arena_matrix(arena, M, 3 * C, in_bf16 && !t->shape.exact_qkv, "activations");
    a->hidden = arena_matrix(arena, M, t->shape.inner, in_bf16, "activations");
    a->activated = arena_matrix(arena, M, t->shape.inner, in_bf16, "activations");
}

static inline void stack_carve(Transformer *t, Stack *s, DeviceArena *arena) {
    const size_t M = gpu_rows(&t->base), C = t->shape.channels;
    s->x_out =
        t->base.training ? arena_array<float>(arena, M * C, "activations") : t->layers[0].x_in;
    s->mean = arena_array<float>(arena, M, "activations");
    s->rstd = arena_array<float>(arena, M, "activations");
    s->result = arena_matrix(arena, M, C, t->base.precision == GPU_BF16, "activations");
    if (!t->base.training) return;
    s->dx = arena_array<float>(arena, M * C, "gradients of activations");
    embedding_order_carve(&s->order, arena, M, t->shape.vocabulary, C);
}

// Whether products for gradients of weights wait, to be computed for all layers of a stack at once.
// They do where what they wait with, of all layers, is at most twice the L2 cache: little memory,
// and then each product is a few microseconds' work. Not with --recompute, whose purpose is to keep
// less; nor with several ranks, which begin to sum the gradients of a layer while those of the next
// one are computed.
static inline bool weights_wait(const Transformer *t) {
    const GpuModel *g = &t->base;
    const double numbers = (double)gpu_rows(g) * (double)t->shape.layers *
                           (double)(7 * t->shape.channels + t->shape.inner);
    return g->training && !g->recompute && !g->reduction &&
           numbers * (g->precision == GPU_BF16 ? sizeof(bf16) : sizeof(float)) <=
               2.0 * (double)g->device.l2;
}

// A (M, C) of the products for gradients of weights; `shared` where they do not wait.
static inline Matrix gradients_matrix(const Transformer *t, DeviceArena *arena, Matrix shared) {
    return t->groups_weights
               ? arena_matrix(arena, gpu_rows(&t->base), t->shape.channels,
                              t->base.precision == GPU_BF16, "gradients of activations")
               : shared;
}

static inline void layer_gradients_carve(Transformer *t, size_t l, DeviceArena *arena) {
    LayerGradients *d = &t->gradients[l];
    const size_t M = gpu_rows(&t->base), C = t->shape.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16;
    d->ffn = arena_matrix(arena, M, C, in_bf16, "gradients of activations");
    d->hidden = arena_matrix(arena, M, t->shape.inner, in_bf16, "gradients of activations");
    d->qkv = arena_matrix(arena, M, 3 * C, in_bf16, "gradients of activations");
    d->before_ffn = d->projection =
        t->plan[l].projects ? gradients_matrix(t, arena, d->ffn) : Matrix{};
    d->norm_ffn = gradients_matrix(t, arena, t->norm);
    d->norm_qkv = gradients_matrix(t, arena, t->norm);
}

static inline void transformer_carve(GpuModel *model, DeviceArena *arena) {
    Transformer *t = (Transformer *)model;
    const size_t M = gpu_rows(model), C = t->shape.channels;
    const bool in_bf16 = model->precision == GPU_BF16, keep = model->training && !model->recompute;
    size_t attention = 0;
    for (size_t l = 0; l < t->shape.layers; l++) {
        const bool own = l == 0 || keep;
        if (own)
            activations_carve(t, &t->layers[l], arena);
        else
            t->layers[l] = t->layers[0];
        if (l == 0 || model->training)
            t->layers[l].x_in = arena_array<float>(arena, M * C, "activations");
        t->parts.carve_layer(t, arena, l, own);
        const size_t needed = t->parts.workspace(t, l);
        if (needed > attention) attention = needed;
    }
    for (size_t i = 0; i < t->shape.stack_count; i++) stack_carve(t, &t->stacks[i], arena);
    if (t->shape.post_norm) t->stream = arena_array<float>(arena, M * C, "activations");
    t->norm = arena_matrix(arena, M, C, in_bf16, "activations");
    t->norm_qkv = t->norm;
    if (in_bf16 && t->shape.exact_qkv) {
        t->norm_qkv = arena_matrix(arena, M, PARTS_COLUMNS * C, true, "activations");
        t->qkv_parts =
            arena_array<bf16>(arena, t->shape.layers * PARTS_COLUMNS * 3 * C * C, "attention");
    }
    if (in_bf16 && !activation_is_fused(t))
        t->hidden_exact = arena_matrix(arena, M, t->shape.inner, false, "activations");
    t->sublayer_out = arena_array<float>(arena, M * C, "activations");
    t->attention = arena_array<float>(arena, attention, "attention");
    classifier_carve(&t->classifier, arena, t->shape.vocabulary, C, M, t->shape.smoothing);
    t->groups_weights = weights_wait(t);
    for (size_t l = 0; model->training && l < t->shape.layers; l++) {
        t->gradients[l] = t->gradients[0];
        if (l == 0 || t->groups_weights) layer_gradients_carve(t, l, arena);
    }
    t->parts.carve(t, arena);
    if (!model->training) return;
    if (t->shape.stack_count > 1)
        t->dresult = arena_array<float>(arena, M * C, "gradients of activations");
    t->dnorm = arena_array<float>(arena, M * C, "gradients of activations");
    // Gain and bias of every LayerNorm, what else is needed, and the output bias.
    const size_t norms = 2 * (2 * t->shape.layers + t->shape.stack_count);
    partial_sums_carve(
        &model->sums, arena,
        (unsigned)(norms + t->shape.layers * t->shape.layer_sums) + t->shape.outer_sums + 1,
        norms * C + t->shape.layers * t->shape.layer_sum_width + t->shape.outer_sum_width);
}

// ---- forward ----------------------------------------------------------------

static inline LayerNormOutput norm_output(const Transformer *t, Matrix norm, float *mean,
                                          float *rstd) {
    return {norm, t->shape.post_norm ? t->stream : NULL, mean, rstd};
}

// `norm`, LayerNorm of x.
static inline void norm_forward(Transformer *t, const NormParameters *parameters, Matrix norm,
                                float *mean, float *rstd, const float *x, size_t m) {
    layernorm_forward(&t->base.device, norm_output(t, norm, mean, rstd), x,
                      norm_weights(t, parameters), m, t->shape.channels);
}

// What a residual connection and the LayerNorm after it read and write.
struct ResidualArrays {
    float *out;         // (M, C) the residual stream + dropout(a sublayer's output)
    Matrix norm;        // (M, C) its LayerNorm
    float *mean, *rstd; // (M)
    const float *x;     // (M, C) the stream, pre-norm
};

static inline ResidualNorm residual_norm(const Transformer *t, GpuWork work,
                                         const DeviceBatch *batch, uint32_t site,
                                         const NormParameters *parameters,
                                         const ResidualArrays &a) {
    return {a.out,
            norm_output(t, a.norm, a.mean, a.rstd),
            t->shape.post_norm ? t->stream : a.x,
            norm_weights(t, parameters),
            gpu_dropout(&t->base, work, site),
            batch->length};
}

// The same of sublayer_out.
static inline void sublayer_norm_forward(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                         const ResidualNorm &r) {
    residual_layernorm_forward(&t->base.device, r, t->sublayer_out, batch->batch * batch->length,
                               t->shape.channels);
    gpu_lap(&t->base, work, "residual, norm", PROFILE_FORWARD, 0);
}

static inline void residual_norm_forward(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                         uint32_t site, const NormParameters *parameters,
                                         const ResidualArrays &arrays) {
    sublayer_norm_forward(t, work, batch, residual_norm(t, work, batch, site, parameters, arrays));
}

// The dropout of a stack's embedding, where it is before its norm, or after it (`behind`).
static inline DropoutSite embedding_dropout(const Transformer *t, GpuWork work, size_t stack,
                                            bool behind) {
    const StackShape *s = &t->shape.stacks[stack];
    const bool is_behind = t->shape.post_norm && t->plan[s->first].norm.gain != NO_PARAMETER;
    return is_behind == behind ? gpu_dropout(&t->base, work, s->embedding_site) : dropout_none();
}

// x (M, C), the output of the embedding's norm, or the gradient to it, through the dropout there.
static inline void drop_embedding(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                  size_t stack, Matrix x) {
    dropout_apply(&t->base.device, x, embedding_dropout(t, work, stack, true), batch->batch,
                  batch->length);
}

// The output of a stack's first LayerNorm.
static inline void drop_embedded(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                 size_t stack) {
    drop_embedding(t, work, batch, stack, t->norm_qkv);
    drop_embedding(t, work, batch, stack, float_matrix(t->stream, t->shape.channels));
}

// norm_qkv and x_in of a stack's first layer.
static inline void embed(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t stack) {
    GpuModel *g = &t->base;
    const size_t l = t->shape.stacks[stack].first;
    const TransformerActivations *first = &t->layers[l];
    const EmbeddingRows rows = {transformer_values(t, t->shape.outer.token),
                                t->sinusoids ? t->sinusoids
                                             : transformer_values(t, t->shape.outer.position),
                                transformer_values(t, t->shape.type),
                                batch->inputs,
                                (unsigned)batch->length,
                                (float)t->shape.embedding_scale};
    embedding_layernorm_forward(
        &g->device, first->x_in, norm_output(t, t->norm_qkv, first->mean1, first->rstd1), rows,
        norm_weights(t, &t->plan[l].norm), embedding_dropout(t, work, stack, false), batch->batch,
        t->shape.channels);
    drop_embedded(t, work, batch, stack);
    gpu_lap(g, work, "embedding", PROFILE_FORWARD, 0);
}

// FLOP of a product of the batch in the feed-forward network.
static inline double ffn_flops(const Transformer *t, const DeviceBatch *batch) {
    return 2 * (double)(batch->batch * batch->length) * (double)t->shape.channels *
           (double)t->shape.inner;
}

// From norm_qkv, LayerNorm 1 of x_in, to x_middle and `norm`, LayerNorm 2 of it.
static inline void layer_attention(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                   size_t l) {
    GpuModel *g = &t->base;
    gemm_forward(&g->blas, t->layers[l].qkv, t->norm_qkv, qkv_weight(t, l),
                 batch->batch * batch->length);
    gpu_lap(g, work, "qkv", PROFILE_FORWARD, 3 * gpu_square_flops(batch, t->shape.channels));
    t->parts.attend(t, work, batch, l);
    if (t->plan[l].projects) return; // `norm` is computed
    norm_forward(t, &t->plan[l].ffn.norm, t->norm, t->layers[l].mean2, t->layers[l].rstd2,
                 t->layers[l].x_middle, batch->batch * batch->length);
    gpu_lap(g, work, "norm", PROFILE_FORWARD, 0);
}

// From `norm` to the FFN's activated hidden layer.
static inline void ffn_up(Transformer *t, GpuWork work, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length;
    const TransformerActivations *a = &t->layers[l];
    const DeviceWeight up = device_weight(t, &t->plan[l].ffn.up);
    if (activation_is_fused(t)) {
        gemm_forward_gelu(&g->blas, a->activated, a->hidden, t->norm, up, M);
        gpu_lap(g, work, "ffn up, activation", PROFILE_FORWARD, ffn_flops(t, batch));
        return;
    }
    const Matrix hidden = g->precision == GPU_BF16 ? t->hidden_exact : a->hidden;
    gemm_forward(&g->blas, hidden, t->norm, up, M);
    gpu_lap(g, work, "ffn up", PROFILE_FORWARD, ffn_flops(t, batch));
    activation_forward(&g->device, a->activated, a->hidden, hidden, t->shape.activation, M,
                       t->shape.inner);
    gpu_lap(g, work, "activation", PROFILE_FORWARD, 0);
}

// From `norm` to the FFN's output, which joins the residual stream, and the next LayerNorm, of
// layer l + 1 or the one after the stack.
static inline void ffn_sublayer(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                size_t stack, size_t l) {
    const StackShape *shape = &t->shape.stacks[stack];
    const Stack *s = &t->stacks[stack];
    const TransformerActivations *a = &t->layers[l], *next = a + 1;
    const uint32_t site = t->plan[l].ffn_site;
    const ResidualNorm behind =
        l + 1 < shape->end
            ? residual_norm(t, work, batch, site, &t->plan[l + 1].norm,
                            {next->x_in, t->norm_qkv, next->mean1, next->rstd1, a->x_middle})
            : residual_norm(t, work, batch, site, &shape->norm,
                            {s->x_out, s->result, s->mean, s->rstd, a->x_middle});
    ffn_up(t, work, batch, l);
    gemm_forward(&t->base.blas, float_matrix(t->sublayer_out, t->shape.channels), a->activated,
                 device_weight(t, &t->plan[l].ffn.down), batch->batch * batch->length);
    gpu_lap(&t->base, work, "ffn down", PROFILE_FORWARD, ffn_flops(t, batch));
    sublayer_norm_forward(t, work, batch, behind);
}

// From the tokens to the stack's result.
static inline void stack_forward(Transformer *t, GpuWork work, const DeviceBatch *batch,
                                 size_t stack) {
    const StackShape *s = &t->shape.stacks[stack];
    embed(t, work, batch, stack);
    for (size_t l = s->first; l < s->end; l++) {
        layer_attention(t, work, batch, l);
        ffn_sublayer(t, work, batch, stack, l);
    }
}

// ---- backward ---------------------------------------------------------------
// After a LayerNorm's backward pass: `again`, its output; `below`, the gradient to the sublayer's
// output that was added to its input. Each only if it exists.
static inline LayerNormTail norm_tail(const Transformer *t, const DeviceBatch *batch, Matrix again,
                                      Matrix below, uint32_t site) {
    return {again, below, below.data ? gpu_dropout(&t->base, GPU_TRAIN, site) : dropout_none(),
            batch->length};
}

// The gradient of a weight, from dy (M, N), that to its product's result, and x (M, K), what that
// read: now, or after the stack's backward pass. `kind`: --profile's.
static inline void weight_backward(Transformer *t, const char *kind,
                                   const LinearParameters *parameters, Matrix dy, Matrix x,
                                   size_t m) {
    const WeightProduct p = {transformer_gradients(t, parameters->weight), dy, x,
                             device_weight(t, parameters), m};
    if (t->groups_weights) {
        weight_groups_add(&t->weights, kind, p);
        return;
    }
    gemm_backward_weight(&t->base.blas, p.dw, p.dy, p.x, p.w, p.m);
    gpu_lap(&t->base, GPU_TRAIN, kind, PROFILE_BACKWARD, weight_product_flops(&p));
}

// Those that waited.
static inline void waiting_weights_backward(Transformer *t) {
    for (size_t i = 0; i < t->weights.count; i++) {
        const WeightGroup *group = &t->weights.groups[i];
        weight_group_run(&t->base.blas, group);
        gpu_lap(&t->base, GPU_TRAIN, group->kind, PROFILE_BACKWARD,
                (double)group->batch.count * weight_product_flops(&group->lowest));
    }
}

// Through a LayerNorm of x before a sublayer: dx becomes the gradient to the residual stream after
// the sublayer below, from what sublayer_input_backward() left; through the one after the last
// layer (`last`): from dnorm alone.
static inline void norm_backward(Transformer *t, const DeviceBatch *batch,
                                 const NormParameters *parameters, const float *x,
                                 const float *mean, const float *rstd, bool last,
                                 LayerNormTail tail) {
    const LayerNormWeights w = norm_weights(t, parameters);
    const size_t M = batch->batch * batch->length;
    if (parameters->gain ==
        NO_PARAMETER) { // post-norm, before a first layer: dx stays, and its output is x
        layernorm_forward(&t->base.device, {tail.norm, NULL, NULL, NULL}, x, w, M,
                          t->shape.channels);
        return;
    }
    const bool through = t->shape.post_norm && !last;
    const LayerNormGradients to = {t->dx, transformer_gradients(t, parameters->gain),
                                   transformer_gradients(t, parameters->bias),
                                   last || t->shape.post_norm};
    layernorm_backward(&t->base.device, &t->base.sums, to, through ? t->dx : t->dnorm,
                       {x, w, mean, rstd}, tail, M, t->shape.channels);
    gpu_lap(&t->base, GPU_TRAIN, tail.dbelow.data ? "residual, norm" : "norm", PROFILE_BACKWARD, 0);
}

// The gradient to what a sublayer's first product reads, from that to its result: pre-norm dnorm,
// post-norm, where this is the residual stream, too, a part of dx.
static inline void sublayer_input_backward(Transformer *t, Matrix dy, DeviceWeight first,
                                           size_t m) {
    Blas *blas = &t->base.blas;
    if (t->shape.post_norm)
        gemm_backward_input_add(blas, float_matrix(t->dx, t->shape.channels), dy, first, m);
    else
        gemm_backward_input(blas, float_matrix(t->dnorm, t->shape.channels), dy, first, m);
}

// The gradient of a product's bias, where it has one, from that to its result.
static inline void bias_backward(Transformer *t, const LinearParameters *parameters, Matrix dy,
                                 size_t m) {
    if (parameters->bias == NO_PARAMETER) return;
    column_sums(&t->base.device, &t->base.sums, transformer_gradients(t, parameters->bias), dy, m,
                parameters->shape.outputs);
    gpu_lap(&t->base, GPU_TRAIN, "row sums", PROFILE_BACKWARD, 0);
}

// What the forward pass kept of a layer, again, from x_in.
static inline void recompute_layer(Transformer *t, const DeviceBatch *batch, size_t stack,
                                   size_t l) {
    const TransformerActivations *a = &t->layers[l];
    norm_forward(t, &t->plan[l].norm, t->norm_qkv, a->mean1, a->rstd1, a->x_in,
                 batch->batch * batch->length);
    if (l == t->shape.stacks[stack].first) drop_embedded(t, GPU_TRAIN, batch, stack);
    layer_attention(t, GPU_TRAIN, batch, l);
    ffn_up(t, GPU_TRAIN, batch, l);
}

// From the gradient to the FFN's output to those to its hidden layer and to its input.
static inline void ffn_input_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length;
    const Matrix hidden = t->layers[l].hidden, dffn = t->gradients[l].ffn,
                 dhidden = t->gradients[l].hidden;
    const FfnParameters *parameters = &t->plan[l].ffn;
    const DeviceWeight up = device_weight(t, &parameters->up),
                       down = device_weight(t, &parameters->down);
    const double flops = ffn_flops(t, batch);
    if (activation_is_fused(t)) {
        gemm_backward_input_gelu(&g->blas, dhidden, dffn, down, hidden, M);
        gpu_lap(g, GPU_TRAIN, "ffn down, activation", PROFILE_BACKWARD, flops);
    } else {
        gemm_backward_input(&g->blas, dhidden, dffn, down, M);
        gpu_lap(g, GPU_TRAIN, "ffn down", PROFILE_BACKWARD, flops);
        activation_backward(&g->device, dhidden, dhidden, hidden, t->shape.activation, M,
                            t->shape.inner);
        gpu_lap(g, GPU_TRAIN, "activation", PROFILE_BACKWARD, 0);
    }
    sublayer_input_backward(t, dhidden, up, M);
    gpu_lap(g, GPU_TRAIN, "ffn up", PROFILE_BACKWARD, flops);
}

// From the gradient to the FFN's output, and dx, that to the residual stream after it, to dx
// before it, and the gradient to the projection's output.
static inline void ffn_backward(Transformer *t, const DeviceBatch *batch, size_t l) {
    const size_t M = batch->batch * batch->length;
    const TransformerActivations *a = &t->layers[l];
    const LayerGradients *d = &t->gradients[l];
    const TransformerLayer *o = &t->plan[l];
    bias_backward(t, &o->ffn.down, d->ffn, M);
    ffn_input_backward(t, batch, l);
    bias_backward(t, &o->ffn.up, d->hidden, M);
    weight_backward(t, "ffn down", &o->ffn.down, d->ffn, a->activated, M);
    norm_backward(t, batch, &o->ffn.norm, a->x_middle, a->mean2, a->rstd2, false,
                  norm_tail(t, batch, d->norm_ffn, d->before_ffn, o->projection_site));
    weight_backward(t, "ffn up", &o->ffn.up, d->hidden, d->norm_ffn, M);
}

// From dx after attention to dx before it, and the gradient to the output of the FFN of the layer
// below.
static inline void attention_backward(Transformer *t, const DeviceBatch *batch, size_t stack,
                                      size_t l) {
    const bool first = l == t->shape.stacks[stack].first;
    const size_t M = batch->batch * batch->length, C = t->shape.channels;
    const TransformerActivations *a = &t->layers[l];
    const LayerGradients *d = &t->gradients[l];
    const TransformerLayer *o = &t->plan[l];
    t->parts.attend_backward(t, batch, l);
    sublayer_input_backward(t, d->qkv, device_weight(t, &o->qkv), M);
    gpu_lap(&t->base, GPU_TRAIN, "qkv", PROFILE_BACKWARD, 3 * gpu_square_flops(batch, C));
    if (first) drop_embedding(t, GPU_TRAIN, batch, stack, float_matrix(t->dx, C));
    norm_backward(t, batch, &o->norm, a->x_in, a->mean1, a->rstd1, false,
                  norm_tail(t, batch, d->norm_qkv, first ? Matrix{} : t->gradients[l - 1].ffn,
                            first ? 0 : t->plan[l - 1].ffn_site));
    if (first) drop_embedding(t, GPU_TRAIN, batch, stack, d->norm_qkv);
    weight_backward(t, "qkv", &o->qkv, d->qkv, d->norm_qkv, M);
}

// Gradients of positions and type from dx, which goes through the embedding's dropout; that of
// tokens is token_backward()'s.
static inline void embed_backward(Transformer *t, const DeviceBatch *batch, size_t stack) {
    GpuModel *g = &t->base;
    const size_t M = batch->batch * batch->length, C = t->shape.channels;
    const DropoutSite site = embedding_dropout(t, GPU_TRAIN, stack, false);
    if (t->sinusoids)
        dropout_apply(&g->device, float_matrix(t->dx, C), site, batch->batch, batch->length);
    else
        position_backward(&g->device, transformer_gradients(t, t->shape.outer.position), t->dx,
                          site, batch->batch, batch->length, C);
    if (t->shape.type != NO_PARAMETER)
        column_sums(&g->device, &g->sums, transformer_gradients(t, t->shape.type),
                    float_matrix(t->dx, C), M, C);
    gpu_lap(g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
}

// From dnorm, the gradient to the stack's result, to its dx before the embedding.
static inline void stack_backward(Transformer *t, const DeviceBatch *batch, size_t stack) {
    const StackShape *shape = &t->shape.stacks[stack];
    const Stack *s = &t->stacks[stack];
    t->dx = s->dx;
    weight_groups_start(&t->weights);
    norm_backward(t, batch, &shape->norm, s->x_out, s->mean, s->rstd, true,
                  norm_tail(t, batch, {}, t->gradients[shape->end - 1].ffn,
                            t->plan[shape->end - 1].ffn_site));
    for (size_t l = shape->end; l-- > shape->first;) {
        weight_groups_layer(&t->weights);
        if (t->base.recompute && l + 1 < t->shape.layers) recompute_layer(t, batch, stack, l);
        ffn_backward(t, batch, l);
        attention_backward(t, batch, stack, l);
        gpu_gradients_final(&t->base, batch, t->plan[l].first,
                            l + 1 < t->shape.layers ? t->plan[l + 1].first : t->base.state.total);
    }
    waiting_weights_backward(t);
    embed_backward(t, batch, stack);
}

// ---- what the training loop calls -------------------------------------------
// The encoder's side of a batch, as a batch of its own.
static inline DeviceBatch source_batch(const DeviceBatch *batch) {
    DeviceBatch source = *batch;
    source.length = batch->source.length;
    source.inputs = batch->source.tokens;
    source.mask = batch->source.mask;
    return source;
}

static inline void transformer_backward(Transformer *t, const DeviceBatch *batch,
                                        const DeviceBatch *source) {
    const Device *d = &t->base.device;
    const size_t last = t->shape.stack_count - 1;
    const size_t bytes = source->batch * source->length * t->shape.channels * sizeof(float);
    if (last > 0) CUDA_CHECK(cudaMemsetAsync(t->dresult, 0, bytes, d->stream));
    stack_backward(t, batch, last);
    if (last == 0) return;
    CUDA_CHECK(cudaMemcpyAsync(t->dnorm, t->dresult, bytes, cudaMemcpyDeviceToDevice, d->stream));
    stack_backward(t, source, 0);
}

static inline void transformer_run(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    Transformer *t = (Transformer *)g;
    const size_t K = batch->chosen, C = t->shape.channels;
    const DeviceBatch source = source_batch(batch);
    if (t->qkv_parts) qkv_parts_forward(t);
    if (t->shape.stack_count > 1) stack_forward(t, work, &source, 0);
    stack_forward(t, work, batch, t->shape.stack_count - 1);
    t->predicted = t->parts.predict ? t->parts.predict(t, work, batch) : transformer_result(t);
    const ClassifierInput in = {t->predicted, output_weight(t), batch->targets, K};
    if (work == GPU_FORWARD) {
        classifier_forward(&g->device, &g->blas, &t->classifier, in, &g->results->classifier);
        return;
    }
    const ClassifierGradients to = {
        float_matrix(t->dnorm, C), transformer_gradients(t, t->shape.outer.token),
        t->shape.fixed_bias ? NULL : transformer_gradients(t, t->shape.outer.bias)};
    classifier_train(&g->device, &g->blas, &g->sums, &t->classifier, in, gpu_step(g), to,
                     &g->results->classifier);
    gpu_lap(g, work, "classifier", PROFILE_STEP,
            6 * (double)K * (double)t->shape.vocabulary * (double)C);
    t->dx = t->stacks[t->shape.stack_count - 1].dx;
    if (t->parts.predict) t->parts.predict_backward(t, batch);
    transformer_backward(t, batch, &source);
}

// The shape of what a plan describes, but for sums over rows.
static inline TransformerShape transformer_shape(const TransformerPlan *plan) {
    TransformerShape shape = {};
    const StackPlan *last = &plan->stacks[plan->stack_count - 1];
    const EmbeddingPlan *embedding = &last->embedding;
    shape.layers = plan->size.layers;
    shape.channels = plan->size.channels;
    shape.inner = plan->inner;
    shape.vocabulary = plan->size.vocabulary;
    shape.stack_count = plan->stack_count;
    shape.post_norm = plan->order == POST_NORM;
    for (size_t i = 0; i < plan->stack_count; i++) {
        const StackPlan *stack = &plan->stacks[i];
        shape.stacks[i] = {stack->first, stack->end,
                           shape.post_norm ? plan->layers[stack->end - 1].ffn.norm : stack->norm,
                           stack->embedding.site};
    }
    shape.outer = {embedding->token, embedding->position, plan->bias};
    shape.embedding_scale = embedding->scale;
    shape.type = embedding->type;
    shape.padding = embedding->padding;
    shape.smoothing = plan->smoothing;
    shape.fixed_bias = plan->bias_fixed;
    shape.activation = plan->activation;
    return shape;
}

// Ends the program where a layer attends in a way that is computed on the CPU alone so far: another
// kind than the first layer's, or a window where the model has none.
static inline void refuse_layers(const TransformerPlan *plan, AttentionKind kind, bool windows) {
    for (size_t l = 0; l < plan->size.layers; l++) {
        const AttentionPlan *a = &plan->layers[l].attention;
        if (a->kind != kind || (a->window > 0 && !windows))
            fail_usage("--attention: layer %zu, %s%s, is computed on the CPU alone", l + 1,
                       attention_types[a->kind].name, a->window > 0 ? " with a window" : "");
    }
}

// A model that begins with a Transformer: the host's model checks the options. transformer_create()
// follows.
template <typename Model>
static inline Model *transformer_allocate(const ModelType *host, const ModelSetup *setup) {
    Model *model = (Model *)allocate(1, sizeof(Model), "model");
    gpu_model_create((GpuModel *)model, host, setup);
    return model;
}

// Memory. layer(l): where its parameters lie.
template <typename Layer>
static inline void transformer_create(Transformer *t, TransformerShape shape,
                                      const TransformerParts &parts, Layer layer) {
    t->shape = shape;
    t->parts = parts;
    t->plan = (TransformerLayer *)allocate(shape.layers, sizeof(TransformerLayer), "layers");
    for (size_t l = 0; l < shape.layers; l++) t->plan[l] = layer(l);
    t->layers =
        (TransformerActivations *)allocate(shape.layers, sizeof(TransformerActivations), "layers");
    t->gradients = (LayerGradients *)allocate(shape.layers, sizeof(LayerGradients), "layers");
    t->base.run = transformer_run;
    t->base.carve = transformer_carve;
    t->base.given_from = t->plan[0].first;
    gpu_memory_create(&t->base);
}

static inline void transformer_destroy(Transformer *t) {
    gpu_model_destroy(&t->base);
    for (size_t i = 0; i < t->shape.stack_count; i++) embedding_order_free(&t->stacks[i].order);
    free(t->plan);
    free(t->layers);
    free(t->gradients);
}

static inline double transformer_train(void *model, const Batch *batch, double scale) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    const DeviceBatch staged = gpu_stage(g, batch, scale);
    gpu_launch(g, GPU_TRAIN, &staged);
    for (size_t i = 0; i < t->shape.stack_count; i++) {
        const bool source = i + 1 < t->shape.stack_count;
        token_backward(
            &g->device, &t->stacks[i].order, transformer_gradients(t, t->shape.outer.token),
            t->stacks[i].dx, source ? batch->source.tokens : batch->inputs,
            t->shape.embedding_scale, t->shape.padding,
            staged.batch * (source ? staged.source.length : staged.length), t->shape.channels);
    }
    return gpu_finish_training(g);
}

static inline void transformer_logits(void *model, const Batch *batch, float *logits) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    Batch all = *batch;
    all.targets = NULL;
    const DeviceBatch staged = gpu_stage(g, &all, 0);
    gpu_issue(g, GPU_FORWARD, &staged); // the loss is of no use here
    classifier_logits(&g->device, &g->blas, &t->classifier, t->predicted, output_weight(t),
                      staged.chosen, logits);
}

// The CPU's entries, those of any model on the GPU, and a transformer's.
static inline ModelType transformer_type(const ModelType *host, const char *program,
                                         void *(*create)(const ModelSetup *),
                                         void (*destroy)(void *)) {
    ModelType type = gpu_model_type(host, program);
    type.create = create;
    type.destroy = destroy;
    type.train = transformer_train;
    type.logits = transformer_logits;
    return type;
}

// The main() of a model's program, which includes train.h; a test that is linked with the program
// has its own.
#define TRANSFORMER_MAIN(on_gpu)                                                                   \
    __attribute__((weak)) int main(int argc, char **argv) {                                        \
        ModelType type = on_gpu;                                                                   \
        const int code = train_main(argc, argv, &type);                                            \
        gpu_model_type_free(&type);                                                                \
        return code;                                                                               \
    }

#endif
