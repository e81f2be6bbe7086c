// Muon compared with torch.optim.Muon in float64 (dev/reference/check_muon.py).
#include "memory.h"
#include "muon.h"
#include "safetensors.h"
#include "test.h"
#include "threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REFERENCE "dev/reference/muon.safetensors"
static const char *const names[] = {"wide", "tall", "square", "row", "low_rank"};
enum { MATRICES = 5 };

typedef struct {
    Arena *arena;
    Gemm *gemm;
    Muon *muon;
    ParameterState state;
} Setup;

static void setup_carve(Setup *s) {
    parameter_state_carve(&s->state, s->arena, true);
    muon_carve(s->muon, s->arena);
}

static Setup setup_create(ParameterTable table, Precision precision) {
    Setup s = {.arena = arena_create(), .gemm = gemm_create(precision)};
    s.state.table = table;
    s.state.muon = true;
    s.muon = muon_create(s.gemm, &s.state.table);
    ARENA_CARVE(s.arena, setup_carve(&s));
    return s;
}

static void setup_free(Setup *s) {
    muon_free(s->muon);
    gemm_free(s->gemm);
    parameter_state_free(&s->state);
    arena_free(s->arena);
}

static void add_hidden(ParameterTable *table, const char *name, int64_t rows, int64_t columns) {
    parameter_add(table, name, 2, (int64_t[]){rows, columns}, true, 0, 0.1);
    parameter_mark_hidden(table);
}

static const Tensor *tensor_of(const Safetensors *file, const char *name, const char *suffix) {
    char *full = format_string("%s%s", name, suffix);
    const Tensor *tensor = safetensors_find(file, full);
    if (!tensor) test_fail(__FILE__, __LINE__, "%s is not in the file", full);
    free(full);
    return tensor;
}

// Runs the file's steps and compares the final matrices with the file's.
static void check_reference(Precision precision, double tolerance) {
    Safetensors *file = safetensors_open(REFERENCE);
    ParameterTable table = {0};
    for (int i = 0; i < MATRICES; i++) {
        const Tensor *tensor = tensor_of(file, names[i], "");
        add_hidden(&table, names[i], tensor->shape[0], tensor->shape[1]);
    }
    Setup s = setup_create(table, precision);
    ParameterState *state = &s.state;
    const int64_t steps = safetensors_integer(file, "steps", 1, 100);
    real *gradients[MATRICES], *scales = allocate((size_t)steps, sizeof(real), "scales");
    tensor_read_real(file, tensor_of(file, "scale", ""), scales);
    for (int i = 0; i < MATRICES; i++) {
        const Parameter *p = &state->table.items[i];
        gradients[i] = allocate((size_t)steps * p->size, sizeof(real), "gradients");
        tensor_read_real(file, tensor_of(file, names[i], ""), state->values + p->offset);
        tensor_read_real(file, tensor_of(file, names[i], ".grad"), gradients[i]);
    }
    for (int64_t step = 0; step < steps; step++) {
        for (int i = 0; i < MATRICES; i++) {
            const Parameter *p = &state->table.items[i];
            memcpy(state->gradients + p->offset, gradients[i] + (size_t)step * p->size,
                   p->size * sizeof(real));
        }
        muon_update(s.muon, state,
                    &(UpdateSettings){.learning_rate = safetensors_number(file, "lr"),
                                      .weight_decay = safetensors_number(file, "weight_decay"),
                                      .gradient_scale = (double)scales[step],
                                      .step = step + 1});
    }
    for (int i = 0; i < MATRICES; i++) {
        const Parameter *p = &state->table.items[i];
        double *expected = allocate(p->size, sizeof(double), "expected"), error = 0, norm = 0;
        tensor_read_double(file, tensor_of(file, names[i], ".final"), expected);
        for (size_t j = 0; j < p->size; j++) {
            error += pow((double)state->values[p->offset + j] - expected[j], 2);
            norm += expected[j] * expected[j];
        }
        if (!(sqrt(error / norm) <= tolerance))
            test_fail(__FILE__, __LINE__, "%s is off by %.1e, allowed %.0e", names[i],
                      sqrt(error / norm), tolerance);
        free(expected);
        free(gradients[i]);
    }
    for (size_t i = 0; i < state->table.total; i++)
        CHECK(state->gradients[i] == 0 && state->second_moment[i] == 0);
    free(scales);
    setup_free(&s);
    safetensors_close(file);
}

static void test_reference(void) {
    check_reference(PRECISION_FLOAT32, sizeof(real) == sizeof(double) ? 1e-12 : 1e-5);
}

static void test_bf16(void) {
    if (sizeof(real) == sizeof(float) && gemm_supports(PRECISION_BFLOAT16))
        check_reference(PRECISION_BFLOAT16, 5e-3);
}

// Returns the parameters after a few steps on random gradients with this many threads.
static real *train(int threads, size_t *total) {
    test_set_threads(threads);
    ParameterTable table = {0};
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof(name), "m%d", i);
        add_hidden(&table, name, i % 2 ? 40 : 150, i % 2 ? 130 : 40);
    }
    parameter_add(&table, "embedding", 2, (int64_t[]){30, 40}, true, 0, 1);
    Setup s = setup_create(table, PRECISION_FLOAT32);
    parameter_initialise(&s.state.table, 3, s.state.values);
    for (int64_t step = 1; step <= 3; step++) {
        parameter_initialise(&s.state.table, (uint64_t)step, s.state.gradients);
        muon_update(s.muon, &s.state,
                    &(UpdateSettings){0.01, 0.9, 0.9, 1e-8, 0.1, 0.5, step, false});
    }
    *total = s.state.table.total;
    real *values = allocate(*total, sizeof(real), "values");
    memcpy(values, s.state.values, *total * sizeof(real));
    setup_free(&s);
    return values;
}

static void test_threads(void) {
    size_t total;
    real *one = train(1, &total), *two = train(2, &total), *many = train(7, &total);
    CHECK(memcmp(one, two, total * sizeof(real)) == 0 &&
          memcmp(one, many, total * sizeof(real)) == 0);
    free(one), free(two), free(many);
}

// AdamW leaves the hidden matrices alone, Muon all else; a gradient of 0 applies only the decay.
static void test_shares(void) {
    ParameterTable table = {0};
    add_hidden(&table, "hidden", 5, 3);
    parameter_add(&table, "embedding", 2, (int64_t[]){4, 3}, true, 0, 1);
    Setup s = setup_create(table, PRECISION_FLOAT32);
    ParameterState *state = &s.state;
    const Parameter *hidden = &state->table.items[0], *embedding = &state->table.items[1];
    parameter_initialise(&state->table, 1, state->values);
    parameter_initialise(&state->table, 2, state->gradients);
    const UpdateSettings settings = {0.01, 0.9, 0.99, 1e-8, 0, 1, 1, false};
    const real h = state->values[hidden->offset], e = state->values[embedding->offset];
    adamw_update(state, &settings);
    CHECK(state->values[hidden->offset] == h && state->values[embedding->offset] != e);
    CHECK(state->gradients[hidden->offset] != 0 && state->gradients[embedding->offset] == 0);
    const real after = state->values[embedding->offset];
    muon_update(s.muon, state, &settings);
    CHECK(state->values[hidden->offset] != h && state->values[embedding->offset] == after);
    CHECK(state->gradients[hidden->offset] == 0);

    memset(state->first_moment, 0, state->table.total * sizeof(real));
    const real before = state->values[hidden->offset];
    muon_update(s.muon, state, &(UpdateSettings){0.01, 0.9, 0.99, 1e-8, 0.5, 1, 1, false});
    CHECK_CLOSE(state->values[hidden->offset], before * (1 - 0.005), 1e-7);
    setup_free(&s);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"reference", test_reference},
                                     {"bf16", test_bf16},
                                     {"threads", test_threads},
                                     {"shares", test_shares}};
    return test_main(argc, argv, "muon", cases, sizeof(cases) / sizeof(cases[0]));
}
