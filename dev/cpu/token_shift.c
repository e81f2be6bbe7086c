#include "token_shift.h"

#include "memory.h"
#include "row_blocks.h"
#include <stdlib.h>
#include <string.h>

// Rows `stride` bytes apart, of which the first `bytes` move by one row, up or down.
typedef struct {
    char *x;
    size_t stride, bytes, rows, length;
    const uint8_t *mask; // (rows), or NULL
    bool up;
} Shift;

// The row whose bytes move to `row`.
static size_t source_of(const Shift *s, size_t row) {
    return s->up ? row + 1 : row - 1;
}

// Whether that row is in the same sequence and the earlier of the two is not hidden.
static bool has_source(const Shift *s, size_t row) {
    const size_t second = s->up ? row + 1 : row;
    return second % s->length != 0 && (!s->mask || s->mask[second - 1]);
}

// Shifts rows begin to end. `edge` is a copy of the source of the last row written, which may be a
// row of another thread.
static void shift_block(const Shift *s, size_t begin, size_t end, const char *edge) {
    for (size_t i = 0; i < end - begin; i++) {
        const size_t row = s->up ? begin + i : end - 1 - i;
        char *to = s->x + row * s->stride;
        if (!has_source(s, row))
            memset(to, 0, s->bytes);
        else
            memcpy(to, i + 1 == end - begin ? edge : s->x + source_of(s, row) * s->stride,
                   s->bytes);
    }
}

static void shift(const Shift *s) {
    char *edges = allocate(ROW_BLOCKS, s->bytes, "token shift");
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++) {
        const size_t begin = row_block_begin(s->rows, block),
                     end = row_block_begin(s->rows, block + 1), last = s->up ? end - 1 : begin;
        if (begin < end && has_source(s, last))
            memcpy(edges + block * s->bytes, s->x + source_of(s, last) * s->stride, s->bytes);
    }
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++)
        shift_block(s, row_block_begin(s->rows, block), row_block_begin(s->rows, block + 1),
                    edges + block * s->bytes);
    free(edges);
}

void token_shift_forward(Matrix x, size_t shifted, const uint8_t *mask, size_t rows,
                         size_t length) {
    const size_t width = x.bf16 ? sizeof(uint16_t) : sizeof(real);
    const Shift down = {x.data, x.columns * width, shifted * width, rows, length, mask, false};
    shift(&down);
}

void token_shift_backward(real *dx, size_t channels, size_t shifted, const uint8_t *mask,
                          size_t rows, size_t length) {
    const size_t width = sizeof(real);
    const Shift up = {(char *)dx, channels * width, shifted * width, rows, length, mask, true};
    shift(&up);
}
