// Token embedding plus positions, learned or sinusoidal (Vaswani et al., "Attention Is All You
// Need", 2017).
#ifndef CPU_EMBEDDING_H
#define CPU_EMBEDDING_H

#include "dropout.h"
#include "model.h"
#include "real.h"
#include <stddef.h>

// x (B, T, C) = dropout(scale token[input] + position[t]); token (V, C), position (positions, C) or
// NULL, dropout or NULL.
void embedding_forward(real *restrict x, const real *restrict token, real scale,
                       const real *restrict position, const Batch *batch, const Dropout *dropout,
                       size_t channels);

// Adds the gradients from dx (B, T, C) to dtoken (V, C) and to dposition (positions, C; NULL if
// positions are fixed). The token `padding` (-1: none) gets no gradient. dx is overwritten. The
// result has the same bits for any number of threads.
void embedding_backward(real *restrict dtoken, real scale, real *restrict dposition,
                        real *restrict dx, const Batch *batch, const Dropout *dropout,
                        int32_t padding, size_t channels);

// position (positions, C): for position p, the sines of the angles p / 10000^(2i/C), i < C/2
// rounded up, then the cosines of the same angles, as many or one fewer. This is the order of
// Hugging Face; the paper interleaves them.
void sinusoidal_positions(real *position, size_t positions, size_t channels);

#endif
