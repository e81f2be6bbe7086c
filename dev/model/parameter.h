// The one table of a model's parameters. Initialisation, checkpoints, AdamW, gradient checks and
// statistics walk it; every array of parameters, gradients or moments is laid out by its offsets.
#ifndef MODEL_PARAMETER_H
#define MODEL_PARAMETER_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PARAMETER_MAX = 4096, PARAMETER_NAME = 96, PARAMETER_RANK = 4 };

typedef struct {
    char name[PARAMETER_NAME]; // in a checkpoint
    int rank;
    int64_t shape[PARAMETER_RANK];
    size_t size;   // elements
    size_t offset; // of the first element in the flat array, a multiple of 16
    bool decay;    // weight decay applies
    bool hidden;   // a matrix between hidden layers, which Muon may update
    bool fixed;    // it is not trained: no gradient ever reaches it
    double mean;   // initialisation: N(mean, deviation)
    double deviation;
} Parameter;

typedef struct {
    Parameter *items;
    int count;
    size_t total; // length of the flat arrays (padding between parameters included and always 0)
    size_t parameters; // what the model has, without padding and what is fixed
} ParameterTable;

// Appends a parameter and returns its offset.
size_t parameter_add(ParameterTable *table, const char *name, int rank, const int64_t *shape,
                     bool decay, double mean, double deviation);

// The same directly after the parameter added last, without padding between: the parts, under names
// of their own, of what a layer uses as one array.
size_t parameter_add_adjacent(ParameterTable *table, const char *name, int rank,
                              const int64_t *shape, bool decay, double mean, double deviation);

// Says that the parameter added last is a matrix between hidden layers.
void parameter_mark_hidden(ParameterTable *table);

// Says of the parameter added last that it is fixed.
void parameter_fix(ParameterTable *table);
void parameter_table_free(ParameterTable *table);

// NULL: no such name.
const Parameter *parameter_find(const ParameterTable *table, const char *name);

// Draws every parameter from its own stream of the seed, so that one does not depend on the others.
void parameter_initialise(const ParameterTable *table, uint64_t seed, real *values);

#endif
