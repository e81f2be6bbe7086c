// A model's parameters on the CPU, and AdamW (Loshchilov and Hutter 2019) to update them.
#ifndef CPU_ADAMW_H
#define CPU_ADAMW_H

#include "arena.h"
#include "model.h"
#include "parameter.h"
#include "real.h"

typedef struct {
    ParameterTable table;
    bool muon;                          // Muon updates the hidden matrices (muon.h)
    Reduction *reduction;               // sums gradients over ranks; NULL: only one rank
    real *values, *gradients;           // (total); gradients NULL without training
    real *first_moment, *second_moment; // (total); also NULL without training
} ParameterState;

// Carves the arrays of a complete state->table. parameter_state_free() frees the table and the
// reduction, which may be NULL.
void parameter_state_carve(ParameterState *state, Arena *arena, bool training);
void parameter_state_free(ParameterState *state);

// Returns one of the arrays (total).
real *parameter_state_array(const ParameterState *state, ModelArray which);

// Returns the Euclidean norm of all gradients, summed in double precision. The result has the same
// bits for any number of threads.
double gradient_norm(const ParameterState *state);

// Updates all parameters except those of Muon, and sets the gradients to 0, in one pass over
// memory. AdamW (Loshchilov and Hutter 2019, algorithm 2):
//   g *= gradient_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
//   x -= lr (m^ / (sqrt(v^) + eps) + decay x)
// Adam (Kingma and Ba 2015) adds decay x to g instead, like torch.optim.Adam.
void adamw_update(ParameterState *state, const UpdateSettings *settings);

void gradients_clear(ParameterState *state);

#endif
