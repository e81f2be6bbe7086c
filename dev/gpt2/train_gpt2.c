// GPT-2 on the CPU (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)
// with the numbers of Hugging Face's class: the baseline, with three kinds of attention.
// Parameters, forward, backward, decoding, exchange with Hugging Face and options, top to bottom.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers. A
// layer:
//
//   q, k, v = split(LayerNorm(x) W_qkv + b)
//   x       = x + dropout(attention(q, k, v) W_proj + b)
//   x       = x + dropout(GELU(LayerNorm(x) W_up + b) W_down + b)
//
// attention: softmax, GPT-2's own; softmax1, whose denominator has one more term of 1; or cosine,
// whose cost is linear in T (softmax_attention.h, cosine_attention.h).

#include "decoder.h"
#include "error.h"
#include "gpt2.h"
#include "huggingface.h"
#include "language.h"
#include "memory.h"
#include "train.h"
#include "transformer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options and configuration ----------------------------------------------

static const Option gpt2_options[] = {
    SIZE_OPTIONS("n_layer", "n_embd", "n_head"),
    ATTENTION_OPTIONS("softmax|softmax1|cosine"),
    DROPOUT_OPTION,
};

static Gpt2Config config_create(const ModelSetup *setup) {
    return (Gpt2Config){.size = model_sizes(setup),
                        .attention = attention_kind(setup->options),
                        .padding = setup->padding_token};
}

// Parameters, under the names of Hugging Face's class. Its Conv1D stores weights as (in, out).
static Gpt2Parameters parameters_create(ParameterTable *table, const Gpt2Config *c) {
    const size_t L = c->size.layers, C = c->size.channels;
    Gpt2Parameters o = {.layers = allocate(L, sizeof(TransformerParameters), "layers")};
    // 2L sublayers are added to the residual stream: this keeps its variance that of one.
    const double plain = 0.02, residual = 0.02 / sqrt(2 * (double)L);
    const LinearShape qkv = {3 * C, C, WEIGHT_IN_OUT, true, plain};
    const LinearShape projection = {C, C, WEIGHT_IN_OUT, true, residual};
    const LinearShape up = {4 * C, C, WEIGHT_IN_OUT, true, plain};
    const LinearShape down = {C, 4 * C, WEIGHT_IN_OUT, true, residual};
    o.outer.token = add_matrix(table, "transformer.wte.weight", c->size.vocabulary, C, plain);
    o.outer.position = add_matrix(table, "transformer.wpe.weight", c->size.positions, C, plain);
    for (size_t l = 0; l < L; l++) {
        AttentionParameters *attention = &o.layers[l].attention;
        FfnParameters *ffn = &o.layers[l].ffn;
        attention->norm = add_norm(table, C, "transformer.h.%zu.ln_1", l);
        attention->qkv = add_linear(table, qkv, "transformer.h.%zu.attn.c_attn", l);
        attention->exponent = NO_PARAMETER;
        if (c->attention.learned_power) {
            char name[PARAMETER_NAME];
            snprintf(name, sizeof(name), "transformer.h.%zu.attn.norm_const", l);
            attention->exponent = add_vector(table, name, c->size.heads, 0.5);
        }
        attention->projection = add_linear(table, projection, "transformer.h.%zu.attn.c_proj", l);
        ffn->norm = add_norm(table, C, "transformer.h.%zu.ln_2", l);
        ffn->up = add_linear(table, up, "transformer.h.%zu.mlp.c_fc", l);
        ffn->down = add_linear(table, down, "transformer.h.%zu.mlp.c_proj", l);
    }
    o.outer.norm = add_norm(table, C, "transformer.ln_f");
    o.outer.bias = NO_PARAMETER;
    return o;
}

// ---- The model --------------------------------------------------------------

typedef struct {
    Transformer base;
    Gpt2Config config;
    Gpt2Parameters offsets;
    Stack stack;
} Gpt2;

static const real *gpt2_forward(const void *model, const BlockPass *pass) {
    const Gpt2 *g = model;
    embed_forward(pass, &g->base.embedding, g->stack.x[0]);
    return stack_forward(pass, &g->stack);
}

static void gpt2_backward(const void *model, const BlockPass *pass) {
    const Gpt2 *g = model;
    stack_backward(pass, &g->stack);
    embed_backward(pass, &g->base.embedding);
}

static void parts_create(Gpt2 *g, size_t batch, size_t length) {
    const ModelSizes *size = &g->config.size;
    const Attention attention = attention_of_kind(&g->config.attention, size, true);
    stack_create(&g->stack, &g->base.model, &attention, g->offsets.layers, size->layers, PRE_NORM,
                 GELU_TANH, dropout_site(0, SITE_ATTENTION), batch, length);
    transformer_create(&g->base, &g->offsets.outer, size, g->config.padding);
}

static void gpt2_carve(void *model) {
    Gpt2 *g = model;
    if (g->base.model.rows == 0) return;
    stack_carve(&g->stack, &g->base.model);
    transformer_carve(&g->base, 4 * g->config.size.channels);
}

static void gpt2_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    const Gpt2Config c = config_create(setup);
    free(parameters_create(table, &c).layers);
}

static void *gpt2_create(const ModelSetup *setup) {
    static const TransformerLayers layers = {gpt2_forward, gpt2_backward};
    Gpt2 *g = allocate(1, sizeof(Gpt2), "model");
    CpuModel *m = &g->base.model;
    g->base.layers = &layers;
    g->config = config_create(setup);
    g->offsets = parameters_create(&m->state.table, &g->config);
    cpu_model_create(m, setup);
    if (m->rows > 0) parts_create(g, (size_t)setup->batch, (size_t)setup->length);
    cpu_model_allocate(m, gpt2_carve);
    return g;
}

static void gpt2_destroy(void *model) {
    Gpt2 *g = model;
    stack_free(&g->stack);
    cpu_model_destroy(&g->base.model);
    free(g->offsets.layers);
    free(g);
}

// -----------------------------------------------------------------------------
// Decoding: the softmax kinds keep the keys and values of every position, cosine a state of fixed
// size

typedef struct {
    Decoder base;
    const Gpt2 *model;
    KeyValueCache cache; // softmax kinds: of (L, S, H) heads
    real *state;         // cosine: (L, S, H, D, D)
} Gpt2Decoder;

static DecoderParameters gpt2_decoder_layer(const void *model, size_t l) {
    const TransformerParameters *parameters = &((const Gpt2 *)model)->offsets.layers[l];
    return (DecoderParameters){&parameters->attention.norm, &parameters->attention.qkv,
                               &parameters->attention.projection, &parameters->ffn};
}

// Streams and heads are divided among the threads.
static void gpt2_attend(const Decoder *decoder, size_t l) {
    const Gpt2Decoder *d = (const Gpt2Decoder *)decoder;
    const AttentionKind *kind = &d->model->config.attention;
    const AttentionParameters *parameters = &d->model->offsets.layers[l].attention;
    const real *values = d->model->base.model.state.values, *bias = values + parameters->qkv.bias;
    const real *exponent = kind->learned_power ? values + parameters->exponent : NULL;
    const size_t S = decoder->streams, H = decoder->shape.size.heads,
                 D = decoder->shape.size.head_size, C = H * D;
    if (kind->cosine) {
        cosine_attention_decode(decoder->attended, d->state + l * S * H * D * D, decoder->projected,
                                bias, exponent, kind->power, decoder->count, S, C, H);
    } else {
        const size_t at_layer = l * S * H * d->cache.room * D;
        const AttentionCache cache = {.keys = d->cache.keys + at_layer,
                                      .values = d->cache.values + at_layer,
                                      .positions = d->cache.room};
        softmax_attention_decode(decoder->attended, &cache, decoder->projected, bias, kind->sink,
                                 decoder->count, S, C, H);
    }
}

static void *gpt2_decoder_create(void *model, int streams) {
    Gpt2 *g = model;
    const Gpt2Config *c = &g->config;
    const size_t D = c->size.head_size, units = c->size.layers * (size_t)streams * c->size.heads;
    Gpt2Decoder *d = allocate(1, sizeof(Gpt2Decoder), "decoder");
    const DecoderShape shape = {.size = c->size,
                                .outer = g->offsets.outer,
                                .activation = GELU_TANH,
                                .layer = gpt2_decoder_layer,
                                .attend = gpt2_attend};
    decoder_create(&d->base, &g->base.model, &shape, streams);
    d->model = g;
    d->cache = (KeyValueCache){.units = units, .head_size = D};
    if (c->attention.cosine) d->state = allocate(units, D * D * sizeof(real), "decoder");
    return d;
}

static void gpt2_decode(void *decoder, const int32_t *tokens, real *logits) {
    Gpt2Decoder *d = decoder;
    const Gpt2Config *c = &d->model->config;
    if (!c->attention.cosine) key_value_cache_grow(&d->cache, d->base.count, c->size.positions);
    decoder_decode(d, tokens, logits);
}

static void gpt2_decoder_destroy(void *decoder) {
    Gpt2Decoder *d = decoder;
    key_value_cache_free(&d->cache);
    free(d->state);
    decoder_free(&d->base);
    free(d);
}

// ---- Exchange with Hugging Face's GPT2LMHeadModel ---------------------------
// What its config.json may choose and this program computes in one way.
static const ConfigMember fixed_members[] = {
    {"activation_function", {.kind = JSON_STRING, .string = (char[]){"gelu_new"}}},
    {"layer_norm_epsilon", {.kind = JSON_NUMBER, .number = 1e-5}},
    {"scale_attn_weights", {.kind = JSON_BOOL, .boolean = true}},
    {"scale_attn_by_inverse_layer_idx", {.kind = JSON_BOOL, .boolean = false}},
    {"tie_word_embeddings", {.kind = JSON_BOOL, .boolean = true}},
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
    const Json *inner = json_find(config, "n_inner");
    const double expected = 4 * (double)json_integer(config, "n_embd", 1, MAX_CHANNELS, source);
    if (inner && inner->kind != JSON_NULL &&
        (inner->kind != JSON_NUMBER || inner->number != expected))
        fail("%s: has another \"n_inner\" than this program computes: expected %.0f or null",
             source, expected);
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), size = strlen(end);
    return length >= size && strcmp(text + length - size, end) == 0;
}

// A model that was saved without its output layer has no "transformer." before its names; one that
// was saved with it may hold the tied matrix twice. Old files hold the causal mask, too.
static char *gpt2_tensor_name(const char *theirs) {
    if (ends_with(theirs, ".attn.bias") || ends_with(theirs, ".attn.masked_bias")) return NULL;
    if (strcmp(theirs, "lm_head.weight") == 0) return copy_string("transformer.wte.weight");
    return format_string("%s%s", strncmp(theirs, "transformer.", 12) == 0 ? "" : "transformer.",
                         theirs);
}

// The other kinds of attention have no class there.
static bool gpt2_write_config(const void *model, JsonWriter *w) {
    const Gpt2 *g = model;
    const ModelSizes *size = &g->config.size;
    if (strcmp(g->config.attention.name, "softmax") != 0) return false;
    const size_t sizes[CONFIG_SIZES] = {size->layers, size->channels, size->heads, size->positions,
                                        size->vocabulary};
    huggingface_write_sizes(w, "GPT2LMHeadModel", config_sizes, sizes, CONFIG_SIZES);
    huggingface_write_members(w, fixed_members, FIXED_MEMBERS);
    static const char *const rates[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
    huggingface_write_number(w, rates, 3, g->base.model.dropout);
    huggingface_write_number(w, (const char *const[]){"n_ctx"}, 1, (double)size->positions);
    return true;
}

static const Exchange gpt2_exchange = {
    .model_type = "gpt2",
    .read_config = gpt2_read_config,
    .tensor_name = gpt2_tensor_name,
    .write_config = gpt2_write_config,
};

// ---- What the training loop calls -------------------------------------------

static void gpt2_describe(const void *model, Metadata **rows, int *count) {
    (void)model;
    metadata_add(rows, count, "activation", copy_string("gelu_new"));
    metadata_add(rows, count, "layer_norm_epsilon", copy_string("1e-05"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix and every
// product of attention.
static double gpt2_flops_per_token(const void *model, int64_t length) {
    const Gpt2Config *c = &((const Gpt2 *)model)->config;
    const double C = (double)c->size.channels, L = (double)c->size.layers,
                 V = (double)c->size.vocabulary;
    const double attention = 3 * attention_flops(c->attention.cosine, false, c->size.channels,
                                                 c->size.heads, 1, (double)length / 2);
    return 6 * (L * 12 * C * C + V * C) + L * attention;
}

const Gpt2Config *gpt2_config(const void *model) {
    return &((const Gpt2 *)model)->config;
}

const Gpt2Parameters *gpt2_offsets(const void *model) {
    return &((const Gpt2 *)model)->offsets;
}

const ModelType gpt2 = {
    .name = "gpt2",
    .program = "train_gpt2",
    .task = &task_language,
    .options = gpt2_options,
    .option_count = sizeof(gpt2_options) / sizeof(gpt2_options[0]),
    .lower = {OPT_CHANNELS, OPT_LAYERS},
    .position_embedding = "transformer.wpe.weight",
    .facts = model_facts,
    .add_parameters = gpt2_add_parameters,
    .create = gpt2_create,
    .destroy = gpt2_destroy,
    TRANSFORMER_ENTRIES,
    .describe = gpt2_describe,
    .flops_per_token = gpt2_flops_per_token,
    .decoder_create = gpt2_decoder_create,
    .decode = gpt2_decode,
    .decoder_place = decoder_place,
    .decoder_destroy = gpt2_decoder_destroy,
    .exchange = &gpt2_exchange,
};

TRAINER_MAIN(gpt2)
