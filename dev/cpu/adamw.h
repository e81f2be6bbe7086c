// A model's parameters on the CPU, and AdamW (Loshchilov and Hutter 2019) over them.
#ifndef CPU_ADAMW_H
#define CPU_ADAMW_H

#include "arena.h"
#include "model.h"
#include "parameter.h"
#include "real.h"

typedef struct {
    ParameterTable table;
    bool muon;                          // hidden matrices are left to Muon (muon.h)
    Reduction *reduction;               // sums gradients over ranks; NULL: there is one
    real *values, *gradients;           // (total); gradients NULL without training
    real *first_moment, *second_moment; // (total); NULL likewise
} ParameterState;

// The arrays of the finished table in `state`, which parameter_state_free() frees, as it does the
// reduction (NULL: none).
void parameter_state_carve(ParameterState *state, Arena *arena, bool training);
void parameter_state_free(ParameterState *state);

// An array (total).
real *parameter_state_array(const ParameterState *state, ModelArray which);

// Euclidean norm of all gradients, accumulated in double; the same bits for any number of threads.
double gradient_norm(const ParameterState *state);

// One update of every parameter that is not left to Muon, in one pass over memory, then gradients =
// 0. AdamW (Loshchilov and Hutter 2019, algorithm 2):
//   g *= gradient_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
//   x -= lr (m^ / (sqrt(v^) + eps) + decay x)
// Adam (Kingma and Ba 2015) has decay x in g instead, as torch.optim.Adam.
void adamw_update(ParameterState *state, const UpdateSettings *settings);

void gradients_clear(ParameterState *state);

#endif
