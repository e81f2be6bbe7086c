// What every model on the CPU has, whichever it is: parameters, memory, products, and the entries
// of ModelType that do not depend on the model. A model holds a CpuModel as its first member.
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include "adamw.h"
#include "arena.h"
#include "classifier.h"
#include "device.h"
#include "gemm.h"
#include "model.h"
#include "muon.h"

// Rows of a feed-forward network that a thread takes at a time.
enum { FFN_ROWS = 128 };

// Whether the numbers between its two products are computed again in the backward pass and not
// kept: where AMX multiplies with weights that stay in a thread's cache, faster than memory is
// written and read. C channels, F inside.
bool ffn_remade(Precision precision, size_t channels, size_t inner);

// What blocks (blocks.h) work in, one after the other. M rows, C channels, F in the feed-forward
// network.
typedef struct {
    // (M, C) a sublayer's last product; of the feed-forward network's, which is kept only to be
    // measured, the rows that threads are at: (threads, FFN_ROWS, C)
    real *output;
    real *hidden; // (threads, FFN_ROWS, F) before the activation, where nothing is kept, and after
                  // it:
    Matrix activated; // the same; where it is made again, (M, F)
    real *dx, *dnorm; // (M, C) gradients to the residual stream, and to what a block's first
                      // product reads
    Matrix doutput;   // (M, C) to `output`
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

// Gradients of the token embedding (V, C) by the lookup of tokens, in an update's last batch. They
// are known last; the classifier's, to the same matrix, are known first, and on their way to other
// ranks by then.
typedef struct {
    size_t rows, columns;
    real *gradients;        // (V, C) 0 but in a backward pass; NULL: there are no other ranks
    unsigned char *touched; // (V) whether a row is not 0
} Lookups;

typedef struct {
    ParameterState state;
    Lookups lookups;
    const ModelType *type; // whose options a refusal for memory names
    Arena *arena;
    bool training;
    size_t rows; // largest M, of either side; 0: no working memory, only decoding
    Gemm *gemm;  // NULL where rows is 0
    int threads; // and of these, for each thread of a parallel region its own:
    Gemm **serial;
    Muon *muon; // updates hidden matrices; NULL: AdamW does
    Workspace work;
    PackedWeight *weights; // (weight_count)
    size_t weight_count;
    Classifier *classifier; // NULL: none yet
    size_t classifier_weight;
    bool packed;                       // the packed weights are those of `state`
    double dropout, attention_dropout; // the latter of attention's weights
    uint64_t seed;
    Profile *profile;
    Ranks *ranks; // NULL: this process alone
    void (*say_size)(const char *model, size_t parameters, size_t bytes); // NULL: not needed
    Precision decoding; // of the weights that decoding reads
} CpuModel;

// Of the parameters of model->state.table, which is complete and whose first one is the token
// embedding (V, C), the classifier's weight, too. The model adds its parts and ends with
// cpu_model_allocate(): with what `carve` takes of model->arena, cpu_model_carve_workspace() among
// it, this prints how much memory it is (ModelSetup.say_size) and takes it, or ends the program
// with the option to lower where it cannot fit.
void cpu_model_create(CpuModel *model, const ModelSetup *setup);
// hidden: what a feed-forward network's first product makes; inner: what its second one reads.
void cpu_model_carve_workspace(CpuModel *model, size_t channels, size_t hidden, size_t inner);
void cpu_model_allocate(CpuModel *model, void (*carve)(void *model));
void cpu_model_destroy(CpuModel *model);

// A packed weight of the parameter at `offset`, which the model carves and frees.
GemmWeight *cpu_model_weight(CpuModel *model, Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                             size_t offset);

// Weights as products read them; once after each change.
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

// All of them, in a model's table.
#define CPU_MODEL_ENTRIES                                                                          \
    .build = cpu_build, .device = cpu_model_device, .memory = cpu_model_memory,                    \
    .parameters = cpu_model_parameters, .view = cpu_model_view, .read = cpu_model_read,            \
    .write = cpu_model_write, .gradient_norm = cpu_model_gradient_norm,                            \
    .update = cpu_model_update, .clear_gradients = cpu_model_clear_gradients,                      \
    .reduce = cpu_model_reduce

#endif
