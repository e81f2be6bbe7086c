// What models share that predict a token for each row of their last layer: the passes of evaluation
// and training as entries of ModelType. A model holds a Transformer as its first member, and adds
// the way through its layers.
//
// M = B*T rows, C channels.
#ifndef CPU_TRANSFORMER_H
#define CPU_TRANSFORMER_H

#include "blocks.h"
#include "model_options.h"

typedef struct {
    // From the batch's tokens to the last of the residual stream (M, C), which the head reads; and
    // from the gradient to that, work->dx, back to the embedding.
    const real *(*forward)(const void *model, const BlockPass *pass);
    void (*backward)(const void *model, const BlockPass *pass);
} TransformerLayers;

typedef struct {
    CpuModel model;
    const TransformerLayers *layers;
    Embedding embedding;
    OutputHead head;
} Transformer;

// Embedding and head. The embedding's dropout is at site 0; the row of the token `padding` takes no
// gradient, -1: there is none.
void transformer_create(Transformer *transformer, const OuterParameters *parameters,
                        const ModelSizes *size, int32_t padding);

// The head and the workspace; inner: F in the feed-forward network.
void transformer_carve(Transformer *transformer, size_t inner);

// Entries of ModelType (model.h).
double transformer_forward(void *model, const Batch *batch);
double transformer_train(void *model, const Batch *batch, double scale);
void transformer_logits(void *model, const Batch *batch, real *logits);
void transformer_statistics(void *model, const Batch *batch, Statistics *statistics);

// All of them, in a model's table, with those of any model on the CPU.
#define TRANSFORMER_ENTRIES                                                                        \
    CPU_MODEL_ENTRIES, .forward = transformer_forward, .train = transformer_train,                 \
                       .logits = transformer_logits, .statistics = transformer_statistics

#endif
