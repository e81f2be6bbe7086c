// Llama on the CPU (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023)
// and Qwen 3, which normalises queries and keys, computing the same functions as Hugging Face's
// classes. Each block can be replaced by another one. Options, parameters, forward, backward and
// exchange with Hugging Face, top to bottom.
//
// B batch size, T sequence length, M = B*T, C channels, H heads, H' heads of keys and values,
// D = C/H, F channels inside the feed-forward network, V vocabulary size, L layers. A layer
// computes:
//
//   q, k, v = split(RMSNorm(x) W_qkv)
//   x       = x + dropout(attention(rotate(q), rotate(k), v) W_o)
//   g, u    = split(RMSNorm(x) W_gate_up)
//   x       = x + dropout((SiLU(g) * u) W_down)

#include "attention_options.h"
#include "block_options.h"
#include "error.h"
#include "huggingface.h"
#include "language.h"
#include "llama.h"
#include "memory.h"
#include "train.h"
#include "transformer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Options ----------------------------------------------------------------

static const Option llama_options[] = {
    SIZE_OPTIONS("num_hidden_layers", "hidden_size", "num_attention_heads"),
    ATTENTION_OPTION("softmax", true),
    WINDOWS_OPTION("global", true),
    COSINE_OPTION(true),
    ADDITIVE_OPTIONS(true),
    PAIRWISE_OPTIONS,
    BLOCK_OPTIONS("rms", "rotary", "swiglu"),
    DROPOUT_OPTION,
};

// ---- Parameters, with the names of Hugging Face's class ---------------------

static void add_layer(ParameterTable *table, TransformerPlan *p, size_t l) {
    static const char *const qkv[] = {"q_proj", "k_proj", "v_proj"}, *const gated[] = {"gate_proj",
                                                                                       "up_proj"};
    const size_t C = p->size.channels, F = p->inner;
    const double deviation = 0.02;
    LayerPlan *layer = &p->layers[l];
    AttentionPlan *attention = &layer->attention;
    const size_t rows = plan_qkv_rows(p, attention), groups = (rows - C) / 2;
    const bool swiglu = p->activation == SWIGLU;
    char prefix[PARAMETER_NAME], mlp[PARAMETER_NAME];
    snprintf(prefix, sizeof(prefix), "model.layers.%zu.self_attn", l);
    snprintf(mlp, sizeof(mlp), "model.layers.%zu.mlp", l);
    attention->norm = plan_add_norm(p, table, "model.layers.%zu.input_layernorm", l);
    attention->qkv =
        add_joined_linear(table, (LinearShape){rows, C, WEIGHT_OUT_IN, false, deviation}, prefix,
                          qkv, (const size_t[]){C, groups, groups}, 3);
    plan_add_attention(p, attention, table, prefix);
    attention->projection = add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, false, deviation},
                                       "%s.o_proj", prefix);
    layer->ffn.norm = plan_add_norm(p, table, "model.layers.%zu.post_attention_layernorm", l);
    layer->ffn.up =
        add_joined_linear(table, (LinearShape){plan_up_rows(p), C, WEIGHT_OUT_IN, false, deviation},
                          mlp, swiglu ? gated : gated + 1, NULL, swiglu ? 2 : 1);
    layer->ffn.down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, false, deviation},
                                 "%s.down_proj", mlp);
}

static TransformerPlan llama_plan(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan p = plan_create(setup, true);
    StackPlan *stack = &p.stacks[0];
    plan_choose_blocks(&p, setup->options, GELU_ERF);
    stack->embedding.token =
        add_matrix(table, "model.embed_tokens.weight", p.size.vocabulary, p.size.channels, 0.02);
    plan_add_positions(&p, table, "model.embed_positions.weight");
    for (size_t l = 0; l < p.size.layers; l++) add_layer(table, &p, l);
    stack->norm = plan_add_norm(&p, table, "model.norm");
    plan_add_output(&p, table, "lm_head.weight");
    plan_complete(&p);
    return p;
}

// ---- Forward and backward ---------------------------------------------------

static void llama_forward(const Blocks *blocks, const BlockPass *pass,
                          const TransformerPlan *plan) {
    plan_stack_forward(plan, blocks, pass, 0);
}

static void llama_backward(const Blocks *blocks, const BlockPass *pass,
                           const TransformerPlan *plan) {
    plan_stack_backward(plan, blocks, pass, 0);
}

// ---- Exchange with Hugging Face's LlamaForCausalLM and Qwen3ForCausalLM -----

// Members of config.json for which this program supports one value.
static const ConfigMember fixed_members[] = {
    {"hidden_act", {.kind = JSON_STRING, .string = (char[]){"silu"}}},
    {"attention_bias", {.kind = JSON_BOOL, .boolean = false}},
    {"mlp_bias", {.kind = JSON_BOOL, .boolean = false}},
    {"use_sliding_window", {.kind = JSON_BOOL, .boolean = false}},
};

static const ConfigSize config_sizes[] = {{"num_hidden_layers", "num_hidden_layers", MAX_LAYERS},
                                          {"hidden_size", "hidden_size", MAX_CHANNELS},
                                          {"num_attention_heads", "num_attention_heads", MAX_HEADS},
                                          {"max_position_embeddings", "n_positions", 1 << 28},
                                          {"vocab_size", "vocab_size", INT32_MAX},
                                          {"intermediate_size", "intermediate_size", MAX_INNER}};
static const ConfigShape config_shape = CONFIG_SHAPE(config_sizes, fixed_members);

// Returns a member of config.json; NULL if it is missing or null. Exits with an error if it has
// another kind.
static const Json *optional_member(const Json *config, const char *key, JsonKind kind,
                                   const char *source) {
    const Json *found = json_find(config, key);
    if (!found || found->kind == JSON_NULL) return NULL;
    if (found->kind != kind) fail("%s: \"%s\" is of another kind than expected", source, key);
    return found;
}

static double number_or(const Json *config, const char *key, double usual, const char *source) {
    const Json *found = config ? optional_member(config, key, JSON_NUMBER, source) : NULL;
    return found ? found->number : usual;
}

// Exits with an error if the angles of rotary positions are scaled, which is not supported.
static void check_rotary_kind(const Json *parameters, const char *source) {
    static const char *const members[] = {"rope_type", "type"};
    bool proportional = false;
    for (int i = 0; i < 2; i++) {
        const Json *kind = optional_member(parameters, members[i], JSON_STRING, source);
        if (!kind) continue;
        proportional |= strcmp(kind->string, "proportional") == 0;
        if (!proportional && strcmp(kind->string, "default") != 0)
            fail("%s: has positions of the kind \"%s\", expected \"default\" or "
                 "\"proportional\"",
                 source, kind->string);
    }
    const char *other = proportional ? "factor" : "partial_rotary_factor";
    const double number = number_or(parameters, other, 1, source);
    if (number != 1)
        fail("%s: \"%s\" is %g, expected 1 for positions of this kind", source, other, number);
}

static Rotary read_rotary(const Json *config, const char *source) {
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    const Json *parameters = NULL;
    for (int i = 0; i < 2; i++) {
        const Json *object = optional_member(config, objects[i], JSON_OBJECT, source);
        if (object) check_rotary_kind(object, source);
        if (object) parameters = object;
    }
    return (Rotary){
        number_or(parameters, "rope_theta", number_or(config, "rope_theta", 1e4, source), source),
        number_or(parameters, "partial_rotary_factor", 1, source)};
}

// Adds the metadata that this program would write into a checkpoint of the model.
static void llama_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    const double heads = (double)json_integer(config, "num_attention_heads", 1, MAX_HEADS, source),
                 channels = (double)json_integer(config, "hidden_size", 1, MAX_CHANNELS, source);
    const Json *tied = optional_member(config, "tie_word_embeddings", JSON_BOOL, source);
    const bool qwen3 = strcmp(json_string(config, "model_type", source), "qwen3") == 0;
    const Rotary rotary = read_rotary(config, source);
    huggingface_read_shape(config, &config_shape, source, rows, count);
    if (number_or(config, "head_dim", qwen3 ? 128 : channels / heads, source) != channels / heads)
        fail("%s: has another \"head_dim\" than this program computes: expected %g", source,
             channels / heads);
    metadata_add(rows, count, "num_key_value_heads",
                 format_string(
                     "%.0f", number_or(config, "num_key_value_heads", qwen3 ? 32 : heads, source)));
    metadata_add(rows, count, "rms_norm_eps",
                 format_string("%.17g", number_or(config, "rms_norm_eps", 1e-6, source)));
    metadata_add(rows, count, "rope_theta", format_string("%.17g", rotary.base));
    metadata_add(rows, count, "partial_rotary_factor", format_string("%.17g", rotary.part));
    metadata_add(rows, count, "untied", copy_string(tied && tied->boolean ? "false" : "true"));
    metadata_add(rows, count, "scores", copy_string(qwen3 ? "qknorm" : "plain"));
}

// Names lack the prefix "model." if the model was saved without its output layer. If the output is
// tied, the matrix may be stored twice. Old files also contain the frequencies of rotary positions.
static char *llama_tensor_name(const char *theirs, const Safetensors *file) {
    if (strstr(theirs, "rotary_emb.inv_freq")) return NULL;
    if (strcmp(theirs, "lm_head.weight") == 0)
        return copy_string(strcmp(safetensors_metadata(file, "untied"), "true") == 0
                               ? theirs
                               : "model.embed_tokens.weight");
    return format_string("%s%s", strncmp(theirs, "model.", 6) == 0 ? "" : "model.", theirs);
}

static bool is_qwen3(const void *model) {
    return transformer_plan(model)->layers[0].attention.scores == SCORES_QKNORM;
}

// Returns whether Hugging Face has a class for these blocks. It has none for layers with windows.
static bool has_class(const TransformerPlan *p) {
    const ScoresKind scores = p->layers[0].attention.scores;
    return plan_attends(p, ATTENTION_SOFTMAX) && !plan_has_windows(p) && plan_shifted(p) == 0 &&
           p->rms && p->positions == POSITIONS_ROTARY && p->activation == SWIGLU &&
           scores != SCORES_RESCALED;
}

static void write_rotary(JsonWriter *w, Rotary rotary) {
    json_add_number(w, "rope_theta", rotary.base);
    json_key(w, "rope_parameters"); // the form of transformers 5 and later
    json_begin(w, '{');
    json_add_string(w, "rope_type", rotary.part < 1 ? "proportional" : "default");
    json_add_number(w, "rope_theta", rotary.base);
    if (rotary.part < 1) json_add_number(w, "partial_rotary_factor", rotary.part);
    json_end(w, '}');
}

static bool llama_write_config(const void *model, JsonWriter *w) {
    const TransformerPlan *p = transformer_plan(model);
    const ModelSizes *size = &p->size;
    const AttentionPlan *attention = &p->layers[0].attention;
    if (!has_class(p)) return false;
    const size_t sizes[] = {size->layers,    size->channels,   size->heads,
                            size->positions, size->vocabulary, p->inner};
    huggingface_write_shape(w, is_qwen3(model) ? "Qwen3ForCausalLM" : "LlamaForCausalLM",
                            &config_shape, sizes);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"num_key_value_heads", (double)attention->groups},
                   {"head_dim", (double)size->head_size},
                   {"rms_norm_eps", p->epsilon},
                   {"attention_dropout", p->attention_dropout}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        huggingface_write_number(w, &numbers[i].key, 1, numbers[i].value);
    write_rotary(w, attention->rotary);
    json_add_bool(w, "tie_word_embeddings", !p->untied);
    return true;
}

static const Exchange llama_exchange = {
    .model_type = "llama",
    .other_type = "qwen3",
    .is_other = is_qwen3,
    .read_config = llama_read_config,
    .tensor_name = llama_tensor_name,
    .write_config = llama_write_config,
};

// ---- The model as the training loop sees it ---------------------------------

static void llama_describe(const void *model, Metadata **rows, int *count) {
    if (plan_has_windows(transformer_plan(model)))
        plan_describe_windows(transformer_plan(model), rows, count);
}

static const TransformerType llama_transformer = {llama_plan, llama_forward, llama_backward};

const ModelType llama = {
    .name = "llama",
    .program = "train_llama",
    .task = &task_language,
    .options = llama_options,
    .option_count = sizeof(llama_options) / sizeof(llama_options[0]),
    .transformer = &llama_transformer,
    .position_embedding = "model.embed_positions.weight",
    LANGUAGE_MODEL_ENTRIES,
    .describe = llama_describe,
    .exchange = &llama_exchange,
};

TRAINER_MAIN(llama)
