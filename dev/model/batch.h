// A batch: built by a task, read by a model.
#ifndef MODEL_BATCH_H
#define MODEL_BATCH_H

#include <stdbool.h>
#include <stdint.h>

// The input of the encoder, in a model with an encoder and a decoder.
typedef struct {
    int64_t length;        // S; 0: no source side
    const int32_t *tokens; // (B, S) in [0, V)
    const uint8_t *mask;   // (B, S) 1: token, 0: padding; NULL: all are tokens
} SourceSide;

typedef struct {
    int64_t batch, length;  // B, T
    const int32_t *inputs;  // (B, T) tokens in [0, V)
    const int32_t *targets; // (B, T) tokens to predict, -1: not counted
    const uint8_t *mask;    // (B, T) 1: token, 0: padding; NULL: all are tokens
    SourceSide source;
    // The number of the update and the index of row 0 in it (evaluation: in the split). With the
    // seed they determine dropout.
    uint64_t step;
    int64_t first_row;
    bool counts_correct; // forward() also counts targets that were the most probable token
    bool last;           // last batch of the update in this process: gradients are final after it
} Batch;

// Reduces the batch to rows first .. first+count-1.
void batch_cut(Batch *batch, int64_t first, int64_t count);

#endif
