// The Fastformer on the CPU: a causal language model with windowed additive attention, whose cost
// is linear in the sequence length. It is the model of Wu et al., "Fastformer: Additive Attention
// Can Be All You Need" (arXiv 2108.09084), made causal and windowed. This file has its options,
// parameters, forward and backward pass. dev/fastformer/plain.c has the same model as plain loops
// and defines pool().
//
// B batch size, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary size,
// L layers. A layer computes:
//
//   n       = LayerNorm(x)
//   q, k, v = split(W_qkv n)
//   G       = dropout(pool(q, w_q))         pooled queries
//   P       = dropout(pool(G * k, w_k))     pooled keys; * is elementwise
//   x       = x + P * v                     with --query-gain also + gain * G
//   x       = x + dropout(W_down GELU(W_up LayerNorm(x)))

#include "attention_options.h"
#include "block_options.h"
#include "fastformer.h"
#include "language.h"
#include "memory.h"
#include "model_options.h"
#include "train.h"
#include "transformer.h"
#include <stdio.h>

// ---- Options ----------------------------------------------------------------

// clang-format off
static const Option fastformer_options[] = {
    SIZE_OPTIONS("n_layer", "hidden_size", "n_heads"),
    ATTENTION_OPTION("additive", true),
    WINDOWS_OPTION("auto", false),
    ADDITIVE_OPTIONS(false),
    COSINE_OPTION(true),
    PAIRWISE_OPTIONS,
    BLOCK_OPTIONS("layer", "learned", "gelu"),
    DROPOUT_OPTION,
};
// clang-format on

// ---- Parameters, with the names of the published PyTorch class --------------

// The output of additive attention is added to the residual stream without a projection; other
// kinds of attention have one.
static void add_layer(ParameterTable *table, TransformerPlan *p, size_t l) {
    const size_t C = p->size.channels;
    const double deviation = 0.02;
    LayerPlan *layer = &p->layers[l];
    AttentionPlan *attention = &layer->attention;
    const LinearShape qkv = {plan_qkv_rows(p, attention), C, WEIGHT_OUT_IN, false, deviation};
    const LinearShape projection = {C, C, WEIGHT_OUT_IN, false, deviation};
    const LinearShape up = {plan_up_rows(p), C, WEIGHT_OUT_IN, false, deviation};
    const LinearShape down = {C, p->inner, WEIGHT_OUT_IN, false, deviation};
    char name[PARAMETER_NAME];
#define NAME(suffix)                                                                               \
    (snprintf(name, sizeof(name), "fastformer_model.decoders.%zu." suffix, l), name)
    attention->norm = plan_add_norm(p, table, "%s", NAME("attention.attn_norm"));
    attention->qkv = add_linear(table, qkv, "%s", NAME("attention.projections"));
    plan_add_attention(p, attention, table, NAME("attention"));
    if (!attention_types[attention->kind].joins)
        attention->projection = add_linear(table, projection, "%s", NAME("attention.output"));
    layer->ffn.norm = plan_add_norm(p, table, "%s", NAME("boom_norm"));
    layer->ffn.up = add_linear(table, up, "%s", NAME("boom"));
    layer->ffn.down = add_linear(table, down, "%s", NAME("unboom"));
#undef NAME
}

// Adds the parameters to `table`. Returns the plan: sizes, choices, and where each parameter is.
static TransformerPlan fastformer_plan(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan p = plan_create(setup, true);
    const size_t C = p.size.channels, V = p.size.vocabulary;
    StackPlan *stack = &p.stacks[0];
    plan_choose_blocks(&p, setup->options, GELU_ERF);
    stack->embedding.token = add_matrix(table, "word_embedding.weight", V, C, 0.02);
    plan_add_positions(&p, table, "fastformer_model.position_embeddings.weight");
    for (size_t l = 0; l < p.size.layers; l++) add_layer(table, &p, l);
    stack->norm = plan_add_norm(&p, table, "last_norm");
    p.bias = add_vector(table, "proj_logits.bias", V, 0);
    plan_add_output(&p, table, "proj_logits.weight");
    plan_complete(&p);
    return p;
}

// ---- Forward and backward ---------------------------------------------------

// The model is one stack: the embedding, then attention and feed-forward network of each layer.
static void fastformer_forward(const Blocks *blocks, const BlockPass *pass,
                               const TransformerPlan *plan) {
    plan_stack_forward(plan, blocks, pass, 0);
}

static void fastformer_backward(const Blocks *blocks, const BlockPass *pass,
                                const TransformerPlan *plan) {
    plan_stack_backward(plan, blocks, pass, 0);
}

// ---- The model as the training loop sees it ---------------------------------

static void fastformer_describe(const void *model, Metadata **rows, int *count) {
    plan_describe_windows(transformer_plan(model), rows, count);
    if (!plan_has_usual_blocks(transformer_plan(model), GELU_ERF)) return;
    metadata_add(rows, count, "activation", copy_string("gelu"));
    metadata_add(rows, count, "layernorm_eps", copy_string("1e-05"));
}

static const TransformerType fastformer_transformer = {fastformer_plan, fastformer_forward,
                                                       fastformer_backward};

const ModelType fastformer = {
    .name = "fastformer",
    .program = "train_fastformer",
    .task = &task_language,
    .options = fastformer_options,
    .option_count = sizeof(fastformer_options) / sizeof(fastformer_options[0]),
    .transformer = &fastformer_transformer,
    .position_embedding = "fastformer_model.position_embeddings.weight",
    LANGUAGE_MODEL_ENTRIES,
    .describe = fastformer_describe,
    .exchange = &fastformer_exchange,
};

TRAINER_MAIN(fastformer)
