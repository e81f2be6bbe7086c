// BERT on the CPU (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019)
// with the numbers of Hugging Face's BertForMaskedLM, and four kinds of attention. Parameters,
// forward, backward, exchange with Hugging Face and options, top to bottom.
//
// B batch, T sequence length, M = B*T, C channels, H heads, F inner channels, V vocabulary, L
// layers:
//
//   x = dropout(LayerNorm(token + position + type))          type 0 everywhere
//   x = LayerNorm(x + dropout(attention(x W_qkv + b) W_proj + b))       a layer
//   x = LayerNorm(x + dropout(GELU(x W_up + b) W_down + b))
//   logits = LayerNorm(GELU(x W + b)) E^T + bias             E: the token embedding
//
// Only the K rows that predict something (15%, masked.h) are multiplied with W and E. attention:
// softmax, BERT's own; softmax1; cosine or additive, whose cost is linear in T
// (dev/cpu/attention.h).

#include "bert.h"
#include "blocks.h"
#include "embedding.h"
#include "error.h"
#include "huggingface.h"
#include "masked.h"
#include "memory.h"
#include "model_options.h"
#include "train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options and configuration ----------------------------------------------

enum { TYPES = 2 };
static const double EPSILON = 1e-12, DEVIATION = 0.02;

// clang-format off
static const Option bert_options[] = {
    SIZE_OPTIONS("num_hidden_layers", "hidden_size", "num_attention_heads"),
    {.name = OPT_FFN, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N", .initial = "0",
     .max = 4 * MAX_CHANNELS, .metadata_key = "intermediate_size", .group = "Model",
     .help = "channels inside the FFN; 0: 4 times --channels"},
    ATTENTION_OPTIONS("softmax|softmax1|cosine|additive"),
    DROPOUT_OPTION,
};
// clang-format on

static BertConfig config_create(const ModelSetup *setup) {
    const ModelSizes size = model_sizes(setup);
    const size_t inner = (size_t)options_integer(setup->options, OPT_FFN);
    return (BertConfig){
        .size = size,
        .inner = inner > 0 ? inner : 4 * size.channels,
        .attention = attention_kind(setup->options),
        .padding = setup->padding_token,
    };
}

// ---- Parameters, under the names of Hugging Face's class --------------------

static NormParameters add_bert_norm(ParameterTable *table, const char *name, size_t channels) {
    NormParameters norm = add_norm(table, channels, "%s", name);
    norm.epsilon = EPSILON;
    return norm;
}

static TransformerParameters add_layer(ParameterTable *table, const BertConfig *c, size_t l) {
    const size_t C = c->size.channels, F = c->inner;
    TransformerParameters layer;
    char name[PARAMETER_NAME];
#define NAME(suffix) (snprintf(name, sizeof(name), "bert.encoder.layer.%zu." suffix, l), name)
    // Queries, keys and values have a name each there. Here they lie side by side, and are one
    // product.
    static const char *const parts[] = {"query", "key", "value"};
    layer.attention.qkv =
        add_joined_linear(table, (LinearShape){3 * C, C, WEIGHT_OUT_IN, true, DEVIATION},
                          NAME("attention.self"), parts, 3);
    layer.attention.exponent =
        c->attention.learned_power
            ? add_vector(table, NAME("attention.self.norm_const"), c->size.heads, 0.5)
            : NO_PARAMETER;
    layer.attention.pooling =
        c->attention.additive ? add_matrix(table, NAME("attention.self.pooling"), 2, C, DEVIATION)
                              : NO_PARAMETER;
    layer.attention.projection =
        add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, DEVIATION}, "%s",
                   NAME("attention.output.dense"));
    layer.attention.norm = add_bert_norm(table, NAME("attention.output.LayerNorm"), C);
    layer.ffn.up = add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, DEVIATION}, "%s",
                              NAME("intermediate.dense"));
    layer.ffn.down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, DEVIATION}, "%s",
                                NAME("output.dense"));
    layer.ffn.norm = add_bert_norm(table, NAME("output.LayerNorm"), C);
#undef NAME
    return layer;
}

static BertParameters parameters_create(ParameterTable *table, const BertConfig *c) {
    const size_t L = c->size.layers, C = c->size.channels, V = c->size.vocabulary;
    BertParameters o = {.layers = allocate(L, sizeof(TransformerParameters), "layers")};
    o.token = add_matrix(table, "bert.embeddings.word_embeddings.weight", V, C, DEVIATION);
    o.position = add_matrix(table, "bert.embeddings.position_embeddings.weight", c->size.positions,
                            C, DEVIATION);
    o.type = add_matrix(table, "bert.embeddings.token_type_embeddings.weight", TYPES, C, DEVIATION);
    o.norm = add_bert_norm(table, "bert.embeddings.LayerNorm", C);
    for (size_t l = 0; l < L; l++) o.layers[l] = add_layer(table, c, l);
    o.transform = add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, DEVIATION},
                             "cls.predictions.transform.dense");
    o.transform_norm = add_bert_norm(table, "cls.predictions.transform.LayerNorm", C);
    o.bias = add_vector(table, "cls.predictions.bias", V, 0);
    return o;
}

// ---- The model --------------------------------------------------------------

typedef struct {
    CpuModel base;
    BertConfig config;
    BertParameters offsets;
    Stack stack;

    size_t length;          // T, the largest
    real *places, *dplaces; // (T, C) position + type, and the gradient to that
    real *sum;              // (M, C) what the embedding's normalisation reads
    Norm norm;

    Linear transform;
    size_t *rows;     // (K) that predict something
    int32_t *targets; // (K)
    Matrix chosen;    // (K, C) the last x of these
    real *hidden;     // (K, C) before bias and GELU
    real *activated;  // (K, C)
    OutputHead head;
    real *logits;    // (LOGIT_ROWS, V), for the accuracy
    int64_t correct; // targets of the last forward pass that were the most probable token
} Bert;

enum { LOGIT_ROWS = 64 };

static void parts_create(Bert *b, const ModelSetup *setup) {
    CpuModel *m = &b->base;
    const BertConfig *c = &b->config;
    const BertParameters *o = &b->offsets;
    const Attention attention = attention_of_kind(&c->attention, &c->size, false);
    b->length = (size_t)setup->length;
    b->norm.parameters = o->norm;
    stack_create(&b->stack, m, &attention, o->layers, c->size.layers, POST_NORM, GELU_ERF,
                 SITE_LAYERS, (size_t)setup->batch, b->length);
    b->transform = linear_create(m, m->gemm, &o->transform, "prediction");
    head_create(&b->head, m, &o->transform_norm, o->token, o->bias, c->size.vocabulary);
}

static void bert_carve(void *model) {
    Bert *b = model;
    CpuModel *m = &b->base;
    Arena *arena = m->arena;
    const char *what = "activations";
    const size_t M = m->rows, C = b->config.size.channels;
    if (M == 0) return;
    b->places = arena_reals(arena, b->length, C, what);
    b->sum = arena_reals(arena, M, C, what);
    norm_carve(&b->norm, arena, M);
    stack_carve(&b->stack, m);
    b->rows = arena_array(arena, M, sizeof(*b->rows), what);
    b->targets = arena_array(arena, M, sizeof(*b->targets), what);
    b->chosen = gemm_input_carve(m->gemm, arena, M, C, what);
    b->hidden = arena_reals(arena, M, C, what);
    b->activated = arena_reals(arena, M, C, what);
    head_carve(&b->head, m);
    b->logits = arena_reals(arena, LOGIT_ROWS, b->config.size.vocabulary, what);
    if (m->training) b->dplaces = arena_reals(arena, b->length, C, "gradients");
    cpu_model_carve_workspace(m, C, b->config.inner);
}

static void bert_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    const BertConfig c = config_create(setup);
    free(parameters_create(table, &c).layers);
}

static void *bert_create(const ModelSetup *setup) {
    Bert *b = allocate(1, sizeof(Bert), "model");
    b->config = config_create(setup);
    b->offsets = parameters_create(&b->base.state.table, &b->config);
    cpu_model_create(&b->base, setup);
    if (b->base.rows > 0) parts_create(b, setup);
    cpu_model_allocate(&b->base, bert_carve);
    return b;
}

static void bert_destroy(void *model) {
    Bert *b = model;
    stack_free(&b->stack);
    cpu_model_destroy(&b->base);
    free(b->offsets.layers);
    free(b);
}

// ---- The embedding: token + position + type, normalised, with dropout -------
// x (M, C) *= the embedding's dropout.
static void embedding_dropout(const BlockPass *pass, real *x, size_t channels) {
    Dropout memory;
    const Dropout *dropout = pass_dropout(pass, SITE_EMBEDDING, &memory);
    if (!dropout) return;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < pass->rows; row++)
        dropout_apply(dropout, (pass->first + row) * channels, channels, x + row * channels);
}

static void embed(const Bert *b, const BlockPass *pass) {
    const size_t C = b->config.size.channels, T = (size_t)pass->batch->length;
    const real *position = pass_values(pass, b->offsets.position),
               *type = pass_values(pass, b->offsets.type);
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < C; c++) b->places[t * C + c] = position[t * C + c] + type[c];
    embedding_forward(b->sum, pass_values(pass, b->offsets.token), 1, b->places, pass->batch, NULL,
                      C);
    pass_lap(pass, "embedding", 0);
    norm_forward(pass, &b->norm, (Matrix){b->stack.x[0], C, false}, b->sum);
    embedding_dropout(pass, b->stack.x[0], C);
    pass_measure(pass, 0, "residual", b->stack.x[0], C);
    pass_lap(pass, "embedding", 0);
}

// From work->dx.
static void embed_back(const Bert *b, const BlockPass *pass) {
    const size_t C = b->config.size.channels, T = (size_t)pass->batch->length;
    real *dsum = pass->work->dnorm;
    embedding_dropout(pass, pass->work->dx, C);
    memset(dsum, 0, pass->rows * C * sizeof(real));
    norm_backward(pass, &b->norm, dsum, pass->work->dx, b->sum);
    memset(b->dplaces, 0, T * C * sizeof(real));
    embedding_backward(pass_lookups(pass, b->offsets.token), 1, b->dplaces, dsum, pass->batch, NULL,
                       b->config.padding, C);
    real *dposition = pass_gradients(pass, b->offsets.position),
         *dtype = pass_gradients(pass, b->offsets.type);
    for (size_t t = 0; t < T; t++) {
        for (size_t c = 0; c < C; c++) {
            dposition[t * C + c] += b->dplaces[t * C + c];
            dtype[c] += b->dplaces[t * C + c];
        }
    }
    pass_lap(pass, "embedding", 0);
}

// ---- The prediction, of the rows that have a target, or of all --------------
// A pass over these rows, which `batch` then describes.
static BlockPass pass_of_targets(const Bert *b, const BlockPass *pass, bool all, Batch *batch) {
    size_t count = 0;
    for (size_t i = 0; i < pass->rows; i++) {
        const int32_t target = all ? 0 : pass->batch->targets[i];
        if (target < 0) continue;
        b->rows[count] = i;
        b->targets[count++] = target;
    }
    *batch = *pass->batch;
    batch->targets = b->targets;
    BlockPass chosen = *pass;
    chosen.batch = batch;
    chosen.rows = count;
    return chosen;
}

static void predict(const Bert *b, const BlockPass *chosen) {
    const size_t C = b->config.size.channels;
    const real *x = b->stack.x[2 * b->stack.count];
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < chosen->rows; i++)
        gemm_input_store(b->chosen, i, 0, x + b->rows[i] * C, C);
    linear_forward(chosen, &b->transform, b->hidden, b->chosen);
    activation_forward((Matrix){b->activated, C, false}, b->hidden,
                       pass_values(chosen, b->transform.parameters.bias), GELU_ERF, chosen->rows,
                       C);
    pass_lap(chosen, "activation", 0);
}

// work->dx (M, C), to the last x, from work->dx (K, C), to what is normalised.
static void predict_backward(const Bert *b, const BlockPass *pass, const BlockPass *chosen) {
    const size_t C = b->config.size.channels;
    const Workspace *w = pass->work;
    activation_backward(w->doutput, pass_gradients(chosen, b->transform.parameters.bias), w->dx,
                        b->hidden, pass_values(chosen, b->transform.parameters.bias), GELU_ERF,
                        chosen->rows, C);
    pass_lap(chosen, "activation", 0);
    linear_backward(chosen, &b->transform, w->dnorm, w->doutput, b->chosen);
    memset(w->dx, 0, pass->rows * C * sizeof(real));
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < chosen->rows; i++)
        memcpy(w->dx + b->rows[i] * C, w->dnorm + i * C, C * sizeof(real));
    pass_lap(chosen, "embedding", 0);
}

// Rows whose target has the largest logit, of those that the head has normalised.
static int64_t count_correct(const Bert *b, const BlockPass *chosen) {
    const size_t V = b->config.size.vocabulary;
    int64_t correct = 0;
    for (size_t first = 0; first < chosen->rows; first += LOGIT_ROWS) {
        const size_t left = chosen->rows - first, count = left < LOGIT_ROWS ? left : LOGIT_ROWS;
        classifier_logits(b->head.classifier, gemm_input_rows(b->head.normal, first),
                          pass_values(chosen, b->offsets.bias), count, b->logits);
#pragma omp parallel for schedule(static) reduction(+ : correct)
        for (size_t i = 0; i < count; i++) {
            const real *row = b->logits + i * V, target = row[b->targets[first + i]];
            size_t better = 0;
            for (size_t v = 0; v < V; v++) better += row[v] > target;
            correct += better == 0;
        }
    }
    return correct;
}

// ---- Forward and backward ---------------------------------------------------

static void layers_forward(const Bert *b, const BlockPass *pass) {
    embed(b, pass);
    stack_forward(pass, &b->stack);
}

static void layers_backward(const Bert *b, const BlockPass *pass) {
    stack_backward(pass, &b->stack);
    embed_back(b, pass);
}

static double bert_forward(void *model, const Batch *batch) {
    Bert *b = model;
    Batch of_targets;
    const BlockPass pass = pass_forward(&b->base, batch, false, NULL);
    layers_forward(b, &pass);
    const BlockPass chosen = pass_of_targets(b, &pass, false, &of_targets);
    b->correct = 0;
    if (chosen.rows == 0) return 0;
    predict(b, &chosen);
    const double loss = head_forward(&chosen, &b->head, b->activated);
    b->correct = count_correct(b, &chosen);
    return loss;
}

static double bert_train(void *model, const Batch *batch, double scale) {
    Bert *b = model;
    Batch of_targets;
    const BlockPass forward = pass_forward(&b->base, batch, true, NULL),
                    backward = pass_backward(&forward);
    layers_forward(b, &forward);
    const BlockPass chosen = pass_of_targets(b, &forward, false, &of_targets);
    const BlockPass chosen_backward = pass_backward(&chosen);
    if (chosen.rows == 0) return 0;
    predict(b, &chosen);
    const double loss = head_train(&chosen, &chosen_backward, &b->head, b->activated, scale);
    predict_backward(b, &backward, &chosen_backward);
    layers_backward(b, &backward);
    return loss;
}

static void bert_logits(void *model, const Batch *batch, real *logits) {
    Bert *b = model;
    Batch of_targets;
    const BlockPass pass = pass_forward(&b->base, batch, false, NULL);
    layers_forward(b, &pass);
    const BlockPass all = pass_of_targets(b, &pass, true, &of_targets);
    predict(b, &all);
    head_logits(&all, &b->head, b->activated, logits);
}

static void bert_statistics(void *model, const Batch *batch, Statistics *statistics) {
    Bert *b = model;
    const BlockPass pass = pass_forward(&b->base, batch, false, statistics);
    layers_forward(b, &pass);
}

static int64_t bert_correct(const void *model) {
    return ((const Bert *)model)->correct;
}

// ---- Exchange with Hugging Face's BertForMaskedLM ---------------------------
// What its config.json may choose and this program computes in one way.
static const ConfigMember fixed_members[] = {
    {"hidden_act", {.kind = JSON_STRING, .string = (char[]){"gelu"}}},
    {"layer_norm_eps", {.kind = JSON_NUMBER, .number = 1e-12}},
    {"type_vocab_size", {.kind = JSON_NUMBER, .number = TYPES}},
    {"position_embedding_type", {.kind = JSON_STRING, .string = (char[]){"absolute"}}},
    {"is_decoder", {.kind = JSON_BOOL, .boolean = false}},
    {"tie_word_embeddings", {.kind = JSON_BOOL, .boolean = true}},
};
enum { FIXED_MEMBERS = sizeof(fixed_members) / sizeof(fixed_members[0]) };

static const ConfigSize config_sizes[] = {
    {"num_hidden_layers", "num_hidden_layers", MAX_LAYERS},
    {"hidden_size", "hidden_size", MAX_CHANNELS},
    {"num_attention_heads", "num_attention_heads", MAX_HEADS},
    {"intermediate_size", "intermediate_size", 4 * MAX_CHANNELS},
    {"max_position_embeddings", "n_positions", 1 << 28},
    {"vocab_size", "vocab_size", INT32_MAX}};
enum { CONFIG_SIZES = sizeof(config_sizes) / sizeof(config_sizes[0]) };

// The metadata of the checkpoint that this program would have written.
static void bert_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    huggingface_read_sizes(config, config_sizes, CONFIG_SIZES, source, rows, count);
    metadata_add(rows, count, "attention", copy_string("softmax"));
    huggingface_check_members(config, fixed_members, FIXED_MEMBERS, source);
}

static bool begins_with(const char *text, const char *begin) {
    return strncmp(text, begin, strlen(begin)) == 0;
}

// `text` with `end` in place of `theirs`, where it ends so; else NULL.
static char *replace_end(const char *text, const char *theirs, const char *end) {
    const size_t length = strlen(text), size = strlen(theirs);
    if (length < size || strcmp(text + length - size, theirs) != 0) return NULL;
    return format_string("%.*s%s", (int)(length - size), text, end);
}

// A model that was saved without its prediction has no "bert." before its names; old files call
// LayerNorm's parameters gamma and beta. The tied matrix and the bias of the logits may be stored
// twice. The pooler and the next-sentence classifier are no part of this model.
static char *bert_tensor_name(const char *theirs) {
    if (strstr(theirs, "pooler.") || begins_with(theirs, "cls.seq_relationship.") ||
        strstr(theirs, "embeddings.position_ids") || strstr(theirs, "embeddings.token_type_ids"))
        return NULL;
    if (strcmp(theirs, "cls.predictions.decoder.weight") == 0)
        return copy_string("bert.embeddings.word_embeddings.weight");
    if (strcmp(theirs, "cls.predictions.decoder.bias") == 0)
        return copy_string("cls.predictions.bias");
    const bool whole = begins_with(theirs, "bert.") || begins_with(theirs, "cls.");
    char *name = format_string("%s%s", whole ? "" : "bert.", theirs);
    char *renamed = replace_end(name, ".gamma", ".weight");
    if (!renamed) renamed = replace_end(name, ".beta", ".bias");
    if (!renamed) return name;
    free(name);
    return renamed;
}

// The other kinds of attention have no class there.
static bool bert_write_config(const void *model, JsonWriter *w) {
    const Bert *b = model;
    const ModelSizes *size = &b->config.size;
    if (strcmp(b->config.attention.name, "softmax") != 0) return false;
    const size_t sizes[CONFIG_SIZES] = {size->layers,    size->channels,  size->heads,
                                        b->config.inner, size->positions, size->vocabulary};
    huggingface_write_sizes(w, "BertForMaskedLM", config_sizes, sizes, CONFIG_SIZES);
    huggingface_write_members(w, fixed_members, FIXED_MEMBERS);
    static const char *const rates[] = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
    huggingface_write_number(w, rates, 2, b->base.dropout);
    return true;
}

static const Exchange bert_exchange = {
    .model_type = "bert",
    .read_config = bert_read_config,
    .tensor_name = bert_tensor_name,
    .write_config = bert_write_config,
};

// ---- What the training loop calls -------------------------------------------

static void bert_describe(const void *model, Metadata **rows, int *count) {
    (void)model;
    metadata_add(rows, count, "activation", copy_string("gelu"));
    metadata_add(rows, count, "layer_norm_eps", copy_string("1e-12"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix and every
// product of attention, and over the prediction's for the tokens that are predicted.
static double bert_flops_per_token(const void *model, int64_t length) {
    const BertConfig *c = &((const Bert *)model)->config;
    const ModelSizes *size = &c->size;
    const double C = (double)size->channels, L = (double)size->layers, F = (double)c->inner;
    const double attention = 3 * attention_flops(c->attention.cosine, c->attention.additive,
                                                 size->channels, size->heads, 1, (double)length);
    const double prediction = MASKED_SHARE * C * (C + (double)size->vocabulary);
    return 6 * (L * (4 * C * C + 2 * C * F) + prediction) + L * attention;
}

const BertConfig *bert_config(const void *model) {
    return &((const Bert *)model)->config;
}

const BertParameters *bert_offsets(const void *model) {
    return &((const Bert *)model)->offsets;
}

const ModelType bert = {
    .name = "bert",
    .program = "train_bert",
    .task = &task_masked,
    .options = bert_options,
    .option_count = sizeof(bert_options) / sizeof(bert_options[0]),
    .lower = {OPT_CHANNELS, OPT_LAYERS},
    .position_embedding = "bert.embeddings.position_embeddings.weight",
    .facts = model_facts,
    .add_parameters = bert_add_parameters,
    .create = bert_create,
    .destroy = bert_destroy,
    CPU_MODEL_ENTRIES,
    .describe = bert_describe,
    .flops_per_token = bert_flops_per_token,
    .forward = bert_forward,
    .correct = bert_correct,
    .logits = bert_logits,
    .statistics = bert_statistics,
    .train = bert_train,
    .exchange = &bert_exchange,
};

TRAINER_MAIN(bert)
