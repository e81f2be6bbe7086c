// Running text cut into sequences of one length: order, micro-batches and evaluation for every task
// that learns from it, and sequences that are generated (recall.h). Targets are the next tokens,
// padding too; a task that predicts something else changes what it gets from here.
#ifndef TASKS_SEQUENCES_H
#define TASKS_SEQUENCES_H

#include "task.h"

// --batch, --seq-len and --total-batch
void sequences_add_options(Options *options);

typedef struct Sequences Sequences;

// As TaskType wants them (task.h); `task` is a Sequences. What they give a batch may be changed.
void *sequences_create(const TaskSetup *setup);
void sequences_destroy(void *task);
const TaskPlan *sequences_plan(const void *task);
char *sequences_describe(const void *task);
Update sequences_update(void *task, int64_t place);
void sequences_train_batch(void *task, const Update *update, int64_t i, Batch *batch);
bool sequences_evaluation_batch(void *task, SplitName split, int64_t i, Batch *batch);
int64_t sequences_evaluation_batches(const void *task, SplitName split);

// The mask (B, T) of a batch's `tokens` (B, T), good until the next one: 0 where they are padding;
// NULL: none is.
const uint8_t *sequences_mask(void *task, const Batch *batch, const int32_t *tokens);

// Targets of an update whose every sequence has targets_of(its tokens that are no padding) of them;
// at least one, so that a mean is one.
int64_t sequences_targets(void *task, const Update *update, int64_t (*targets_of)(int64_t tokens));

const Dataset *sequences_dataset(const void *task);
uint64_t sequences_seed(const void *task); // of training

#endif
