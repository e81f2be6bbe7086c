// Building blocks that all models share, above layers. Each has its parameters
// (layer_parameters.h), packed weights, activations from the arena, and a forward and a backward
// function. --profile and --stats measure here, between layers, so that neither layers nor models
// depend on them.
//
// B batch, T sequence length, M = B*T, C channels, F channels inside the feed-forward network. A
// model's residual stream is a list of arrays x (M, C): a block reads one and writes the next. In
// the backward pass a block turns work->dx from the gradient to its output into that to its input.
//
//   pre-norm:   x' = x + dropout(f(LayerNorm(x)))
//   post-norm:  x' = LayerNorm(x + dropout(f(x)))
#ifndef CPU_BLOCKS_H
#define CPU_BLOCKS_H

#include "activation.h"
#include "attention.h"
#include "cpu_model.h"
#include "dropout.h"
#include "transformer_plan.h"

// A forward or backward pass through a model for one batch.
struct BlockPass {
    CpuModel *model;
    const Workspace *work; // of the model
    const Batch *batch;
    size_t rows;             // M
    uint64_t first;          // number of row 0 within the update, for dropout
    bool train;              // apply dropout
    Profile *profile;        // NULL: disabled
    ProfilePart part;        // which part of a step laps belong to
    Statistics *statistics;  // to measure; NULL: disabled
    const BlockPass *source; // the pass over the source side of the batch; NULL: none
    const BlockPass *chosen; // the pass over the classified rows; NULL: all are classified
};

// Packs the weights and returns a forward pass: with `train` of a training step; else of an
// evaluation, which collects statistics if they are not NULL. pass_backward() returns the backward
// pass after that of a training step.
BlockPass pass_forward(CpuModel *model, const Batch *batch, bool train, Statistics *statistics);
BlockPass pass_backward(const BlockPass *forward);

// Returns the same pass over the source side of its batch, and sets `source` to that side. The
// caller stores the result as the pass's source.
BlockPass pass_source(const BlockPass *pass, Batch *source);

// Returns the dropout of a site in this pass, stored in `memory`; NULL: no dropout.
const Dropout *pass_dropout(const BlockPass *pass, uint32_t site, Dropout *memory);

// Returns a parameter's values or gradients; NULL for NO_PARAMETER.
const real *pass_values(const BlockPass *pass, size_t offset);
real *pass_gradients(const BlockPass *pass, size_t offset);

// In a backward pass: declares the gradients from this parameter on to be final. In the last batch
// of an update, other ranks may then get them.
void pass_final(const BlockPass *pass, size_t offset);

// Returns where the lookup of the pass's tokens adds its gradients to the token embedding.
real *pass_lookups(const BlockPass *pass, size_t token);

// Hooks for --profile and --stats after a layer: end a lap of that kind of work; measure x (M, C).
void pass_lap(const BlockPass *pass, const char *kind, double flops);
void pass_measure(const BlockPass *pass, size_t layer, const char *place, const real *x,
                  size_t channels);

// Carves the arrays x (blocks + 1) of a residual stream through that many blocks, each (rows, C).
// If nothing is kept for a backward pass, all are the same array.
void stream_carve(real **x, Arena *arena, size_t blocks, size_t rows, size_t channels, bool keep);

// ---- layer normalisation; without parameters (no_norm()) the identity -------

typedef struct {
    NormParameters parameters;
    real *mean, *rstd; // (M)
} Norm;

void norm_carve(Norm *norm, Arena *arena, size_t rows);
void norm_forward(const BlockPass *pass, const Norm *norm, Matrix y, const real *x);
// dx += the gradient to x. If dx and dy are the same array, it is replaced by that gradient.
void norm_backward(const BlockPass *pass, const Norm *norm, real *dx, const real *dy,
                   const real *x);

// ---- token embedding and positions, optional norm, dropout ------------------

typedef struct {
    EmbeddingPlan plan;
    size_t channels;
    const real *sinusoids;  // (positions, C), sinusoidal_positions(); NULL: none
    real *places, *dplaces; // (T, C) with a type: position + type, and its gradient
    real *sum;              // (M, C) with a norm: its input
    Norm norm;
} Embedding;

// For batches of up to `length` tokens per sequence.
void embed_carve(Embedding *embedding, CpuModel *model, size_t length);
void embed_forward(const BlockPass *pass, const Embedding *embedding, real *x);
void embed_backward(const BlockPass *pass, const Embedding *embedding); // from work->dx

// ---- a product with a weight; the next operation adds the bias --------------

typedef struct {
    LinearParameters parameters;
    const char *kind; // name in --profile
    Gemm *gemm;
    GemmWeight *weight;
} Linear;

// Multiplies with `gemm`, the model's own or another. The model packs the weight after every
// change.
Linear linear_create(CpuModel *model, Gemm *gemm, const LinearParameters *parameters,
                     const char *kind);
void linear_forward(const BlockPass *pass, const Linear *linear, real *y, Matrix x);
void linear_backward_input(const BlockPass *pass, const Linear *linear, real *dx, Matrix dy);
void linear_backward_weight(const BlockPass *pass, const Linear *linear, Matrix dy, Matrix x);
void linear_backward(const BlockPass *pass, const Linear *linear, real *dx, Matrix dy,
                     Matrix x); // both

// ---- around a sublayer f: normalisation, dropout, residual connection ----

typedef struct {
    NormOrder order;
    size_t layer;
    const char *place; // name of f(x) in --stats
    size_t after_layer;
    const char *after; // name of x' in --stats
    uint32_t site;     // of the dropout
    size_t bias;       // (C) bias of f's last product, or NO_PARAMETER
    size_t shifted;    // channels of `input` taken from the previous token (token_shift.h)
    Norm norm;
    Matrix input; // (M, C) input of f
    real *sum;    // (M, C) post-norm: input of the norm
} Sublayer;

// input: carves the input of f; else it is set in another way.
void sublayer_carve(Sublayer *sublayer, CpuModel *model, bool input);

// Computes the input of f from x.
void sublayer_begin(const BlockPass *pass, const Sublayer *sublayer, const real *x);

// out = x', from the output y (M, C) of f's last product. out may be x.
void sublayer_residual(const BlockPass *pass, const Sublayer *sublayer, real *out, const real *x,
                       const real *y);

// Computes work->doutput, the gradient to y, from work->dx.
void sublayer_residual_backward(const BlockPass *pass, const Sublayer *sublayer);

// Adds the path through f to work->dx, which becomes the gradient to x. `first` is f's first
// product, dy the gradient to its output. again: the input of f was not kept and is recomputed.
void sublayer_begin_backward(const BlockPass *pass, const Sublayer *sublayer, const Linear *first,
                             Matrix dy, const real *x, bool again);

// ---- attention --------------------------------------------------------------
// Shared by all layers of a model, which run one after the other.
typedef struct {
    size_t channels, heads; // C, H
    AttentionMemory memory;
    Gemm *gemm;                 // float32, for kinds that need it; NULL: none do
    Matrix input;               // (M, C) their input of the product for queries, keys, values
    Matrix again;               // (M, C) the same in the backward pass
    bool prepares;              // whether any layer prepares attention's input; if so:
    real *prepared, *dprepared; // (M, 3C) input of attention, and its gradient
    const real *angles;         // (positions, D) of rotary positions, or NULL
} AttentionShared;

void attention_shared_create(AttentionShared *shared, CpuModel *model, const ModelSizes *size,
                             const LayerPlan *layers, size_t count, size_t batch, size_t length);
void attention_shared_carve(AttentionShared *shared, CpuModel *model);
void attention_shared_free(AttentionShared *shared);

// The common part of self- and cross-attention: everything except how queries, keys and values are
// computed. Without a projection the result of attention is added to the residual stream as it is.
typedef struct {
    Sublayer sublayer;
    const AttentionPlan *plan;
    const AttentionShared *shared;
    const char *const *names; // (2) names of weights and scores in --stats
    Linear projection;
    Matrix attended; // (M, C)
    real *kept;      // AttentionKernel.kept
} AttentionSublayer;

// Forward: out = x' from queries, keys and values. Backward: their gradients from work->dx.
void attention_sublayer_forward(const BlockPass *pass, const AttentionSublayer *sublayer,
                                const AttentionInput *in, real *out, const real *x);
void attention_sublayer_backward(const BlockPass *pass, const AttentionSublayer *sublayer,
                                 const AttentionGradients *gradients, const AttentionInput *in);

// Self-attention.
typedef struct {
    AttentionSublayer common;
    Linear qkv, exact; // the product, and the float32 one for kinds that need it
    real *projected;   // (M, (H + 2H') D) queries, keys and values: the product's output, with the
                       // bias if nothing else adds it
} AttentionBlock;

void attention_block_create(AttentionBlock *block, CpuModel *model, const AttentionShared *shared,
                            const AttentionPlan *plan, NormOrder order, size_t layer);
void attention_block_carve(AttentionBlock *block, CpuModel *model);
void attention_block_forward(const BlockPass *pass, const AttentionBlock *block, real *out,
                             const real *x);
void attention_block_backward(const BlockPass *pass, const AttentionBlock *block, const real *x);

// ---- cross-attention: queries of one stack, keys and values of the encoder --
//
// The encoder's pass is the source of the decoder's and has N rows. `x` is the output of its last
// layer.

typedef struct {
    Norm norm;     // after the last layer, or none
    Matrix result; // (N, C) input of the product for keys and values
    real *dresult; // (N, C) its gradient: 0 after the forward pass, then all blocks add to it
} Encoded;

void encoded_carve(Encoded *encoded, CpuModel *model); // needs encoded->norm.parameters
void encoded_forward(const BlockPass *source, const Encoded *encoded, const real *x);
void encoded_backward(const BlockPass *source, const Encoded *encoded, const real *x); // work->dx

typedef struct {
    AttentionSublayer common;
    const Encoded *encoded; // shared by all layers
    Linear query, key_value;
    real *queries;    // (M, C) without the bias
    real *key_values; // (N, 2C)
} CrossAttentionBlock;

void cross_attention_block_create(CrossAttentionBlock *block, CpuModel *model,
                                  const AttentionShared *shared, const Encoded *encoded,
                                  const AttentionPlan *plan, NormOrder order, size_t layer);
void cross_attention_block_carve(CrossAttentionBlock *block, CpuModel *model);
void cross_attention_block_forward(const BlockPass *pass, const CrossAttentionBlock *block,
                                   real *out, const real *x);
void cross_attention_block_backward(const BlockPass *pass, const CrossAttentionBlock *block,
                                    const real *x);

// ---- feed-forward network ---------------------------------------------------

typedef struct {
    Sublayer sublayer;
    ActivationKind activation;
    Linear up, down;
    bool kept;        // whether these are kept for the backward pass; else NULL:
    real *hidden;     // (M, F), SwiGLU (M, 2F), before bias and activation
    Matrix activated; // (M, F)
} FfnBlock;

void ffn_block_create(FfnBlock *block, CpuModel *model, const FfnParameters *parameters,
                      ActivationKind activation, NormOrder order, size_t layer, uint32_t site);
void ffn_block_carve(FfnBlock *block, CpuModel *model);
void ffn_block_forward(const BlockPass *pass, const FfnBlock *block, real *out, const real *x);
void ffn_block_backward(const BlockPass *pass, const FfnBlock *block, const real *x);

// ---- the rows that have a target: only these are classified -----------------

typedef struct {
    size_t *rows;     // (K) row numbers
    int32_t *targets; // (K)
} ChosenRows;

void chosen_carve(ChosenRows *chosen, CpuModel *model);

// Returns a pass over the rows that have a target, or over all rows, and sets `batch` to describe
// them.
BlockPass chosen_pass(const BlockPass *pass, const ChosenRows *chosen, bool all, Batch *batch);

// Computes and returns work->output (K, C), from the last x (M, C).
const real *chosen_forward(const BlockPass *chosen, const ChosenRows *rows, const real *x,
                           size_t channels);
// Computes work->dx (M, C) from gradients (K, C), which must not be work->dx.
void chosen_backward(const BlockPass *pass, const BlockPass *chosen, const ChosenRows *rows,
                     const real *gradients, size_t channels);

// ---- prediction: LayerNorm's input GELU(x W + b), of rows that have a target ------

typedef struct {
    Linear transform;
    Matrix input;    // (K, C) the last x of these rows
    real *hidden;    // (K, C) before bias and GELU
    real *activated; // (K, C)
} PredictionBlock;

void prediction_create(PredictionBlock *block, CpuModel *model, const PredictionPlan *plan);
void prediction_carve(PredictionBlock *block, CpuModel *model);

void prediction_forward(const BlockPass *chosen, const PredictionBlock *block,
                        const ChosenRows *rows, const real *x);
// Computes work->dnorm (K, C), the gradient to the last x of these rows, from work->dx (K, C), the
// gradient to `activated`.
void prediction_backward(const BlockPass *chosen, const PredictionBlock *block);

// ---- final normalisation and classifier -------------------------------------

typedef struct {
    Norm norm;
    size_t weight, bias; // (V, C), (V) or NO_PARAMETER
    bool bias_fixed;     // the bias is not trained
    size_t vocabulary;   // V
    Matrix normal;       // (M, C)
    real *losses;        // (M) -log p of each target in the last head_forward(); 0 without target
    Classifier *classifier;
} OutputHead;

void head_create(OutputHead *head, CpuModel *model, const NormParameters *norm, size_t weight,
                 size_t bias, size_t vocabulary);
void head_carve(OutputHead *head, CpuModel *model);

// head_forward() returns the sum of -log p over all targets, from the last x; head_logits()
// computes the logits (M, V).
double head_forward(const BlockPass *pass, const OutputHead *head, const real *x);
void head_logits(const BlockPass *pass, const OutputHead *head, const real *x, real *logits);

// Returns the same sum and computes its gradients times `scale`: those of the parameters, and
// work->dx, the gradient to x. `backward` is the backward pass that continues from there.
double head_train(const BlockPass *forward, const BlockPass *backward, const OutputHead *head,
                  const real *x, double scale);

#endif
