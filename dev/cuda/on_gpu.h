// A model's program on the GPU. Options, parameters, plan, order of blocks, statistics and
// description come from the model's C file; the blocks are those of dev/cuda. The CPU and GPU
// programs read and write the same checkpoints, and drop the same elements.
#ifndef CUDA_ON_GPU_H
#define CUDA_ON_GPU_H

extern "C" {
#include "model.h"
}

// Creates a model on the GPU. `host` is the type that the model's C file defines.
void *transformer_create(const ModelType *host, const ModelSetup *setup);

// Returns its entries: those of any model on the GPU, and those of `host`. Free with
// transformer_type_free().
ModelType transformer_type(const ModelType *host, const char *program,
                           void *(*create)(const ModelSetup *));
void transformer_type_free(ModelType *type);

// Defines MODEL_on_gpu() and the main() of train_MODELcu, whose source includes train.h. A test
// that is linked with the program defines its own main().
#define MODEL_ON_GPU(model)                                                                        \
    static void *model##_create(const ModelSetup *setup) {                                         \
        return transformer_create(&model, setup);                                                  \
    }                                                                                              \
    ModelType model##_on_gpu() {                                                                   \
        return transformer_type(&model, "train_" #model "cu", model##_create);                     \
    }                                                                                              \
    __attribute__((weak)) int main(int argc, char **argv) {                                        \
        ModelType type = model##_on_gpu();                                                         \
        const int code = train_main(argc, argv, &type);                                            \
        transformer_type_free(&type);                                                              \
        return code;                                                                               \
    }

#endif
