// Token shift (RWKV, Peng et al., arXiv 2305.13048, section 3.1; here without parameters): the
// first channels of what a layer's attention reads are those of the token before; 0 for the first
// token, and after one that the mask hides. So queries, keys and values are made of two tokens.
#ifndef CPU_TOKEN_SHIFT_H
#define CPU_TOKEN_SHIFT_H

#include "gemm.h"

// In place: the first `shifted` channels of each row of x (rows, C) become those of the row before,
// in sequences of `length` rows. mask (rows): 0 where a token is hidden; or NULL.
void token_shift_forward(Matrix x, size_t shifted, const uint8_t *mask, size_t rows, size_t length);

// In place: from the gradient to the result, (rows, channels), to that to what it was made of.
void token_shift_backward(real *dx, size_t channels, size_t shifted, const uint8_t *mask,
                          size_t rows, size_t length);

#endif
