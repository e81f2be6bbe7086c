// Products of bf16 matrices in the tile registers of processors with AMX (Xeons since Sapphire
// Rapids): each instruction multiplies 16 x 32 numbers with 32 x 16 and adds to 16 x 16 float32
// sums. Part of builds for AVX512-BF16, whose operands (tile.h) it reads, as every processor with
// AMX has that, too.
#ifndef CPU_AMX_H
#define CPU_AMX_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>

// Sizes of products are multiples of these: rows and columns of a block, words that are summed
// over.
enum { AMX_BLOCK = 32, AMX_WORDS = 16 };

// Whether the processor has these registers and the kernel lets this process use them, which it
// requests.
bool amx_available(void);

// A thread's products are between these two calls. Others' code that uses the registers does not.
void amx_begin(void);
void amx_end(void);

// Element (i, j) of a left operand is data[i * row + j * column].
typedef struct {
    const real *data;
    size_t row, column;
} TileView;

// c (m, n) = start + a (m, k) b (k, n), k in words of two bf16, as tile_product(). Where a's rows
// are 1 apart, it is what tile_transpose_squares() makes of that. What is read or becomes subnormal
// is 0.
void amx_product(real *c, size_t c_row, const real *start, size_t start_row, TileView a,
                 const real *b, size_t b_row, size_t m, size_t n, size_t k);

#endif
