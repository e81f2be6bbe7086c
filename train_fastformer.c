// Fastformer on the CPU: a causal language model with windowed additive attention, whose cost is
// linear in the sequence length. Wu et al., "Fastformer: Additive Attention Can Be All You Need"
// (arXiv 2108.09084), made causal and windowed. Parameters, forward, backward, recurrent decoding
// and options, top to bottom.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers. A
// layer:
//
//   n       = LayerNorm(x)
//   q, k, v = split(W_qkv n)
//   G       = dropout(pool(q, w_q))         pooled queries
//   P       = dropout(pool(G * k, w_k))     pooled keys, * is elementwise
//   x       = x + P * v
//   x       = x + dropout(W_down GELU(W_up LayerNorm(x)))

#include "additive_attention.h"
#include "decoder.h"
#include "error.h"
#include "fastformer.h"
#include "language.h"
#include "memory.h"
#include "model_options.h"
#include "safetensors.h"
#include "train.h"
#include "transformer.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options and configuration ----------------------------------------------

// clang-format off
static const Option fastformer_options[] = {
    SIZE_OPTIONS("n_layer", "hidden_size", "n_heads"),
    {.name = OPT_WINDOWS, .kind = OPTION_TEXT, .scope = OPTION_MODEL, .value = "LIST",
     .initial = "auto", .metadata_key = "windows|window_sizes", .group = "Model",
     .help = "windows: auto (4,8,..,global), global or a list"},
    {.name = OPT_RESCALE, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "S",
     .initial = "10", .max = 40, .metadata_key = "rescale", .group = OPTION_GROUP_MORE,
     .help = "bound of scores, which stay within -S..S"},
    {.name = OPT_SINK, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X",
     .initial = "1e-5", .max = 1e6, .metadata_key = "eps_denominator", .group = OPTION_GROUP_MORE,
     .help = "term added to denominators: 0 softmax, 1 softmax1"},
    {.name = OPT_POOL, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "WHAT",
     .initial = "normalised", .choices = "normalised|raw", .group = OPTION_GROUP_MORE,
     .help = "vectors to pool"},
    DROPOUT_OPTION,
};
// clang-format on

// One window of a list: a number or "global"; 0 means global, as does a window that spans every
// position.
static size_t parse_window(const char *text, size_t length, size_t positions, const char *list) {
    if (length == 6 && strncmp(text, "global", 6) == 0) return 0;
    size_t window = 0;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) || window > SIZE_MAX / 100) length = 0;
        window = window * 10 + (size_t)(text[i] - '0');
    }
    if (length == 0 || window == 0)
        fail("--windows %s: expected auto, global, or a list of whole numbers from 1 such as "
             "4,8,16,global",
             list);
    return window >= positions ? 0 : window;
}

// "auto": layer l sees 4 * 2^l tokens and the last layer all. "global": every layer all. Else one
// window per layer, separated by commas or blanks, in brackets or not (as the published checkpoints
// write it).
static size_t *parse_windows(const char *list, size_t layers, size_t positions) {
    size_t *windows = allocate(layers, sizeof(size_t), "windows");
    if (strcmp(list, "global") == 0) return windows;
    if (strcmp(list, "auto") == 0) {
        for (size_t l = 0; l + 1 < layers; l++)
            windows[l] = l < 40 && ((size_t)4 << l) < positions ? (size_t)4 << l : 0;
        return windows;
    }
    size_t count = 0;
    for (const char *p = list;;) {
        p += strspn(p, "[], ");
        if (!*p) break;
        const size_t length = strcspn(p, "[], ");
        const size_t window = parse_window(p, length, positions, list);
        if (count < layers) windows[count] = window;
        count++;
        p += length;
    }
    if (count != layers) fail("--windows %s: %zu windows for %zu layers", list, count, layers);
    return windows;
}

static FastformerConfig config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    FastformerConfig c = {
        .size = model_sizes(setup),
        .rescale = (real)options_number(o, OPT_RESCALE),
        .sink = (real)options_number(o, OPT_SINK),
        .pool_raw = strcmp(options_text(o, OPT_POOL), "raw") == 0,
        .padding = setup->padding_token,
    };
    if (c.size.head_size < 2)
        fail("--heads %zu: the %zu channels must divide into heads of at least 2", c.size.heads,
             c.size.channels);
    c.windows = parse_windows(options_text(o, OPT_WINDOWS), c.size.layers, c.size.positions);
    return c;
}

// ---- Parameters, under the names of the published PyTorch class -------------

static FastformerParameters parameters_create(ParameterTable *table, const FastformerConfig *c) {
    const size_t L = c->size.layers, C = c->size.channels, H = c->size.heads, D = c->size.head_size;
    FastformerParameters o = {.layers = allocate(L, sizeof(LayerOffsets), "layers")};
    const double deviation = 0.02;
    const LinearShape qkv = {3 * C, C, WEIGHT_OUT_IN, false, deviation};
    const LinearShape up = {4 * C, C, WEIGHT_OUT_IN, false, deviation};
    const LinearShape down = {C, 4 * C, WEIGHT_OUT_IN, false, deviation};
    o.outer.token = add_matrix(table, "word_embedding.weight", c->size.vocabulary, C, deviation);
    o.outer.position = add_matrix(table, "fastformer_model.position_embeddings.weight",
                                  c->size.positions, C, deviation);
    for (size_t l = 0; l < L; l++) {
        LayerOffsets *layer = &o.layers[l];
        char name[PARAMETER_NAME];
#define NAME(suffix)                                                                               \
    (snprintf(name, sizeof(name), "fastformer_model.decoders.%zu." suffix, l), name)
        layer->norm = add_norm(table, C, "%s", NAME("attention.attn_norm"));
        layer->qkv = add_linear(table, qkv, "%s", NAME("attention.projections"));
        layer->query_attn = add_matrix(table, NAME("attention.query_attn"), H, D, deviation);
        layer->key_attn = add_matrix(table, NAME("attention.key_attn"), H, D, deviation);
        layer->ffn.norm = add_norm(table, C, "%s", NAME("boom_norm"));
        layer->ffn.up = add_linear(table, up, "%s", NAME("boom"));
        layer->ffn.down = add_linear(table, down, "%s", NAME("unboom"));
#undef NAME
    }
    o.outer.norm = add_norm(table, C, "last_norm");
    o.outer.bias = add_vector(table, "proj_logits.bias", c->size.vocabulary, 0);
    return o;
}

// -----------------------------------------------------------------------------
// Attention with its normalisation and product for queries, keys and values
//
// That product always reads and gives float32: q and k go through an exponential of scores up to
// the rescale, which magnifies their rounding; in bf16 gradients of w_q and w_k are off by up to
// 0.3. Its backward pass takes the precision of all others, and normalises again to read that.

typedef struct {
    size_t layer, window;
    Norm norm;
    Linear exact, qkv; // the product for the forward and for the backward pass
    real *projected;   // (M, 3C) queries, keys and values
    real *pooled_query, *pooled_key, *r_query, *r_key; // (B, H, T, D), (B, H, T)
    size_t query_attn, key_attn;                       // of the parameters w_q, w_k
} AttentionLayer;

typedef struct {
    AttentionLayer attention;
    FfnBlock ffn;
} Layer;

typedef struct {
    Transformer base;
    FastformerConfig config;
    FastformerParameters offsets;
    size_t batch; // the largest
    Gemm *exact;  // float32
    AdditiveAttention attention;
    real *attn_normal, *attn_deviation; // (L, 2, H, D) w_q', w_k', and (L, 2, H)
    Layer *layers;                      // (L)
    Matrix norm_exact;                  // (M, C) what the QKV product of a layer reads
    Matrix renormalised;                // (M, C) and its backward pass
    real **x; // (2L + 1) of (M, C): the residual stream before each block, and after the last
} Fastformer;

static void attention_layer_create(Fastformer *f, size_t l) {
    CpuModel *m = &f->base.model;
    const LayerOffsets *o = &f->offsets.layers[l];
    f->layers[l].attention = (AttentionLayer){.layer = l,
                                              .window = f->config.windows[l],
                                              .norm.parameters = o->norm,
                                              .exact = linear_create(m, f->exact, &o->qkv, "qkv"),
                                              .qkv = linear_create(m, m->gemm, &o->qkv, "qkv"),
                                              .query_attn = o->query_attn,
                                              .key_attn = o->key_attn};
}

static void attention_layer_carve(AttentionLayer *a, CpuModel *m, size_t channels, size_t heads) {
    const size_t M = m->rows, C = channels, H = heads;
    norm_carve(&a->norm, m->arena, M);
    a->projected = arena_reals(m->arena, M, 3 * C, "activations");
    a->pooled_query = arena_reals(m->arena, M, C, "activations");
    a->pooled_key = arena_reals(m->arena, M, C, "activations");
    a->r_query = arena_reals(m->arena, M, H, "activations");
    a->r_key = arena_reals(m->arena, M, H, "activations");
}

static AdditiveInput attention_input(const Fastformer *f, const BlockPass *pass,
                                     const AttentionLayer *a, Dropout drop[2]) {
    return (AdditiveInput){
        .qkv = a->projected,
        .window = a->window,
        .weights = f->attn_normal + 2 * a->layer * f->config.size.channels,
        .deviations = f->attn_deviation + 2 * a->layer * f->config.size.heads,
        .pooled_query = a->pooled_query,
        .pooled_key = a->pooled_key,
        .r_query = a->r_query,
        .r_key = a->r_key,
        .drop_query = pass_dropout(pass, dropout_site(a->layer, SITE_QUERY), &drop[0]),
        .drop_key = pass_dropout(pass, dropout_site(a->layer, SITE_KEY), &drop[1])};
}

static void attention_layer_forward(const Fastformer *f, const BlockPass *pass,
                                    const AttentionLayer *a, real *out, const real *x) {
    Dropout drop[2];
    const AdditiveInput in = attention_input(f, pass, a, drop);
    norm_forward(pass, &a->norm, f->norm_exact, x);
    linear_forward(pass, &a->exact, a->projected, f->norm_exact);
    additive_attention_forward(&f->attention, out, x, &in, pass->batch);
    pass_lap(pass, "attention", 0);
    if (pass->statistics)
        additive_attention_measure(&f->attention, &in, pass->batch, pass->statistics, a->layer);
    pass_measure(pass, a->layer, "residual_middle", out, f->config.size.channels);
}

static void attention_layer_backward(const Fastformer *f, const BlockPass *pass,
                                     const AttentionLayer *a, const real *x) {
    const Workspace *w = pass->work;
    Dropout drop[2];
    const AdditiveInput in = attention_input(f, pass, a, drop);
    additive_attention_backward(&f->attention, w->dqkv, pass_gradients(pass, a->query_attn),
                                pass_gradients(pass, a->key_attn), w->dx, &in, pass->batch);
    pass_lap(pass, "attention", 0);
    linear_backward_input(pass, &a->qkv, w->dnorm, w->dqkv);
    norm_forward(pass, &a->norm, f->renormalised, x);
    linear_backward_weight(pass, &a->qkv, w->dqkv, f->renormalised);
    norm_backward(pass, &a->norm, w->dx, w->dnorm, x);
}

// ---- Forward and backward ---------------------------------------------------

// w_q' and w_k' of every layer.
static void normalise_weights(const Fastformer *f) {
    const size_t C = f->config.size.channels, D = f->config.size.head_size,
                 H = f->config.size.heads;
    const real *values = f->base.model.state.values;
    for (size_t l = 0; l < f->config.size.layers; l++) {
        real *normal = f->attn_normal + 2 * l * C, *deviation = f->attn_deviation + 2 * l * H;
        additive_normalise(normal, deviation, values + f->offsets.layers[l].query_attn, H, D);
        additive_normalise(normal + C, deviation + H, values + f->offsets.layers[l].key_attn, H, D);
    }
}

static const real *fastformer_forward(const void *model, const BlockPass *pass) {
    const Fastformer *f = model;
    real **x = f->x;
    normalise_weights(f);
    embed_forward(pass, &f->base.embedding, x[0]);
    for (size_t l = 0; l < f->config.size.layers; l++, x += 2) {
        attention_layer_forward(f, pass, &f->layers[l].attention, x[1], x[0]);
        ffn_block_forward(pass, &f->layers[l].ffn, x[2], x[1]);
    }
    return x[0];
}

static void fastformer_backward(const void *model, const BlockPass *pass) {
    const Fastformer *f = model;
    for (size_t l = f->config.size.layers; l-- > 0;) {
        ffn_block_backward(pass, &f->layers[l].ffn, f->x[2 * l + 1]);
        attention_layer_backward(f, pass, &f->layers[l].attention, f->x[2 * l]);
        pass_final(pass, f->offsets.layers[l].norm.gain);
    }
    embed_backward(pass, &f->base.embedding);
}

// ---- The model --------------------------------------------------------------

static size_t largest_window(const FastformerConfig *c) {
    size_t largest = 0;
    for (size_t l = 0; l < c->size.layers; l++)
        largest = c->windows[l] > largest ? c->windows[l] : largest;
    return largest;
}

static void layers_create(Fastformer *f) {
    CpuModel *m = &f->base.model;
    const size_t L = f->config.size.layers;
    f->exact = gemm_create(PRECISION_FLOAT32);
    f->x = allocate(2 * L + 1, sizeof(*f->x), "layers");
    f->layers = allocate(L, sizeof(Layer), "layers");
    for (size_t l = 0; l < L; l++) {
        attention_layer_create(f, l);
        ffn_block_create(&f->layers[l].ffn, m, &f->offsets.layers[l].ffn, GELU_ERF, PRE_NORM, l,
                         dropout_site(l, SITE_FFN));
    }
}

// Without training, layers share their activations.
static void layers_carve(Fastformer *f) {
    CpuModel *m = &f->base.model;
    const size_t L = f->config.size.layers, C = f->config.size.channels;
    stream_carve(f->x, m->arena, 2 * L, m->rows, C, m->training);
    ArenaUnion shared = arena_union(m->arena);
    for (size_t l = 0; l < L; l++) {
        attention_layer_carve(&f->layers[l].attention, m, C, f->config.size.heads);
        ffn_block_carve(&f->layers[l].ffn, m);
        if (!m->training) arena_member(m->arena, &shared);
    }
    arena_close(m->arena, &shared);
    f->norm_exact = gemm_input_carve(f->exact, m->arena, m->rows, C, "activations");
    if (m->training)
        f->renormalised = gemm_input_carve(m->gemm, m->arena, m->rows, C, "activations");
}

static void fastformer_carve(void *model) {
    Fastformer *f = model;
    CpuModel *m = &f->base.model;
    const ModelSizes *size = &f->config.size;
    additive_attention_carve(&f->attention, m->arena, f->batch, m->training);
    f->attn_normal = arena_reals(m->arena, 2 * size->layers, size->channels, "attention");
    f->attn_deviation = arena_reals(m->arena, 2 * size->layers, size->heads, "attention");
    if (m->rows == 0) return;
    layers_carve(f);
    transformer_carve(&f->base, 4 * size->channels);
}

static void fastformer_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    FastformerConfig c = config_create(setup);
    free(parameters_create(table, &c).layers);
    free(c.windows);
}

static void *fastformer_create(const ModelSetup *setup) {
    static const TransformerLayers layers = {fastformer_forward, fastformer_backward};
    Fastformer *f = allocate(1, sizeof(Fastformer), "model");
    CpuModel *m = &f->base.model;
    const FastformerConfig *c = &f->config;
    f->base.layers = &layers;
    f->config = config_create(setup);
    f->offsets = parameters_create(&m->state.table, c);
    cpu_model_create(m, setup);
    f->batch = (size_t)setup->batch;
    f->attention = (AdditiveAttention){.channels = c->size.channels,
                                       .heads = c->size.heads,
                                       .largest_window = largest_window(c),
                                       .rescale = c->rescale,
                                       .sink = c->sink,
                                       .raw = c->pool_raw};
    additive_attention_create(&f->attention);
    if (m->rows > 0) {
        layers_create(f);
        transformer_create(&f->base, &f->offsets.outer, &c->size, c->padding);
    }
    cpu_model_allocate(m, fastformer_carve);
    return f;
}

static void fastformer_destroy(void *model) {
    Fastformer *f = model;
    additive_attention_free(&f->attention);
    cpu_model_destroy(&f->base.model);
    gemm_free(f->exact);
    free(f->layers);
    free(f->x);
    free(f->offsets.layers);
    free(f->config.windows);
    free(f);
}

// -----------------------------------------------------------------------------
// Recurrent decoding: a layer remembers what its windows hold, so every token costs the same at any
// position

typedef struct {
    Decoder base;
    const Fastformer *model;
    AdditiveState **states; // (L)
} FastformerDecoder;

static DecoderParameters fastformer_decoder_layer(const void *model, size_t l) {
    const LayerOffsets *parameters = &((const Fastformer *)model)->offsets.layers[l];
    return (DecoderParameters){
        .norm = &parameters->norm, .qkv = &parameters->qkv, .ffn = &parameters->ffn};
}

static void fastformer_attend(const Decoder *decoder, size_t l) {
    const FastformerDecoder *d = (const FastformerDecoder *)decoder;
    additive_attention_decode(d->states[l], &d->model->attention, decoder->x, decoder->projected);
}

static void *fastformer_decoder_create(void *model, int streams) {
    Fastformer *f = model;
    const FastformerConfig *c = &f->config;
    FastformerDecoder *d = allocate(1, sizeof(FastformerDecoder), "decoder");
    const DecoderShape shape = {.size = c->size,
                                .outer = f->offsets.outer,
                                .activation = GELU_ERF,
                                .exact_qkv = true, // as in training
                                .layer = fastformer_decoder_layer,
                                .attend = fastformer_attend};
    decoder_create(&d->base, &f->base.model, &shape, streams);
    normalise_weights(f);
    d->model = f;
    d->states = allocate(c->size.layers, sizeof(AdditiveState *), "decoder");
    for (size_t l = 0; l < c->size.layers; l++)
        d->states[l] =
            additive_state_create(&f->attention, f->attn_normal + 2 * l * c->size.channels,
                                  c->windows[l], (size_t)streams);
    return d;
}

static void fastformer_decoder_destroy(void *decoder) {
    FastformerDecoder *d = decoder;
    for (size_t l = 0; l < d->model->config.size.layers; l++) additive_state_free(d->states[l]);
    free(d->states);
    decoder_free(&d->base);
    free(d);
}

// ---- What the training loop calls -------------------------------------------
// The windows as the published checkpoints write them: "[4, 8, 2048]".
static char *windows_text(const FastformerConfig *c) {
    char *text = copy_string("[");
    for (size_t l = 0; l < c->size.layers; l++) {
        const size_t window = c->windows[l] ? c->windows[l] : c->size.positions;
        append_format(&text, "%zu%s", window, l + 1 < c->size.layers ? ", " : "]");
    }
    return text;
}

// A window that spans all positions spans all of more positions, too.
static void fastformer_extend(Safetensors *file, int64_t positions) {
    const char *sizes = safetensors_metadata(file, "window_sizes");
    const size_t old = (size_t)safetensors_integer(file, "n_positions", 1, 1 << 28);
    char *windows = copy_string(""), *new_sizes = copy_string("");
    for (const char *p = sizes ? sizes : ""; *(p += strspn(p, "[], "));) {
        const size_t length = strcspn(p, "[], "), window = parse_window(p, length, old, sizes);
        const char *comma = *windows ? ", " : "";
        append_format(&new_sizes, "%s%zu", comma, window ? window : (size_t)positions);
        if (window)
            append_format(&windows, "%s%zu", comma, window);
        else
            append_format(&windows, "%sglobal", comma);
        p += length;
    }
    if (sizes) {
        metadata_set(&file->metadata, &file->metadata_count, "windows", copy_string(windows));
        metadata_set(&file->metadata, &file->metadata_count, "window_sizes",
                     copy_string(new_sizes));
    }
    free(windows);
    free(new_sizes);
}

static void fastformer_describe(const void *model, Metadata **rows, int *count) {
    const FastformerConfig *c = &((const Fastformer *)model)->config;
    metadata_add(rows, count, "window_sizes", windows_text(c));
    metadata_add(rows, count, "activation", copy_string("gelu"));
    metadata_add(rows, count, "layernorm_eps", copy_string("1e-05"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix.
static double fastformer_flops_per_token(const void *model, int64_t length) {
    (void)length; // attention is linear: nothing grows with the context
    const FastformerConfig *c = &((const Fastformer *)model)->config;
    const double C = (double)c->size.channels, L = (double)c->size.layers,
                 V = (double)c->size.vocabulary;
    return 6 * (L * 11 * C * C + V * C);
}

const FastformerConfig *fastformer_config(const void *model) {
    return &((const Fastformer *)model)->config;
}

const FastformerParameters *fastformer_offsets(const void *model) {
    return &((const Fastformer *)model)->offsets;
}

const ModelType fastformer = {
    .name = "fastformer",
    .program = "train_fastformer",
    .task = &task_language,
    .options = fastformer_options,
    .option_count = sizeof(fastformer_options) / sizeof(fastformer_options[0]),
    .lower = {OPT_CHANNELS, OPT_LAYERS},
    .position_embedding = "fastformer_model.position_embeddings.weight",
    .extend = fastformer_extend,
    .facts = model_facts,
    .add_parameters = fastformer_add_parameters,
    .create = fastformer_create,
    .destroy = fastformer_destroy,
    TRANSFORMER_ENTRIES,
    .describe = fastformer_describe,
    .flops_per_token = fastformer_flops_per_token,
    .decoder_create = fastformer_decoder_create,
    .decode = decoder_decode,
    .decoder_place = decoder_place,
    .decoder_destroy = fastformer_decoder_destroy,
    .exchange = &fastformer_exchange,
};

TRAINER_MAIN(fastformer)
