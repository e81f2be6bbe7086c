// The encoder-decoder Transformer for translation on the CPU (Vaswani et al., "Attention Is All You
// Need", 2017), computing the same function as Hugging Face's MarianMTModel. Options, parameters,
// forward, backward and exchange with Hugging Face, top to bottom.
//
// B batch size, S source and T target length, N = B*S, M = B*T, C channels, H heads, F inner
// channels, V vocabulary size:
//
//   x = dropout(sqrt(C) E[token] + sinusoid(position))                  one table E for both sides
//   encoder layer: self-attention, W_down ReLU(W_up x)
//   decoder layer: causal self-attention, attention to the encoder's output, W_down ReLU(W_up x)
//   logits = x E^T
//
// around each sublayer f   post-norm: x = LayerNorm(x + dropout(f(x)))
//                          pre-norm:  x = x + dropout(f(LayerNorm(x))), and a LayerNorm after each
//                                     stack

#include "error.h"
#include "huggingface.h"
#include "memory.h"
#include "model_options.h"
#include "train.h"
#include "transformer.h"
#include "translate.h"
#include "translation.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options ----------------------------------------------------------------

// clang-format off
static const Option translate_options[] = {
    {.letter = 'L', .name = OPT_ENCODER_LAYERS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL,
     .value = "N", .initial = "4", .min = 1, .max = MAX_LAYERS, .metadata_key = "encoder_layers",
     .group = "Model", .help = "layers of the encoder"},
    {.letter = 'D', .name = OPT_DECODER_LAYERS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL,
     .value = "N", .initial = "4", .min = 1, .max = MAX_LAYERS, .metadata_key = "decoder_layers",
     .group = "Model", .help = "layers of the decoder"},
    {.letter = 'C', .name = OPT_CHANNELS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL,
     .value = "N", .initial = "128", .min = 1, .max = MAX_CHANNELS, .metadata_key = "d_model",
     .group = "Model", .help = "channels"},
    {.letter = 'H', .name = OPT_HEADS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N",
     .initial = "4", .min = 1, .max = MAX_HEADS, .metadata_key = "heads", .group = "Model",
     .help = "attention heads"},
    {.name = OPT_FFN, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N", .initial = "256",
     .min = 1, .max = 4 * MAX_CHANNELS, .metadata_key = "ffn_dim", .group = "Model",
     .help = "channels inside the FFN"},
    {.name = OPT_NORM, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "WHERE",
     .initial = "post", .choices = "post|pre", .metadata_key = "norm", .group = OPTION_GROUP_MORE,
     .help = "place of the normalisation"},
    {.name = OPT_ACTIVATION, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND",
     .initial = "relu", .choices = "relu|gelu|swish", .metadata_key = "activation",
     .group = OPTION_GROUP_MORE, .help = "activation of the FFN"},
    {.name = OPT_DROPOUT, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "P",
     .initial = "0.3", .max = 0.99, .group = "Model", .help = "dropout probability"},
    {.name = OPT_ATTENTION_DROPOUT, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "P",
     .initial = "0", .max = 0.99, .group = OPTION_GROUP_MORE,
     .help = "dropout probability of attention weights"},
    {.name = OPT_LABEL_SMOOTHING, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "P",
     .initial = "0.1", .max = 0.99, .group = "Model",
     .help = "share of the target spread over all tokens"},
};
// clang-format on

// Names are those of Hugging Face's configuration.
static ActivationKind activation_kind(const char *name) {
    return strcmp(name, "relu") == 0 ? RELU : strcmp(name, "gelu") == 0 ? GELU_ERF : SILU;
}

static const char *activation_name(ActivationKind kind) {
    return kind == RELU ? "relu" : kind == GELU_ERF ? "gelu" : "swish";
}

// ---- Parameters, with the names of Hugging Face's class ---------------------

// Returns the standard deviation of weights (outputs, inputs) by Glorot and Bengio 2010.
static double xavier(size_t outputs, size_t inputs) {
    return sqrt(2.0 / (double)(outputs + inputs));
}

// Returns the shape of `count` joined products, each from C inputs to C outputs.
static LinearShape square(size_t channels, size_t count) {
    return (LinearShape){count * channels, channels, WEIGHT_OUT_IN, true,
                         xavier(channels, channels)};
}

static const char *const attention_parts[] = {"q_proj", "k_proj", "v_proj"};

#define NAME(suffix) (snprintf(name, sizeof(name), "model.%s.layers.%zu." suffix, stack, l), name)

static void add_layer(ParameterTable *table, TransformerPlan *p, const char *stack, size_t l,
                      LayerPlan *layer) {
    const size_t C = p->size.channels, F = p->inner;
    AttentionPlan *self = &layer->attention, *cross = &layer->cross;
    char name[PARAMETER_NAME];
    self->qkv = add_joined_linear(table, square(C, 3), NAME("self_attn"), attention_parts, NULL, 3);
    self->projection = add_linear(table, square(C, 1), "%s", NAME("self_attn.out_proj"));
    self->norm = add_norm(table, C, "%s", NAME("self_attn_layer_norm"));
    layer->ffn.up = add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, xavier(F, C)}, "%s",
                               NAME("fc1"));
    layer->ffn.down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, xavier(C, F)},
                                 "%s", NAME("fc2"));
    layer->ffn.norm = add_norm(table, C, "%s", NAME("final_layer_norm"));
    if (!layer->crosses) return;
    cross->query = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.q_proj"));
    cross->key_value =
        add_joined_linear(table, square(C, 2), NAME("encoder_attn"), attention_parts + 1, NULL, 2);
    cross->projection = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.out_proj"));
    cross->norm = add_norm(table, C, "%s", NAME("encoder_attn_layer_norm"));
}

#undef NAME

static void add_stack(ParameterTable *table, TransformerPlan *p, const char *name,
                      StackPlan *stack) {
    const size_t C = p->size.channels;
    const bool crosses = stack != &p->stacks[0];
    for (size_t l = stack->first; l < stack->end; l++) {
        LayerPlan *layer = &p->layers[l];
        layer->attention = attention_plan(ATTENTION_SOFTMAX, crosses);
        layer->cross = attention_plan(ATTENTION_SOFTMAX, false);
        layer->crosses = crosses;
        add_layer(table, p, name, l - stack->first, layer);
    }
    stack->norm =
        p->order == PRE_NORM ? add_norm(table, C, "model.%s.layer_norm", name) : no_norm(C);
}

// Returns a plan as the options say, without layers.
static TransformerPlan empty_plan(const ModelSetup *setup) {
    const Options *o = setup->options;
    const ModelFacts facts = model_facts(o, NULL);
    const size_t E = (size_t)options_integer(o, OPT_ENCODER_LAYERS),
                 D = (size_t)options_integer(o, OPT_DECODER_LAYERS);
    return (TransformerPlan){
        .size = {.layers = E + D,
                 .channels = (size_t)facts.channels,
                 .heads = (size_t)facts.heads,
                 .head_size = (size_t)(facts.channels / facts.heads),
                 .vocabulary = (size_t)setup->vocabulary,
                 .positions = (size_t)setup->positions},
        .inner = (size_t)options_integer(o, OPT_FFN),
        .order = strcmp(options_text(o, OPT_NORM), "pre") == 0 ? PRE_NORM : POST_NORM,
        .activation = activation_kind(options_text(o, OPT_ACTIVATION)),
        .stacks = {{.first = 0, .end = E}, {.first = E, .end = E + D}},
        .stack_count = 2,
        .prediction.transform = no_linear(),
        .bias_fixed = true,
        .smoothing = options_number(o, OPT_LABEL_SMOOTHING),
        .dropout = facts.dropout,
        .attention_dropout = options_number(o, OPT_ATTENTION_DROPOUT),
        .padding = setup->padding_token,
        .end = setup->end_token,
    };
}

static TransformerPlan translate_plan(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan p = empty_plan(setup);
    const size_t C = p.size.channels, V = p.size.vocabulary;
    const double scale = sqrt((double)C);
    const EmbeddingPlan embedding = {
        .token = add_matrix(table, "model.shared.weight", V, C, 1 / scale),
        .scale = scale,
        .positions = POSITIONS_SINUSOIDAL,
        .position = NO_PARAMETER,
        .type = NO_PARAMETER,
        .norm = no_norm(C),
        .padding = -1}; // the decoder begins with the padding token, which learns
    p.layers = allocate(p.size.layers, sizeof(LayerPlan), "layers");
    p.stacks[0].embedding = p.stacks[1].embedding = embedding;
    add_stack(table, &p, "encoder", &p.stacks[0]);
    add_stack(table, &p, "decoder", &p.stacks[1]);
    p.bias = parameter_add(table, "final_logits_bias", 2, (int64_t[]){1, (int64_t)V}, false, 0, 0);
    parameter_fix(table);
    plan_complete(&p);
    return p;
}

// ---- Forward and backward ---------------------------------------------------

enum { SOURCE, TARGET }; // the stacks

static void translate_forward(const Blocks *blocks, const BlockPass *pass,
                              const TransformerPlan *plan) {
    plan_stack_forward(plan, blocks, pass, SOURCE);
    blocks->encoded_forward(pass);
    plan_stack_forward(plan, blocks, pass, TARGET);
}

static void translate_backward(const Blocks *blocks, const BlockPass *pass,
                               const TransformerPlan *plan) {
    plan_stack_backward(plan, blocks, pass, TARGET);
    blocks->encoded_backward(pass);
    plan_stack_backward(plan, blocks, pass, SOURCE);
}

// ---- Exchange with Hugging Face's MarianMTModel, which is post-norm ---------

// Members of config.json for which this program supports one value.
static const ConfigMember fixed_members[] = {
    {"scale_embedding", {.kind = JSON_BOOL, .boolean = true}},
    {"static_position_embeddings", {.kind = JSON_BOOL, .boolean = true}},
    {"share_encoder_decoder_embeddings", {.kind = JSON_BOOL, .boolean = true}},
    {"tie_word_embeddings", {.kind = JSON_BOOL, .boolean = true}},
    {"is_encoder_decoder", {.kind = JSON_BOOL, .boolean = true}},
    {"normalize_before", {.kind = JSON_BOOL, .boolean = false}},
    {"normalize_embedding", {.kind = JSON_BOOL, .boolean = false}},
    {"add_final_layer_norm", {.kind = JSON_BOOL, .boolean = false}},
};

static const ConfigSize config_sizes[] = {{"encoder_layers", "encoder_layers", MAX_LAYERS},
                                          {"decoder_layers", "decoder_layers", MAX_LAYERS},
                                          {"d_model", "d_model", MAX_CHANNELS},
                                          {"encoder_attention_heads", "heads", MAX_HEADS},
                                          {"encoder_ffn_dim", "ffn_dim", 4 * MAX_CHANNELS},
                                          {"max_position_embeddings", "n_positions", 1 << 28},
                                          {"vocab_size", "vocab_size", INT32_MAX}};
static const ConfigShape config_shape = CONFIG_SHAPE(config_sizes, fixed_members);

// Exits with an error if members `a` and `b` differ.
static void check_equal(const Json *config, const char *a, const char *b, const char *source) {
    const long long x = json_integer(config, a, 0, INT32_MAX, source),
                    y = json_integer(config, b, 0, INT32_MAX, source);
    if (x != y) fail("%s: \"%s\" is %lld and \"%s\" %lld, expected the same", source, a, x, b, y);
}

// Returns our name of the activation. SiLU has two names, silu and swish.
static const char *read_activation(const Json *config, const char *source) {
    const char *name = json_string(config, "activation_function", source);
    if (strcmp(name, "silu") == 0) name = "swish";
    if (strcmp(name, activation_name(activation_kind(name))) != 0)
        fail("%s: \"activation_function\" is \"%s\", expected relu, gelu or swish", source, name);
    return name;
}

static void translate_read_config(const Json *config, const char *source, Metadata **rows,
                                  int *count) {
    huggingface_read_shape(config, &config_shape, source, rows, count);
    check_equal(config, "decoder_attention_heads", "encoder_attention_heads", source);
    check_equal(config, "decoder_ffn_dim", "encoder_ffn_dim", source);
    check_equal(config, "decoder_start_token_id", "pad_token_id", source);
    metadata_add(rows, count, "norm", copy_string("post"));
    metadata_add(rows, count, "activation", copy_string(read_activation(config, source)));
    metadata_add(rows, count, "padding_token",
                 format_string("%lld", (long long)json_integer(config, "pad_token_id", 0, INT32_MAX,
                                                               source)));
    metadata_add(rows, count, "end_token",
                 format_string("%lld", (long long)json_integer(config, "eos_token_id", 0, INT32_MAX,
                                                               source)));
}

// The shared embedding may be stored under any of its names. Sinusoids are computed, not read.
static char *translate_tensor_name(const char *theirs, const Safetensors *file) {
    (void)file;
    static const char *const shared[] = {"model.encoder.embed_tokens.weight",
                                         "model.decoder.embed_tokens.weight", "lm_head.weight"};
    if (strstr(theirs, "embed_positions.")) return NULL;
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
        if (strcmp(theirs, shared[i]) == 0) return copy_string("model.shared.weight");
    return copy_string(theirs);
}

static bool translate_write_config(const void *model, JsonWriter *w) {
    const TransformerPlan *p = transformer_plan(model);
    const size_t E = p->stacks[SOURCE].end, D = p->size.layers - E;
    if (p->order != POST_NORM || p->padding < 0 || p->end < 0) return false;
    const size_t sizes[] = {
        E, D, p->size.channels, p->size.heads, p->inner, p->size.positions, p->size.vocabulary};
    huggingface_write_shape(w, "MarianMTModel", &config_shape, sizes);
    huggingface_write_number(w, (const char *const[]){"decoder_attention_heads"}, 1,
                             (double)p->size.heads);
    huggingface_write_number(w, (const char *const[]){"decoder_ffn_dim"}, 1, (double)p->inner);
    json_add_string(w, "activation_function", activation_name(p->activation));
    huggingface_write_number(w, (const char *const[]){"dropout"}, 1, p->dropout);
    huggingface_write_number(w, (const char *const[]){"attention_dropout"}, 1,
                             p->attention_dropout);
    return true;
}

static const Exchange translate_exchange = {
    .model_type = "marian",
    .read_config = translate_read_config,
    .tensor_name = translate_tensor_name,
    .write_config = translate_write_config,
};

// ---- The model as the training loop sees it ---------------------------------

// FLOP per token of either side. Half of the tokens are read and half are written.
static double translate_flops_per_token(const void *model, int64_t length, double targets) {
    const TransformerPlan *p = transformer_plan(model);
    const double read = plan_layers_flops(p, &p->stacks[SOURCE], length),
                 written = plan_layers_flops(p, &p->stacks[TARGET], length);
    return (read + written) / 2 +
           6 * targets * (double)p->size.channels * (double)p->size.vocabulary;
}

static const TransformerType translate_transformer = {translate_plan, translate_forward,
                                                      translate_backward};

const ModelType translate = {
    .name = "translate",
    .program = "train_translate",
    .task = &task_translation,
    .options = translate_options,
    .option_count = sizeof(translate_options) / sizeof(translate_options[0]),
    .lower = {OPT_CHANNELS, OPT_ENCODER_LAYERS},
    .transformer = &translate_transformer,
    TRANSFORMER_ENTRIES,
    TRANSLATOR_ENTRIES,
    .flops_per_token = translate_flops_per_token,
    .unsmoothed = transformer_unsmoothed,
    .exchange = &translate_exchange,
};

TRAINER_MAIN(translate)
