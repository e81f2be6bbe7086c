// Sums over windows of rows that exp(l) weights, where nothing bounds l: what additive attention
// with plain scores pools. A sum is kept as exp(top) times a row, top its largest l, so that no
// exponential leaves its range; where the top rises, the row is scaled down. Blocks and suffixes
// are those of the bounded scores' sums (additive_attention.c): nothing is subtracted.
#ifndef CPU_EXP_WINDOW_H
#define CPU_EXP_WINDOW_H

#include "arena.h"
#include "real.h"
#include <stddef.h>

// exp(top) row (n); nothing in it yet: top is -INFINITY.
typedef struct {
    real top, *row;
} ExpSum;

typedef struct {
    size_t window, place; // k, 0: global; rows of the current block so far
    size_t size;          // n numbers of a row
    // Slot r holds row r of the current block once it has come, and until then the sum of rows r ..
    // k-1 of the block before; slot k stays empty. Global: slot 0 is the sum of all blocks before.
    real *tops, *rows; // (k+1), (k+1, n)
    ExpSum prefix;     // of the current block's rows
    ExpSum sum;        // of the window of the row that came last; at first empty
} ExpWindow;

ExpWindow exp_window_carve(Arena *arena, size_t largest_window, size_t size, const char *what);

// Starts a sequence.
void exp_window_reset(ExpWindow *w, size_t window);

// Takes a row (n) with its l (-INFINITY: it does not count), after which w->sum is its window's.
void exp_window_add(ExpWindow *w, real l, const real *row);

// sum += exp(l) row (n); row NULL: only its last number, 1, is not 0.
void exp_sum_add(ExpSum *sum, real l, const real *row, size_t size);

#endif
