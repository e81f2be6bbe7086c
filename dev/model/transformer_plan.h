// A model as every device needs to know it: sizes, and for each part where its parameters are, what
// it computes and where it drops out. A model's C file makes its plan of the options; a device
// makes memory and blocks of the plan. Then a pass through the model is a sequence of block calls,
// which the model's file has once for all devices (blocks in struct Blocks).
//
// Layers count through all stacks, the encoder's first. C channels, F inside the feed-forward
// network, V vocabulary, L layers.
#ifndef MODEL_TRANSFORMER_PLAN_H
#define MODEL_TRANSFORMER_PLAN_H

#include "attention_type.h"
#include "model.h"
#include "model_options.h"

// x = dropout(scale * E[token] + position + type); with a norm, dropout of that norm of the sum.
typedef struct {
    size_t token; // (V, C), which is the output's weight, too, if that has none
    double scale; // 1, or sqrt(C)
    PositionKind positions;
    size_t position;     // (positions, C) where they are learned; or NO_PARAMETER
    size_t type;         // (types, C) of which all tokens have the first; or NO_PARAMETER
    NormParameters norm; // or no_norm()
    uint32_t site;       // of the dropout
    int32_t padding;     // the token whose row takes no gradient; -1: none
} EmbeddingPlan;

// Self-attention, then, where the layer reads another stack's result, attention to that, then a
// feed-forward network.
typedef struct {
    size_t first; // parameter: those from here on are final after the layer's backward pass
    AttentionPlan attention;
    bool crosses;
    AttentionPlan cross;
    FfnParameters ffn;
    uint32_t ffn_site;
} LayerPlan;

// Layers that follow each other, with their embedding and the norm after the last one (or
// no_norm()).
typedef struct {
    size_t first, end;
    EmbeddingPlan embedding;
    NormParameters norm;
} StackPlan;

// What a model computes of the rows that have a target before it classifies them (BERT):
// LayerNorm(GELU(x W + b)).
typedef struct {
    LinearParameters transform; // no_linear(): nothing, and all rows are classified
    NormParameters norm;
} PredictionPlan;

enum { MAX_STACKS = 2 };

typedef struct {
    ModelSizes size; // its layers are those of all stacks
    size_t inner;    // F
    NormOrder order;
    ActivationKind activation;
    bool rms;                     // norms are RMSNorm,
    double epsilon;               // with this
    PositionKind positions;       // of a decoder's only stack
    bool untied;                  // the output has a weight of its own
    LayerPlan *layers;            // (L)
    StackPlan stacks[MAX_STACKS]; // an encoder before the one whose result is classified
    size_t stack_count;
    PredictionPlan prediction;
    size_t output;                     // (V, C) the weight of the logits
    size_t bias;                       // (V) of the logits, or NO_PARAMETER
    bool bias_fixed;                   // it is not trained
    double smoothing;                  // of the targets
    double dropout, attention_dropout; // probabilities; the latter of attention's weights
    int32_t padding, end;              // tokens, or -1
} TransformerPlan;

// One way through a model for one batch, and what a device makes of it.
typedef struct BlockPass BlockPass;

// The blocks of a device. Each reads what the one before it wrote: forward, the residual stream;
// backward, the gradient to it. `layer` counts through all stacks.
typedef struct {
    void (*embed_forward)(const BlockPass *pass, size_t stack);
    void (*embed_backward)(const BlockPass *pass, size_t stack);
    void (*attention_forward)(const BlockPass *pass, size_t layer);
    void (*attention_backward)(const BlockPass *pass, size_t layer);
    // To the encoder's result.
    void (*cross_attention_forward)(const BlockPass *pass, size_t layer);
    void (*cross_attention_backward)(const BlockPass *pass, size_t layer);
    void (*ffn_forward)(const BlockPass *pass, size_t layer);
    void (*ffn_backward)(const BlockPass *pass, size_t layer);
    // The norm after the encoder's last layer, whose result cross-attention reads.
    void (*encoded_forward)(const BlockPass *pass);
    void (*encoded_backward)(const BlockPass *pass);
    // Of the rows that have a target.
    void (*predict_forward)(const BlockPass *pass);
    void (*predict_backward)(const BlockPass *pass);
} Blocks;

// A model's part of it: its plan, with rows of `table` for its parameters, and the way through its
// blocks: from the batch's tokens to what the output layer reads, and back.
typedef struct TransformerType {
    TransformerPlan (*plan)(const ModelSetup *setup, ParameterTable *table);
    void (*forward)(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan);
    void (*backward)(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan);
} TransformerType;

// A plan of one pre-norm stack with learned positions, F = 4C, sizes and dropout as the options
// say, and layers that attend as they say (in both directions unless `causal`), without any
// parameters yet.
TransformerPlan plan_create(const ModelSetup *setup, bool causal);
void plan_free(TransformerPlan *plan);

// The plan of a model that the CPU made, whichever it is.
const TransformerPlan *transformer_plan(const void *model);

// Completes a plan that has its parameters: numbers the places of dropout, the embeddings' first,
// and notes where each layer's parameters begin.
void plan_complete(TransformerPlan *plan);

// ModelType.add_parameters of a model with a TransformerType.
void plan_add_parameters(const ModelSetup *setup, ParameterTable *table);

// The way through the blocks of one stack: its embedding, then of each layer self-attention,
// attention to the encoder's result where the layer crosses, and the feed-forward network; and
// back.
void plan_stack_forward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                        size_t stack);
void plan_stack_backward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                         size_t stack);

// FLOP per token of a stack's layers, forward and backward, of matrix products, 2 a multiply-add,
// in texts of this length.
double plan_layers_flops(const TransformerPlan *plan, const StackPlan *stack, int64_t length);

// Bytes that decoding keeps of a text of so many tokens, in a model of one stack.
double plan_state_bytes(const TransformerPlan *plan, int64_t tokens);

// Whether every layer attends in this way.
bool plan_attends(const TransformerPlan *plan, AttentionKind kind);

// Whether any has a window.
bool plan_has_windows(const TransformerPlan *plan);

// Whether any prepares its queries and keys; and how those that do rotate them, all in one way.
bool plan_prepares(const TransformerPlan *plan);
Rotary plan_rotary(const TransformerPlan *plan);

// The channels of --token-shift, in all layers as many.
size_t plan_shifted(const TransformerPlan *plan);

// Adds "window_sizes", the windows as the published checkpoints write them: "[4, 8, 2048]".
void plan_describe_windows(const TransformerPlan *plan, Metadata **rows, int *count);

#endif
