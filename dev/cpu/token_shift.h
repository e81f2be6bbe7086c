// Token shift (RWKV, Peng et al., arXiv 2305.13048, section 3.1; here without parameters): the
// first channels of attention's input come from the previous token; they are 0 for the first token
// and after a token that the mask hides. So queries, keys and values depend on two tokens.
#ifndef CPU_TOKEN_SHIFT_H
#define CPU_TOKEN_SHIFT_H

#include "gemm.h"

// In place: the first `shifted` channels of each row of x (rows, C) become those of the previous
// row, in sequences of `length` rows. mask (rows) is 0 where a token is hidden, or NULL.
void token_shift_forward(Matrix x, size_t shifted, const uint8_t *mask, size_t rows, size_t length);

// In place: turns dx (rows, channels), the gradient of the result, into the gradient of the input.
void token_shift_backward(real *dx, size_t channels, size_t shifted, const uint8_t *mask,
                          size_t rows, size_t length);

#endif
