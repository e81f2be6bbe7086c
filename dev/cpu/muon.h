// Muon (Jordan et al. 2024): orthogonalised momentum for the hidden matrices of a model.
#ifndef CPU_MUON_H
#define CPU_MUON_H

#include "adamw.h"
#include "gemm.h"

typedef struct Muon Muon;

// Working memory per thread to update the hidden matrices of a table. Products have the precision
// of `gemm`, which must outlive it.
Muon *muon_create(Gemm *gemm, const ParameterTable *table);
void muon_carve(Muon *muon, Arena *arena); // carves its arrays
void muon_free(Muon *muon);

// Updates every hidden matrix x (R, K) and then sets its gradient to 0, as torch.optim.Muon does
// with nesterov=True and adjust_lr_fn="match_rms_adamw" (Liu et al. 2025), so that AdamW's learning
// rate and weight decay can be used:
//
//   g *= gradient_scale; m += (1 - momentum) (g - m); o = orthogonal(g + momentum (m - g))
//   x -= lr (0.2 sqrt(max(R, K)) o + decay x)
//
// m is the state's first moment; the second stays 0. orthogonal() divides the matrix by its norm
// and applies five Newton-Schulz steps. Each maps the singular values s to 3.4445 s - 4.775 s^3 +
// 2.0315 s^5, which brings them near 1. The result has the same bits for any number of threads.
void muon_update(Muon *muon, ParameterState *state, const UpdateSettings *settings);

#endif
