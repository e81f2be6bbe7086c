// Muon (Jordan et al. 2024): momentum, made orthogonal, for the hidden matrices of a model.
#ifndef CPU_MUON_H
#define CPU_MUON_H

#include "adamw.h"
#include "gemm.h"

typedef struct Muon Muon;

// What an update of the hidden matrices of a table works in, for each thread. Products are of
// `gemm`'s precision, which must outlive it.
Muon *muon_create(Gemm *gemm, const ParameterTable *table);
void muon_carve(Muon *muon, Arena *arena); // its arrays
void muon_free(Muon *muon);

// One update of every hidden matrix x (R, K), then its gradient = 0, as torch.optim.Muon does with
// nesterov=True and adjust_lr_fn="match_rms_adamw" (Liu et al. 2025), so that learning rate and
// decay are AdamW's:
//
//   g *= gradient_scale; m += (1 - momentum) (g - m); o = orthogonal(g + momentum (m - g))
//   x -= lr (0.2 sqrt(max(R, K)) o + decay x)
//
// m is the state's first moment; the second stays 0. orthogonal() are five Newton-Schulz steps on
// the matrix divided by its norm, of the polynomial 3.4445 s - 4.775 s^3 + 2.0315 s^5 of its
// singular values, which brings them near 1. The same bits for any number of threads.
void muon_update(Muon *muon, ParameterState *state, const UpdateSettings *settings);

#endif
