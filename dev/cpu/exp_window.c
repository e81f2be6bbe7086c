#include "exp_window.h"

#include <string.h>
#include <tgmath.h>

enum { GLOBAL_BLOCK = 64 }; // rows; blocks keep the rounding error of global sums small at any T

static void exp_sum_clear(ExpSum *sum, size_t size) {
    sum->top = -(real)INFINITY;
    memset(sum->row, 0, size * sizeof(real));
}

void exp_sum_add(ExpSum *sum, real l, const real *row, size_t size) {
    real *restrict to = sum->row;
    if (l == -(real)INFINITY) return;
    if (l > sum->top) {
        const real scale = exp(sum->top - l);
        for (size_t d = 0; d < size; d++) to[d] *= scale;
        sum->top = l;
    }
    const real weight = exp(l - sum->top);
    if (!row) to[size - 1] += weight;
    for (size_t d = 0; row && d < size; d++) to[d] += weight * row[d];
}

ExpWindow exp_window_carve(Arena *arena, size_t largest_window, size_t size, const char *what) {
    return (ExpWindow){.size = size,
                       .tops = arena_reals(arena, largest_window + 1, 1, what),
                       .rows = arena_reals(arena, largest_window + 1, size, what),
                       .prefix.row = arena_reals(arena, 1, size, what),
                       .sum.row = arena_reals(arena, 1, size, what)};
}

static ExpSum slot(const ExpWindow *w, size_t place) {
    return (ExpSum){w->tops[place], w->rows + place * w->size};
}

void exp_window_reset(ExpWindow *w, size_t window) {
    w->window = window;
    w->place = 0;
    exp_sum_clear(&w->prefix, w->size);
    exp_sum_clear(&w->sum, w->size);
    for (size_t place = 0; place <= window; place++) {
        w->tops[place] = -(real)INFINITY;
        memset(w->rows + place * w->size, 0, w->size * sizeof(real));
    }
}

// Adds another sum to slot `place`.
static void slot_add(ExpWindow *w, size_t place, const ExpSum *other) {
    ExpSum to = slot(w, place);
    exp_sum_add(&to, other->top, other->row, w->size);
    w->tops[place] = to.top;
}

void exp_window_add(ExpWindow *w, real l, const real *row) {
    exp_sum_add(&w->prefix, l, row, w->size);
    const ExpSum rest = slot(w, w->window ? w->place + 1 : 0);
    w->sum.top = w->prefix.top;
    memcpy(w->sum.row, w->prefix.row, w->size * sizeof(real));
    exp_sum_add(&w->sum, rest.top, rest.row, w->size);
    if (w->window) {
        w->tops[w->place] = l;
        memcpy(w->rows + w->place * w->size, row, w->size * sizeof(real));
    }
    if (++w->place < (w->window ? w->window : GLOBAL_BLOCK)) return;
    if (!w->window) slot_add(w, 0, &w->prefix);
    for (size_t r = w->window; r-- > 1;) {
        const ExpSum later = slot(w, r);
        slot_add(w, r - 1, &later);
    }
    exp_sum_clear(&w->prefix, w->size);
    w->place = 0;
}
