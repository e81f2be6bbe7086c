// A model on the CPU, built from its plan (transformer_plan.h): memory, blocks, and the entries of
// ModelType that follow from them. The file of each model defines its plan and the order of its
// blocks.
//
// M = B*T rows, C channels, L layers.
#ifndef CPU_TRANSFORMER_H
#define CPU_TRANSFORMER_H

#include "blocks.h"
#include "decoder.h"
#include "translator.h"

typedef struct {
    size_t stack;
    AttentionBlock attention;
    CrossAttentionBlock cross; // if the layer's plan crosses
    FfnBlock ffn;
    real **x; // each (M, C): the residual stream before each block, and after the last
} TransformerLayer;

typedef struct {
    CpuModel model;
    TransformerPlan plan;
    const TransformerType *type;
    size_t batch, length; // maximum
    AttentionShared attention;
    TransformerLayer *layers;         // (L)
    Embedding embeddings[MAX_STACKS]; // one per stack
    real **streams[MAX_STACKS];       // residual streams; the last x gives a stack's result
    size_t blocks[MAX_STACKS];        // of each stack
    real *sinusoids, *angles;         // (positions, C), (positions, D) if computed, else NULL
    Encoded encoded;
    ChosenRows chosen; // the classified rows
    PredictionBlock prediction;
    OutputHead head;
    int64_t correct; // targets of the last forward pass that were the most probable token
    TranslatorMemory translator;
} Transformer;

// The blocks of these models; the model of a pass is a Transformer.
extern const Blocks cpu_blocks;

// Entries of ModelType (model.h).
void *transformer_create(const ModelSetup *setup);
void transformer_destroy(void *model);
double transformer_forward(void *model, const Batch *batch);
double transformer_train(void *model, const Batch *batch, double scale);
void transformer_logits(void *model, const Batch *batch, real *logits);
void transformer_statistics(void *model, const Batch *batch, Statistics *statistics);
int64_t transformer_correct(const void *model);
const real *transformer_token_losses(const void *model); // for models that classify all rows
double transformer_unsmoothed(const void *model);
// For models of one stack that classify all rows.
double transformer_flops_per_token(const void *model, int64_t length, double targets);
double transformer_state_bytes(const void *model, int64_t tokens);

// Initialises all of these in the table of a model, with the entries common to CPU models.
#define TRANSFORMER_ENTRIES                                                                        \
    CPU_MODEL_ENTRIES, .facts = model_facts, .add_parameters = plan_add_parameters,                \
                       .create = transformer_create, .destroy = transformer_destroy,               \
                       .forward = transformer_forward, .train = transformer_train,                 \
                       .logits = transformer_logits, .statistics = transformer_statistics,         \
                       .correct = transformer_correct

// The entries of a causal language model of one stack, which can decode.
#define LANGUAGE_MODEL_ENTRIES                                                                     \
    TRANSFORMER_ENTRIES, DECODER_ENTRIES,                                                          \
        .lower = {OPT_CHANNELS, OPT_LAYERS}, .extend = attention_extend,                           \
        .flops_per_token = transformer_flops_per_token, .token_losses = transformer_token_losses,  \
        .state_bytes = transformer_state_bytes

#endif
