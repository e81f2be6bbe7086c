// A run: a model at work on a data set, and what the trainer does with it.
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H

#include "dataset.h"
#include "log.h"
#include "model.h"
#include "options.h"
#include "positions.h"
#include "ranks.h"
#include "safetensors.h"
#include "task.h"

// The options of every trainer followed by those of its task and of the model itself, each at its
// default.
Options *trainer_options_create(const ModelType *type);

// What a run resumes from (checkpoint.h).
typedef struct {
    Safetensors *weights; // NULL: drawn from the seed
    Safetensors *state;   // NULL: a new run
} Checkpoint;

// A model at work on a data set.
struct Run {
    const ModelType *type;
    const char *program; // as it was called
    void *model;
    void *task; // NULL: nothing runs on batches
    Options *options;
    Ranks *ranks; // who trains it together; NULL: this process alone
    Dataset *dataset;
    ModelSetup setup;
    Safetensors *weights;      // that it began with; NULL: drawn from the seed
    Safetensors *state;        // to resume from; NULL: a new run
    PositionLosses *positions; // that evaluate() adds to; NULL: none
};

// Does what the options ask for: trains, evaluates, or what else the options ask for, as one
// of `ranks`. `program` is how it was called. Returns its exit code.
int train_run(const char *program, Options *options, Ranks *ranks, const ModelType *type);

// Trains as the options say, from the start or from the run that --resume names. Returns 0, or 128
// + the signal that stopped it.
int train_loop(Run *run);

// Mean loss over a split, every target counted, and the task's metrics; at most `batches` batches
// (0: all), shared out among ranks. Returns false, and no result, if a signal stopped one of them
// meanwhile.
bool evaluate(Run *run, SplitName split, int64_t batches, Evaluation *result);

// Measures activations (statistics.h) on --stats batches of the validation split, to the log and as
// a table, and the matrices between hidden layers, to the log; nothing if that is 0. A negative
// step is unknown. Returns false, without output, if a signal stopped it.
bool measure(Run *run, Log *log, int64_t step);

// With --stats, adds to an evaluation what those batches show of all layers (statistics.h): the
// largest |x| that attention adds to the residual stream, "attention_max_abs"; where scores have a
// bound the share beyond nine tenths of it, "saturated_share"; where there is a sink its
// share of the mass, "sink_share"; of the residual stream after each layer the largest |x|,
// "activation_max_abs", and the mean excess kurtosis, "activation_kurtosis"; and that of the
// matrices between hidden layers, "weight_kurtosis". Returns false if a signal stopped it.
bool measure_validation(Run *run, Evaluation *result);

// Ends the program if --stats asks for what model or data do not have. Needs no model.
void measure_check(const Run *run);

#endif
