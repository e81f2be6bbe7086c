// What all models on the CPU have in common: parameters, memory, products, and the entries of
// ModelType that do not depend on the model. A model's first member is a CpuModel.
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include "adamw.h"
#include "arena.h"
#include "classifier.h"
#include "device.h"
#include "gemm.h"
#include "model.h"
#include "muon.h"

// Rows of a feed-forward network that a thread processes at a time.
enum { FFN_ROWS = 128 };

// Returns whether a feed-forward network recomputes the numbers between its two products in the
// backward pass instead of keeping them. This is faster than writing and reading memory when AMX
// multiplies with weights that stay in a thread's cache. C channels, F inside.
bool ffn_remade(Precision precision, size_t channels, size_t inner);

// Buffers of the blocks (blocks.h), which run one after the other. M rows, C channels, F in the
// feed-forward network.
typedef struct {
    // (M, C) output of a sublayer's last product. That of the feed-forward network is kept only if
    // it is measured; else each thread has the rows it works on: (threads, FFN_ROWS, C)
    real *output;
    real *hidden; // (threads, FFN_ROWS, F) before the activation, if nothing is kept, and after it:
    Matrix activated; // the same; if it is recomputed, (M, F)
    real *dx, *dnorm; // (M, C) gradients to the residual stream, and to the input of a block's
                      // first product
    Matrix doutput;   // (M, C) gradient to `output`
    real *dattended;  // (M, C)
    Matrix dqkv;      // (M, 3C), or with cross-attention:
    Matrix dquery, dkey_value; // (M, C), (M, 2C)
    real *dactivated;          // (threads, FFN_ROWS, F)
    Matrix dhidden;            // (M, F)
} Workspace;

typedef struct {
    GemmWeight *weight;
    size_t offset; // of its values among the parameters
} PackedWeight;

// Gradients to the token embedding (V, C) from looking up tokens, in the last batch of an update.
// They are known last. The classifier's gradients to the same matrix are known first, and are
// already being sent to other ranks by then.
typedef struct {
    size_t rows, columns;
    real *gradients;        // (V, C) 0 outside of backward passes; NULL: no other ranks
    unsigned char *touched; // (V) whether a row is not 0
} Lookups;

typedef struct {
    ParameterState state;
    Lookups lookups;
    const ModelType *type; // whose options an out-of-memory error names
    Arena *arena;
    bool training;
    size_t rows; // largest M, of either side; 0: no working memory, only decoding
    Gemm *gemm;  // NULL if rows is 0
    int threads; // number of these, one per thread of a parallel region:
    Gemm **serial;
    Muon *muon; // updates hidden matrices; NULL: AdamW does
    Workspace work;
    PackedWeight *weights; // (weight_count)
    size_t weight_count;
    Classifier *classifier; // NULL: none yet
    size_t classifier_weight;
    bool packed;                       // the packed weights are those of `state`
    double dropout, attention_dropout; // the latter for attention weights
    uint64_t seed;
    Profile *profile;
    Ranks *ranks; // NULL: this process alone
    void (*say_size)(const char *model, size_t parameters, size_t bytes); // NULL: not needed
    Precision decoding; // of the weights for decoding
} CpuModel;

// Creates the common part from the parameters of model->state.table, which is complete. Its first
// parameter is the token embedding (V, C), which is also the classifier's weight. The model then
// adds its parts, and calls cpu_model_allocate() last. `carve` carves the model's part of
// model->arena and calls cpu_model_carve_workspace(). cpu_model_allocate() reports the amount of
// memory (ModelSetup.say_size) and allocates it. If it does not fit, exits with an error that names
// the option to lower.
void cpu_model_create(CpuModel *model, const ModelSetup *setup);
// hidden: outputs of a feed-forward network's first product; inner: inputs of its second one.
void cpu_model_carve_workspace(CpuModel *model, size_t channels, size_t hidden, size_t inner);
void cpu_model_allocate(CpuModel *model, void (*carve)(void *model));
void cpu_model_destroy(CpuModel *model);

// Returns a packed weight of the parameter at `offset`. The model carves and frees it.
GemmWeight *cpu_model_weight(CpuModel *model, Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                             size_t offset);

// Packs the weights for products, if they changed.
void cpu_model_pack(CpuModel *model);

// Entries of ModelType (model.h).
void cpu_model_device(const void *model, DeviceInfo *info);
char *cpu_model_memory(const void *model);
const ParameterTable *cpu_model_parameters(const void *model);
const real *cpu_model_view(const void *model, ModelArray which);
void cpu_model_read(const void *model, ModelArray which, real *out);
void cpu_model_write(void *model, ModelArray which, const real *in);
void cpu_model_reduce(void *model);
double cpu_model_gradient_norm(const void *model);
void cpu_model_update(void *model, const UpdateSettings *settings);
void cpu_model_clear_gradients(void *model);

// All of these entries, for a model's table.
#define CPU_MODEL_ENTRIES                                                                          \
    .build = cpu_build, .device = cpu_model_device, .memory = cpu_model_memory,                    \
    .parameters = cpu_model_parameters, .view = cpu_model_view, .read = cpu_model_read,            \
    .write = cpu_model_write, .gradient_norm = cpu_model_gradient_norm,                            \
    .update = cpu_model_update, .clear_gradients = cpu_model_clear_gradients,                      \
    .reduce = cpu_model_reduce

#endif
