// Operations on the arrays of any model.
#include "model.h"
#include "checksum.h"
#include "memory.h"
#include <stdlib.h>

const real *model_view(const ModelType *type, const void *model, ModelArray which, real **copy) {
    const real *view = type->view ? type->view(model, which) : NULL;
    *copy = NULL;
    if (view) return view;
    *copy = allocate(type->parameters(model)->total, sizeof(real), "parameters");
    type->read(model, which, *copy);
    return *copy;
}

uint64_t model_checksum(const ModelType *type, const void *model, ModelArray which) {
    real *copy;
    const real *values = model_view(type, model, which, &copy);
    const uint64_t checksum = checksum_of(values, type->parameters(model)->total * sizeof(real));
    free(copy);
    return checksum;
}
