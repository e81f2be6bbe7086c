// BERT on the CPU (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019),
// computing the same function as Hugging Face's BertForMaskedLM, with any bidirectional kind of
// attention. Options, parameters, forward, backward and exchange with Hugging Face, top to bottom.
//
// B batch size, T sequence length, M = B*T, C channels, H heads, F inner channels, V vocabulary
// size, L layers. The model computes:
//
//   x = dropout(LayerNorm(token + position + type))          the type is always 0
//   x = LayerNorm(x + dropout(attention(x W_qkv + b) W_proj + b))       a layer
//   x = LayerNorm(x + dropout(GELU(x W_up + b) W_down + b))
//   logits = LayerNorm(GELU(x W + b)) E^T + bias             E: the token embedding
//
// Only the K rows that predict a token (15%, masked.h) are multiplied with W and E. attention:
// softmax as in BERT, or another kind (attention_type.h), chosen per layer.

#include "attention_options.h"
#include "bert.h"
#include "block_options.h"
#include "error.h"
#include "huggingface.h"
#include "masked.h"
#include "memory.h"
#include "model_options.h"
#include "train.h"
#include "transformer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options ----------------------------------------------------------------

enum { TYPES = 2 };
static const double EPSILON = 1e-12, DEVIATION = 0.02;

// clang-format off
static const Option bert_options[] = {
    SIZE_OPTIONS("num_hidden_layers", "hidden_size", "num_attention_heads"),
    {.name = OPT_FFN, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N", .initial = "0",
     .max = 4 * MAX_CHANNELS, .metadata_key = "intermediate_size", .group = "Model",
     .help = "channels inside the FFN; 0: 4 times --channels"},
    ATTENTION_OPTION("softmax", false),
    COSINE_OPTION(false),
    PAIRWISE_OPTIONS,
    DROPOUT_OPTION,
};
// clang-format on

// ---- Parameters, with the names of Hugging Face's class ---------------------

static NormParameters add_bert_norm(ParameterTable *table, const char *name, size_t channels) {
    NormParameters norm = add_norm(table, channels, "%s", name);
    norm.epsilon = EPSILON;
    return norm;
}

static void add_layer(ParameterTable *table, TransformerPlan *p, size_t l) {
    const size_t C = p->size.channels, F = p->inner;
    AttentionPlan *attention = &p->layers[l].attention;
    FfnParameters *ffn = &p->layers[l].ffn;
    char name[PARAMETER_NAME];
#define NAME(suffix) (snprintf(name, sizeof(name), "bert.encoder.layer.%zu." suffix, l), name)
    // Hugging Face has three weights, for queries, keys and values. Here they are stored next to
    // each other and are one product.
    static const char *const parts[] = {"query", "key", "value"};
    attention->qkv =
        add_joined_linear(table, (LinearShape){3 * C, C, WEIGHT_OUT_IN, true, DEVIATION},
                          NAME("attention.self"), parts, NULL, 3);
    plan_add_attention(p, attention, table, NAME("attention.self"));
    attention->projection = add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, DEVIATION},
                                       "%s", NAME("attention.output.dense"));
    attention->norm = add_bert_norm(table, NAME("attention.output.LayerNorm"), C);
    ffn->up = add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, DEVIATION}, "%s",
                         NAME("intermediate.dense"));
    ffn->down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, DEVIATION}, "%s",
                           NAME("output.dense"));
    ffn->norm = add_bert_norm(table, NAME("output.LayerNorm"), C);
#undef NAME
}

static TransformerPlan bert_plan(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan p = plan_create(setup, false);
    const size_t C = p.size.channels, V = p.size.vocabulary,
                 inner = (size_t)options_integer(setup->options, OPT_FFN);
    EmbeddingPlan *e = &p.stacks[0].embedding;
    if (inner > 0) p.inner = inner;
    p.order = POST_NORM;
    p.activation = GELU_ERF;
    e->token = add_matrix(table, "bert.embeddings.word_embeddings.weight", V, C, DEVIATION);
    e->position = add_matrix(table, "bert.embeddings.position_embeddings.weight", p.size.positions,
                             C, DEVIATION);
    e->type =
        add_matrix(table, "bert.embeddings.token_type_embeddings.weight", TYPES, C, DEVIATION);
    e->norm = add_bert_norm(table, "bert.embeddings.LayerNorm", C);
    for (size_t l = 0; l < p.size.layers; l++) add_layer(table, &p, l);
    p.prediction.transform = add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, DEVIATION},
                                        "cls.predictions.transform.dense");
    p.prediction.norm = add_bert_norm(table, "cls.predictions.transform.LayerNorm", C);
    p.bias = add_vector(table, "cls.predictions.bias", V, 0);
    plan_complete(&p);
    return p;
}

// ---- Forward and backward ---------------------------------------------------

static void bert_forward(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan) {
    plan_stack_forward(plan, blocks, pass, 0);
    blocks->predict_forward(pass);
}

static void bert_backward(const Blocks *blocks, const BlockPass *pass,
                          const TransformerPlan *plan) {
    blocks->predict_backward(pass);
    plan_stack_backward(plan, blocks, pass, 0);
}

// ---- Exchange with Hugging Face's BertForMaskedLM ---------------------------

// Members of config.json for which this program supports one value.
static const ConfigMember fixed_members[] = {
    {"hidden_act", {.kind = JSON_STRING, .string = (char[]){"gelu"}}},
    {"layer_norm_eps", {.kind = JSON_NUMBER, .number = 1e-12}},
    {"type_vocab_size", {.kind = JSON_NUMBER, .number = TYPES}},
    {"position_embedding_type", {.kind = JSON_STRING, .string = (char[]){"absolute"}}},
    {"is_decoder", {.kind = JSON_BOOL, .boolean = false}},
    {"tie_word_embeddings", {.kind = JSON_BOOL, .boolean = true}},
};

static const ConfigSize config_sizes[] = {
    {"num_hidden_layers", "num_hidden_layers", MAX_LAYERS},
    {"hidden_size", "hidden_size", MAX_CHANNELS},
    {"num_attention_heads", "num_attention_heads", MAX_HEADS},
    {"intermediate_size", "intermediate_size", 4 * MAX_CHANNELS},
    {"max_position_embeddings", "n_positions", 1 << 28},
    {"vocab_size", "vocab_size", INT32_MAX}};
static const ConfigShape config_shape = CONFIG_SHAPE(config_sizes, fixed_members);

// Adds the metadata that this program would write into a checkpoint of the model.
static void bert_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    huggingface_read_shape(config, &config_shape, source, rows, count);
    metadata_add(rows, count, "attention", copy_string("softmax"));
}

static bool begins_with(const char *text, const char *begin) {
    return strncmp(text, begin, strlen(begin)) == 0;
}

// Returns `text` with the ending `theirs` replaced by `end`, or NULL if it does not end with it.
static char *replace_end(const char *text, const char *theirs, const char *end) {
    const size_t length = strlen(text), size = strlen(theirs);
    if (length < size || strcmp(text + length - size, theirs) != 0) return NULL;
    return format_string("%.*s%s", (int)(length - size), text, end);
}

// Names lack the prefix "bert." if the model was saved without its output layers. Old files name
// the parameters of LayerNorm gamma and beta. The tied matrix and the bias of the logits may be
// stored twice. This model has no pooler and no next-sentence classifier.
static char *bert_tensor_name(const char *theirs, const Safetensors *file) {
    (void)file;
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

// Returns false if Hugging Face has no class for the model.
static bool bert_write_config(const void *model, JsonWriter *w) {
    const TransformerPlan *plan = transformer_plan(model);
    const ModelSizes *size = &plan->size;
    if (!plan_attends(plan, ATTENTION_SOFTMAX)) return false;
    const size_t sizes[] = {size->layers, size->channels,  size->heads,
                            plan->inner,  size->positions, size->vocabulary};
    huggingface_write_shape(w, "BertForMaskedLM", &config_shape, sizes);
    static const char *const rates[] = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
    huggingface_write_number(w, rates, 2, plan->dropout);
    return true;
}

static const Exchange bert_exchange = {
    .model_type = "bert",
    .read_config = bert_read_config,
    .tensor_name = bert_tensor_name,
    .write_config = bert_write_config,
};

// ---- The model as the training loop sees it ---------------------------------

static void bert_describe(const void *model, Metadata **rows, int *count) {
    (void)model;
    metadata_add(rows, count, "activation", copy_string("gelu"));
    metadata_add(rows, count, "layer_norm_eps", copy_string("1e-12"));
}

// FLOP per token: those of the layers, and those of W and E for predicted tokens only.
static double bert_flops_per_token(const void *model, int64_t length, double targets) {
    const TransformerPlan *plan = transformer_plan(model);
    const double C = (double)plan->size.channels, V = (double)plan->size.vocabulary;
    return plan_layers_flops(plan, &plan->stacks[0], length) + 6 * targets * C * (C + V);
}

static const TransformerType bert_transformer = {bert_plan, bert_forward, bert_backward};

const ModelType bert = {
    .name = "bert",
    .program = "train_bert",
    .task = &task_masked,
    .options = bert_options,
    .option_count = sizeof(bert_options) / sizeof(bert_options[0]),
    .lower = {OPT_CHANNELS, OPT_LAYERS},
    .transformer = &bert_transformer,
    .position_embedding = "bert.embeddings.position_embeddings.weight",
    TRANSFORMER_ENTRIES,
    .describe = bert_describe,
    .flops_per_token = bert_flops_per_token,
    .exchange = &bert_exchange,
};

TRAINER_MAIN(bert)
