// GPT-2 on the CPU (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019),
// computing the same function as Hugging Face's class. It is the baseline, with any causal kind of
// attention.
// Options, parameters, forward, backward and exchange with Hugging Face, top to bottom.
//
// B batch size, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary size,
// L layers. A layer computes:
//
//   q, k, v = split(LayerNorm(x) W_qkv + b)
//   x       = x + dropout(attention(q, k, v) W_proj + b)
//   x       = x + dropout(GELU(LayerNorm(x) W_up + b) W_down + b)
//
// attention: softmax as in GPT-2, or another kind (attention_type.h), chosen per layer.

#include "attention_options.h"
#include "block_options.h"
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

// ---- Options ----------------------------------------------------------------

static const Option gpt2_options[] = {
    SIZE_OPTIONS("n_layer", "n_embd", "n_head"),
    ATTENTION_OPTION("softmax", false),
    WINDOWS_OPTION("global", true),
    COSINE_OPTION(false),
    PAIRWISE_OPTIONS,
    ADDITIVE_OPTIONS(true),
    BLOCK_OPTIONS("layer", "learned", "gelu"),
    DROPOUT_OPTION,
};

// ---- Parameters, with the names of Hugging Face's class ---------------------

// Hugging Face's Conv1D stores weights as (in, out).
static void add_layer(ParameterTable *table, TransformerPlan *p, size_t l) {
    const size_t C = p->size.channels;
    // 2L sublayers are added to the residual stream; 1/sqrt(2L) gives the sum the variance of one.
    const double plain = 0.02, residual = 0.02 / sqrt(2 * (double)p->size.layers);
    AttentionPlan *attention = &p->layers[l].attention;
    const LinearShape qkv = {plan_qkv_rows(p, attention), C, WEIGHT_IN_OUT, true, plain};
    const LinearShape projection = {C, C, WEIGHT_IN_OUT, true, residual};
    const LinearShape up = {plan_up_rows(p), C, WEIGHT_IN_OUT, true, plain};
    const LinearShape down = {C, p->inner, WEIGHT_IN_OUT, true, residual};
    FfnParameters *ffn = &p->layers[l].ffn;
    char prefix[PARAMETER_NAME];
    snprintf(prefix, sizeof(prefix), "transformer.h.%zu.attn", l);
    attention->norm = plan_add_norm(p, table, "transformer.h.%zu.ln_1", l);
    attention->qkv = add_linear(table, qkv, "%s.c_attn", prefix);
    plan_add_attention(p, attention, table, prefix);
    attention->projection = add_linear(table, projection, "%s.c_proj", prefix);
    ffn->norm = plan_add_norm(p, table, "transformer.h.%zu.ln_2", l);
    ffn->up = add_linear(table, up, "transformer.h.%zu.mlp.c_fc", l);
    ffn->down = add_linear(table, down, "transformer.h.%zu.mlp.c_proj", l);
}

static TransformerPlan gpt2_plan(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan p = plan_create(setup, true);
    const size_t C = p.size.channels, V = p.size.vocabulary;
    StackPlan *stack = &p.stacks[0];
    plan_choose_blocks(&p, setup->options, GELU_TANH);
    stack->embedding.token = add_matrix(table, "transformer.wte.weight", V, C, 0.02);
    plan_add_positions(&p, table, "transformer.wpe.weight");
    for (size_t l = 0; l < p.size.layers; l++) add_layer(table, &p, l);
    stack->norm = plan_add_norm(&p, table, "transformer.ln_f");
    plan_add_output(&p, table, "lm_head.weight");
    plan_complete(&p);
    return p;
}

// ---- Forward and backward ---------------------------------------------------

static void gpt2_forward(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan) {
    plan_stack_forward(plan, blocks, pass, 0);
}

static void gpt2_backward(const Blocks *blocks, const BlockPass *pass,
                          const TransformerPlan *plan) {
    plan_stack_backward(plan, blocks, pass, 0);
}

// ---- Exchange with Hugging Face's GPT2LMHeadModel ---------------------------

// Members of config.json for which this program supports one value.
static const ConfigMember fixed_members[] = {
    {"activation_function", {.kind = JSON_STRING, .string = (char[]){"gelu_new"}}},
    {"layer_norm_epsilon", {.kind = JSON_NUMBER, .number = 1e-5}},
    {"scale_attn_weights", {.kind = JSON_BOOL, .boolean = true}},
    {"scale_attn_by_inverse_layer_idx", {.kind = JSON_BOOL, .boolean = false}},
    {"tie_word_embeddings", {.kind = JSON_BOOL, .boolean = true}},
};

static const ConfigSize config_sizes[] = {{"n_layer", "n_layer", MAX_LAYERS},
                                          {"n_embd", "n_embd", MAX_CHANNELS},
                                          {"n_head", "n_head", MAX_HEADS},
                                          {"n_positions", "n_positions", 1 << 28},
                                          {"vocab_size", "vocab_size", INT32_MAX}};
static const ConfigShape config_shape = CONFIG_SHAPE(config_sizes, fixed_members);

// Adds the metadata that this program would write into a checkpoint of the model.
static void gpt2_read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    huggingface_read_shape(config, &config_shape, source, rows, count);
    metadata_add(rows, count, "attention", copy_string("softmax"));
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

// Names lack the prefix "transformer." if the model was saved without its output layer. If it was
// saved with it, the tied matrix may be stored twice. Old files also contain the causal mask.
static char *gpt2_tensor_name(const char *theirs, const Safetensors *file) {
    (void)file;
    if (ends_with(theirs, ".attn.bias") || ends_with(theirs, ".attn.masked_bias")) return NULL;
    if (strcmp(theirs, "lm_head.weight") == 0) return copy_string("transformer.wte.weight");
    return format_string("%s%s", strncmp(theirs, "transformer.", 12) == 0 ? "" : "transformer.",
                         theirs);
}

// Returns false if Hugging Face has no class for the model.
static bool gpt2_write_config(const void *model, JsonWriter *w) {
    const TransformerPlan *plan = transformer_plan(model);
    const ModelSizes *size = &plan->size;
    if (!plan_attends(plan, ATTENTION_SOFTMAX) || plan_shifted(plan) > 0 ||
        !plan_has_usual_blocks(plan, GELU_TANH))
        return false;
    const size_t sizes[] = {size->layers, size->channels, size->heads, size->positions,
                            size->vocabulary};
    huggingface_write_shape(w, "GPT2LMHeadModel", &config_shape, sizes);
    static const char *const rates[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
    huggingface_write_number(w, rates, 3, plan->dropout);
    huggingface_write_number(w, (const char *const[]){"n_ctx"}, 1, (double)size->positions);
    return true;
}

static const Exchange gpt2_exchange = {
    .model_type = "gpt2",
    .read_config = gpt2_read_config,
    .tensor_name = gpt2_tensor_name,
    .write_config = gpt2_write_config,
};

// ---- The model as the training loop sees it ---------------------------------

static void gpt2_describe(const void *model, Metadata **rows, int *count) {
    const TransformerPlan *plan = transformer_plan(model);
    if (plan_has_windows(plan)) plan_describe_windows(plan, rows, count);
    if (!plan_has_usual_blocks(plan, GELU_TANH)) return;
    metadata_add(rows, count, "activation", copy_string("gelu_new"));
    metadata_add(rows, count, "layer_norm_epsilon", copy_string("1e-05"));
}

static const TransformerType gpt2_transformer = {gpt2_plan, gpt2_forward, gpt2_backward};

const ModelType gpt2 = {
    .name = "gpt2",
    .program = "train_gpt2",
    .task = &task_language,
    .options = gpt2_options,
    .option_count = sizeof(gpt2_options) / sizeof(gpt2_options[0]),
    .transformer = &gpt2_transformer,
    .position_embedding = "transformer.wpe.weight",
    LANGUAGE_MODEL_ENTRIES,
    .describe = gpt2_describe,
    .exchange = &gpt2_exchange,
};

TRAINER_MAIN(gpt2)
