// The program of a model on the GPU: that of its C file, whose options, parameters, plan, way
// through the blocks, statistics and description it takes; the blocks are those of
// dev/cuda. Both programs read and write the same checkpoints, and drop the same elements.
#ifndef CUDA_ON_GPU_H
#define CUDA_ON_GPU_H

extern "C" {
#include "model.h"
}

// A model whose C file describes `host`.
void *transformer_create(const ModelType *host, const ModelSetup *setup);

// Its entries: those of any model on the GPU, and the host's. To be freed.
ModelType transformer_type(const ModelType *host, const char *program,
                           void *(*create)(const ModelSetup *));
void transformer_type_free(ModelType *type);

// MODEL_on_gpu(), and the main() of train_MODELcu, which includes train.h; a test that is linked
// with the program has its own.
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
