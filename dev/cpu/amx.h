// Products of bf16 matrices in the tile registers of processors with AMX (Xeons since Sapphire
// Rapids). Each instruction multiplies 16 x 32 numbers by 32 x 16 and adds to 16 x 16 float32 sums.
// Built only for AVX512-BF16, which every processor with AMX has, and with the same operands
// (tile.h).
#ifndef CPU_AMX_H
#define CPU_AMX_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>

// The sizes of a product are multiples of these: rows and columns of a block, and words along the
// dimension that is summed.
enum { AMX_BLOCK = 32, AMX_WORDS = 16 };

// Returns whether the processor has these registers and the kernel allows this process to use them.
// Requests that permission.
bool amx_available(void);

// A thread calls amx_begin() before its products and amx_end() after them. No other code that uses
// the registers may run in between.
void amx_begin(void);
void amx_end(void);

// Element (i, j) of a left operand is data[i * row + j * column].
typedef struct {
    const real *data;
    size_t row, column;
} TileView;

// c (m, n) = start + a (m, k) b (k, n), with k in words of two bf16, like tile_product(). If rows
// of `a` are 1 apart, `a` is an output of tile_transpose_squares(). Subnormal inputs and results
// become 0.
void amx_product(real *c, size_t c_row, const real *start, size_t start_row, TileView a,
                 const real *b, size_t b_row, size_t m, size_t n, size_t k);

#endif
