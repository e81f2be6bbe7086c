#include "parameter.h"
#include "error.h"
#include "memory.h"
#include "random.h"
#include <stdlib.h>
#include <string.h>

// parameter_add() starts every parameter on a cache line (16 floats).
enum { OFFSET_MULTIPLE = 16 };

// Number of elements that a thread initialises at a time.
enum { INITIALISE_CHUNK = 1 << 14 };

// Returns the number of elements of a shape.
static size_t shape_size(const char *name, int rank, const int64_t *shape) {
    size_t size = 1;
    if (rank < 1 || rank > PARAMETER_RANK)
        fail("parameter %s: rank %d, expected 1 to %d", name, rank, PARAMETER_RANK);
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1)
            fail("parameter %s: dimension %d is %lld, expected at least 1", name, i,
                 (long long)shape[i]);
        if (__builtin_mul_overflow(size, (size_t)shape[i], &size) ||
            size > PTRDIFF_MAX / sizeof(double))
            fail("parameter %s: too many elements", name);
    }
    return size;
}

static size_t add_at(ParameterTable *table, size_t offset, const char *name, int rank,
                     const int64_t *shape, bool decay, double mean, double deviation) {
    if (strlen(name) >= PARAMETER_NAME)
        fail("parameter %s: the name is longer than %d bytes", name, PARAMETER_NAME - 1);
    if (parameter_find(table, name)) fail("parameter %s: added twice", name);
    const size_t size = shape_size(name, rank, shape);
    if (size > PTRDIFF_MAX / sizeof(double) - offset - OFFSET_MULTIPLE)
        fail("parameter %s: too many elements in all", name);
    if (table->count == PARAMETER_MAX) fail("more than %d parameters", PARAMETER_MAX);
    table->items = grow_list(table->items, (size_t)table->count, sizeof(Parameter), "parameters");
    Parameter *p = &table->items[table->count];
    *p = (Parameter){.rank = rank,
                     .size = size,
                     .offset = offset,
                     .decay = decay,
                     .mean = mean,
                     .deviation = deviation};
    memcpy(p->name, name, strlen(name) + 1);
    memcpy(p->shape, shape, (size_t)rank * sizeof(int64_t));
    table->count++;
    table->total = (offset + size + OFFSET_MULTIPLE - 1) / OFFSET_MULTIPLE * OFFSET_MULTIPLE;
    table->parameters += size;
    return offset;
}

size_t parameter_add(ParameterTable *table, const char *name, int rank, const int64_t *shape,
                     bool decay, double mean, double deviation) {
    return add_at(table, table->total, name, rank, shape, decay, mean, deviation);
}

size_t parameter_add_adjacent(ParameterTable *table, const char *name, int rank,
                              const int64_t *shape, bool decay, double mean, double deviation) {
    const Parameter *last = &table->items[table->count - 1];
    return add_at(table, last->offset + last->size, name, rank, shape, decay, mean, deviation);
}

void parameter_mark_hidden(ParameterTable *table) {
    table->items[table->count - 1].hidden = true;
}

void parameter_fix(ParameterTable *table) {
    Parameter *last = &table->items[table->count - 1];
    last->fixed = true;
    table->parameters -= last->size;
}

void parameter_table_free(ParameterTable *table) {
    free(table->items);
    *table = (ParameterTable){0};
}

const Parameter *parameter_find(const ParameterTable *table, const char *name) {
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->items[i].name, name) == 0) return &table->items[i];
    return NULL;
}

// Initialises elements first .. first+count-1 of the i-th parameter.
static void initialise(const ParameterTable *table, int i, uint64_t seed, size_t first,
                       size_t count, real *values) {
    const Parameter *p = &table->items[i];
    Random random = random_stream(seed, RANDOM_INIT, (uint32_t)i, 0);
    random_seek(&random, first);
    for (size_t j = first; j < first + count; j++)
        values[p->offset + j] =
            (real)(p->deviation == 0 ? p->mean : p->mean + p->deviation * random_normal(&random));
}

void parameter_initialise(const ParameterTable *table, uint64_t seed, real *values) {
    memset(values, 0, table->total * sizeof(real)); // the padding
    for (int i = 0; i < table->count; i++) {
        const size_t size = table->items[i].size;
#pragma omp parallel for schedule(static) if (size > INITIALISE_CHUNK)
        for (size_t first = 0; first < size; first += INITIALISE_CHUNK)
            initialise(table, i, seed, first,
                       size - first < INITIALISE_CHUNK ? size - first : INITIALISE_CHUNK, values);
    }
}
