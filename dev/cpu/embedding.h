// Token embedding plus positions, learned or sinusoidal (Vaswani et al., "Attention Is All You
// Need", 2017).
#ifndef CPU_EMBEDDING_H
#define CPU_EMBEDDING_H

#include "dropout.h"
#include "model.h"
#include "real.h"
#include <stddef.h>

// x (B, T, C) = dropout(scale token[input] + position[t]); token (V, C), position (positions, C).
// dropout NULL: none.
void embedding_forward(real *restrict x, const real *restrict token, real scale,
                       const real *restrict position, const Batch *batch, const Dropout *dropout,
                       size_t channels);

// dtoken (V, C) +=, dposition (positions, C) +=, or NULL: fixed; from dx (B, T, C). `padding` (-1:
// none) takes no gradient. The same bits for any number of threads. dx is overwritten.
void embedding_backward(real *restrict dtoken, real scale, real *restrict dposition,
                        real *restrict dx, const Batch *batch, const Dropout *dropout,
                        int32_t padding, size_t channels);

// position (positions, C) of position p: sin(p / 10000^(2i/C)) for i < C/2, rounded up, then as
// many or one fewer cosines of the same, as Hugging Face orders them (the paper interleaves them).
void sinusoidal_positions(real *position, size_t positions, size_t channels);

#endif
