// Sums over rows that are divided among threads, such as bias gradients. Rows are divided into
// blocks, independent of the number of threads. Each block has its own partial sums, which are
// added in order, so the result has the same bits for any number of threads.
#ifndef CPU_ROW_BLOCKS_H
#define CPU_ROW_BLOCKS_H

#include "real.h"
#include <stddef.h>

enum { ROW_BLOCKS = 64 };

// First row of a block; the first row of block ROW_BLOCKS is m. Blocks may be empty if there are
// few rows.
static inline size_t row_block_begin(size_t m, size_t block) {
    return m / ROW_BLOCKS * block + m % ROW_BLOCKS * block / ROW_BLOCKS;
}

// sum (columns) += partial (parts, columns), over parts
static inline void row_parts_add(real *restrict sum, const real *restrict partial, size_t parts,
                                 size_t columns) {
    for (size_t part = 0; part < parts; part++)
        for (size_t c = 0; c < columns; c++) sum[c] += partial[part * columns + c];
}

// sum (columns) += partial (ROW_BLOCKS, columns), over blocks
static inline void row_blocks_add(real *restrict sum, const real *restrict partial,
                                  size_t columns) {
    row_parts_add(sum, partial, ROW_BLOCKS, columns);
}

#endif
