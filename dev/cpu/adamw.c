#include "adamw.h"

#include "memory.h"
#include "sizes.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

enum { PIECE = RANKS_PIECE }; // elements that a thread processes at a time

void parameter_state_carve(ParameterState *state, Arena *arena, bool training) {
    const size_t total = state->table.total;
    state->values = arena_reals(arena, total, 1, "parameters");
    if (!training) return;
    state->gradients = arena_reals(arena, total, 1, "gradients");
    state->first_moment = arena_reals(arena, total, 1, "moments");
    state->second_moment = arena_reals(arena, total, 1, "moments");
}

void parameter_state_free(ParameterState *state) {
    parameter_table_free(&state->table);
    reduction_free(state->reduction);
    *state = (ParameterState){0};
}

real *parameter_state_array(const ParameterState *state, ModelArray which) {
    real *const arrays[] = {[MODEL_VALUES] = state->values,
                            [MODEL_GRADIENTS] = state->gradients,
                            [MODEL_FIRST_MOMENT] = state->first_moment,
                            [MODEL_SECOND_MOMENT] = state->second_moment};
    assert(arrays[which]); // without training, only values exist
    return arrays[which];
}

static double sum_of_squares(const real *x, size_t count) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

double gradient_norm(const ParameterState *state) {
    const size_t total = state->table.total, pieces = (total + PIECE - 1) / PIECE;
    double *sums = allocate(pieces, sizeof(double), "partial sums");
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < total; first += PIECE)
        sums[first / PIECE] =
            sum_of_squares(state->gradients + first, smaller(total - first, PIECE));
    double sum = 0;
    for (size_t piece = 0; piece < pieces; piece++) sum += sums[piece];
    free(sums);
    return sqrt(sum);
}

// Coefficients of all elements, with the bias corrections folded in:
// m^ / (sqrt(v^) + eps) = rate m / (sqrt(v) root + eps),
// root = 1 / sqrt(1 - b2^t), rate = 1 / (1 - b1^t).
typedef struct {
    real gradient_scale, beta1, rest1, beta2, rest2; // rest = 1 - beta
    real rate, root, epsilon, decay;                 // rate and decay include the learning rate
    real l2;                                         // l2 x is added to the gradient
} Coefficients;

static void update_piece(real *restrict x, real *restrict g, real *restrict m, real *restrict v,
                         const Coefficients *k, size_t count) {
    const Coefficients c = *k;
    for (size_t i = 0; i < count; i++) {
        const real gradient = g[i] * c.gradient_scale + c.l2 * x[i];
        const real first = c.beta1 * m[i] + c.rest1 * gradient;
        const real second = c.beta2 * v[i] + c.rest2 * gradient * gradient;
        x[i] -= c.rate * first / (sqrt(second) * c.root + c.epsilon) + c.decay * x[i];
        m[i] = first;
        v[i] = second;
        g[i] = 0;
    }
}

void adamw_update(ParameterState *state, const UpdateSettings *s) {
    const double correction1 = 1 - pow(s->beta1, (double)s->step),
                 correction2 = 1 - pow(s->beta2, (double)s->step);
    const Coefficients base = {
        .gradient_scale = (real)s->gradient_scale,
        .beta1 = (real)s->beta1,
        .rest1 = (real)(1 - s->beta1),
        .beta2 = (real)s->beta2,
        .rest2 = (real)(1 - s->beta2),
        .rate = (real)(s->learning_rate / correction1),
        .root = (real)(1 / sqrt(correction2)),
        .epsilon = (real)s->epsilon,
    };
#pragma omp parallel
    for (int i = 0; i < state->table.count; i++) {
        const Parameter *p = &state->table.items[i];
        const size_t end = p->offset + p->size;
        if (state->muon && p->hidden) continue;
        Coefficients k = base;
        if (p->decay && s->adam) k.l2 = (real)s->weight_decay;
        if (p->decay && !s->adam) k.decay = (real)(s->learning_rate * s->weight_decay);
#pragma omp for schedule(static) nowait
        for (size_t at = p->offset; at < end; at += PIECE)
            update_piece(state->values + at, state->gradients + at, state->first_moment + at,
                         state->second_moment + at, &k, smaller(end - at, PIECE));
    }
}

void gradients_clear(ParameterState *state) {
    const size_t total = state->table.total;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < total; first += PIECE)
        memset(state->gradients + first, 0, smaller(total - first, PIECE) * sizeof(real));
}
