// A batch: what a task builds and a model takes.
#ifndef MODEL_BATCH_H
#define MODEL_BATCH_H

#include <stdbool.h>
#include <stdint.h>

// What the encoder of a model with two sides reads.
typedef struct {
    int64_t length;        // S; 0: the batch has one side
    const int32_t *tokens; // (B, S) in [0, V)
    const uint8_t *mask;   // (B, S) 1: token, 0: padding; NULL: all are tokens
} SourceSide;

typedef struct {
    int64_t batch, length;  // B, T
    const int32_t *inputs;  // (B, T) tokens in [0, V)
    const int32_t *targets; // (B, T) tokens to predict, -1: not counted
    const uint8_t *mask;    // (B, T) 1: token, 0: padding; NULL: all are tokens
    SourceSide source;
    uint64_t step; // of the update, and
    int64_t
        first_row; // place of row 0 in it: with the seed they determine dropout. Else in the split
    bool counts_correct; // forward() also counts the targets that were the most probable token
    bool last;           // of the update on this process: after it gradients are final
} Batch;

// Only rows first .. first+count-1 are left.
void batch_cut(Batch *batch, int64_t first, int64_t count);

#endif
