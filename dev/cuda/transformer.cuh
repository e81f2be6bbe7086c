// A model on the GPU, built from its plan (transformer_plan.h): parameters, memory, and the inputs
// and outputs of its blocks (blocks.cuh). The model's C file determines the order of the blocks, as
// on the CPU.
//
// Pre-norm models (Fastformer, GPT-2) and post-norm models (BERT, the first Transformer) have norms
// in the same places: before each sublayer and after the last one, each fused with the residual
// connection before it. With pre-norm, the residual stream bypasses the norms, which read the
// stream. With post-norm, the stream passes through the norms, which read a sum that nothing else
// reads.
//
// B batch size, T sequence length, M = B*T, N = B*S of the encoder's side, C channels, F channels
// inside the feed-forward network, V vocabulary size, L layers, counted through both stacks.
#ifndef CUDA_TRANSFORMER_CUH
#define CUDA_TRANSFORMER_CUH

#include "activation.cuh"
#include "attention.cuh"
#include "chosen_rows.cuh"
#include "embedding.cuh"
#include "gpu_model.cuh"
#include "query_key.cuh"
#include "residual.cuh"
#include "token_shift.cuh"
#include "weight_groups.cuh"
extern "C" {
#include "embedding.h"
#include "transformer_plan.h"
}

static constexpr size_t WEIGHT_PLACES = 8; // most products per layer

// What a layer's self- or cross-attention keeps for its backward pass.
struct DeviceAttended {
    Matrix y; // (M, C) input of the projection; without one, no data
    float *kept;
    float *memory; // of a decoder
};

// What the cross-attention of a decoder's layer keeps, and its own gradients.
struct DeviceCross {
    float *x;           // (M, C) input of the norm before it
    float *mean, *rstd; // (M)
    Matrix query;       // (M, C)
    Matrix key_value;   // (N, 2C)
    DeviceAttended attended;
    Matrix dquery, dkey_value; // (M, C), (N, 2C); these and `norm` are shared as in LayerGradients
    Matrix norm;               // (M, C) input of the product for queries, recomputed
};

// Operands of the products for a layer's weight gradients, which its backward pass keeps. If these
// products do not wait (weights_wait()), all layers share one set, and its gradients of (M, C) are
// one matrix.
struct LayerGradients {
    Matrix ffn, before_ffn;    // (M, C) of the output of the FFN, and of the sublayer before it
    Matrix projection;         // (M, C) of the output of self-attention's projection
    Matrix hidden, qkv;        // (M, F) or SwiGLU (M, 2F), (M, C + 2H'D)
    Matrix norm_ffn, norm_qkv; // (M, C) not gradients: inputs of the FFN and of the product for q,
                               // k and v, recomputed
};

// A layer. Without training, or with --recompute, all layers share their activations except x_in.
struct DeviceLayer {
    float *x_in, *x_middle; // (M, C) inputs of the norms before attention and before the FFN
    float *mean1, *rstd1, *mean2, *rstd2; // (M)
    Matrix qkv;                           // (M, C + 2H'D)
    DeviceAttended attended;
    DeviceCross cross;        // if the layer has cross-attention
    Matrix hidden, activated; // (M, F), SwiGLU (M, 2F), before the activation; (M, F) after it
    bf16 *qkv_parts;          // (3C, 3C) parts of the weights for q, k and v; or NULL
    LayerGradients gradients;
};

// Memory of a stack.
struct DeviceStack {
    float *x_out;         // (M, C) input of the norm after the last layer
    float *mean, *rstd;   // (M)
    Matrix result;        // (M, C) output of that norm
    float *dx;            // (M, C) gradient of the residual stream
    EmbeddingOrder order; // of its tokens
};

// Activations of a prediction, for the K rows that have a target.
struct DevicePrediction {
    Matrix chosen;             // (K, C) these rows of the last norm
    float *hidden, *activated; // (K, C) before and after the GELU
    Matrix normal;             // (K, C) input of the classifier
    float *mean, *rstd;        // (K)
};

struct Transformer {
    GpuModel base;
    const TransformerType *type;
    TransformerPlan plan; // its layers belong to the host's model
    DeviceLayer *layers;  // (L)
    DeviceStack stacks[MAX_STACKS];
    DevicePrediction prediction;
    float *stream;       // (M, C) post-norm: the residual stream
    float *sinusoids;    // (positions, C), or NULL
    float *angles;       // (positions, D) of rotary positions, or NULL
    Matrix norm;         // (M, C) input of a sublayer's first product
    Matrix norm_parts;   // (M, 3C) its parts, with bf16, for q, k and v of kinds that need float32
    Matrix shifted;      // with --token-shift: input of that product; type and size as above
    float *before;       // (L, S, channels of --token-shift) of a decoder: those of the last token
    Matrix prepared;     // (M, 3C) queries, keys and values, if they are prepared
    Matrix hidden_exact; // (M, F) or (M, 2F) float32, with bf16, for separate activation kernels
    float *sublayer_out; // (M, C)
    float *attention;    // working memory
    Matrix predicted;    // (K, C) input of the classifier
    Classifier classifier;
    float *token_losses; // (M) on the host
    size_t room;         // of a decoder: capacity in tokens per text

    float *dx;      // (M, C) of the current stack
    float *dnorm;   // (M, C)
    float *dresult; // (M, C) of the encoder's result: starts at 0; the decoder adds to it
    Matrix dattended, dprepared; // (M, C), (M, 3C)
    Matrix dactivated;           // (M, F) of SwiGLU
    bool groups_weights;         // products for weight gradients wait for each other
    WeightGroup weights[WEIGHT_PLACES];
    size_t weight_place; // of the next such product of the layer
};

// One pass through the model for one batch.
struct BlockPass {
    Transformer *model;
    GpuWork work;
    const DeviceBatch *batch;
    DeviceBatch source; // the encoder's side, as a separate batch
};

// ---- the plan ---------------------------------------------------------------

static inline bool is_post_norm(const Transformer *t) {
    return t->plan.order == POST_NORM;
}

// The stack of a layer.
static inline size_t stack_of(const Transformer *t, size_t l) {
    return t->plan.stack_count > 1 && l >= t->plan.stacks[1].first ? 1 : 0;
}

// Norms by place: before the product for q, k and v, before cross-attention, before the
// feed-forward network, and after a stack's last layer. With post-norm, the norm of a sublayer's
// result is the one before the next sublayer.
static inline const NormParameters *attention_norm(const Transformer *t, size_t l) {
    const StackPlan *stack = &t->plan.stacks[stack_of(t, l)];
    if (!is_post_norm(t)) return &t->plan.layers[l].attention.norm;
    return l == stack->first ? &stack->embedding.norm : &t->plan.layers[l - 1].ffn.norm;
}

static inline const NormParameters *cross_norm(const Transformer *t, size_t l) {
    const LayerPlan *layer = &t->plan.layers[l];
    return is_post_norm(t) ? &layer->attention.norm : &layer->cross.norm;
}

static inline const NormParameters *ffn_norm(const Transformer *t, size_t l) {
    const LayerPlan *layer = &t->plan.layers[l];
    if (!is_post_norm(t)) return &layer->ffn.norm;
    return layer->crosses ? &layer->cross.norm : &layer->attention.norm;
}

static inline const NormParameters *stack_norm(const Transformer *t, size_t stack) {
    const StackPlan *plan = &t->plan.stacks[stack];
    return is_post_norm(t) ? &t->plan.layers[plan->end - 1].ffn.norm : &plan->norm;
}

// Whether a layer's q, k and v are float32, computed from float32.
static inline bool is_exact(const Transformer *t, size_t l) {
    return attention_types[t->plan.layers[l].attention.kind].exact;
}

// Whether rows are chosen and transformed before classification.
static inline bool predicts(const Transformer *t) {
    return t->plan.prediction.transform.weight != NO_PARAMETER;
}

// Whether the activation is fused with a product.
static inline bool activation_is_fused(const Transformer *t) {
    return t->plan.activation == GELU_TANH;
}

// ---- parameters -------------------------------------------------------------
// A parameter's values and gradients; NULL for NO_PARAMETER.
static inline const float *transformer_values(const Transformer *t, size_t offset) {
    return offset == NO_PARAMETER ? NULL : t->base.state.values + offset;
}

static inline float *transformer_gradients(const Transformer *t, size_t offset) {
    return offset == NO_PARAMETER ? NULL : t->base.state.gradients + offset;
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

// The output layer, transposed.
static inline DeviceWeight output_weight(const Transformer *t) {
    LinearParameters parameters = {};
    parameters.shape.outputs = t->plan.size.vocabulary;
    parameters.shape.inputs = t->plan.size.channels;
    parameters.shape.layout = WEIGHT_OUT_IN;
    parameters.weight = t->plan.output;
    parameters.bias = t->plan.bias;
    return device_weight(t, &parameters);
}

// The input of a layer's product for q, k and v, and its weight.
static inline Matrix qkv_input(const Transformer *t, size_t l) {
    return t->layers[l].qkv_parts ? t->norm_parts : t->norm;
}

static inline DeviceWeight qkv_weight(const Transformer *t, size_t l) {
    DeviceWeight w = device_weight(t, &t->plan.layers[l].attention.qkv);
    if (!t->layers[l].qkv_parts) return w;
    w.rounded = t->layers[l].qkv_parts;
    w.k *= PARTS_COLUMNS;
    return w;
}

// ---- memory -----------------------------------------------------------------

static inline DeviceAttentionShape attention_shape(const Transformer *t,
                                                   const AttentionPlan *plan) {
    const GpuModel *g = &t->base;
    return {plan,      t->plan.size.channels,    t->plan.size.heads, g->batch,
            g->length, g->precision == GPU_BF16, g->training};
}

// Carves an activation, or the gradient of one, in the type that products read.
static inline Matrix product_matrix(const Transformer *t, DeviceArena *arena, size_t columns) {
    return arena_matrix(arena, gpu_rows(&t->base), columns, t->base.precision == GPU_BF16,
                        "activations");
}

static inline Matrix gradient_matrix(const Transformer *t, DeviceArena *arena, size_t columns) {
    return arena_matrix(arena, gpu_rows(&t->base), columns, t->base.precision == GPU_BF16,
                        "gradients of activations");
}

static inline DeviceAttended attended_carve(const Transformer *t, const AttentionPlan *plan,
                                            DeviceArena *arena) {
    const DeviceAttentionShape shape = attention_shape(t, plan);
    const size_t kept = attention_kernel(plan)->kept(&shape);
    DeviceAttended a = {};
    if (attention_projects(plan)) a.y = product_matrix(t, arena, t->plan.size.channels);
    if (kept > 0) a.kept = arena_array<float>(arena, kept, "activations");
    return a;
}

static inline void cross_carve(const Transformer *t, DeviceCross *c, const AttentionPlan *plan,
                               DeviceArena *arena) {
    const size_t M = gpu_rows(&t->base), C = t->plan.size.channels;
    c->x = arena_array<float>(arena, M * C, "activations");
    c->mean = arena_array<float>(arena, M, "activations");
    c->rstd = arena_array<float>(arena, M, "activations");
    c->query = product_matrix(t, arena, C);
    c->key_value = product_matrix(t, arena, 2 * C);
    c->attended = attended_carve(t, plan, arena);
}

// Number of columns before the activation of a feed-forward network.
static inline size_t hidden_columns(const Transformer *t) {
    return t->plan.layers[0].ffn.up.shape.outputs;
}

// Carves a layer's activations except x_in.
static inline void layer_carve(Transformer *t, size_t l, DeviceArena *arena) {
    const LayerPlan *plan = &t->plan.layers[l];
    DeviceLayer *a = &t->layers[l];
    const size_t M = gpu_rows(&t->base), C = t->plan.size.channels;
    const bool in_bf16 = t->base.precision == GPU_BF16 && !is_exact(t, l);
    a->x_middle = arena_array<float>(arena, M * C, "activations");
    a->mean1 = arena_array<float>(arena, M, "activations");
    a->rstd1 = arena_array<float>(arena, M, "activations");
    a->mean2 = arena_array<float>(arena, M, "activations");
    a->rstd2 = arena_array<float>(arena, M, "activations");
    a->qkv = arena_matrix(arena, M, plan->attention.qkv.shape.outputs, in_bf16, "activations");
    a->hidden = product_matrix(t, arena, hidden_columns(t));
    a->activated = product_matrix(t, arena, t->plan.inner);
    a->attended = attended_carve(t, &plan->attention, arena);
    if (plan->crosses) cross_carve(t, &a->cross, &plan->cross, arena);
}

// A set that all layers share is as large as the largest one.
static inline void layers_carve(Transformer *t, DeviceArena *arena) {
    const GpuModel *g = &t->base;
    const size_t L = t->plan.size.layers, M = gpu_rows(g), C = t->plan.size.channels;
    for (size_t l = 0; l < L; l++)
        t->layers[l].x_in = l == 0 || g->training ? arena_array<float>(arena, M * C, "activations")
                                                  : t->layers[0].x_in;
    const bool shared = !g->training || g->recompute;
    const DeviceArena start = *arena;
    for (size_t l = 0; l < L; l++) {
        DeviceArena with = shared ? start : *arena;
        layer_carve(t, l, &with);
        if (with.used > arena->used) *arena = with;
    }
}

// Carves the parts of the weights for q, k and v, of the layers that need them, without gaps.
static inline void parts_carve(Transformer *t, DeviceArena *arena) {
    const size_t C = t->plan.size.channels, numbers = PARTS_COLUMNS * 3 * C * C;
    size_t count = 0;
    if (t->base.precision != GPU_BF16) return;
    for (size_t l = 0; l < t->plan.size.layers; l++) count += is_exact(t, l);
    if (count == 0) return;
    bf16 *parts = arena_array<bf16>(arena, count * numbers, "attention");
    for (size_t l = 0; l < t->plan.size.layers; l++) {
        if (!is_exact(t, l)) continue;
        t->layers[l].qkv_parts = parts;
        if (arena->memory) parts += numbers;
    }
    t->norm_parts = arena_matrix(arena, gpu_rows(&t->base), PARTS_COLUMNS * C, true, "activations");
}

static inline void stack_carve(Transformer *t, DeviceStack *s, DeviceArena *arena) {
    const size_t M = gpu_rows(&t->base), C = t->plan.size.channels;
    s->x_out =
        t->base.training ? arena_array<float>(arena, M * C, "activations") : t->layers[0].x_in;
    s->mean = arena_array<float>(arena, M, "activations");
    s->rstd = arena_array<float>(arena, M, "activations");
    s->result = product_matrix(t, arena, C);
    if (!t->base.training) return;
    s->dx = arena_array<float>(arena, M * C, "gradients of activations");
    embedding_order_carve(&s->order, arena, M, t->plan.size.vocabulary, C);
}

static inline bool any_projects(const Transformer *t) {
    for (size_t l = 0; l < t->plan.size.layers; l++)
        if (attention_projects(&t->plan.layers[l].attention)) return true;
    return false;
}

// Whether products for weight gradients wait, to be computed for all layers of a stack at once.
// They wait if their operands, of all layers, take at most twice the L2 cache: this is little
// memory, and each product then takes a few microseconds. They do not wait with --recompute, whose
// purpose is to keep less, nor with several ranks, which start to sum a layer's gradients while
// those of the next one are computed.
static inline bool weights_wait(const Transformer *t) {
    const GpuModel *g = &t->base;
    const double numbers = (double)gpu_rows(g) * (double)t->plan.size.layers *
                           (double)(7 * t->plan.size.channels + hidden_columns(t));
    return g->training && !g->recompute && !g->reduction &&
           numbers * (g->precision == GPU_BF16 ? sizeof(bf16) : sizeof(float)) <=
               2.0 * (double)g->device.l2;
}

// Operand (M, C) of products for weight gradients; `shared` if they do not wait.
static inline Matrix waiting_matrix(const Transformer *t, DeviceArena *arena, Matrix shared) {
    return t->groups_weights ? gradient_matrix(t, arena, t->plan.size.channels) : shared;
}

// Carves the operands of the products for weight gradients: of each layer if the products wait,
// else of the first layer for all layers.
static inline void gradients_carve(Transformer *t, DeviceArena *arena) {
    const size_t C = t->plan.size.channels;
    Matrix dquery = {}, dkey_value = {};
    for (size_t l = 0; l < t->plan.size.layers; l++) {
        const LayerPlan *plan = &t->plan.layers[l];
        LayerGradients *d = &t->layers[l].gradients;
        const LayerGradients *first = &t->layers[0].gradients;
        const bool own = l == 0 || t->groups_weights;
        *d = {};
        d->ffn = own ? gradient_matrix(t, arena, C) : first->ffn;
        d->hidden = own ? gradient_matrix(t, arena, hidden_columns(t)) : first->hidden;
        d->qkv = own ? gradient_matrix(t, arena, 3 * C) : first->qkv;
        d->qkv.columns = plan->attention.qkv.shape.outputs;
        if (attention_projects(&plan->attention))
            d->before_ffn = d->projection = waiting_matrix(t, arena, d->ffn);
        d->norm_ffn = waiting_matrix(t, arena, t->norm);
        d->norm_qkv = waiting_matrix(t, arena, t->shifted.data ? t->shifted : t->norm);
        d->norm_qkv.columns = C;
        if (!plan->crosses) continue;
        DeviceCross *cross = &t->layers[l].cross;
        if (t->groups_weights || !dquery.columns) {
            dquery = gradient_matrix(t, arena, C);
            dkey_value = gradient_matrix(t, arena, 2 * C);
        }
        cross->dquery = dquery;
        cross->dkey_value = dkey_value;
        cross->norm = waiting_matrix(t, arena, t->norm);
        d->before_ffn = waiting_matrix(t, arena, d->ffn);
    }
}

static inline void positions_carve(Transformer *t, DeviceArena *arena) {
    const ModelSizes *size = &t->plan.size;
    const PositionKind kind = t->plan.stacks[0].embedding.positions;
    if (kind == POSITIONS_SINUSOIDAL)
        t->sinusoids = arena_array<float>(arena, size->positions * size->channels, "positions");
    if (kind == POSITIONS_ROTARY)
        t->angles = arena_array<float>(arena, size->positions * size->head_size, "positions");
}

static inline void prediction_carve(Transformer *t, DeviceArena *arena) {
    DevicePrediction *p = &t->prediction;
    const size_t M = gpu_rows(&t->base), C = t->plan.size.channels;
    p->chosen = product_matrix(t, arena, C);
    p->hidden = arena_array<float>(arena, M * C, "activations");
    p->activated = arena_array<float>(arena, M * C, "activations");
    p->normal = product_matrix(t, arena, C);
    p->mean = arena_array<float>(arena, M, "activations");
    p->rstd = arena_array<float>(arena, M, "activations");
}

// Carves the input of products for q, k and v, if it is shifted.
static inline void shifted_carve(Transformer *t, DeviceArena *arena) {
    const Matrix norm = t->norm_parts.columns ? t->norm_parts : t->norm;
    if (plan_shifted(&t->plan) > 0) t->shifted = product_matrix(t, arena, norm.columns);
}

// ---- sums over rows ---------------------------------------------------------

struct SumCount {
    unsigned sums;
    size_t width;
};

static inline void count_norm(SumCount *count, const Transformer *t) {
    count->sums += 2;
    count->width += 2 * t->plan.size.channels;
}

// Counts a product's bias as two sums, because that of the keys may be left out.
static inline void count_linear(SumCount *count, const LinearParameters *linear) {
    if (linear->weight == NO_PARAMETER || linear->bias == NO_PARAMETER) return;
    count->sums += 2;
    count->width += linear->shape.outputs;
}

static inline void count_attention(SumCount *count, const Transformer *t, const AttentionPlan *a) {
    count_norm(count, t);
    for (const LinearParameters *linear : {&a->qkv, &a->query, &a->key_value, &a->projection})
        count_linear(count, linear);
    if (a->scores != SCORES_QKNORM) return;
    count->sums += 1;
    count->width += 2 * t->plan.size.head_size;
}

// Counts every norm and bias, and the type that all tokens share.
static inline SumCount count_sums(const Transformer *t) {
    SumCount count = {};
    for (size_t l = 0; l < t->plan.size.layers; l++) {
        const LayerPlan *layer = &t->plan.layers[l];
        count_attention(&count, t, &layer->attention);
        if (layer->crosses) count_attention(&count, t, &layer->cross);
        count_norm(&count, t);
        count_linear(&count, &layer->ffn.up);
        count_linear(&count, &layer->ffn.down);
    }
    for (size_t i = 0; i < t->plan.stack_count; i++) {
        count_norm(&count, t); // after the last layer
        count_norm(&count, t); // of the embedding; or the type's
    }
    count_linear(&count, &t->plan.prediction.transform);
    count_norm(&count, t); // of the prediction
    count.sums += 1;       // the output bias
    return count;
}

static inline void transformer_carve(GpuModel *model, DeviceArena *arena) {
    Transformer *t = (Transformer *)model;
    const size_t M = gpu_rows(model), C = t->plan.size.channels;
    const bool in_bf16 = model->precision == GPU_BF16;
    size_t workspace = 0;
    for (size_t l = 0; l < t->plan.size.layers; l++)
        for (const AttentionPlan *plan : {&t->plan.layers[l].attention, &t->plan.layers[l].cross}) {
            if (plan == &t->plan.layers[l].cross && !t->plan.layers[l].crosses) continue;
            const DeviceAttentionShape shape = attention_shape(t, plan);
            const size_t needed = attention_kernel(plan)->workspace(&model->device, &shape);
            if (needed > workspace) workspace = needed;
        }
    layers_carve(t, arena);
    for (size_t i = 0; i < t->plan.stack_count; i++) stack_carve(t, &t->stacks[i], arena);
    if (is_post_norm(t)) t->stream = arena_array<float>(arena, M * C, "activations");
    t->norm = product_matrix(t, arena, C);
    parts_carve(t, arena);
    shifted_carve(t, arena);
    if (in_bf16 && !activation_is_fused(t))
        t->hidden_exact = arena_matrix(arena, M, hidden_columns(t), false, "activations");
    t->sublayer_out = arena_array<float>(arena, M * C, "activations");
    model->statistics.scores = t->sublayer_out; // not yet in use during attention
    t->attention = arena_array<float>(arena, workspace, "attention");
    classifier_carve(&t->classifier, arena, t->plan.size.vocabulary, C, M, t->plan.smoothing,
                     model->training && model->fuses_output);
    positions_carve(t, arena);
    if (plan_prepares(&t->plan)) t->prepared = product_matrix(t, arena, 3 * C);
    if (predicts(t)) prediction_carve(t, arena);
    if (!model->training) return;
    t->groups_weights = weights_wait(t);
    gradients_carve(t, arena);
    if (any_projects(t)) t->dattended = gradient_matrix(t, arena, C);
    if (plan_prepares(&t->plan)) t->dprepared = gradient_matrix(t, arena, 3 * C);
    if (t->plan.activation == SWIGLU) t->dactivated = gradient_matrix(t, arena, t->plan.inner);
    if (t->plan.stack_count > 1)
        t->dresult = arena_array<float>(arena, M * C, "gradients of activations");
    t->dnorm = arena_array<float>(arena, M * C, "gradients of activations");
    const SumCount count = count_sums(t);
    partial_sums_carve(&model->sums, arena, count.sums, count.width);
}

// Uploads positions that are computed, not learned: sinusoids, or else rotary angles.
static inline void upload_positions(const Transformer *t) {
    const ModelSizes *size = &t->plan.size;
    const size_t columns = t->sinusoids ? size->channels : size->head_size;
    float *values = (float *)allocate(size->positions * columns, sizeof(float), "positions");
    if (t->sinusoids)
        sinusoidal_positions(values, size->positions, columns);
    else
        rotary_angles(values, plan_rotary(&t->plan), size->positions, columns);
    CUDA_CHECK(cudaMemcpyAsync(t->sinusoids ? t->sinusoids : t->angles, values,
                               size->positions * columns * sizeof(float), cudaMemcpyHostToDevice,
                               t->base.device.stream));
    device_synchronize(&t->base.device);
    free(values);
}

#endif
