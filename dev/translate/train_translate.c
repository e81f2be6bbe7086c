// The encoder-decoder Transformer on the CPU (Vaswani et al., "Attention Is All You Need", 2017),
// which translates, with the numbers of Hugging Face's MarianMTModel. Parameters, forward,
// backward, decoding, exchange with Hugging Face and options, top to bottom.
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
//                          pre-norm:  x = x + dropout(f(LayerNorm(x))), and a LayerNorm after each
//                          stack

#include "embedding.h"
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

// ---- Options and configuration ----------------------------------------------

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

// Under the names of Hugging Face's configuration.
static ActivationKind activation_kind(const char *name) {
    return strcmp(name, "relu") == 0 ? RELU : strcmp(name, "gelu") == 0 ? GELU_ERF : SILU;
}

static const char *activation_name(ActivationKind kind) {
    return kind == RELU ? "relu" : kind == GELU_ERF ? "gelu" : "swish";
}

static TranslateConfig config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    const ModelFacts facts = model_facts(o, NULL);
    return (TranslateConfig){
        .encoder_layers = (size_t)options_integer(o, OPT_ENCODER_LAYERS),
        .decoder_layers = (size_t)options_integer(o, OPT_DECODER_LAYERS),
        .channels = (size_t)facts.channels,
        .heads = (size_t)facts.heads,
        .inner = (size_t)options_integer(o, OPT_FFN),
        .vocabulary = (size_t)setup->vocabulary,
        .positions = (size_t)setup->positions,
        .order = strcmp(options_text(o, OPT_NORM), "pre") == 0 ? PRE_NORM : POST_NORM,
        .activation = activation_kind(options_text(o, OPT_ACTIVATION)),
        .dropout = facts.dropout,
        .attention_dropout = options_number(o, OPT_ATTENTION_DROPOUT),
        .smoothing = options_number(o, OPT_LABEL_SMOOTHING),
        .padding = setup->padding_token,
        .end = setup->end_token,
    };
}

// ---- Parameters, under the names of Hugging Face's class --------------------
// Glorot and Bengio 2010, for a product with K inputs and N outputs.
static double xavier(size_t outputs, size_t inputs) {
    return sqrt(2.0 / (double)(outputs + inputs));
}

// `count` products of C inputs and as many outputs.
static LinearShape square(size_t channels, size_t count) {
    return (LinearShape){count * channels, channels, WEIGHT_OUT_IN, true,
                         xavier(channels, channels)};
}

static const char *const attention_parts[] = {"q_proj", "k_proj", "v_proj"};

#define NAME(suffix) (snprintf(name, sizeof(name), "model.%s.layers.%zu." suffix, stack, l), name)

static TransformerParameters add_layer(ParameterTable *table, const TranslateConfig *c,
                                       const char *stack, size_t l) {
    const size_t C = c->channels, F = c->inner;
    TransformerParameters layer;
    char name[PARAMETER_NAME];
    layer.attention.qkv =
        add_joined_linear(table, square(C, 3), NAME("self_attn"), attention_parts, 3);
    layer.attention.projection = add_linear(table, square(C, 1), "%s", NAME("self_attn.out_proj"));
    layer.attention.norm = add_norm(table, C, "%s", NAME("self_attn_layer_norm"));
    layer.attention.exponent = NO_PARAMETER;
    layer.ffn.up = add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, xavier(F, C)}, "%s",
                              NAME("fc1"));
    layer.ffn.down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, xavier(C, F)}, "%s",
                                NAME("fc2"));
    layer.ffn.norm = add_norm(table, C, "%s", NAME("final_layer_norm"));
    return layer;
}

static CrossAttentionParameters add_cross(ParameterTable *table, size_t C, const char *stack,
                                          size_t l) {
    CrossAttentionParameters cross = {.exponent = NO_PARAMETER};
    char name[PARAMETER_NAME];
    cross.query = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.q_proj"));
    cross.key_value =
        add_joined_linear(table, square(C, 2), NAME("encoder_attn"), attention_parts + KEY, 2);
    cross.projection = add_linear(table, square(C, 1), "%s", NAME("encoder_attn.out_proj"));
    cross.norm = add_norm(table, C, "%s", NAME("encoder_attn_layer_norm"));
    return cross;
}

#undef NAME

static NormParameters add_final_norm(ParameterTable *table, const TranslateConfig *c,
                                     const char *stack) {
    return c->order == PRE_NORM ? add_norm(table, c->channels, "model.%s.layer_norm", stack)
                                : no_norm(c->channels);
}

static TranslateParameters parameters_create(ParameterTable *table, const TranslateConfig *c) {
    TranslateParameters o = {.encoder = allocate(c->encoder_layers, sizeof(*o.encoder), "layers"),
                             .decoder = allocate(c->decoder_layers, sizeof(*o.decoder), "layers")};
    const size_t C = c->channels;
    o.token = add_matrix(table, "model.shared.weight", c->vocabulary, C, 1 / sqrt((double)C));
    for (size_t l = 0; l < c->encoder_layers; l++) o.encoder[l] = add_layer(table, c, "encoder", l);
    o.encoder_norm = add_final_norm(table, c, "encoder");
    for (size_t l = 0; l < c->decoder_layers; l++)
        o.decoder[l] = (DecoderParameters){add_layer(table, c, "decoder", l),
                                           add_cross(table, C, "decoder", l)};
    o.decoder_norm = add_final_norm(table, c, "decoder");
    o.bias = parameter_add(table, "final_logits_bias", 2, (int64_t[]){1, (int64_t)c->vocabulary},
                           false, 0, 0);
    parameter_fix(table);
    return o;
}

static void offsets_free(TranslateParameters *o) {
    free(o->encoder);
    free(o->decoder);
}

// ---- The model --------------------------------------------------------------

typedef struct {
    AttentionBlock attention;
    CrossAttentionBlock cross;
    FfnBlock ffn;
} DecoderLayer;

// The memory of a Translator, for one after the other.
typedef struct {
    Room mask, encoded, keys, values, origins, selected, attended;
} TranslatorRooms;

typedef struct {
    Transformer base;
    TranslateConfig config;
    TranslateParameters offsets;
    Embedding source; // of the same table as the base's, which is the decoder's
    Stack encoder;
    Encoded encoded;
    Attention causal;      // of the decoder, in the encoder's working memory
    DecoderLayer *decoder; // (layers)
    real **y;              // (3 layers + 1) of (M, C): the decoder's residual stream
    TranslatorRooms rooms;
} Translate;

static void encode(const Translate *t, const BlockPass *source) {
    embed_forward(source, &t->source, t->encoder.x[0]);
    encoded_forward(source, &t->encoded, stack_forward(source, &t->encoder));
}

// The last y.
static const real *translate_forward(const void *model, const BlockPass *pass) {
    const Translate *t = model;
    Batch of_source;
    const BlockPass source = pass_source(pass, &of_source);
    real **y = t->y;
    encode(t, &source);
    embed_forward(pass, &t->base.embedding, y[0]);
    for (size_t l = 0; l < t->config.decoder_layers; l++, y += 3) {
        attention_block_forward(pass, &t->decoder[l].attention, y[1], y[0]);
        cross_attention_block_forward(pass, &source, &t->decoder[l].cross, y[2], y[1]);
        ffn_block_forward(pass, &t->decoder[l].ffn, y[3], y[2]);
    }
    return y[0];
}

static void translate_backward(const void *model, const BlockPass *pass) {
    const Translate *t = model;
    Batch of_source;
    const BlockPass source = pass_source(pass, &of_source);
    for (size_t l = t->config.decoder_layers; l-- > 0;) {
        real **y = t->y + 3 * l;
        ffn_block_backward(pass, &t->decoder[l].ffn, y[2]);
        cross_attention_block_backward(pass, &source, &t->decoder[l].cross, y[1]);
        attention_block_backward(pass, &t->decoder[l].attention, y[0]);
    }
    embed_backward(pass, &t->base.embedding);
    encoded_backward(&source, &t->encoded, t->encoder.x[2 * t->encoder.count]);
    stack_backward(&source, &t->encoder);
    embed_backward(&source, &t->source);
}

// Layers count through both stacks.
static void decoder_layer_create(Translate *t, size_t l) {
    CpuModel *m = &t->base.model;
    const TranslateConfig *c = &t->config;
    const DecoderParameters *parameters = &t->offsets.decoder[l];
    DecoderLayer *layer = &t->decoder[l];
    const size_t number = c->encoder_layers + l;
    attention_block_create(&layer->attention, m, &t->causal, &parameters->self.attention, c->order,
                           number, (uint32_t[]){decoder_site(c, l, 0), decoder_site(c, l, 1)});
    cross_attention_block_create(&layer->cross, m, &t->encoder.attention, &t->encoded,
                                 &parameters->cross, c->order, number,
                                 (uint32_t[]){decoder_site(c, l, 2), decoder_site(c, l, 3)});
    ffn_block_create(&layer->ffn, m, &parameters->self.ffn, c->activation, c->order, number,
                     decoder_site(c, l, 4));
}

static void encoder_create(Translate *t, size_t batch, size_t length) {
    CpuModel *m = &t->base.model;
    const TranslateConfig *c = &t->config;
    const Attention attention = {.channels = c->channels, .heads = c->heads};
    stack_create(&t->encoder, m, &attention, t->offsets.encoder, c->encoder_layers, c->order,
                 c->activation, SITE_LAYERS, batch, length);
    t->encoded.norm.parameters = t->offsets.encoder_norm;
}

static void decoder_create_layers(Translate *t) {
    const size_t layers = t->config.decoder_layers;
    t->causal = t->encoder.attention;
    t->causal.causal = true;
    t->y = allocate(3 * layers + 1, sizeof(*t->y), "layers");
    t->decoder = allocate(layers, sizeof(DecoderLayer), "layers");
    for (size_t l = 0; l < layers; l++) decoder_layer_create(t, l);
}

// Layers share their activations where nothing is kept for a backward pass.
static void decoder_carve(Translate *t) {
    CpuModel *m = &t->base.model;
    const TranslateConfig *c = &t->config;
    stream_carve(t->y, m->arena, 3 * c->decoder_layers, m->rows, c->channels, m->training);
    ArenaUnion shared = arena_union(m->arena);
    for (size_t l = 0; l < c->decoder_layers; l++) {
        attention_block_carve(&t->decoder[l].attention, m);
        cross_attention_block_carve(&t->decoder[l].cross, m);
        ffn_block_carve(&t->decoder[l].ffn, m);
        if (!m->training) arena_member(m->arena, &shared);
    }
    arena_close(m->arena, &shared);
}

static void embeddings_create(Translate *t) {
    const TranslateConfig *c = &t->config;
    t->source =
        (Embedding){.token = t->offsets.token,
                    .scale = sqrt((double)c->channels),
                    .position = NO_PARAMETER,
                    .channels = c->channels,
                    .site = SITE_SOURCE,
                    .padding = -1}; // the decoder begins with the padding token, which learns
    t->base.embedding = t->source;
    t->base.embedding.site = SITE_TARGET;
}

static void translate_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    const TranslateConfig c = config_create(setup);
    TranslateParameters o = parameters_create(table, &c);
    offsets_free(&o);
}

// What works on batches.
static void parts_create(Translate *t, const ModelSetup *setup) {
    CpuModel *m = &t->base.model;
    const TranslateConfig *c = &t->config;
    OutputHead *head = &t->base.head;
    embeddings_create(t);
    encoder_create(t, (size_t)setup->batch, (size_t)setup->length);
    decoder_create_layers(t);
    head_create(head, m, &t->offsets.decoder_norm, t->offsets.token, t->offsets.bias,
                c->vocabulary);
    head->bias_fixed = true;
    classifier_smooth(head->classifier, c->smoothing);
}

static void translate_carve(void *model) {
    Translate *t = model;
    CpuModel *m = &t->base.model;
    const TranslateConfig *c = &t->config;
    if (m->rows == 0) return;
    t->source.sinusoids = arena_reals(m->arena, c->positions, c->channels, "positions");
    t->base.embedding.sinusoids = t->source.sinusoids;
    stack_carve(&t->encoder, m);
    encoded_carve(&t->encoded, m);
    decoder_carve(t);
    transformer_carve(&t->base, c->inner);
}

static void *translate_create(const ModelSetup *setup) {
    static const TransformerLayers layers = {translate_forward, translate_backward};
    Translate *t = allocate(1, sizeof(Translate), "model");
    CpuModel *m = &t->base.model;
    t->base.layers = &layers;
    t->config = config_create(setup);
    const TranslateConfig *c = &t->config;
    t->offsets = parameters_create(&m->state.table, c);
    cpu_model_create(m, setup);
    m->attention_dropout = c->attention_dropout;
    if (m->rows > 0) parts_create(t, setup);
    cpu_model_allocate(m, translate_carve);
    if (m->rows > 0) sinusoidal_positions(t->source.sinusoids, c->positions, c->channels);
    return t;
}

static void translate_destroy(void *model) {
    Translate *t = model;
    stack_free(&t->encoder);
    cpu_model_destroy(&t->base.model);
    offsets_free(&t->offsets);
    free(t->decoder);
    free(t->y);
    void *const rooms[] = {t->rooms.mask.memory,    t->rooms.encoded.memory,
                           t->rooms.keys.memory,    t->rooms.values.memory,
                           t->rooms.origins.memory, t->rooms.selected.memory,
                           t->rooms.attended.memory};
    for (size_t i = 0; i < sizeof(rooms) / sizeof(*rooms); i++) free(rooms[i]);
    free(t);
}

static double translate_unsmoothed(const void *model) {
    return classifier_unsmoothed(((const Translate *)model)->base.head.classifier);
}

// -----------------------------------------------------------------------------
// Decoding: `beams` streams for each sentence, one token at a time for all of them. Keys and values
// of the encoder's result are made once per sentence, those of the streams' own tokens once per
// token. They stay where they were written: a stream that continues another's sentence keeps who
// wrote each token of it.

typedef struct {
    Translate *model;
    size_t sentences, beams, length; // B, streams a sentence, S
    size_t position, positions;      // of the next token; most
    uint8_t *mask;                   // (B, S)
    real *encoded;                   // (layers, B, S, 2C)
    size_t streams;                  // that the cache has room for: those of the first token
    real *keys, *values;             // (layers, streams, H, positions, D)
    uint32_t *origins,
        *selected;   // (streams, positions) who wrote a token; the same, to select into
    real *attended;  // (streams, C)
    double *weights; // (layers, positions, S) of one stream; NULL: nobody watches
} Translator;

static void *translator_create(void *model, const Batch *batch, int beams, int64_t positions) {
    Translate *t = model;
    Translator *d = allocate(1, sizeof(*d), "decoder");
    *d = (Translator){.model = t,
                      .sentences = (size_t)batch->batch,
                      .beams = (size_t)beams,
                      .length = (size_t)batch->source.length,
                      .positions = (size_t)positions};
    const size_t layers = t->config.decoder_layers, C = t->config.channels;
    const size_t rows = d->sentences * d->length, streams = d->sentences * d->beams;
    Batch of_source;
    const BlockPass pass = pass_forward(&t->base.model, batch, false, NULL),
                    source = pass_source(&pass, &of_source);
    TranslatorRooms *rooms = &t->rooms;
    const char *what = "decoder";
    d->mask = room_for(&rooms->mask, rows, 1, what);
    memcpy(d->mask, batch->source.mask, rows);
    d->encoded = room_for(&rooms->encoded, layers * rows, 2 * C * sizeof(real), what);
    d->streams = streams;
    d->keys = room_for(&rooms->keys, layers * streams * d->positions, C * sizeof(real), what);
    d->values = room_for(&rooms->values, layers * streams * d->positions, C * sizeof(real), what);
    d->origins = room_for(&rooms->origins, streams, d->positions * sizeof(uint32_t), what);
    d->selected = room_for(&rooms->selected, streams, d->positions * sizeof(uint32_t), what);
    d->attended = room_for(&rooms->attended, streams, C * sizeof(real), what);
    encode(t, &source);
    for (size_t l = 0; l < layers; l++)
        linear_forward(&source, &t->decoder[l].cross.key_value, d->encoded + l * rows * 2 * C,
                       t->encoded.result);
    return d;
}

static void decode_attention(const BlockPass *pass, const Translator *d, size_t l, real *x) {
    const TranslateConfig *c = &d->model->config;
    const AttentionBlock *b = &d->model->decoder[l].attention;
    const size_t C = c->channels, at_layer = l * d->streams * d->positions * C;
    const AttentionCache cache = {.keys = d->keys + at_layer,
                                  .values = d->values + at_layer,
                                  .positions = d->positions,
                                  .origins = d->origins};
    sublayer_begin(pass, &b->common.sublayer, x);
    linear_forward(pass, &b->qkv, b->projected, b->common.sublayer.input);
#pragma omp parallel
    {
        softmax_attention_decode(d->attended, &cache, b->projected,
                                 pass_values(pass, b->qkv.parameters.bias), 0, d->position,
                                 pass->rows, C, c->heads);
#pragma omp barrier
#pragma omp for
        for (size_t i = 0; i < pass->rows; i++)
            gemm_input_store(b->common.attended, i, 0, d->attended + i * C, C);
    }
    linear_forward(pass, &b->common.projection, pass->work->output, b->common.attended);
    sublayer_residual(pass, &b->common.sublayer, x, x, pass->work->output);
}

// A sentence's streams are the queries of one sequence.
static void decode_cross_attention(const BlockPass *pass, const Translator *d, size_t l, real *x) {
    const CrossAttentionBlock *b = &d->model->decoder[l].cross;
    const size_t C = d->model->config.channels;
    const AttentionInput in =
        attention_cross(b->queries, pass_values(pass, b->query.parameters.bias),
                        d->encoded + l * d->sentences * d->length * 2 * C,
                        pass_values(pass, b->key_value.parameters.bias), C, d->mask, d->sentences,
                        d->beams, d->length);
    sublayer_begin(pass, &b->common.sublayer, x);
    linear_forward(pass, &b->query, b->queries, b->common.sublayer.input);
    if (d->weights)
        softmax_attention_weights(d->weights + (l * d->positions + d->position) * d->length, &in, C,
                                  d->model->config.heads);
    attention_sublayer_forward(pass, &b->common, &in, x, x);
}

static void translator_decode(void *decoder, const int32_t *tokens, real *logits) {
    Translator *d = decoder;
    Translate *t = d->model;
    const Batch batch = {
        .batch = (int64_t)(d->sentences * d->beams), .length = 1, .inputs = tokens};
    const BlockPass pass = pass_forward(&t->base.model, &batch, false, NULL);
    Embedding embedding = t->base.embedding;
    embedding.sinusoids += d->position * t->config.channels;
    real *x = t->y[0];
    embed_forward(&pass, &embedding, x);
    for (size_t i = 0; i < pass.rows; i++) d->origins[i * d->positions + d->position] = (uint32_t)i;
    for (size_t l = 0; l < t->config.decoder_layers; l++) {
        decode_attention(&pass, d, l, x);
        decode_cross_attention(&pass, d, l, x);
        ffn_block_forward(&pass, &t->decoder[l].ffn, x, x);
    }
    if (logits) head_logits(&pass, &t->base.head, x, logits);
    d->position++;
}

// The streams `from` (count) continue.
static void select_streams(Translator *d, const size_t *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        memcpy(d->selected + i * d->positions, d->origins + from[i] * d->positions,
               d->position * sizeof(uint32_t));
    uint32_t *old = d->origins;
    d->origins = d->selected;
    d->selected = old;
}

// What was made of sentences that are left moves up.
static void select_sentences(Translator *d, const size_t *from, size_t count) {
    const size_t layers = d->model->config.decoder_layers,
                 row = d->length * 2 * d->model->config.channels;
    for (size_t i = 0; i < count; i++)
        memmove(d->mask + i * d->length, d->mask + from[i * d->beams] / d->beams * d->length,
                d->length);
    for (size_t l = 0; l < layers; l++)
        for (size_t i = 0; i < count; i++)
            memmove(d->encoded + (l * count + i) * row,
                    d->encoded + (l * d->sentences + from[i * d->beams] / d->beams) * row,
                    row * sizeof(real));
    d->sentences = count;
}

static void translator_select(void *decoder, const size_t *from, size_t count) {
    Translator *d = decoder;
    select_streams(d, from, count);
    if (count < d->sentences * d->beams) select_sentences(d, from, count / d->beams);
}

static size_t translator_watch(void *decoder, double *weights) {
    Translator *d = decoder;
    d->weights = weights;
    return d->model->config.decoder_layers;
}

// ---- Exchange with Hugging Face's MarianMTModel, which is post-norm ---------
// What its config.json may choose and this program computes in one way.
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
enum { FIXED_MEMBERS = sizeof(fixed_members) / sizeof(fixed_members[0]) };

static const ConfigSize config_sizes[] = {{"encoder_layers", "encoder_layers", MAX_LAYERS},
                                          {"decoder_layers", "decoder_layers", MAX_LAYERS},
                                          {"d_model", "d_model", MAX_CHANNELS},
                                          {"encoder_attention_heads", "heads", MAX_HEADS},
                                          {"encoder_ffn_dim", "ffn_dim", 4 * MAX_CHANNELS},
                                          {"max_position_embeddings", "n_positions", 1 << 28},
                                          {"vocab_size", "vocab_size", INT32_MAX}};
enum { CONFIG_SIZES = sizeof(config_sizes) / sizeof(config_sizes[0]) };

// What must be as in the encoder, or the same token.
static void check_equal(const Json *config, const char *a, const char *b, const char *source) {
    const long long x = json_integer(config, a, 0, INT32_MAX, source),
                    y = json_integer(config, b, 0, INT32_MAX, source);
    if (x != y) fail("%s: \"%s\" is %lld and \"%s\" %lld, expected the same", source, a, x, b, y);
}

// Both names of SiLU are in use.
static const char *read_activation(const Json *config, const char *source) {
    const char *name = json_string(config, "activation_function", source);
    if (strcmp(name, "silu") == 0) name = "swish";
    if (strcmp(name, activation_name(activation_kind(name))) != 0)
        fail("%s: \"activation_function\" is \"%s\", expected relu, gelu or swish", source, name);
    return name;
}

static void translate_read_config(const Json *config, const char *source, Metadata **rows,
                                  int *count) {
    huggingface_read_sizes(config, config_sizes, CONFIG_SIZES, source, rows, count);
    check_equal(config, "decoder_attention_heads", "encoder_attention_heads", source);
    check_equal(config, "decoder_ffn_dim", "encoder_ffn_dim", source);
    check_equal(config, "decoder_start_token_id", "pad_token_id", source);
    huggingface_check_members(config, fixed_members, FIXED_MEMBERS, source);
    metadata_add(rows, count, "norm", copy_string("post"));
    metadata_add(rows, count, "activation", copy_string(read_activation(config, source)));
    metadata_add(rows, count, "padding_token",
                 format_string("%lld", (long long)json_integer(config, "pad_token_id", 0, INT32_MAX,
                                                               source)));
    metadata_add(rows, count, "end_token",
                 format_string("%lld", (long long)json_integer(config, "eos_token_id", 0, INT32_MAX,
                                                               source)));
}

// The shared embedding may stand there under each of its names; sinusoids are computed.
static char *translate_tensor_name(const char *theirs) {
    static const char *const shared[] = {"model.encoder.embed_tokens.weight",
                                         "model.decoder.embed_tokens.weight", "lm_head.weight"};
    if (strstr(theirs, "embed_positions.")) return NULL;
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
        if (strcmp(theirs, shared[i]) == 0) return copy_string("model.shared.weight");
    return copy_string(theirs);
}

static bool translate_write_config(const void *model, JsonWriter *w) {
    const TranslateConfig *c = &((const Translate *)model)->config;
    if (c->order != POST_NORM || c->padding < 0 || c->end < 0) return false;
    const size_t sizes[CONFIG_SIZES] = {c->encoder_layers, c->decoder_layers, c->channels,
                                        c->heads,          c->inner,          c->positions,
                                        c->vocabulary};
    huggingface_write_sizes(w, "MarianMTModel", config_sizes, sizes, CONFIG_SIZES);
    huggingface_write_number(w, (const char *const[]){"decoder_attention_heads"}, 1,
                             (double)c->heads);
    huggingface_write_number(w, (const char *const[]){"decoder_ffn_dim"}, 1, (double)c->inner);
    huggingface_write_members(w, fixed_members, FIXED_MEMBERS);
    json_key(w, "activation_function");
    json_write_string(w, activation_name(c->activation));
    huggingface_write_number(w, (const char *const[]){"dropout"}, 1, c->dropout);
    huggingface_write_number(w, (const char *const[]){"attention_dropout"}, 1,
                             c->attention_dropout);
    return true;
}

static const Exchange translate_exchange = {
    .model_type = "marian",
    .read_config = translate_read_config,
    .tensor_name = translate_tensor_name,
    .write_config = translate_write_config,
};

// ---- What the training loop calls -------------------------------------------
// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix and every
// product of attention, per token of either side: of two, one is read and one written.
static double translate_flops_per_token(const void *model, int64_t length) {
    const TranslateConfig *c = &((const Translate *)model)->config;
    const double C = (double)c->channels, F = (double)c->inner, T = (double)length;
    const double encoder = (double)c->encoder_layers, decoder = (double)c->decoder_layers;
    const double attention = attention_flops(false, false, c->channels, c->heads, 1, T);
    const double read = 6 * encoder * (4 * C * C + 2 * C * F) + 3 * encoder * attention;
    const double written = 6 * (decoder * (8 * C * C + 2 * C * F) + C * (double)c->vocabulary) +
                           3 * decoder * 1.5 * attention;
    return (read + written) / 2;
}

const TranslateConfig *translate_config(const void *model) {
    return &((const Translate *)model)->config;
}

const TranslateParameters *translate_offsets(const void *model) {
    return &((const Translate *)model)->offsets;
}

const ModelType translate = {
    .name = "translate",
    .program = "train_translate",
    .task = &task_translation,
    .options = translate_options,
    .option_count = sizeof(translate_options) / sizeof(translate_options[0]),
    .lower = {OPT_CHANNELS, OPT_ENCODER_LAYERS},
    .facts = model_facts,
    .add_parameters = translate_add_parameters,
    .create = translate_create,
    .destroy = translate_destroy,
    TRANSFORMER_ENTRIES,
    .flops_per_token = translate_flops_per_token,
    .unsmoothed = translate_unsmoothed,
    .decode = translator_decode,
    .decoder_destroy = free,
    .translator_create = translator_create,
    .translator_select = translator_select,
    .translator_watch = translator_watch,
    .exchange = &translate_exchange,
};

TRAINER_MAIN(translate)
