// What models share above layers: blocks, each with its parameters (layer_parameters.h), packed
// weights, activations from the arena, and a forward and a backward function. --profile's laps and
// --stats' measurements hook in here, between layers, so that neither layers nor models know of
// them.
//
// B batch, T sequence length, M = B*T, C channels, F channels inside the feed-forward network. A
// model's residual stream is a row of arrays x (M, C): a block reads one and writes the next. In
// the backward pass the gradient to what a block wrote, work->dx, becomes that to what it read.
//
//   pre-norm:  x' = x + dropout(f(LayerNorm(x)))          post-norm:  x' = LayerNorm(x +
//   dropout(f(x)))
#ifndef CPU_BLOCKS_H
#define CPU_BLOCKS_H

#include "activation.h"
#include "attention.h"
#include "cpu_model.h"
#include "dropout.h"
#include "transformer_plan.h"

// One way through a model for one batch.
struct BlockPass {
    CpuModel *model;
    const Workspace *work; // of the model
    const Batch *batch;
    size_t rows;             // M
    uint64_t first;          // number of row 0 among the update's, by which dropout counts
    bool train;              // elements are dropped
    Profile *profile;        // NULL: disabled
    ProfilePart part;        // what laps are booked as
    Statistics *statistics;  // what is measured, or NULL
    const BlockPass *source; // the same on the source side of the batch; NULL: it has none
    const BlockPass *chosen; // of the rows that are classified; NULL: all are
};

// A forward pass, once the weights are packed: with `train`, a step's; else an evaluation's,
// measured where statistics are given. Then the backward pass after a training step's.
BlockPass pass_forward(CpuModel *model, const Batch *batch, bool train, Statistics *statistics);
BlockPass pass_backward(const BlockPass *forward);

// The same pass on the source side of its batch, which `source` becomes. It is to be the pass's
// source.
BlockPass pass_source(const BlockPass *pass, Batch *source);

// The dropout of a site in this pass, written to `memory`; NULL: nothing is dropped.
const Dropout *pass_dropout(const BlockPass *pass, uint32_t site, Dropout *memory);

// Where a parameter's values and gradients are; NULL for NO_PARAMETER.
const real *pass_values(const BlockPass *pass, size_t offset);
real *pass_gradients(const BlockPass *pass, size_t offset);

// In a backward pass: gradients from this parameter on will not change any more. Where the batch is
// the update's last one, other ranks may have them.
void pass_final(const BlockPass *pass, size_t offset);

// Where the lookup of the pass's tokens adds its gradients to the token embedding.
real *pass_lookups(const BlockPass *pass, size_t token);

// Hooks for --profile and --stats after a layer: a lap of that kind of work, and what x (M, C)
// holds.
void pass_lap(const BlockPass *pass, const char *kind, double flops);
void pass_measure(const BlockPass *pass, size_t layer, const char *place, const real *x,
                  size_t channels);

// The arrays x (blocks + 1) of a residual stream through so many blocks, each (rows, C). All are
// one where nothing is kept for a backward pass.
void stream_carve(real **x, Arena *arena, size_t blocks, size_t rows, size_t channels, bool keep);

// ---- layer normalisation; without parameters (no_norm()), none --------------

typedef struct {
    NormParameters parameters;
    real *mean, *rstd; // (M)
} Norm;

void norm_carve(Norm *norm, Arena *arena, size_t rows);
void norm_forward(const BlockPass *pass, const Norm *norm, Matrix y, const real *x);
// dx += the gradient to x; where dx is dy, it becomes that.
void norm_backward(const BlockPass *pass, const Norm *norm, real *dx, const real *dy,
                   const real *x);

// ---- token embedding and positions, norm if it has one, dropout -------------

typedef struct {
    EmbeddingPlan plan;
    size_t channels;
    const real *sinusoids;  // (positions, C), sinusoidal_positions(); NULL: there are none
    real *places, *dplaces; // (T, C) with a type: position + type, and the gradient to that
    real *sum;              // (M, C) with a norm: what that reads
    Norm norm;
} Embedding;

// For batches of up to so many tokens of a sequence.
void embed_carve(Embedding *embedding, CpuModel *model, size_t length);
void embed_forward(const BlockPass *pass, const Embedding *embedding, real *x);
void embed_backward(const BlockPass *pass, const Embedding *embedding); // from work->dx

// ---- a product with a weight; what follows adds the bias --------------------

typedef struct {
    LinearParameters parameters;
    const char *kind; // what --profile calls it
    Gemm *gemm;
    GemmWeight *weight;
} Linear;

// Multiplies with `gemm`, the model's own or another; the model packs the weight whenever it
// changed.
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
    const char *place; // what --stats calls f(x)
    size_t after_layer;
    const char *after; // and x'
    uint32_t site;     // of the dropout
    size_t bias;       // (C) that is added to f's last product; or NO_PARAMETER
    size_t shifted;    // channels of `input` that are those of the token before (token_shift.h)
    Norm norm;
    Matrix input; // (M, C) what f reads
    real *sum;    // (M, C) post-norm: what is normalised
} Sublayer;

// input: with what f reads; else it is set in another way.
void sublayer_carve(Sublayer *sublayer, CpuModel *model, bool input);

// What f reads, from x.
void sublayer_begin(const BlockPass *pass, const Sublayer *sublayer, const real *x);

// out = x', from f's last product y (M, C). out may be x.
void sublayer_residual(const BlockPass *pass, const Sublayer *sublayer, real *out, const real *x,
                       const real *y);

// work->doutput, the gradient to y, from work->dx.
void sublayer_residual_backward(const BlockPass *pass, const Sublayer *sublayer);

// work->dx, the gradient to x, through `first`, f's first product, from the gradient to its result.
// again: what f reads is not kept and is made again.
void sublayer_begin_backward(const BlockPass *pass, const Sublayer *sublayer, const Linear *first,
                             Matrix dy, const real *x, bool again);

// ---- attention --------------------------------------------------------------
// What all layers of a model use one after the other.
typedef struct {
    size_t channels, heads; // C, H
    AttentionMemory memory;
    Gemm *gemm;                 // float32, for kinds that need it; NULL: there are none
    Matrix input;               // (M, C) what their products for queries, keys and values read
    Matrix again;               // (M, C) and the backward pass of these
    bool prepares;              // some layer does, with:
    real *prepared, *dprepared; // (M, 3C) what attention reads, and the gradient to that
    const real *angles;         // (positions, D) of rotary positions, or NULL
} AttentionShared;

void attention_shared_create(AttentionShared *shared, CpuModel *model, const ModelSizes *size,
                             const LayerPlan *layers, size_t count, size_t batch, size_t length);
void attention_shared_carve(AttentionShared *shared, CpuModel *model);
void attention_shared_free(AttentionShared *shared);

// What self- and cross-attention have in common: all but what queries, keys and values are made of.
// Without a projection the result of attention joins the residual stream as it is.
typedef struct {
    Sublayer sublayer;
    const AttentionPlan *plan;
    const AttentionShared *shared;
    const char *const *names; // (2) what --stats calls weights and scores
    Linear projection;
    Matrix attended; // (M, C)
    real *kept;      // AttentionKernel.kept
} AttentionSublayer;

// From queries, keys and values to out = x'; and from work->dx to the gradients to these.
void attention_sublayer_forward(const BlockPass *pass, const AttentionSublayer *sublayer,
                                const AttentionInput *in, real *out, const real *x);
void attention_sublayer_backward(const BlockPass *pass, const AttentionSublayer *sublayer,
                                 const AttentionGradients *gradients, const AttentionInput *in);

// Self-attention.
typedef struct {
    AttentionSublayer common;
    Linear qkv, exact; // the product, and in float32 where the kind needs that
    real *projected;   // (M, (H + 2H') D) queries, keys and values, as the product makes them;
                       // with the bias where nothing else adds it
} AttentionBlock;

void attention_block_create(AttentionBlock *block, CpuModel *model, const AttentionShared *shared,
                            const AttentionPlan *plan, NormOrder order, size_t layer);
void attention_block_carve(AttentionBlock *block, CpuModel *model);
void attention_block_forward(const BlockPass *pass, const AttentionBlock *block, real *out,
                             const real *x);
void attention_block_backward(const BlockPass *pass, const AttentionBlock *block, const real *x);

// ---- cross-attention: queries of one stack, keys and values of the encoder --
//
// The encoder's pass is the source of the decoder's; N rows. `x` is what its last layer wrote.

typedef struct {
    Norm norm;     // after the last layer, or none
    Matrix result; // (N, C) what keys and values are made of
    real *dresult; // (N, C) the gradient to that: 0 after the forward pass, all blocks add to it
} Encoded;

void encoded_carve(Encoded *encoded, CpuModel *model); // encoded->norm.parameters are known
void encoded_forward(const BlockPass *source, const Encoded *encoded, const real *x);
void encoded_backward(const BlockPass *source, const Encoded *encoded, const real *x); // work->dx

typedef struct {
    AttentionSublayer common;
    const Encoded *encoded; // which layers share
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
    bool kept;        // for the backward pass; else these are NULL:
    real *hidden;     // (M, F), SwiGLU (M, 2F), before bias and activation
    Matrix activated; // (M, F)
} FfnBlock;

void ffn_block_create(FfnBlock *block, CpuModel *model, const FfnParameters *parameters,
                      ActivationKind activation, NormOrder order, size_t layer, uint32_t site);
void ffn_block_carve(FfnBlock *block, CpuModel *model);
void ffn_block_forward(const BlockPass *pass, const FfnBlock *block, real *out, const real *x);
void ffn_block_backward(const BlockPass *pass, const FfnBlock *block, const real *x);

// ---- the rows that have a target: only these are classified ------------------

typedef struct {
    size_t *rows;     // (K) which
    int32_t *targets; // (K)
} ChosenRows;

void chosen_carve(ChosenRows *chosen, CpuModel *model);

// A pass over the rows that have a target, or over all, which `batch` then describes.
BlockPass chosen_pass(const BlockPass *pass, const ChosenRows *chosen, bool all, Batch *batch);

// work->output (K, C), from the last x (M, C). Returns it.
const real *chosen_forward(const BlockPass *chosen, const ChosenRows *rows, const real *x,
                           size_t channels);
// work->dx (M, C) from gradients (K, C), which are not work->dx.
void chosen_backward(const BlockPass *pass, const BlockPass *chosen, const ChosenRows *rows,
                     const real *gradients, size_t channels);

// ---- prediction: LayerNorm's input GELU(x W + b) of the rows that have a target ----

typedef struct {
    Linear transform;
    Matrix input;    // (K, C) the last x of these
    real *hidden;    // (K, C) before bias and GELU
    real *activated; // (K, C)
} PredictionBlock;

void prediction_create(PredictionBlock *block, CpuModel *model, const PredictionPlan *plan);
void prediction_carve(PredictionBlock *block, CpuModel *model);

void prediction_forward(const BlockPass *chosen, const PredictionBlock *block,
                        const ChosenRows *rows, const real *x);
// work->dnorm (K, C), to the last x of these, from work->dx (K, C), to `activated`.
void prediction_backward(const BlockPass *chosen, const PredictionBlock *block);

// ---- final normalisation and classifier -------------------------------------

typedef struct {
    Norm norm;
    size_t weight, bias; // (V, C), (V) or NO_PARAMETER
    bool bias_fixed;     // it is not trained
    size_t vocabulary;   // V
    Matrix normal;       // (M, C)
    real *losses;        // (M) -log p of each target of the last head_forward(), or 0
    Classifier *classifier;
} OutputHead;

void head_create(OutputHead *head, CpuModel *model, const NormParameters *norm, size_t weight,
                 size_t bias, size_t vocabulary);
void head_carve(OutputHead *head, CpuModel *model);

// Sum over counted targets of -log p, from the last x; the logits (M, V).
double head_forward(const BlockPass *pass, const OutputHead *head, const real *x);
void head_logits(const BlockPass *pass, const OutputHead *head, const real *x, real *logits);

// The same sum and its gradients times `scale`: to the parameters, and work->dx, to x. `backward`
// is the backward pass that continues from there.
double head_train(const BlockPass *forward, const BlockPass *backward, const OutputHead *head,
                  const real *x, double scale);

#endif
