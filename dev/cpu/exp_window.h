// Windowed sums of rows weighted by exp(l), for unbounded l: the pooling of additive attention with
// plain scores. A sum is stored as exp(top) times a row, where top is its largest l, so that no
// exponential leaves its range; when top rises, the row is scaled down. Blocks and suffixes are
// used as for bounded scores (additive_attention.c): nothing is subtracted.
#ifndef CPU_EXP_WINDOW_H
#define CPU_EXP_WINDOW_H

#include "arena.h"
#include "real.h"
#include <stddef.h>

// The sum exp(top) row (n). top is -INFINITY while the sum is empty.
typedef struct {
    real top, *row;
} ExpSum;

typedef struct {
    size_t window, place; // k (0: global); rows in the current block so far
    size_t size;          // n, numbers per row
    // Slot r holds row r of the current block once that row is added; until then, the sum of rows r
    // .. k-1 of the previous block. Slot k stays empty. Global: slot 0 is the sum of all previous
    // blocks.
    real *tops, *rows; // (k+1), (k+1, n)
    ExpSum prefix;     // of the current block's rows
    ExpSum sum;        // of the last added row's window; initially empty
} ExpWindow;

ExpWindow exp_window_carve(Arena *arena, size_t largest_window, size_t size, const char *what);

// Starts a sequence. window 0: global.
void exp_window_reset(ExpWindow *w, size_t window);

// Adds a row (n) with its l (-INFINITY: the row does not count) and sets w->sum to the sum of its
// window.
void exp_window_add(ExpWindow *w, real l, const real *row);

// sum += exp(l) row (n). row NULL: all zeros except the last number, which is 1.
void exp_sum_add(ExpSum *sum, real l, const real *row, size_t size);

#endif
