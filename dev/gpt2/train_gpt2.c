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

#include "blocks.h"
#include "decoder.h"
#include "error.h"
#include "gpt2.h"
#include "huggingface.h"
#include "language.h"
#include "memory.h"
#include "train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Options and configuration

static const Option gpt2_options[] = {
    SIZE_OPTIONS("n_layer", "n_embd", "n_head"),
    ATTENTION_OPTIONS("softmax|softmax1|cosine"),
    DROPOUT_OPTION,
};

static Config config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    const ModelSizes sizes = model_sizes(o);
    return (Config){
        .layers = sizes.layers,
        .channels = sizes.channels,
        .heads = sizes.heads,
        .head_size = sizes.channels / sizes.heads,
        .vocabulary = (size_t)setup->vocabulary,
        .positions = (size_t)setup->positions,
        .attention = attention_kind(o),
        .dropout = options_number(o, "dropout"),
        .seed = (uint64_t)options_integer(o, "seed"),
    };
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters, under the names of Hugging Face's class. Its Conv1D stores weights as (in, out).

static Offsets parameters_create(ParameterTable *table, const Config *c) {
    Offsets o = {.layers = allocate(c->layers, sizeof(TransformerParameters), "layers")};
    const size_t C = c->channels;
    // 2L sublayers are added to the residual stream: this keeps its variance that of one.
    const double plain = 0.02, residual = 0.02 / sqrt(2 * (double)c->layers);
    const LinearShape qkv = {3 * C, C, WEIGHT_IN_OUT, true, plain};
    const LinearShape projection = {C, C, WEIGHT_IN_OUT, true, residual};
    const LinearShape up = {4 * C, C, WEIGHT_IN_OUT, true, plain};
    const LinearShape down = {C, 4 * C, WEIGHT_IN_OUT, true, residual};
    o.token = add_matrix(table, "transformer.wte.weight", c->vocabulary, C, plain);
    o.position = add_matrix(table, "transformer.wpe.weight", c->positions, C, plain);
    for (size_t l = 0; l < c->layers; l++) {
        AttentionParameters *attention = &o.layers[l].attention;
        FfnParameters *ffn = &o.layers[l].ffn;
        attention->norm = add_norm(table, C, "transformer.h.%zu.ln_1", l);
        attention->qkv = add_linear(table, qkv, "transformer.h.%zu.attn.c_attn", l);
        attention->norm_const = NO_PARAMETER;
        if (c->attention.learned_power) {
            char name[PARAMETER_NAME];
            snprintf(name, sizeof(name), "transformer.h.%zu.attn.norm_const", l);
            attention->norm_const = add_vector(table, name, c->heads, 0.5);
        }
        attention->projection = add_linear(table, projection, "transformer.h.%zu.attn.c_proj", l);
        ffn->norm = add_norm(table, C, "transformer.h.%zu.ln_2", l);
        ffn->up = add_linear(table, up, "transformer.h.%zu.mlp.c_fc", l);
        ffn->down = add_linear(table, down, "transformer.h.%zu.mlp.c_proj", l);
    }
    o.final_norm = add_norm(table, C, "transformer.ln_f");
    return o;
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

typedef struct {
    CpuModel base;
    Config config;
    Offsets offsets;
    Embedding embedding;
    Stack stack;
    Head head;
} Gpt2;

static void stack_and_head_create(Gpt2 *g, size_t batch, size_t length) {
    CpuModel *m = &g->base;
    const Config *c = &g->config;
    const Offsets *o = &g->offsets;
    const Attention attention = {.channels = c->channels,
                                 .heads = c->heads,
                                 .causal = true,
                                 .cosine = c->attention.cosine,
                                 .power = c->attention.power,
                                 .sink = c->attention.sink};
    stack_create(&g->stack, m, &attention, o->layers, c->layers, PRE_NORM, GELU_TANH,
                 dropout_site(0, SITE_ATTENTION), batch, length);
    head_create(&g->head, m, &o->final_norm, o->token, NO_PARAMETER, c->vocabulary);
    head_plan(&g->head, m);
    cpu_model_workspace(m, c->channels, 4 * c->channels);
}

static void gpt2_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    const Config c = config_create(setup);
    free(parameters_create(table, &c).layers);
}

static void *gpt2_create(const ModelSetup *setup) {
    Gpt2 *g = allocate(1, sizeof(Gpt2), "model");
    g->config = config_create(setup);
    const Config *c = &g->config;
    ParameterTable table = {0};
    g->offsets = parameters_create(&table, c);
    cpu_model_create(&g->base, setup, table, c->dropout);
    // GPT-2 has no padding token: every lookup takes a gradient.
    g->embedding = (Embedding){.token = g->offsets.token,
                               .scale = 1,
                               .position = g->offsets.position,
                               .channels = c->channels,
                               .site = dropout_site(0, SITE_EMBEDDING),
                               .padding = -1};
    if (g->base.rows > 0) stack_and_head_create(g, (size_t)setup->batch, (size_t)setup->length);
    cpu_model_allocate(&g->base);
    return g;
}

static void gpt2_destroy(void *model) {
    Gpt2 *g = model;
    stack_free(&g->stack);
    cpu_model_destroy(&g->base);
    free(g->offsets.layers);
    free(g);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and backward

static const real *layers_forward(const Gpt2 *g, const Pass *pass) {
    embed_forward(pass, &g->embedding, g->stack.x[0]);
    return stack_forward(pass, &g->stack);
}

static double gpt2_forward(void *model, const Batch *batch) {
    Gpt2 *g = model;
    const Pass pass = pass_forward(&g->base, batch, false, NULL);
    return head_forward(&pass, &g->head, layers_forward(g, &pass));
}

static double gpt2_train(void *model, const Batch *batch, double scale) {
    Gpt2 *g = model;
    const Pass forward = pass_forward(&g->base, batch, true, NULL), backward = pass_backward(&forward);
    const double loss = head_train(&forward, &backward, &g->head, layers_forward(g, &forward), scale);
    stack_backward(&backward, &g->stack);
    embed_backward(&backward, &g->embedding);
    return loss;
}

static void gpt2_logits(void *model, const Batch *batch, real *logits) {
    Gpt2 *g = model;
    const Pass pass = pass_forward(&g->base, batch, false, NULL);
    head_logits(&pass, &g->head, layers_forward(g, &pass), logits);
}

static void gpt2_statistics(void *model, const Batch *batch, Statistics *statistics) {
    Gpt2 *g = model;
    const Pass pass = pass_forward(&g->base, batch, false, statistics);
    layers_forward(g, &pass);
}

// ---------------------------------------------------------------------------------------------------------------------
// Decoding: the softmax kinds keep the keys and values of every position, cosine a state of fixed size

typedef struct {
    DecoderLinear qkv, projection;
    DecoderFfn ffn;
} DecoderLayer;

typedef struct {
    Decoder base;
    const Gpt2 *model;
    DecoderLayer *layers; // (L)
    KeyValueCache cache;  // softmax kinds: of (L, S, H) heads
    real *state;          // cosine: (L, S, H, D, D)
} Gpt2Decoder;

static void *gpt2_decoder_create(void *model, int streams) {
    const Gpt2 *g = model;
    const Config *c = &g->config;
    const size_t C = c->channels, units = c->layers * (size_t)streams * c->heads;
    Gpt2Decoder *d = allocate(1, sizeof(Gpt2Decoder), "decoder");
    decoder_create(&d->base, &g->base, streams, c->positions, C, 4 * C, c->vocabulary, g->offsets.token,
                   c->layers * 12 * C * C);
    d->model = g;
    d->layers = allocate(c->layers, sizeof(DecoderLayer), "decoder");
    for (size_t l = 0; l < c->layers; l++) {
        const TransformerParameters *o = &g->offsets.layers[l];
        const Precision precision = g->base.decoding;
        d->layers[l] =
            (DecoderLayer){.qkv = decoder_linear_create(&d->base, precision, &o->attention.qkv),
                           .projection = decoder_linear_create(&d->base, precision, &o->attention.projection),
                           .ffn = decoder_ffn_create(&d->base, &o->ffn, GELU_TANH)};
    }
    d->cache = (KeyValueCache){.units = units, .head_size = c->head_size};
    if (c->attention.cosine)
        d->state = allocate(units, c->head_size * c->head_size * sizeof(real), "decoder");
    return d;
}

static void gpt2_decoder_destroy(void *decoder) {
    Gpt2Decoder *d = decoder;
    for (size_t l = 0; l < d->model->config.layers; l++) {
        decoder_linear_free(&d->layers[l].qkv);
        decoder_linear_free(&d->layers[l].projection);
        decoder_ffn_free(&d->layers[l].ffn);
    }
    free(d->layers);
    key_value_cache_free(&d->cache);
    free(d->state);
    decoder_free(&d->base);
    free(d);
}

// base.attended from base.projected for one token of each stream in layer l, streams and heads divided among
// the threads.
static void decode_attention(const Gpt2Decoder *d, size_t l) {
    const Config *c = &d->model->config;
    const Decoder *b = &d->base;
    const AttentionParameters *at = &d->model->offsets.layers[l].attention;
    const real *values = d->model->base.state.values;
    const real *exponent = c->attention.learned_power ? values + at->norm_const : NULL;
    const size_t S = b->streams, C = c->channels, D = c->head_size, H = c->heads;
    if (c->attention.cosine) {
        cosine_attention_decode(b->attended, d->state + l * S * H * D * D, b->projected,
                                values + at->qkv.bias, exponent, c->attention.power, b->count, S, C, H);
    } else {
        const size_t cache = l * S * H * d->cache.room * D;
        softmax_attention_decode(b->attended, d->cache.keys + cache, d->cache.values + cache, b->projected,
                                 values + at->qkv.bias, c->attention.sink, b->count, d->cache.room, S, C, H);
    }
}

// x through layer l, by all threads.
static void decode_layer(Gpt2Decoder *d, size_t l) {
    Decoder *b = &d->base;
    const DecoderLayer *layer = &d->layers[l];
    const real *norm = decoder_norm(b, &d->model->offsets.layers[l].attention.norm);
    decoder_linear(b, b->projected, norm, &layer->qkv, false);
    decoder_wait(b);
    decode_attention(d, l);
    decoder_wait(b);
    decoder_residual(b, b->attended, &layer->projection);
    decoder_ffn(b, &layer->ffn);
}

static void gpt2_decode(void *decoder, const int32_t *tokens, real *logits) {
    Gpt2Decoder *d = decoder;
    const Gpt2 *g = d->model;
    decoder_embed(&d->base, tokens, g->offsets.token, g->offsets.position);
    if (!g->config.attention.cosine) key_value_cache_grow(&d->cache, d->base.count, g->config.positions);
#pragma omp parallel num_threads(d->base.threads)
    {
        for (size_t l = 0; l < g->config.layers; l++) decode_layer(d, l);
        decoder_logits(&d->base, logits, &g->offsets.final_norm, NO_PARAMETER);
    }
    decoder_advance(&d->base);
}

// ---------------------------------------------------------------------------------------------------------------------
// Exchange with Hugging Face's GPT2LMHeadModel

// What its config.json may choose and this program computes in one way.
static const ConfigMember fixed_members[] = {
    {"activation_function", {.kind = JSON_STRING, .string = (char[]){"gelu_new"}}},
    {"layer_norm_epsilon", {.kind = JSON_NUMBER, .number = 1e-5}},
    {"scale_attn_weights", {.kind = JSON_BOOL, .boolean = true}},
    {"scale_attn_by_inverse_layer_idx", {.kind = JSON_BOOL, .boolean = false}},
};
enum { FIXED_MEMBERS = sizeof(fixed_members) / sizeof(fixed_members[0]) };

static const ConfigSize config_sizes[] = {{"n_layer", "n_layer", MAX_LAYERS},
                                          {"n_embd", "n_embd", MAX_CHANNELS},
                                          {"n_head", "n_head", MAX_HEADS},
                                          {"n_positions", "n_positions", 1 << 28},
                                          {"vocab_size", "vocab_size", INT32_MAX}};
enum { CONFIG_SIZES = sizeof(config_sizes) / sizeof(config_sizes[0]) };

// The metadata of the checkpoint that this program would have written.
static void gpt2_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    huggingface_read_sizes(config, config_sizes, CONFIG_SIZES, source, rows, count);
    metadata_add(rows, count, "attention", copy_string("softmax"));
    huggingface_check_members(config, fixed_members, FIXED_MEMBERS, source);
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
    if (strcmp(c->attention.name, "softmax") != 0) return false;
    const size_t sizes[CONFIG_SIZES] = {c->layers, c->channels, c->heads, c->positions, c->vocabulary};
    huggingface_write_sizes(w, "GPT2LMHeadModel", config_sizes, sizes, CONFIG_SIZES);
    huggingface_write_members(w, fixed_members, FIXED_MEMBERS);
    static const char *const rates[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
    huggingface_write_number(w, rates, 3, c->dropout);
    static const char *const tokens[] = {"bos_token_id", "eos_token_id"};
    huggingface_write_number(w, tokens, 2, NAN); // otherwise their class takes token 50256 for both
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

double gpt2_attention_flops(const Config *c, size_t batch, size_t length) {
    return attention_flops(c->attention.cosine, c->channels, c->heads, (double)(batch * length),
                           (double)length / 2);
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
    .position_embedding = "transformer.wpe.weight",
    .add_parameters = gpt2_add_parameters,
    .create = gpt2_create,
    .destroy = gpt2_destroy,
    CPU_MODEL_ENTRIES,
    .describe = gpt2_describe,
    .flops_per_token = gpt2_flops_per_token,
    .forward = gpt2_forward,
    .logits = gpt2_logits,
    .statistics = gpt2_statistics,
    .train = gpt2_train,
    .decoder_create = gpt2_decoder_create,
    .decode = gpt2_decode,
    .decoder_place = decoder_place,
    .decoder_destroy = gpt2_decoder_destroy,
    .exchange = &gpt2_exchange,
};

#ifndef TESTING
int main(int argc, char **argv) {
    return train_main(argc, argv, &gpt2);
}
#endif
