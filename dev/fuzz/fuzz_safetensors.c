// Input: a safetensors file. Reads its header, and each tensor as every type it can be read as.
#include "harness.h"
#include "memory.h"
#include "safetensors.h"
#include <stdlib.h>

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    Safetensors *file = safetensors_open(fuzz_file("input.safetensors", data, size));
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = &file->tensors[i];
        if (safetensors_find(file, tensor->name) != tensor) abort();
        void *values = allocate(tensor->count, sizeof(double), "values");
        if (tensor->type <= TENSOR_BF16) {
            tensor_read_double(file, tensor, values);
            tensor_read_real(file, tensor, values);
        } else {
            tensor_read_int32(file, tensor, values);
        }
        free(values);
    }
    for (int i = 0; i < file->metadata_count; i++)
        if (!safetensors_metadata(file, file->metadata[i].key)) abort();
    safetensors_close(file);
}
