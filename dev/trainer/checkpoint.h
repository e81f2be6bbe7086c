// Checkpoints: one safetensors file, which PyTorch can read, holds weights and configuration; a
// second one next to it holds what else a run needs to resume (moments, the position in the data):
//
//   DIR/step_00000640.safetensors         DIR/step_00000640.state.safetensors
//   DIR/best.safetensors                  the weights with the lowest validation loss
//
// If Hugging Face transformers has a class for the model, DIR/config.json and the link
// DIR/model.safetensors make DIR a transformers model (huggingface.h), with the best weights, or
// with the newest ones as long as there are no best ones.
//
// The state is written first, so there are never weights without a state. Both files hold the same
// id, a hash of weights, moments and step: files that were not saved together are rejected. (The id
// is not random, as a resumed run writes the same bytes as an uninterrupted one.) Pairs from
// versions without ids still load; a file with an id next to one without is rejected.
//
// Dropout, shuffling and sampling are functions of seed and step: there is no other random state.
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H

#include "run.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t step;                // updates since the start, including skipped ones
    int64_t sequences;           // sequences since the start: the position in the data
    double sequences_per_update; // on average, since the batch was last changed; 0: unknown
    int64_t extra_steps;         // beyond --epochs at the present batch size; stored if not 0
    int64_t skipped;             // updates skipped because loss or gradient was not finite
    int64_t stale;               // evaluations since the best one; stored with --patience
    double seconds;              // training time, including that between updates; stored with
                                 // --minutes, else 0
    bool evaluation_due;         // a signal prevented this step's; stored if so
} Progress;

// Writes the pair of a step to DIR, then removes all but the last `keep` pairs. Exits with an error
// before it writes anything if a weight is not finite. All ranks call it; rank 0 writes.
void checkpoint_save(const Run *run, const char *directory, const Progress *progress, int64_t keep);

// Writes DIR/best.safetensors after the same check, unless an interrupted attempt left better
// weights.
void checkpoint_save_best(const Run *run, const char *directory, int64_t step,
                          const Evaluation *result);

// Adds the metadata that describe the model and its data.
void checkpoint_describe(const Run *run, Metadata **rows, int *count);

// Opens initial weights: a file, or those in the directory of a run or of a Hugging Face model.
Safetensors *checkpoint_open_weights(const char *path);

// Gives a model more positions. If it has a position embedding, its rows are interpolated; the
// first and the last row stay. Exits with an error if the embedding has another number of rows.
void checkpoint_extend_positions(Safetensors *file, const ModelType *type, int64_t positions);

// Opens the newest complete pair in DIR. Returns false if there is none. Exits with an error if its
// files were not saved together. Needs no lock: a run may remove the pair meanwhile.
bool checkpoint_open_latest(const char *directory, Checkpoint *pair);

// Exits with an error if the pair with these weights is incomplete, damaged or not saved together.
void checkpoint_check_pair(const char *weights);

// Returns the path, newly allocated, of the weights of the complete pair that has `newer` newer
// ones; NULL if there is none.
char *checkpoint_path(const char *directory, size_t newer);

// Counts the complete pairs in DIR, and finds whether it holds best weights.
void checkpoint_count(const char *directory, size_t *pairs, bool *best);

char *checkpoint_best_path(const char *directory);

// Returns the validation loss stored in DIR/best.safetensors, and its step, which is -1 if there is
// no such file. There is no loss without the file, if its step is after `last`, or if its
// validation text has another id than `validation` (run_data.h).
BestLoss checkpoint_best(const char *directory, int64_t last, const char *validation,
                         int64_t *step);

// Exits with an error if a new run in DIR would overwrite a checkpoint or weights of an earlier
// run. restarts: the run in DIR, which saved no checkpoint, starts over; its best weights are then
// accepted.
void checkpoint_refuse_used(const char *directory, bool restarts);

// Removes what a killed run of such a model may have left in DIR: states without weights, partially
// written files, all pairs but the last `keep`.
void checkpoint_tidy(const ModelType *type, const char *directory, int64_t keep);

// Exits with an error unless the metadata of FILE name a model of this type.
void checkpoint_check_type(const Safetensors *file, const ModelType *type);

// Checks the name and shape of every tensor against a model's parameters. Exits with an error if a
// tensor is missing, unknown or of another shape.
void checkpoint_check_tensors(const Safetensors *file, const ModelType *type,
                              const ParameterTable *table);

// Checks the tensors and the metadata that describe the model, then loads the weights, which must
// be finite.
void checkpoint_load_weights(const Safetensors *file, const Run *run);

// Loads the mean of `count` checkpoints in the directory of a file, instead of the file: the newest
// ones, or, if --init names a file, those up to and including it. Exits with an error if there are
// fewer.
void checkpoint_load_average(const Safetensors *file, int64_t count, const Run *run);

// Loads moments and progress, rank 0's on all ranks. The run's data must be those that the state
// was saved with.
void checkpoint_load_state(const Safetensors *file, const Run *run, Progress *progress);

#endif
