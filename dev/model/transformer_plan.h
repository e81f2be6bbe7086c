// The description of a model for all devices: its sizes, and the parameters, computation and
// dropout sites of each part. A model's C file builds the plan from the options; a device allocates
// memory and creates blocks according to the plan. A pass through the model is a sequence of block
// calls (struct Blocks), which the model's file contains once for all devices.
//
// Layers are numbered across all stacks, beginning with the encoder's. C channels, F channels
// inside the feed-forward network, V vocabulary, L layers.
#ifndef MODEL_TRANSFORMER_PLAN_H
#define MODEL_TRANSFORMER_PLAN_H

#include "attention_type.h"
#include "model.h"
#include "model_options.h"

// x = dropout(scale * E[token] + position + type); with a norm, x = dropout(norm(the same sum)).
typedef struct {
    size_t token; // (V, C), also the output weight if that is tied
    double scale; // 1, or sqrt(C)
    PositionKind positions;
    size_t position;     // (positions, C) if learned; or NO_PARAMETER
    size_t type;         // (types, C), all tokens use the first; or NO_PARAMETER
    NormParameters norm; // or no_norm()
    uint32_t site;       // of the dropout
    int32_t padding;     // token whose row takes no gradient; -1: none
} EmbeddingPlan;

// Self-attention, then cross-attention to another stack's result if `crosses`, then a feed-forward
// network.
typedef struct {
    size_t first; // parameters from here on are final after the layer's backward pass
    AttentionPlan attention;
    bool crosses;
    AttentionPlan cross;
    FfnParameters ffn;
    uint32_t ffn_site;
} LayerPlan;

// Consecutive layers first .. end-1, with their embedding and the norm after the last one (or
// no_norm()).
typedef struct {
    size_t first, end;
    EmbeddingPlan embedding;
    NormParameters norm;
} StackPlan;

// The transformation of rows with a target before classification (BERT): LayerNorm(GELU(x W + b)).
typedef struct {
    LinearParameters transform; // no_linear(): none, and all rows are classified
    NormParameters norm;
} PredictionPlan;

enum { MAX_STACKS = 2 };

typedef struct {
    ModelSizes size; // layers of all stacks
    size_t inner;    // F
    NormOrder order;
    ActivationKind activation;
    bool rms;                     // norms are RMSNorm
    double epsilon;               // of the norms
    PositionKind positions;       // of a decoder-only model
    bool untied;                  // the output has its own weight
    LayerPlan *layers;            // (L)
    StackPlan stacks[MAX_STACKS]; // an encoder comes before the classified stack
    size_t stack_count;
    PredictionPlan prediction;
    size_t output;                     // (V, C) the weight of the logits
    size_t bias;                       // (V) of the logits, or NO_PARAMETER
    bool bias_fixed;                   // the bias is not trained
    double smoothing;                  // label smoothing
    double dropout, attention_dropout; // probabilities; the latter for attention weights
    int32_t padding, end;              // tokens, or -1
} TransformerPlan;

// A forward or backward pass for one batch, defined by each device.
typedef struct BlockPass BlockPass;

// The blocks of a device. Each reads the output of the previous one: the residual stream (forward)
// or its gradient (backward). `layer` is numbered across all stacks.
typedef struct {
    void (*embed_forward)(const BlockPass *pass, size_t stack);
    void (*embed_backward)(const BlockPass *pass, size_t stack);
    void (*attention_forward)(const BlockPass *pass, size_t layer);
    void (*attention_backward)(const BlockPass *pass, size_t layer);
    // Attention to the encoder's result.
    void (*cross_attention_forward)(const BlockPass *pass, size_t layer);
    void (*cross_attention_backward)(const BlockPass *pass, size_t layer);
    void (*ffn_forward)(const BlockPass *pass, size_t layer);
    void (*ffn_backward)(const BlockPass *pass, size_t layer);
    // The norm after the encoder's last layer; cross-attention reads its result.
    void (*encoded_forward)(const BlockPass *pass);
    void (*encoded_backward)(const BlockPass *pass);
    // PredictionPlan, for the rows with a target.
    void (*predict_forward)(const BlockPass *pass);
    void (*predict_backward)(const BlockPass *pass);
} Blocks;

// A model's functions: plan() builds its plan and adds its parameters to `table`; forward() and
// backward() call the blocks between the batch's tokens and the input of the output layer.
typedef struct TransformerType {
    TransformerPlan (*plan)(const ModelSetup *setup, ParameterTable *table);
    void (*forward)(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan);
    void (*backward)(const Blocks *blocks, const BlockPass *pass, const TransformerPlan *plan);
} TransformerType;

// Returns a plan of one pre-norm stack with learned positions, F = 4C, and sizes, dropout and
// attention (bidirectional unless `causal`) from the options, without any parameters yet.
TransformerPlan plan_create(const ModelSetup *setup, bool causal);
void plan_free(TransformerPlan *plan);

// Returns the plan of any model created by the CPU.
const TransformerPlan *transformer_plan(const void *model);

// Completes a plan that has its parameters: numbers the dropout sites, beginning with the
// embeddings, and records where each layer's parameters begin.
void plan_complete(TransformerPlan *plan);

// Implements ModelType.add_parameters for a model with a TransformerType.
void plan_add_parameters(const ModelSetup *setup, ParameterTable *table);

// Call the blocks of one stack: its embedding, then in each layer self-attention, cross-attention
// to the encoder's result if the layer has it, and the feed-forward network. Backward in reverse
// order.
void plan_stack_forward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                        size_t stack);
void plan_stack_backward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                         size_t stack);

// Returns the FLOP per token of the matrix products of a stack's layers, forward and backward, in
// texts of this length. A multiply-add counts 2.
double plan_layers_flops(const TransformerPlan *plan, const StackPlan *stack, int64_t length);

// Returns the bytes that decoding stores for a text of `tokens` tokens, in a model of one stack.
double plan_state_bytes(const TransformerPlan *plan, int64_t tokens);

// Returns whether every layer has this kind of attention.
bool plan_attends(const TransformerPlan *plan, AttentionKind kind);

// Returns whether any layer has a window.
bool plan_has_windows(const TransformerPlan *plan);

// plan_prepares() returns whether any layer prepares its queries and keys; plan_rotary() returns
// their rotation, which is the same in all these layers.
bool plan_prepares(const TransformerPlan *plan);
Rotary plan_rotary(const TransformerPlan *plan);

// Returns the number of channels of --token-shift, the same in all layers.
size_t plan_shifted(const TransformerPlan *plan);

// Adds "window_sizes" in the format of the published checkpoints: "[4, 8, 2048]".
void plan_describe_windows(const TransformerPlan *plan, Metadata **rows, int *count);

#endif
