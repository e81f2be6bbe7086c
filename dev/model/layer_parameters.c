#include "layer_parameters.h"

#include <stdarg.h>
#include <stdio.h>

size_t add_matrix(ParameterTable *table, const char *name, size_t rows, size_t columns,
                  double deviation) {
    return parameter_add(table, name, 2, (int64_t[]){(int64_t)rows, (int64_t)columns}, true, 0,
                         deviation);
}

size_t add_vector(ParameterTable *table, const char *name, size_t size, double value) {
    return parameter_add(table, name, 1, (int64_t[]){(int64_t)size}, false, value, 0);
}

// The names of a layer and its parameters. parameter_add() rejects a truncated name as too long.
typedef struct {
    char layer[PARAMETER_NAME], weight[PARAMETER_NAME + 8], bias[PARAMETER_NAME + 8];
} Names;

static Names make_names(const char *format, va_list arguments) {
    Names n;
    vsnprintf(n.layer, sizeof(n.layer), format, arguments);
    snprintf(n.weight, sizeof(n.weight), "%s.weight", n.layer);
    snprintf(n.bias, sizeof(n.bias), "%s.bias", n.layer);
    return n;
}

LinearParameters add_linear(ParameterTable *table, LinearShape shape, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    const Names names = make_names(name, arguments);
    va_end(arguments);
    const bool out_in = shape.layout == WEIGHT_OUT_IN;
    LinearParameters p = {.shape = shape, .bias = NO_PARAMETER};
    p.weight = add_matrix(table, names.weight, out_in ? shape.outputs : shape.inputs,
                          out_in ? shape.inputs : shape.outputs, shape.deviation);
    parameter_mark_hidden(table);
    if (shape.bias) p.bias = add_vector(table, names.bias, shape.outputs, 0);
    return p;
}

NormParameters add_norm(ParameterTable *table, size_t channels, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    const Names names = make_names(name, arguments);
    va_end(arguments);
    return (NormParameters){.channels = channels,
                            .gain = add_vector(table, names.weight, channels, 1),
                            .bias = add_vector(table, names.bias, channels, 0),
                            .epsilon = NORM_EPSILON};
}

NormParameters add_rms_norm(ParameterTable *table, size_t channels, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    const Names names = make_names(name, arguments);
    va_end(arguments);
    return (NormParameters){.channels = channels,
                            .gain = add_vector(table, names.weight, channels, 1),
                            .bias = NO_PARAMETER,
                            .epsilon = NORM_EPSILON};
}

LinearParameters add_joined_linear(ParameterTable *table, LinearShape shape, const char *name,
                                   const char *const *parts, const size_t *sizes, size_t count) {
    LinearParameters joined = {.shape = shape, .bias = NO_PARAMETER};
    for (int rank = 2; rank >= (shape.bias ? 1 : 2); rank--) {
        const bool matrix = rank == 2;
        for (size_t part = 0; part < count; part++) {
            char full[PARAMETER_NAME + 8];
            const int64_t part_shape[] = {(int64_t)(sizes ? sizes[part] : shape.outputs / count),
                                          (int64_t)shape.inputs};
            snprintf(full, sizeof(full), "%s.%s.%s", name, parts[part], matrix ? "weight" : "bias");
            const size_t offset = (part == 0 ? parameter_add : parameter_add_adjacent)(
                table, full, rank, part_shape, matrix, 0, matrix ? shape.deviation : 0);
            if (matrix) parameter_mark_hidden(table);
            if (part == 0) *(matrix ? &joined.weight : &joined.bias) = offset;
        }
    }
    return joined;
}

NormParameters no_norm(size_t channels) {
    return (NormParameters){.channels = channels, .gain = NO_PARAMETER, .bias = NO_PARAMETER};
}

LinearParameters no_linear(void) {
    return (LinearParameters){.weight = NO_PARAMETER, .bias = NO_PARAMETER};
}
