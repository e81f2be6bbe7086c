#include "batch.h"

#include <stddef.h>

void batch_cut(Batch *batch, int64_t first, int64_t count) {
    const int64_t T = batch->length, S = batch->source.length;
    batch->batch = count;
    batch->first_row += first;
    batch->inputs += first * T;
    batch->targets += first * T;
    if (batch->mask) batch->mask += first * T;
    if (S == 0) return;
    batch->source.tokens += first * S;
    if (batch->source.mask) batch->source.mask += first * S;
}
