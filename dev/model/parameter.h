// The table of a model's parameters. Initialisation, checkpoints, AdamW, gradient checks and
// statistics iterate over it. Its offsets define the layout of all arrays of parameters, gradients
// and moments.
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
    size_t offset; // in the flat array; a multiple of 16 after parameter_add()
    bool decay;    // weight decay applies
    bool hidden;   // a matrix between hidden layers, for which Muon may be used
    bool fixed;    // not trained: it never gets a gradient
    double mean;   // initialisation: N(mean, deviation)
    double deviation;
} Parameter;

typedef struct {
    Parameter *items;
    int count;
    size_t total;      // length of the flat arrays, including padding, which is always 0
    size_t parameters; // number of trained parameters, without padding
} ParameterTable;

// Appends a parameter and returns its offset.
size_t parameter_add(ParameterTable *table, const char *name, int rank, const int64_t *shape,
                     bool decay, double mean, double deviation);

// Appends a parameter directly after the last one, without padding: for named parts that a layer
// uses as one array.
size_t parameter_add_adjacent(ParameterTable *table, const char *name, int rank,
                              const int64_t *shape, bool decay, double mean, double deviation);

// Marks the last parameter as a matrix between hidden layers.
void parameter_mark_hidden(ParameterTable *table);

// Marks the last parameter as fixed.
void parameter_fix(ParameterTable *table);
void parameter_table_free(ParameterTable *table);

// Returns NULL if the name does not exist.
const Parameter *parameter_find(const ParameterTable *table, const char *name);

// Draws every parameter from its own random stream, so that it does not depend on the others.
void parameter_initialise(const ParameterTable *table, uint64_t seed, real *values);

#endif
