// Checkpoints: weights and configuration in one safetensors file that PyTorch reads, what else a
// run needs to resume (moments, the loader's place) in a second one next to it:
//
//   DIR/step_00000640.safetensors         DIR/step_00000640.state.safetensors
//   DIR/best.safetensors                  the weights with the lowest validation loss
//
// Where Hugging Face transformers has a class for the model, DIR/config.json and the link
// DIR/model.safetensors make DIR one of its models (huggingface.h): the best weights, or the newest
// ones as long as there are no best ones.
//
// The state is written first, so weights without a state are never seen. Both hold the same id, a
// hash of weights, moments and step: files that were not saved together are refused. (It is no
// random number, as a resumed run has the bytes of one that was never interrupted.) Pairs from
// before there were ids load as they did; a file with an id next to one without has another origin.
//
// Dropout, shuffling and sampling are functions of seed and step: there is no other random state.
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H

#include "run.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t step;                // updates since the start, skipped ones too
    int64_t sequences;           // the loader's place
    double sequences_per_update; // on average, since the batch was last changed; 0: unknown
    int64_t extra_steps; // beyond those that --epochs has with today's batch; stored if not 0
    int64_t skipped;     // updates skipped because loss or gradient was not finite
    int64_t stale;       // evaluations since the best one; stored with --patience
    double seconds;      // that training took, with the time between updates; stored with
                         // --minutes, else 0
    bool evaluation_due; // this step's was left out, as a signal stopped the run; stored if so
} Progress;

// Writes the pair of a step into DIR, then removes all but the last `keep` pairs. Weights that are
// not finite end the program before anything is written. All ranks call it, rank 0 writes.
void checkpoint_save(const Run *run, const char *directory, const Progress *progress, int64_t keep);

// Writes DIR/best.safetensors, likewise, unless an attempt that was cut off left better ones.
void checkpoint_save_best(const Run *run, const char *directory, int64_t step,
                          const Evaluation *result);

// Adds what the metadata of weights say of the model and of its data.
void checkpoint_describe(const Run *run, Metadata **rows, int *count);

// Opens weights to begin with: a file, or those in a directory, a run's or one of Hugging Face's.
Safetensors *checkpoint_open_weights(const char *path);

// Gives a model more positions. Where they are looked up, rows of the embedding between the old
// ones are interpolated, its first and last row stay; ends the program where the file lacks it.
void checkpoint_extend_positions(Safetensors *file, const ModelType *type, int64_t positions);

// Opens the newest complete pair in DIR; false if there is none. Ends the program if it was not
// saved together. Needs no lock: it may be one that a run is about to remove.
bool checkpoint_open_latest(const char *directory, Checkpoint *pair);

// Ends the program if the pair with these weights is not complete, good and saved together.
void checkpoint_check_pair(const char *weights);

// The path of the weights of the complete pair that `newer` others are newer than, a fresh string;
// NULL: none.
char *checkpoint_path(const char *directory, size_t newer);

// How many complete pairs DIR holds, and whether it holds best weights.
void checkpoint_count(const char *directory, size_t *pairs, bool *best);

char *checkpoint_best_path(const char *directory);

// The validation loss stored in DIR/best.safetensors, and its step; nothing (and -1) if there are
// no such weights, no loss if they are of a step after `last` or by another text than that whose id
// is `validation` (run_data.h).
BestLoss checkpoint_best(const char *directory, int64_t last, const char *validation,
                         int64_t *step);

// Ends the program if a new run in DIR would overwrite what an earlier one left: a checkpoint, or
// weights. restarts: the run in DIR, which saved no checkpoint, begins again; then its best weights
// are no reason.
void checkpoint_refuse_used(const char *directory, bool restarts);

// Removes what a killed run of such a model may have left in DIR: states without weights,
// half-written files, pairs beyond the last `keep`.
void checkpoint_tidy(const ModelType *type, const char *directory, int64_t keep);

// Ends the program if FILE does not hold a model of this type, as its metadata say.
void checkpoint_check_type(const Safetensors *file, const ModelType *type);

// Checks the name and shape of every tensor against a model's parameters, none missing, none too
// many; ends the program otherwise.
void checkpoint_check_tensors(const Safetensors *file, const ModelType *type,
                              const ParameterTable *table);

// The same, and what else the metadata say of the model; then reads the weights, which must be
// finite.
void checkpoint_load_weights(const Safetensors *file, const Run *run);

// The mean of `count` checkpoints in the directory of a file, instead of what it holds: the newest,
// or where --init names a file those up to and including it. Ends the program where there are not
// so many.
void checkpoint_load_average(const Safetensors *file, int64_t count, const Run *run);

// Moments and progress, rank 0's for all; the run's data must be those that the state was made
// with.
void checkpoint_load_state(const Safetensors *file, const Run *run, Progress *progress);

#endif
