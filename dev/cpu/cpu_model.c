#include "cpu_model.h"
#include "device.h"

void cpu_model_device(const void *model, DeviceInfo *info) {
    cpu_device(((const CpuModel *)model)->gemm, info);
}

const ParameterTable *cpu_model_parameters(const void *model) {
    return &((const CpuModel *)model)->state.table;
}

void cpu_model_read(const void *model, ModelArray which, real *out) {
    parameter_state_read(&((const CpuModel *)model)->state, which, out);
}

void cpu_model_write(void *model, ModelArray which, const real *in) {
    CpuModel *m = model;
    parameter_state_write(&m->state, which, in);
    m->packed = false;
}

double cpu_model_gradient_norm(const void *model) {
    return gradient_norm(&((const CpuModel *)model)->state);
}

void cpu_model_update(void *model, const UpdateSettings *settings) {
    CpuModel *m = model;
    adamw_update(&m->state, settings);
    m->packed = false;
}

void cpu_model_clear_gradients(void *model) {
    gradients_clear(&((CpuModel *)model)->state);
}
