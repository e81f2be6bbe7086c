// What every model on the CPU has, whichever it is: parameters, products, and the entries of ModelType that
// do not depend on the model. A model holds a CpuModel as its first member.
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include "adamw.h"
#include "gemm.h"
#include "model.h"

typedef struct {
    ParameterState state;
    Gemm *gemm;         // NULL: the model has no working memory
    bool packed;        // the packed weights are those of `state`
    Precision decoding; // of the weights that decoding reads
} CpuModel;

// Entries of ModelType (model.h).
void cpu_model_device(const void *model, DeviceInfo *info);
const ParameterTable *cpu_model_parameters(const void *model);
void cpu_model_read(const void *model, ModelArray which, real *out);
void cpu_model_write(void *model, ModelArray which, const real *in);
double cpu_model_gradient_norm(const void *model);
void cpu_model_update(void *model, const UpdateSettings *settings);
void cpu_model_clear_gradients(void *model);

#endif
