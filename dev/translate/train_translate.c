// The encoder-decoder Transformer on the CPU (Vaswani et al., "Attention Is All You Need", 2017), which
// translates, with the numbers of Hugging Face's MarianMTModel. Parameters, forward, backward, decoding,
// exchange with Hugging Face and options, top to bottom.
//
// B batch, S source and T target length, N = B*S, M = B*T, C channels, H heads, F inner channels, V
// vocabulary:
//
//   x = dropout(sqrt(C) E[token] + sinusoid(position))                  on both sides, E one table
//   encoder layer: self-attention, W_down ReLU(W_up x)
//   decoder layer: causal self-attention, attention to the encoder's result, W_down ReLU(W_up x)
//   logits = x E^T
//
// around each sublayer f   post-norm: x = LayerNorm(x + dropout(f(x)))
//                          pre-norm:  x = x + dropout(f(LayerNorm(x))), and a LayerNorm behind each stack

#include "blocks.h"
#include "embedding.h"
#include "error.h"
#include "memory.h"
#include "train.h"
#include "translation.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Options and configuration

enum { MAX_LAYERS = 128, MAX_CHANNELS = 65536, MAX_HEADS = 1024 };

static const Option translate_options[] = {
    {'L', "encoder-layers", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, MAX_LAYERS, NULL, "encoder_layers",
     "Model", "layers that read"},
    {'D', "decoder-layers", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, MAX_LAYERS, NULL, "decoder_layers",
     "Model", "layers that write"},
    {'C', "channels", OPTION_INTEGER, OPTION_MODEL, "N", "128", 1, MAX_CHANNELS, NULL, "d_model", "Model",
     "channels"},
    {'H', "heads", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, MAX_HEADS, NULL, "heads", "Model", "heads"},
    {0, "ffn", OPTION_INTEGER, OPTION_MODEL, "N", "256", 1, 4 * MAX_CHANNELS, NULL, "ffn_dim", "Model",
     "channels inside the FFN"},
    {0, "norm", OPTION_CHOICE, OPTION_MODEL, "WHERE", "post", 0, 0, "post|pre", "norm", "Model",
     "normalisation"},
    {0, "dropout", OPTION_NUMBER, OPTION_TRAINING, "P", "0.3", 0, 0.99, NULL, NULL, "Model",
     "dropout probability"},
    {0, "label-smoothing", OPTION_NUMBER, OPTION_TRAINING, "P", "0.1", 0, 0.99, NULL, NULL, "Model",
     "share of the target spread over all tokens"},
};

typedef struct {
    size_t encoder_layers, decoder_layers, channels, heads, inner; // C, H, F
    size_t vocabulary, positions;                                  // V, the longest sentence
    NormOrder order;
    double dropout, smoothing;
    int32_t padding; // token whose lookup takes no gradient; -1: none
} Config;

static Config config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    const Config c = {
        .encoder_layers = (size_t)options_integer(o, "encoder-layers"),
        .decoder_layers = (size_t)options_integer(o, "decoder-layers"),
        .channels = (size_t)options_integer(o, "channels"),
        .heads = (size_t)options_integer(o, "heads"),
        .inner = (size_t)options_integer(o, "ffn"),
        .vocabulary = (size_t)setup->vocabulary,
        .positions = (size_t)setup->positions,
        .order = strcmp(options_text(o, "norm"), "pre") == 0 ? PRE_NORM : POST_NORM,
        .dropout = options_number(o, "dropout"),
        .smoothing = options_number(o, "label-smoothing"),
        .padding = setup->padding_token,
    };
    if (c.channels % c.heads != 0)
        fail("--heads %zu: the %zu channels must divide into heads", c.heads, c.channels);
    return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters, under the names of Hugging Face's class

typedef struct {
    AttentionParameters attention;
    CrossAttentionParameters cross; // of the decoder
    FfnParameters ffn;
} LayerOffsets;

typedef struct {
    size_t token;                              // (V, C)
    LayerOffsets *encoder, *decoder;           // (layers)
    NormParameters encoder_norm, decoder_norm; // pre-norm: behind the stack
    size_t bias; // (1, V) of the logits, which is not trained: 0 but in files of others
} Offsets;

// Glorot and Bengio 2010, for a product with K inputs and N outputs.
static double xavier(size_t outputs, size_t inputs) {
    return sqrt(2.0 / (double)(outputs + inputs));
}

// `count` products of C inputs and as many outputs.
static LinearShape square(size_t channels, size_t count) {
    return (LinearShape){count * channels, channels, WEIGHT_OUT_IN, true, xavier(channels, channels)};
}

static LayerOffsets add_layer(ParameterTable *table, const Config *c, const char *stack, size_t l,
                              bool cross) {
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
    const size_t C = c->channels, F = c->inner;
    LayerOffsets layer = {0};
    char name[PARAMETER_NAME];
#define NAME(suffix) (snprintf(name, sizeof(name), "model.%s.layers.%zu." suffix, stack, l), name)
    layer.attention.qkv = add_joined_linear(table, square(C, 3), NAME("self_attn"), parts, 3);
    layer.attention.projection = add_linear(table, square(C, 1), "%s", NAME("self_attn.out_proj"));
    layer.attention.norm = add_norm(table, C, "%s", NAME("self_attn_layer_norm"));
    layer.attention.norm_const = NO_PARAMETER;
    if (cross) {
        layer.cross.query = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.q_proj"));
        layer.cross.key_value = add_joined_linear(table, square(C, 2), NAME("encoder_attn"), parts + KEY, 2);
        layer.cross.projection = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.out_proj"));
        layer.cross.norm = add_norm(table, C, "%s", NAME("encoder_attn_layer_norm"));
        layer.cross.norm_const = NO_PARAMETER;
    }
    layer.ffn.up =
        add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, xavier(F, C)}, "%s", NAME("fc1"));
    layer.ffn.down =
        add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, xavier(C, F)}, "%s", NAME("fc2"));
    layer.ffn.norm = add_norm(table, C, "%s", NAME("final_layer_norm"));
#undef NAME
    return layer;
}

static NormParameters add_final_norm(ParameterTable *table, const Config *c, const char *stack) {
    return c->order == PRE_NORM ? add_norm(table, c->channels, "model.%s.layer_norm", stack)
                                : no_norm(c->channels);
}

static Offsets parameters_create(ParameterTable *table, const Config *c) {
    Offsets o = {.encoder = allocate(c->encoder_layers, sizeof(LayerOffsets), "layers"),
                 .decoder = allocate(c->decoder_layers, sizeof(LayerOffsets), "layers")};
    const size_t C = c->channels;
    o.token = add_matrix(table, "model.shared.weight", c->vocabulary, C, 1 / sqrt((double)C));
    for (size_t l = 0; l < c->encoder_layers; l++) o.encoder[l] = add_layer(table, c, "encoder", l, false);
    o.encoder_norm = add_final_norm(table, c, "encoder");
    for (size_t l = 0; l < c->decoder_layers; l++) o.decoder[l] = add_layer(table, c, "decoder", l, true);
    o.decoder_norm = add_final_norm(table, c, "decoder");
    o.bias =
        parameter_add(table, "final_logits_bias", 2, (int64_t[]){1, (int64_t)c->vocabulary}, false, 0, 0);
    parameter_fix(table);
    return o;
}

static void offsets_free(Offsets *o) {
    free(o->encoder);
    free(o->decoder);
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

typedef struct {
    AttentionBlock attention;
    CrossAttentionBlock cross; // of the decoder
    FfnBlock ffn;
} Layer;

typedef struct {
    CpuModel base;
    Config config;
    Offsets offsets;
    Attention seeing_all, causal; // encoder and cross-attention; decoder
    Embedding source, target;     // of one table
    Encoded encoded;
    Layer *encoder, *decoder; // (layers)
    real **x, **y;            // the residual streams: (2 layers + 1) of (N, C), (3 layers + 1) of (M, C)
    Head head;
} Translate;

// Where dropout happens: in each layer of either stack, and on the two embeddings.
enum { SITE_SOURCE, SITE_TARGET, SITE_LAYERS, SITES_PER_LAYER = 5 };
enum { SITE_ATTENTION, SITE_PROJECTION, SITE_CROSS, SITE_CROSS_PROJECTION, SITE_FFN };

static void layer_create(Translate *t, Layer *layer, const LayerOffsets *at, size_t l, bool decodes) {
    CpuModel *m = &t->base;
    const NormOrder order = t->config.order;
    // Layers count through both stacks.
    const size_t number = decodes ? t->config.encoder_layers + l : l;
    const uint32_t first = (uint32_t)(SITE_LAYERS + number * SITES_PER_LAYER);
    attention_block_create(&layer->attention, m, decodes ? &t->causal : &t->seeing_all, &at->attention, order,
                           number, (uint32_t[]){first + SITE_ATTENTION, first + SITE_PROJECTION});
    if (decodes)
        cross_attention_block_create(&layer->cross, m, &t->seeing_all, &t->encoded, &at->cross, order, number,
                                     (uint32_t[]){first + SITE_CROSS, first + SITE_CROSS_PROJECTION});
    ffn_block_create(&layer->ffn, m, &at->ffn, RELU, order, number, first + SITE_FFN);
}

static void layers_create(Translate *t) {
    const Config *c = &t->config;
    const Offsets *o = &t->offsets;
    t->encoder = allocate(c->encoder_layers, sizeof(Layer), "layers");
    t->decoder = allocate(c->decoder_layers, sizeof(Layer), "layers");
    t->encoded.norm.at = o->encoder_norm;
    for (size_t l = 0; l < c->encoder_layers; l++) layer_create(t, &t->encoder[l], &o->encoder[l], l, false);
    for (size_t l = 0; l < c->decoder_layers; l++) layer_create(t, &t->decoder[l], &o->decoder[l], l, true);
    head_create(&t->head, &t->base, &o->decoder_norm, o->token, o->bias, c->vocabulary);
    t->head.bias_fixed = true;
    classifier_smooth(t->head.classifier, c->smoothing);
}

// Without training, layers share their activations.
static void layers_plan(Translate *t, Layer *layers, size_t count, bool decodes) {
    CpuModel *m = &t->base;
    ArenaUnion shared = arena_union(m->arena);
    for (size_t l = 0; l < count; l++) {
        attention_block_plan(&layers[l].attention, m);
        if (decodes) cross_attention_block_plan(&layers[l].cross, m);
        ffn_block_plan(&layers[l].ffn, m);
        if (!m->training) arena_member(m->arena, &shared);
    }
    arena_close(m->arena, &shared);
}

static void memory_plan(Translate *t) {
    CpuModel *m = &t->base;
    const Config *c = &t->config;
    const size_t M = m->rows, C = c->channels;
    arena_reals(m->arena, &t->source.sinusoids, c->positions, C, "positions");
    arena_alias(m->arena, &t->target.sinusoids);
    t->x = stream_create(m->arena, 2 * c->encoder_layers, M, C, m->training);
    t->y = stream_create(m->arena, 3 * c->decoder_layers, M, C, m->training);
    layers_plan(t, t->encoder, c->encoder_layers, false);
    encoded_plan(&t->encoded, m);
    layers_plan(t, t->decoder, c->decoder_layers, true);
    head_plan(&t->head, m);
    cpu_model_workspace(m, C, c->inner);
}

static void translate_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    const Config c = config_create(setup);
    Offsets o = parameters_create(table, &c);
    offsets_free(&o);
}

static void *translate_create(const ModelSetup *setup) {
    Translate *t = allocate(1, sizeof(Translate), "model");
    CpuModel *m = &t->base;
    t->config = config_create(setup);
    const Config *c = &t->config;
    ParameterTable table = {0};
    t->offsets = parameters_create(&table, c);
    cpu_model_create(m, setup, table, c->dropout);
    t->source = (Embedding){.token = t->offsets.token,
                            .scale = sqrt((double)c->channels),
                            .position = NO_PARAMETER,
                            .channels = c->channels,
                            .site = SITE_SOURCE,
                            .padding = c->padding};
    t->target = t->source;
    t->target.site = SITE_TARGET;
    t->seeing_all = (Attention){.channels = c->channels, .heads = c->heads};
    attention_plan(&t->seeing_all, m->arena, gemm_precision(m->gemm), (size_t)setup->batch,
                   (size_t)setup->length, m->training);
    t->causal = t->seeing_all;
    t->causal.causal = true;
    layers_create(t);
    memory_plan(t);
    cpu_model_allocate(m);
    sinusoidal_positions(t->source.sinusoids, c->positions, c->channels);
    return t;
}

static void translate_destroy(void *model) {
    Translate *t = model;
    attention_free(&t->seeing_all);
    cpu_model_destroy(&t->base);
    offsets_free(&t->offsets);
    void *const arrays[] = {t->encoder, t->decoder, t->x, t->y, t};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) free(arrays[i]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and backward

static void encode(const Translate *t, const Pass *source) {
    real **x = t->x;
    embed_forward(source, &t->source, x[0]);
    for (size_t l = 0; l < t->config.encoder_layers; l++, x += 2) {
        attention_block_forward(source, &t->encoder[l].attention, x[1], x[0]);
        ffn_block_forward(source, &t->encoder[l].ffn, x[2], x[1]);
    }
    encoded_forward(source, &t->encoded, x[0]);
}

// The last y.
static const real *layers_forward(const Translate *t, const Pass *pass, const Pass *source) {
    real **y = t->y;
    encode(t, source);
    embed_forward(pass, &t->target, y[0]);
    for (size_t l = 0; l < t->config.decoder_layers; l++, y += 3) {
        attention_block_forward(pass, &t->decoder[l].attention, y[1], y[0]);
        cross_attention_block_forward(pass, source, &t->decoder[l].cross, y[2], y[1]);
        ffn_block_forward(pass, &t->decoder[l].ffn, y[3], y[2]);
    }
    return y[0];
}

static void layers_backward(const Translate *t, const Pass *pass, const Pass *source) {
    for (size_t l = t->config.decoder_layers; l-- > 0;) {
        real **y = t->y + 3 * l;
        ffn_block_backward(pass, &t->decoder[l].ffn, y[2]);
        cross_attention_block_backward(pass, source, &t->decoder[l].cross, y[1]);
        attention_block_backward(pass, &t->decoder[l].attention, y[0]);
    }
    embed_backward(pass, &t->target);
    encoded_backward(source, &t->encoded, t->x[2 * t->config.encoder_layers]);
    for (size_t l = t->config.encoder_layers; l-- > 0;) {
        real **x = t->x + 2 * l;
        ffn_block_backward(source, &t->encoder[l].ffn, x[1]);
        attention_block_backward(source, &t->encoder[l].attention, x[0]);
    }
    embed_backward(source, &t->source);
}

static double translate_forward(void *model, const Batch *batch) {
    Translate *t = model;
    Batch of_source;
    const Pass pass = pass_forward(&t->base, batch, false, NULL), source = pass_source(&pass, &of_source);
    return head_forward(&pass, &t->head, layers_forward(t, &pass, &source));
}

static double translate_train(void *model, const Batch *batch, double scale) {
    Translate *t = model;
    Batch of_source;
    const Pass forward = pass_forward(&t->base, batch, true, NULL), backward = pass_backward(&forward);
    const Pass source = pass_source(&forward, &of_source), source_backward = pass_backward(&source);
    const double loss =
        head_train(&forward, &backward, &t->head, layers_forward(t, &forward, &source), scale);
    layers_backward(t, &backward, &source_backward);
    return loss;
}

static double translate_unsmoothed(const void *model) {
    return classifier_unsmoothed(((const Translate *)model)->head.classifier);
}

static void translate_logits(void *model, const Batch *batch, real *logits) {
    Translate *t = model;
    Batch of_source;
    const Pass pass = pass_forward(&t->base, batch, false, NULL), source = pass_source(&pass, &of_source);
    head_logits(&pass, &t->head, layers_forward(t, &pass, &source), logits);
}

static void translate_statistics(void *model, const Batch *batch, Statistics *statistics) {
    Translate *t = model;
    Batch of_source;
    const Pass pass = pass_forward(&t->base, batch, false, statistics),
               source = pass_source(&pass, &of_source);
    layers_forward(t, &pass, &source);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the training loop calls

static void translate_describe(const void *model, Metadata **rows, int *count) {
    (void)model;
    metadata_add(rows, count, "activation", copy_string("relu"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix and every product of
// attention, of a token of either side: of two, one is read and one written.
static double translate_flops_per_token(const void *model, int64_t length) {
    const Config *c = &((const Translate *)model)->config;
    const double C = (double)c->channels, F = (double)c->inner, T = (double)length;
    const double encoder = (double)c->encoder_layers, decoder = (double)c->decoder_layers;
    const double attention = attention_flops(false, c->channels, c->heads, 1, T);
    const double read = 6 * encoder * (4 * C * C + 2 * C * F) + 3 * encoder * attention;
    const double written =
        6 * (decoder * (8 * C * C + 2 * C * F) + C * (double)c->vocabulary) + 3 * decoder * 1.5 * attention;
    return (read + written) / 2;
}

static const ModelType translate = {
    .name = "translate",
    .program = "train_translate",
    .task = &task_translation,
    .options = translate_options,
    .option_count = sizeof(translate_options) / sizeof(translate_options[0]),
    .add_parameters = translate_add_parameters,
    .create = translate_create,
    .destroy = translate_destroy,
    CPU_MODEL_ENTRIES,
    .describe = translate_describe,
    .flops_per_token = translate_flops_per_token,
    .forward = translate_forward,
    .logits = translate_logits,
    .statistics = translate_statistics,
    .train = translate_train,
    .unsmoothed = translate_unsmoothed,
};

#ifndef TESTING
int main(int argc, char **argv) {
    return train_main(argc, argv, &translate);
}
#endif
