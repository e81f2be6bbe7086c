// Token embedding plus learned positions.
#ifndef CPU_EMBEDDING_H
#define CPU_EMBEDDING_H

#include "dropout.h"
#include "model.h"
#include "real.h"
#include <stddef.h>

// x (B, T, C) = dropout(token[input] + position[t]); token (V, C), position (positions, C). dropout NULL:
// none.
void embedding_forward(real *restrict x, const real *restrict token, const real *restrict position,
                       const Batch *batch, const Dropout *dropout, size_t channels);

// dtoken (V, C) +=, dposition (positions, C) +=, from dx (B, T, C); `padding` (-1: none) takes no gradient.
// The same bits for any number of threads. dx is overwritten.
void embedding_backward(real *restrict dtoken, real *restrict dposition, real *restrict dx,
                        const Batch *batch, const Dropout *dropout, int32_t padding, size_t channels);

#endif
