// GPT-2 on the CPU (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) with the
// numbers of Hugging Face's class: the baseline, with three kinds of attention. Parameters, forward,
// backward, decoding, exchange with Hugging Face and options, top to bottom.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers. A layer:
//
//   q, k, v = split(LayerNorm(x) W_qkv + b)
//   x       = x + dropout(attention(q, k, v) W_proj + b)
//   x       = x + dropout(GELU(LayerNorm(x) W_up + b) W_down + b)
//
// attention: softmax, GPT-2's own; softmax1, whose denominator has one more term of 1; or cosine, whose cost
// is linear in T (softmax_attention.h, cosine_attention.h).

#include "barrier.h"
#include "classifier.h"
#include "cosine_attention.h"
#include "cpu_model.h"
#include "decode.h"
#include "device.h"
#include "dropout.h"
#include "embedding.h"
#include "error.h"
#include "gelu.h"
#include "gemm.h"
#include "gpt2.h"
#include "layernorm.h"
#include "language.h"
#include "memory.h"
#include "model.h"
#include "residual.h"
#include "softmax_attention.h"
#include "threads.h"
#include "train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Options and configuration

enum { MAX_LAYERS = 256, MAX_CHANNELS = 65536, MAX_HEADS = 1024 };

static const Option gpt2_options[] = {
    {'L', "layers", OPTION_INTEGER, OPTION_MODEL, "N", "6", 1, MAX_LAYERS, NULL, "n_layer", "Model",
     "layers"},
    {'C', "channels", OPTION_INTEGER, OPTION_MODEL, "N", "128", 1, MAX_CHANNELS, NULL, "n_embd", "Model",
     "channels"},
    {'H', "heads", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, MAX_HEADS, NULL, "n_head", "Model", "heads"},
    {0, "attention", OPTION_CHOICE, OPTION_MODEL, "KIND", "softmax", 0, 0, "softmax|softmax1|cosine", NULL,
     "Model", "kind"},
    {0, "dropout", OPTION_NUMBER, OPTION_TRAINING, "P", "0.1", 0, 0.99, NULL, NULL, "Model",
     "dropout probability"},
};

static Config config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    Config c = {
        .layers = (size_t)options_integer(o, "layers"),
        .channels = (size_t)options_integer(o, "channels"),
        .heads = (size_t)options_integer(o, "heads"),
        .vocabulary = (size_t)setup->vocabulary,
        .positions = (size_t)setup->positions,
        .attention = options_text(o, "attention"),
        .dropout = options_number(o, "dropout"),
        .seed = (uint64_t)options_integer(o, "seed"),
    };
    c.cosine = strcmp(c.attention, "cosine") == 0;
    c.sink = strcmp(c.attention, "softmax1") == 0 ? 1 : 0;
    c.head_size = c.channels / c.heads;
    if (c.channels % c.heads != 0)
        fail("--heads %zu: the %zu channels must divide into heads", c.heads, c.channels);
    return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters, under the names of Hugging Face's class. Its Conv1D stores weights as (in, out).

static size_t add_matrix(ParameterTable *table, const char *name, size_t rows, size_t columns,
                         double deviation) {
    return parameter_add(table, name, 2, (int64_t[]){(int64_t)rows, (int64_t)columns}, true, 0, deviation);
}

static size_t add_vector(ParameterTable *table, const char *name, size_t size, double value) {
    return parameter_add(table, name, 1, (int64_t[]){(int64_t)size}, false, value, 0);
}

static Offsets parameters_create(ParameterTable *table, const Config *c) {
    Offsets o = {.layers = allocate(c->layers, sizeof(LayerOffsets), "layers")};
    const size_t C = c->channels;
    // 2L sublayers are added to the residual stream: this keeps its variance that of one.
    const double plain = 0.02, residual = 0.02 / sqrt(2 * (double)c->layers);
    o.token = add_matrix(table, "transformer.wte.weight", c->vocabulary, C, plain);
    o.position = add_matrix(table, "transformer.wpe.weight", c->positions, C, plain);
    for (size_t l = 0; l < c->layers; l++) {
        LayerOffsets *layer = &o.layers[l];
        char name[PARAMETER_NAME];
#define NAME(suffix) (snprintf(name, sizeof(name), "transformer.h.%zu." suffix, l), name)
        layer->norm1_gain = add_vector(table, NAME("ln_1.weight"), C, 1);
        layer->norm1_bias = add_vector(table, NAME("ln_1.bias"), C, 0);
        layer->qkv = add_matrix(table, NAME("attn.c_attn.weight"), C, 3 * C, plain);
        layer->qkv_bias = add_vector(table, NAME("attn.c_attn.bias"), 3 * C, 0);
        if (c->cosine) layer->norm_const = add_vector(table, NAME("attn.norm_const"), c->heads, 0.5);
        layer->proj = add_matrix(table, NAME("attn.c_proj.weight"), C, C, residual);
        layer->proj_bias = add_vector(table, NAME("attn.c_proj.bias"), C, 0);
        layer->norm2_gain = add_vector(table, NAME("ln_2.weight"), C, 1);
        layer->norm2_bias = add_vector(table, NAME("ln_2.bias"), C, 0);
        layer->up = add_matrix(table, NAME("mlp.c_fc.weight"), C, 4 * C, plain);
        layer->up_bias = add_vector(table, NAME("mlp.c_fc.bias"), 4 * C, 0);
        layer->down = add_matrix(table, NAME("mlp.c_proj.weight"), 4 * C, C, residual);
        layer->down_bias = add_vector(table, NAME("mlp.c_proj.bias"), C, 0);
#undef NAME
    }
    o.final_gain = add_vector(table, "transformer.ln_f.weight", C, 1);
    o.final_bias = add_vector(table, "transformer.ln_f.bias", C, 0);
    return o;
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

// What a layer's forward pass leaves for its backward pass.
typedef struct {
    real *x_in, *x_middle;               // (M, C) the residual stream before attention and before the FFN
    GemmInput norm1, norm2;              // (M, C)
    real *mean1, *rstd1, *mean2, *rstd2; // (M)
    real *qkv;                           // (M, 3C) without the bias
    GemmInput attended;                  // (M, C) what attention gave
    real *logsumexp;                     // (B, H, T)
    real *hidden;                        // (M, 4C) before bias and GELU
    GemmInput activated;                 // (M, 4C)
} Activations;

typedef struct {
    GemmWeight *qkv, *proj, *up, *down;
} LayerWeights;

typedef struct {
    CpuModel base;
    Config config;
    Offsets offsets;
    size_t rows; // largest M
    bool training;
    Profile *profile;
    LayerWeights *weights; // (L) packed
    Classifier *classifier;

    SoftmaxAttention *softmax; // one of the two
    CosineAttention *cosine;

    Activations *layers;           // (L); without training all share one set of buffers
    real *x_out;                   // (M, C) the residual stream after the last layer
    real *sublayer_out;            // (M, C)
    GemmInput final_norm;          // (M, C)
    real *final_mean, *final_rstd; // (M)

    real *dx, *dnorm, *dattended;           // (M, C)
    real *dactivated;                       // (M, 4C)
    GemmInput dsublayer_out, dhidden, dqkv; // (M, C), (M, 4C), (M, 3C)
} Gpt2;

static real *buffer(size_t rows, size_t columns, const char *what) {
    return allocate(rows, columns * sizeof(real), what);
}

static void activations_create(const Gpt2 *g, Activations *a) {
    const size_t M = g->rows, C = g->config.channels;
    a->x_in = buffer(M, C, "activations");
    a->x_middle = g->training ? buffer(M, C, "activations") : a->x_in;
    a->norm1 = gemm_input_create(g->base.gemm, M, C, "activations");
    a->norm2 = gemm_input_create(g->base.gemm, M, C, "activations");
    a->mean1 = buffer(M, 1, "activations");
    a->rstd1 = buffer(M, 1, "activations");
    a->mean2 = buffer(M, 1, "activations");
    a->rstd2 = buffer(M, 1, "activations");
    a->qkv = buffer(M, 3 * C, "activations");
    a->attended = gemm_input_create(g->base.gemm, M, C, "activations");
    a->logsumexp = buffer(M, g->config.heads, "activations");
    a->hidden = buffer(M, 4 * C, "activations");
    a->activated = gemm_input_create(g->base.gemm, M, 4 * C, "activations");
}

static void activations_free(Activations *a, bool training) {
    free(a->x_in);
    if (training) free(a->x_middle);
    gemm_input_free(&a->norm1);
    gemm_input_free(&a->norm2);
    free(a->mean1);
    free(a->rstd1);
    free(a->mean2);
    free(a->rstd2);
    free(a->qkv);
    gemm_input_free(&a->attended);
    free(a->logsumexp);
    free(a->hidden);
    gemm_input_free(&a->activated);
}

static void forward_buffers_create(Gpt2 *g) {
    const size_t M = g->rows, L = g->config.layers, C = g->config.channels;
    g->layers = allocate(L, sizeof(Activations), "layers");
    for (size_t l = 0; l < L; l++) {
        if (l == 0 || g->training)
            activations_create(g, &g->layers[l]);
        else
            g->layers[l] = g->layers[0];
    }
    g->x_out = g->training ? buffer(M, C, "activations") : g->layers[0].x_in;
    g->sublayer_out = buffer(M, C, "activations");
    g->final_norm = gemm_input_create(g->base.gemm, M, C, "activations");
    g->final_mean = buffer(M, 1, "activations");
    g->final_rstd = buffer(M, 1, "activations");
}

static void backward_buffers_create(Gpt2 *g) {
    const size_t M = g->rows, C = g->config.channels;
    g->dx = buffer(M, C, "gradients");
    g->dnorm = buffer(M, C, "gradients");
    g->dattended = buffer(M, C, "gradients");
    g->dactivated = buffer(M, 4 * C, "gradients");
    g->dsublayer_out = gemm_input_create(g->base.gemm, M, C, "gradients");
    g->dhidden = gemm_input_create(g->base.gemm, M, 4 * C, "gradients");
    g->dqkv = gemm_input_create(g->base.gemm, M, 3 * C, "gradients");
}

static void packed_weights_create(Gpt2 *g) {
    const Config *c = &g->config;
    const size_t C = c->channels;
    g->weights = allocate(c->layers, sizeof(LayerWeights), "layers");
    for (size_t l = 0; l < c->layers; l++)
        g->weights[l] = (LayerWeights){
            .qkv = gemm_weight_create(g->base.gemm, 3 * C, C, WEIGHT_IN_OUT, "packed weights"),
            .proj = gemm_weight_create(g->base.gemm, C, C, WEIGHT_IN_OUT, "packed weights"),
            .up = gemm_weight_create(g->base.gemm, 4 * C, C, WEIGHT_IN_OUT, "packed weights"),
            .down = gemm_weight_create(g->base.gemm, C, 4 * C, WEIGHT_IN_OUT, "packed weights"),
        };
    g->classifier = classifier_create(g->base.gemm, c->vocabulary, C, g->rows, g->training);
}

static void *gpt2_create(const ModelSetup *setup) {
    Gpt2 *g = allocate(1, sizeof(Gpt2), "model");
    g->config = config_create(setup);
    g->training = setup->training;
    g->profile = setup->profile;
    const Config *c = &g->config;
    ParameterTable table = {0};
    g->offsets = parameters_create(&table, c);
    parameter_state_create(&g->base.state, table, g->training);
    g->base.decoding = cpu_decode_precision(options_text(setup->options, "precision"));
    const size_t B = (size_t)setup->batch, T = (size_t)setup->length;
    g->rows = B * T;
    if (g->rows == 0) return g;

    g->base.gemm = gemm_create(cpu_precision(setup));
    packed_weights_create(g);
    if (c->cosine)
        g->cosine = cosine_attention_create(B, T, c->channels, c->heads);
    else
        g->softmax = softmax_attention_create(gemm_precision(g->base.gemm), c->sink, B, T, c->channels,
                                              c->heads, g->training);
    forward_buffers_create(g);
    if (g->training) backward_buffers_create(g);
    return g;
}

static void gpt2_destroy(void *model) {
    Gpt2 *g = model;
    for (size_t l = 0; g->rows && l < g->config.layers; l++) {
        if (l == 0 || g->training) activations_free(&g->layers[l], g->training);
        gemm_weight_free(g->weights[l].qkv);
        gemm_weight_free(g->weights[l].proj);
        gemm_weight_free(g->weights[l].up);
        gemm_weight_free(g->weights[l].down);
    }
    if (g->rows) {
        classifier_free(g->classifier);
        if (g->training) free(g->x_out);
        gemm_input_free(&g->final_norm);
    }
    if (g->rows && g->training) {
        gemm_input_free(&g->dsublayer_out);
        gemm_input_free(&g->dhidden);
        gemm_input_free(&g->dqkv);
    }
    real *buffers[] = {g->sublayer_out, g->final_mean, g->final_rstd, g->dx,
                       g->dnorm,        g->dattended,  g->dactivated};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) free(buffers[i]);
    softmax_attention_free(g->softmax);
    cosine_attention_free(g->cosine);
    free(g->layers);
    free(g->weights);
    gemm_free(g->base.gemm);
    parameter_state_free(&g->base.state);
    free(g->offsets.layers);
    free(g);
}

// Weights as products read them, once after each change.
static void pack_weights(Gpt2 *g) {
    if (g->base.packed) return;
    const real *values = g->base.state.values;
    for (size_t l = 0; l < g->config.layers; l++) {
        const LayerOffsets *o = &g->offsets.layers[l];
        gemm_weight_pack(g->weights[l].qkv, values + o->qkv);
        gemm_weight_pack(g->weights[l].proj, values + o->proj);
        gemm_weight_pack(g->weights[l].up, values + o->up);
        gemm_weight_pack(g->weights[l].down, values + o->down);
    }
    classifier_pack(g->classifier, values + g->offsets.token);
    g->base.packed = true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and backward

static Dropout site_dropout(const Gpt2 *g, const Batch *batch, size_t layer, uint32_t site) {
    return dropout_create(g->config.dropout, g->config.seed, batch->step, dropout_site(layer, site));
}

static bool drops(const Gpt2 *g, bool train) {
    return train && g->config.dropout > 0;
}

// a->attended from a->qkv in layer l.
static void layer_attention_forward(Gpt2 *g, const Batch *batch, size_t l, bool train) {
    const Activations *a = &g->layers[l];
    const real *bias = g->base.state.values + g->offsets.layers[l].qkv_bias;
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
    const Dropout weights = site_dropout(g, batch, l, SITE_ATTENTION);
    if (g->cosine)
        cosine_attention_forward(g->cosine, a->attended, a->qkv, bias,
                                 g->base.state.values + g->offsets.layers[l].norm_const, batch->mask, B, T);
    else
        softmax_attention_forward(g->softmax, a->attended, a->logsumexp, a->qkv, bias, batch->mask,
                                  drops(g, train) ? &weights : NULL, (uint64_t)batch->first_row, B, T);
}

// g->dqkv from g->dattended; gradients to the bias of q, k, v and to m.
static void layer_attention_backward(Gpt2 *g, const Batch *batch, size_t l) {
    const Activations *a = &g->layers[l];
    const LayerOffsets *o = &g->offsets.layers[l];
    const real *values = g->base.state.values;
    real *gradients = g->base.state.gradients;
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
    const Dropout weights = site_dropout(g, batch, l, SITE_ATTENTION);
    if (g->cosine)
        cosine_attention_backward(g->cosine, g->dqkv, gradients + o->qkv_bias, gradients + o->norm_const,
                                  g->dattended, a->qkv, values + o->qkv_bias, values + o->norm_const,
                                  batch->mask, B, T);
    else
        softmax_attention_backward(g->softmax, g->dqkv, gradients + o->qkv_bias, g->dattended, a->attended,
                                   a->logsumexp, a->qkv, values + o->qkv_bias, batch->mask,
                                   drops(g, true) ? &weights : NULL, (uint64_t)batch->first_row, B, T);
    // Without a sink the bias of the keys adds the same to all scores of a row, which changes no weight. Its
    // gradient is 0; what came out is rounding, of which AdamW would make full steps.
    const size_t C = g->config.channels;
    if (g->softmax && g->config.sink == 0) memset(gradients + o->qkv_bias + C, 0, C * sizeof(real));
}

// Queries (part 0) or keys (part 1) of one head, bias added: rows (T, D). Cosine attention takes them at
// length 1.
static void load_head(const Gpt2 *g, size_t l, size_t b, size_t h, size_t part, size_t T, real *rows) {
    const size_t C = g->config.channels, D = g->config.head_size, column = part * C + h * D;
    const real *bias = g->base.state.values + g->offsets.layers[l].qkv_bias + column;
    for (size_t t = 0; t < T; t++) {
        const real *x = g->layers[l].qkv + (b * T + t) * 3 * C + column;
        double square = 0;
        for (size_t d = 0; d < D; d++) {
            rows[t * D + d] = x[d] + bias[d];
            square += (double)rows[t * D + d] * (double)rows[t * D + d];
        }
        if (!g->config.cosine) continue;
        const double inverse = square > 1e-24 ? 1 / sqrt(square) : 0;
        for (size_t d = 0; d < D; d++) rows[t * D + d] = (real)((double)rows[t * D + d] * inverse);
    }
}

// Adds the weights of one row of softmax attention, from its scores (count), which are overwritten.
static void measure_softmax(Measurement *m, real *scores, const uint8_t *mask, size_t count, double sink) {
    double largest = sink > 0 ? log(sink) : -INFINITY;
    for (size_t j = 0; j < count; j++)
        if (!mask || mask[j]) largest = fmax(largest, (double)scores[j]);
    for (size_t j = 0; j < count; j++) scores[j] = (real)exp((double)scores[j] - largest);
    measurement_add_weights(m, scores, mask, count, sink * exp(-largest));
}

// The same of cosine attention, whose weights are the scores over n^sigmoid(exponent).
static void measure_cosine(Measurement *m, const real *scores, const uint8_t *mask, size_t count,
                           double exponent) {
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    const double divisor = pow((double)seen, 1 / (1 + exp(-exponent)));
    for (size_t j = 0; j < count; j++) {
        const double weight = (double)scores[j] / divisor;
        if (!mask || mask[j]) moments_add(&m->values, &weight, 1);
    }
}

// The attention weights of layer l, of which the forward pass left qkv.
static void measure_weights(const Gpt2 *g, const Batch *batch, size_t l, Statistics *statistics) {
    const Config *c = &g->config;
    const size_t T = (size_t)batch->length, D = c->head_size;
    const real *exponent = g->base.state.values + g->offsets.layers[l].norm_const;
    const real scale = c->cosine ? 1 : 1 / (real)sqrt((double)D);
    Measurement *m = statistics_find(statistics, l, "attention_weights");
    real *q = buffer(T, D, "statistics"), *k = buffer(T, D, "statistics"),
         *scores = buffer(T, 1, "statistics");
    for (size_t unit = 0; unit < (size_t)batch->batch * c->heads; unit++) {
        const size_t b = unit / c->heads, h = unit % c->heads;
        const uint8_t *mask = batch->mask ? batch->mask + b * T : NULL;
        load_head(g, l, b, h, 0, T, q);
        load_head(g, l, b, h, 1, T, k);
        for (size_t i = 0; i < T; i++) {
            if (mask && !mask[i]) continue;
            for (size_t j = 0; j <= i; j++) {
                real dot = 0;
#pragma omp simd reduction(+ : dot)
                for (size_t d = 0; d < D; d++) dot += q[i * D + d] * k[j * D + d];
                scores[j] = scale * dot;
            }
            if (c->cosine)
                measure_cosine(m, scores, mask, i + 1, (double)exponent[h]);
            else
                measure_softmax(m, scores, mask, i + 1, c->sink);
        }
    }
    free(q);
    free(k);
    free(scores);
}

// What a sublayer of layer l adds to the residual stream: y (M, C) + bias (C).
static void measure_sublayer(const Gpt2 *g, const Batch *batch, size_t l, const char *place, const real *bias,
                             Statistics *statistics) {
    const size_t M = (size_t)(batch->batch * batch->length), C = g->config.channels;
    real *row = buffer(C, 1, "statistics");
    for (size_t i = 0; i < M; i++) {
        for (size_t c = 0; c < C; c++) row[c] = g->sublayer_out[i * C + c] + bias[c];
        statistics_add(statistics, l, place, row, batch->mask ? batch->mask + i : NULL, 1, C);
    }
    free(row);
}

// FLOP of a product of the batch with a (C, C) weight, which --profile counts in.
static double square_flops(const Gpt2 *g, const Batch *batch) {
    const double C = (double)g->config.channels;
    return 2 * (double)(batch->batch * batch->length) * C * C;
}

double gpt2_attention_flops(const Config *c, size_t batch, size_t length) {
    const double seen = c->cosine ? (double)c->head_size : (double)length / 2;
    return 4 * (double)(batch * length) * (double)c->channels * seen;
}

// Leaves the final LayerNorm's output in g->final_norm. statistics: NULL, or what is measured (train is
// false).
static void layers_forward(Gpt2 *g, const Batch *batch, bool train, Statistics *statistics) {
    Profile *profile = train ? g->profile : NULL;
    pack_weights(g);
    profile_lap(profile, "pack weights", PROFILE_FORWARD, 0);
    const Config *c = &g->config;
    const real *values = g->base.state.values;
    const size_t M = (size_t)(batch->batch * batch->length), C = c->channels;
    const uint64_t first = (uint64_t)(batch->first_row * batch->length);
    const double square = square_flops(g, batch);
    const double attention_flops = gpt2_attention_flops(c, (size_t)batch->batch, (size_t)batch->length);

    const Dropout embedding = site_dropout(g, batch, 0, SITE_EMBEDDING);
    embedding_forward(g->layers[0].x_in, values + g->offsets.token, values + g->offsets.position, batch,
                      drops(g, train) ? &embedding : NULL, C);
    statistics_add(statistics, 0, "residual", g->layers[0].x_in, batch->mask, M, C);
    profile_lap(profile, "embedding", PROFILE_FORWARD, 0);
    for (size_t l = 0; l < c->layers; l++) {
        Activations *a = &g->layers[l];
        const LayerOffsets *o = &g->offsets.layers[l];
        const LayerWeights *w = &g->weights[l];
        const Dropout proj = site_dropout(g, batch, l, SITE_PROJECTION);
        const Dropout ffn = site_dropout(g, batch, l, SITE_FFN);
        layernorm_forward(a->norm1, a->mean1, a->rstd1, a->x_in, values + o->norm1_gain,
                          values + o->norm1_bias, M, C);
        profile_lap(profile, "norm", PROFILE_FORWARD, 0);
        gemm_forward(g->base.gemm, a->qkv, a->norm1, w->qkv, M);
        profile_lap(profile, "qkv", PROFILE_FORWARD, 3 * square);
        layer_attention_forward(g, batch, l, train);
        profile_lap(profile, "attention", PROFILE_FORWARD, attention_flops);
        gemm_forward(g->base.gemm, g->sublayer_out, a->attended, w->proj, M);
        profile_lap(profile, "projection", PROFILE_FORWARD, square);
        if (statistics) {
            measure_weights(g, batch, l, statistics);
            measure_sublayer(g, batch, l, "attention", values + o->proj_bias, statistics);
        }
        residual_forward(a->x_middle, a->x_in, g->sublayer_out, values + o->proj_bias,
                         drops(g, train) ? &proj : NULL, first, M, C);
        profile_lap(profile, "residual", PROFILE_FORWARD, 0);
        statistics_add(statistics, l, "residual_middle", a->x_middle, batch->mask, M, C);

        layernorm_forward(a->norm2, a->mean2, a->rstd2, a->x_middle, values + o->norm2_gain,
                          values + o->norm2_bias, M, C);
        profile_lap(profile, "norm", PROFILE_FORWARD, 0);
        gemm_forward(g->base.gemm, a->hidden, a->norm2, w->up, M);
        profile_lap(profile, "ffn up", PROFILE_FORWARD, 4 * square);
        gelu_forward(a->activated, a->hidden, values + o->up_bias, GELU_TANH, M, 4 * C);
        profile_lap(profile, "gelu", PROFILE_FORWARD, 0);
        gemm_forward(g->base.gemm, g->sublayer_out, a->activated, w->down, M);
        profile_lap(profile, "ffn down", PROFILE_FORWARD, 4 * square);
        if (statistics) measure_sublayer(g, batch, l, "ffn", values + o->down_bias, statistics);
        real *x_out = l + 1 < c->layers ? g->layers[l + 1].x_in : g->x_out;
        residual_forward(x_out, a->x_middle, g->sublayer_out, values + o->down_bias,
                         drops(g, train) ? &ffn : NULL, first, M, C);
        profile_lap(profile, "residual", PROFILE_FORWARD, 0);
        statistics_add(statistics, l + 1, "residual", x_out, batch->mask, M, C);
    }
    layernorm_forward(g->final_norm, g->final_mean, g->final_rstd, g->x_out, values + g->offsets.final_gain,
                      values + g->offsets.final_bias, M, C);
    profile_lap(profile, "norm", PROFILE_FORWARD, 0);
}

// g->dx, the gradient to a layer's output, becomes that to its input.
static void layer_backward(Gpt2 *g, const Batch *batch, size_t l) {
    const Activations *a = &g->layers[l];
    const LayerOffsets *o = &g->offsets.layers[l];
    const LayerWeights *w = &g->weights[l];
    const real *values = g->base.state.values;
    real *gradients = g->base.state.gradients;
    const size_t M = (size_t)(batch->batch * batch->length), C = g->config.channels;
    const uint64_t first = (uint64_t)(batch->first_row * batch->length);
    const Dropout proj = site_dropout(g, batch, l, SITE_PROJECTION);
    const Dropout ffn = site_dropout(g, batch, l, SITE_FFN);
    const double square = square_flops(g, batch);
    Profile *profile = g->profile;

    residual_backward(g->dsublayer_out, gradients + o->down_bias, g->dx, drops(g, true) ? &ffn : NULL, first,
                      M, C);
    profile_lap(profile, "residual", PROFILE_BACKWARD, 0);
    gemm_backward_input(g->base.gemm, g->dactivated, g->dsublayer_out, w->down, M);
    gemm_backward_weight(g->base.gemm, gradients + o->down, g->dsublayer_out, a->activated, w->down, M);
    profile_lap(profile, "ffn down", PROFILE_BACKWARD, 8 * square);
    gelu_backward(g->dhidden, gradients + o->up_bias, g->dactivated, a->hidden, values + o->up_bias,
                  GELU_TANH, M, 4 * C);
    profile_lap(profile, "gelu", PROFILE_BACKWARD, 0);
    gemm_backward_input(g->base.gemm, g->dnorm, g->dhidden, w->up, M);
    gemm_backward_weight(g->base.gemm, gradients + o->up, g->dhidden, a->norm2, w->up, M);
    profile_lap(profile, "ffn up", PROFILE_BACKWARD, 8 * square);
    layernorm_backward(g->dx, gradients + o->norm2_gain, gradients + o->norm2_bias, g->dnorm, a->x_middle,
                       values + o->norm2_gain, a->mean2, a->rstd2, M, C);
    profile_lap(profile, "norm", PROFILE_BACKWARD, 0);

    residual_backward(g->dsublayer_out, gradients + o->proj_bias, g->dx, drops(g, true) ? &proj : NULL, first,
                      M, C);
    profile_lap(profile, "residual", PROFILE_BACKWARD, 0);
    gemm_backward_input(g->base.gemm, g->dattended, g->dsublayer_out, w->proj, M);
    gemm_backward_weight(g->base.gemm, gradients + o->proj, g->dsublayer_out, a->attended, w->proj, M);
    profile_lap(profile, "projection", PROFILE_BACKWARD, 2 * square);
    layer_attention_backward(g, batch, l);
    profile_lap(profile, "attention", PROFILE_BACKWARD,
                2 * gpt2_attention_flops(&g->config, (size_t)batch->batch, (size_t)batch->length));
    gemm_backward_input(g->base.gemm, g->dnorm, g->dqkv, w->qkv, M);
    gemm_backward_weight(g->base.gemm, gradients + o->qkv, g->dqkv, a->norm1, w->qkv, M);
    profile_lap(profile, "qkv", PROFILE_BACKWARD, 6 * square);
    layernorm_backward(g->dx, gradients + o->norm1_gain, gradients + o->norm1_bias, g->dnorm, a->x_in,
                       values + o->norm1_gain, a->mean1, a->rstd1, M, C);
    profile_lap(profile, "norm", PROFILE_BACKWARD, 0);
}

// From g->dnorm, the gradient to the final LayerNorm's output.
static void layers_backward(Gpt2 *g, const Batch *batch) {
    const size_t M = (size_t)(batch->batch * batch->length), C = g->config.channels;
    const real *values = g->base.state.values;
    real *gradients = g->base.state.gradients;
    memset(g->dx, 0, M * C * sizeof(real));
    layernorm_backward(g->dx, gradients + g->offsets.final_gain, gradients + g->offsets.final_bias, g->dnorm,
                       g->x_out, values + g->offsets.final_gain, g->final_mean, g->final_rstd, M, C);
    profile_lap(g->profile, "norm", PROFILE_BACKWARD, 0);
    for (size_t l = g->config.layers; l-- > 0;) layer_backward(g, batch, l);
    const Dropout embedding = site_dropout(g, batch, 0, SITE_EMBEDDING);
    // GPT-2 has no padding token: every lookup takes a gradient.
    embedding_backward(gradients + g->offsets.token, gradients + g->offsets.position, g->dx, batch,
                       drops(g, true) ? &embedding : NULL, -1, C);
    profile_lap(g->profile, "embedding", PROFILE_BACKWARD, 0);
}

static double gpt2_forward(void *model, const Batch *batch) {
    Gpt2 *g = model;
    layers_forward(g, batch, false, NULL);
    return classifier_forward(g->classifier, g->final_norm, NULL, batch->targets,
                              (size_t)(batch->batch * batch->length));
}

static double gpt2_train(void *model, const Batch *batch, double scale) {
    Gpt2 *g = model;
    layers_forward(g, batch, true, NULL);
    const double loss = classifier_train(g->classifier, g->final_norm, NULL, batch->targets,
                                         (size_t)(batch->batch * batch->length), scale, g->dnorm,
                                         g->base.state.gradients + g->offsets.token, NULL);
    const double products = 6.0 * (double)(batch->batch * batch->length);
    profile_lap(g->profile, "classifier", PROFILE_STEP,
                products * (double)g->config.vocabulary * (double)g->config.channels);
    layers_backward(g, batch);
    return loss;
}

static void gpt2_logits(void *model, const Batch *batch, real *logits) {
    Gpt2 *g = model;
    layers_forward(g, batch, false, NULL);
    classifier_logits(g->classifier, g->final_norm, NULL, (size_t)(batch->batch * batch->length), logits);
}

static void gpt2_statistics(void *model, const Batch *batch, Statistics *statistics) {
    layers_forward(model, batch, false, statistics);
}

// ---------------------------------------------------------------------------------------------------------------------
// Decoding: the softmax kinds keep the keys and values of every position, cosine a state of fixed size

typedef struct {
    DecodeWeight qkv, proj, up, down;
} DecoderLayer;

typedef struct {
    Gpt2 *model;
    size_t streams, position;
    DecoderLayer *layers; // (L)
    DecodeWeight classifier;
    size_t room;                               // positions that the caches have room for
    real *keys, *values;                       // softmax kinds: (L, S, H, room, D)
    real *state;                               // cosine: (L, S, H, D, D)
    real *x, *added, *attended, *qkv, *hidden; // (S, C) x 3, (S, 3C), (S, 4C)
    int threads;
    real *norm;      // (threads, S, C) each thread makes all of it, which takes less than waiting for another
    Barrier barrier; // between the threads
} Decoder;

static void *gpt2_decoder_create(void *model, int streams) {
    Gpt2 *g = model;
    const Config *c = &g->config;
    const size_t S = (size_t)streams, C = c->channels;
    Decoder *d = allocate(1, sizeof(Decoder), "decoder");
    const int threads = decode_threads(c->layers * 12 * C * C + c->vocabulary * C);
    const Precision precision = g->base.decoding;
    const real *values = g->base.state.values;
    *d = (Decoder){.model = g,
                   .streams = S,
                   .layers = allocate(c->layers, sizeof(DecoderLayer), "decoder"),
                   .classifier = decode_weight_create(precision, values + g->offsets.token, c->vocabulary, C,
                                                      WEIGHT_OUT_IN),
                   .x = buffer(S, C, "decoder"),
                   .added = buffer(S, C, "decoder"),
                   .attended = buffer(S, C, "decoder"),
                   .qkv = buffer(S, 3 * C, "decoder"),
                   .hidden = buffer(S, 4 * C, "decoder"),
                   .threads = threads,
                   .norm = buffer((size_t)threads * S, C, "decoder")};
    for (size_t l = 0; l < c->layers; l++) {
        const LayerOffsets *o = &g->offsets.layers[l];
        d->layers[l] = (DecoderLayer){
            .qkv = decode_weight_create(precision, values + o->qkv, 3 * C, C, WEIGHT_IN_OUT),
            .proj = decode_weight_create(precision, values + o->proj, C, C, WEIGHT_IN_OUT),
            .up = decode_weight_create(precision, values + o->up, 4 * C, C, WEIGHT_IN_OUT),
            .down = decode_weight_create(precision, values + o->down, C, 4 * C, WEIGHT_IN_OUT)};
    }
    if (c->cosine) d->state = buffer(c->layers * S * c->heads, c->head_size * c->head_size, "decoder");
    return d;
}

static void gpt2_decoder_destroy(void *decoder) {
    Decoder *d = decoder;
    real *buffers[] = {d->keys, d->values, d->state, d->x, d->added, d->attended, d->qkv, d->hidden, d->norm};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) free(buffers[i]);
    for (size_t l = 0; l < d->model->config.layers; l++) {
        decode_weight_free(&d->layers[l].qkv);
        decode_weight_free(&d->layers[l].proj);
        decode_weight_free(&d->layers[l].up);
        decode_weight_free(&d->layers[l].down);
    }
    free(d->layers);
    decode_weight_free(&d->classifier);
    free(d);
}

// A cache with room for more positions, in place of one that is full.
static real *larger_cache(const Decoder *d, real *cache, size_t room) {
    const Config *c = &d->model->config;
    const size_t units = c->layers * d->streams * c->heads, D = c->head_size;
    real *larger = buffer(units * room, D, "the cache of keys and values");
    for (size_t unit = 0; d->position > 0 && unit < units; unit++)
        memcpy(larger + unit * room * D, cache + unit * d->room * D, d->position * D * sizeof(real));
    free(cache);
    return larger;
}

// Makes room for one more position: a short text needs no memory for all that the model could take.
static void make_room(Decoder *d) {
    enum { FIRST_ROOM = 64 };
    const size_t positions = d->model->config.positions;
    if (d->position == positions)
        fail("decoding: the model has %zu positions, no token can follow", positions);
    if (d->model->config.cosine || d->position < d->room) return;
    size_t room = d->room ? 2 * d->room : FIRST_ROOM;
    if (room > positions) room = positions;
    d->keys = larger_cache(d, d->keys, room);
    d->values = larger_cache(d, d->values, room);
    d->room = room;
}

// d->attended from d->qkv for one token of each stream in layer l, streams and heads divided among the
// threads.
static void decode_attention(Decoder *d, size_t l) {
    const Config *c = &d->model->config;
    const LayerOffsets *o = &d->model->offsets.layers[l];
    const real *values = d->model->base.state.values;
    const size_t S = d->streams, C = c->channels, D = c->head_size, H = c->heads;
    if (c->cosine) {
        cosine_attention_decode(d->attended, d->state + l * S * H * D * D, d->qkv, values + o->qkv_bias,
                                values + o->norm_const, d->position, S, C, H);
    } else {
        const size_t cache = l * S * H * d->room * D;
        softmax_attention_decode(d->attended, d->keys + cache, d->values + cache, d->qkv,
                                 values + o->qkv_bias, c->sink, d->position, d->room, S, C, H);
    }
}

// LayerNorm of x, all streams, for the calling thread.
static const real *norm_rows(const Decoder *d, size_t gain, size_t bias) {
    const size_t S = d->streams, C = d->model->config.channels;
    const real *values = d->model->base.state.values;
    real *norm = d->norm + (size_t)thread_index() * S * C;
    for (size_t s = 0; s < S; s++) layernorm_row(norm + s * C, d->x + s * C, values + gain, values + bias, C);
    return norm;
}

// d->x += y W + bias, y (S, inputs): the calling thread's columns.
static void decode_residual(Decoder *d, const real *y, const DecodeWeight *weight, size_t bias) {
    const size_t C = d->model->config.channels;
    const DecodeShare share = decode_share(C);
    decode_product(d->added, y, weight, d->model->base.state.values + bias, d->streams);
    for (size_t s = 0; s < d->streams; s++)
        for (size_t i = share.begin; i < share.begin + share.count; i++)
            d->x[s * C + i] += d->added[s * C + i];
}

// x through layer l, by all threads.
static void decode_layer(Decoder *d, size_t l) {
    const real *values = d->model->base.state.values;
    const LayerOffsets *o = &d->model->offsets.layers[l];
    const DecoderLayer *layer = &d->layers[l];
    const size_t S = d->streams, C = d->model->config.channels;
    const DecodeShare inner = decode_share(4 * C);
    decode_product(d->qkv, norm_rows(d, o->norm1_gain, o->norm1_bias), &layer->qkv, NULL, S);
    barrier_wait(&d->barrier);
    decode_attention(d, l);
    barrier_wait(&d->barrier);
    decode_residual(d, d->attended, &layer->proj, o->proj_bias);
    barrier_wait(&d->barrier);
    decode_product(d->hidden, norm_rows(d, o->norm2_gain, o->norm2_bias), &layer->up, values + o->up_bias, S);
    for (size_t s = 0; s < S; s++) gelu_row(d->hidden + s * 4 * C + inner.begin, GELU_TANH, inner.count);
    barrier_wait(&d->barrier);
    decode_residual(d, d->hidden, &layer->down, o->down_bias);
    barrier_wait(&d->barrier);
}

static void gpt2_decode(void *decoder, const int32_t *tokens, real *logits) {
    Decoder *d = decoder;
    const Gpt2 *g = d->model;
    const real *values = g->base.state.values;
    const size_t S = d->streams, C = g->config.channels;
    make_room(d);
    for (size_t s = 0; s < S; s++) {
        const real *token = values + g->offsets.token + (size_t)tokens[s] * C;
        const real *position = values + g->offsets.position + d->position * C;
        for (size_t i = 0; i < C; i++) d->x[s * C + i] = token[i] + position[i];
    }
#pragma omp parallel num_threads(d->threads)
    {
        for (size_t l = 0; l < g->config.layers; l++) decode_layer(d, l);
        if (logits)
            decode_product(logits, norm_rows(d, g->offsets.final_gain, g->offsets.final_bias), &d->classifier,
                           NULL, S);
    }
    d->position++;
}

// ---------------------------------------------------------------------------------------------------------------------
// Exchange with Hugging Face's GPT2LMHeadModel

// What its config.json may choose and this program computes in one way.
static const struct {
    const char *key;
    Json value;
} fixed_members[] = {
    {"activation_function", {.kind = JSON_STRING, .string = (char[]){"gelu_new"}}},
    {"layer_norm_epsilon", {.kind = JSON_NUMBER, .number = 1e-5}},
    {"scale_attn_weights", {.kind = JSON_BOOL, .boolean = true}},
    {"scale_attn_by_inverse_layer_idx", {.kind = JSON_BOOL, .boolean = false}},
};
enum { FIXED_MEMBERS = sizeof(fixed_members) / sizeof(fixed_members[0]) };

static void write_member(JsonWriter *w, const char *key, const Json *value) {
    json_key(w, key);
    if (value->kind == JSON_STRING)
        json_write_string(w, value->string);
    else if (value->kind == JSON_NUMBER)
        json_write_number(w, value->number);
    else
        json_write_bool(w, value->boolean);
}

static bool equal(const Json *a, const Json *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == JSON_STRING) return strcmp(a->string, b->string) == 0;
    return a->kind == JSON_NUMBER ? a->number == b->number : a->boolean == b->boolean;
}

// The metadata of the checkpoint that this program would have written.
static void gpt2_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    static const struct {
        const char *key;
        int64_t max;
    } sizes[] = {{"n_layer", MAX_LAYERS},
                 {"n_embd", MAX_CHANNELS},
                 {"n_head", MAX_HEADS},
                 {"n_positions", 1 << 28},
                 {"vocab_size", INT32_MAX}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const long long size = json_integer(config, sizes[i].key, 1, sizes[i].max, source);
        metadata_add(rows, count, sizes[i].key, format_string("%lld", size));
    }
    metadata_add(rows, count, "attention", copy_string("softmax"));
    for (size_t i = 0; i < FIXED_MEMBERS; i++) {
        const Json *found = json_find(config, fixed_members[i].key);
        if (!found || equal(found, &fixed_members[i].value)) continue;
        JsonWriter expected = {0};
        write_member(&expected, fixed_members[i].key, &fixed_members[i].value);
        fail("%s: has another \"%s\" than this program computes: expected %s", source, fixed_members[i].key,
             expected.text);
    }
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), size = strlen(end);
    return length >= size && strcmp(text + length - size, end) == 0;
}

// A model that was saved without its output layer has no "transformer." before its names; one that was saved
// with it may hold the tied matrix twice. Old files hold the causal mask, too.
static char *gpt2_tensor_name(const char *theirs) {
    if (ends_with(theirs, ".attn.bias") || ends_with(theirs, ".attn.masked_bias")) return NULL;
    if (strcmp(theirs, "lm_head.weight") == 0) return copy_string("transformer.wte.weight");
    return format_string("%s%s", strncmp(theirs, "transformer.", 12) == 0 ? "" : "transformer.", theirs);
}

// The other kinds of attention have no class there.
static bool gpt2_write_config(const void *model, JsonWriter *w) {
    const Config *c = &((const Gpt2 *)model)->config;
    if (strcmp(c->attention, "softmax") != 0) return false;
    json_key(w, "architectures");
    json_begin(w, '[');
    json_write_string(w, "GPT2LMHeadModel");
    json_end(w, ']');
    const struct {
        const char *key;
        size_t value;
    } sizes[] = {{"n_layer", c->layers},
                 {"n_embd", c->channels},
                 {"n_head", c->heads},
                 {"n_positions", c->positions},
                 {"vocab_size", c->vocabulary}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        json_key(w, sizes[i].key);
        json_write_integer(w, (int64_t)sizes[i].value);
    }
    for (size_t i = 0; i < FIXED_MEMBERS; i++) write_member(w, fixed_members[i].key, &fixed_members[i].value);
    static const char *const rates[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        json_key(w, rates[i]);
        json_write_number(w, c->dropout);
    }
    // Otherwise their class takes token 50256 for both.
    static const char *const tokens[] = {"bos_token_id", "eos_token_id"};
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        json_key(w, tokens[i]);
        json_write_number(w, NAN); // null
    }
    return true;
}

static const Exchange gpt2_exchange = {
    .model_type = "gpt2",
    .read_config = gpt2_read_config,
    .tensor_name = gpt2_tensor_name,
    .write_config = gpt2_write_config,
};

// ---------------------------------------------------------------------------------------------------------------------
// What the training loop calls

static void gpt2_describe(const void *model, Metadata **rows, int *count) {
    (void)model;
    metadata_add(rows, count, "activation", copy_string("gelu_new"));
    metadata_add(rows, count, "layer_norm_epsilon", copy_string("1e-05"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix and every product of
// attention.
static double gpt2_flops_per_token(const void *model, int64_t length) {
    const Config *c = &((const Gpt2 *)model)->config;
    const double C = (double)c->channels, L = (double)c->layers;
    const double attention = 3 * gpt2_attention_flops(c, 1, (size_t)length) / (double)length;
    return 6 * (L * 12 * C * C + (double)c->vocabulary * C) + L * attention;
}

const Config *gpt2_config(const void *model) {
    return &((const Gpt2 *)model)->config;
}

const Offsets *gpt2_offsets(const void *model) {
    return &((const Gpt2 *)model)->offsets;
}

const ModelType gpt2 = {
    .name = "gpt2",
    .program = "train_gpt2",
    .task = &task_language,
    .options = gpt2_options,
    .option_count = sizeof(gpt2_options) / sizeof(gpt2_options[0]),
    .create = gpt2_create,
    .destroy = gpt2_destroy,
    .device = cpu_model_device,
    .describe = gpt2_describe,
    .flops_per_token = gpt2_flops_per_token,
    .parameters = cpu_model_parameters,
    .read = cpu_model_read,
    .write = cpu_model_write,
    .forward = gpt2_forward,
    .logits = gpt2_logits,
    .statistics = gpt2_statistics,
    .train = gpt2_train,
    .gradient_norm = cpu_model_gradient_norm,
    .update = cpu_model_update,
    .clear_gradients = cpu_model_clear_gradients,
    .decoder_create = gpt2_decoder_create,
    .decode = gpt2_decode,
    .decoder_destroy = gpt2_decoder_destroy,
    .exchange = &gpt2_exchange,
};

#ifndef TESTING
int main(int argc, char **argv) {
    return train_main(argc, argv, &gpt2);
}
#endif
