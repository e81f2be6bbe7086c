// Running text cut into sequences of one length: order, micro-batches and evaluation for all tasks
// that learn from it, and generated sequences (recall.h). Targets are the next tokens, including
// padding; a task that predicts something else changes the batches made here.
#ifndef TASKS_SEQUENCES_H
#define TASKS_SEQUENCES_H

#include "task.h"

// Adds --batch, --seq-len, --total-batch and --offsets.
void sequences_add_options(Options *options);

typedef struct Sequences Sequences;

// Implement TaskType (task.h); `task` is a Sequences. Callers may change the batches they return.
void *sequences_create(const TaskSetup *setup);
void sequences_destroy(void *task);
const TaskPlan *sequences_plan(const void *task);
char *sequences_describe(const void *task);
Update sequences_update(void *task, int64_t place);
void sequences_train_batch(void *task, const Update *update, int64_t i, Batch *batch);
bool sequences_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch);
int64_t sequences_evaluation_batches(const void *task, SplitName split);

// Returns the mask (B, T) of a batch's `tokens` (B, T), with 0 for padding; NULL if there is no
// padding. It is valid until the next call.
const uint8_t *sequences_mask(void *task, const Batch *batch, const int32_t *tokens);

// Returns the number of targets of an update, in which each sequence has targets_of(its tokens
// without padding) of them; at least 1, so that the mean is defined.
int64_t sequences_targets(void *task, const Update *update, int64_t (*targets_of)(int64_t tokens));

const Dataset *sequences_dataset(const void *task);
uint64_t sequences_seed(const void *task); // the training seed

#endif
