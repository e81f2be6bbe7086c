// A run: a model, its data set, and what the trainer does with them.
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

// Creates the options of every trainer, followed by those of its task and of the model, each with
// its default.
Options *trainer_options_create(const ModelType *type);

// What a run resumes from (checkpoint.h).
typedef struct {
    Safetensors *weights; // NULL: drawn from the seed
    Safetensors *state;   // NULL: a new run
} Checkpoint;

// A model at work on a data set.
struct Run {
    const ModelType *type;
    const char *program; // as called on the command line
    void *model;
    void *task; // NULL: nothing runs on batches
    Options *options;
    Ranks *ranks; // the processes that train together; NULL: this process alone
    Dataset *dataset;
    ModelSetup setup;
    Safetensors *weights;      // initial weights; NULL: drawn from the seed
    Safetensors *state;        // to resume from; NULL: a new run
    PositionLosses *positions; // evaluate() adds to these; NULL: none
};

// Trains, evaluates, or does what else the options ask for, as one of `ranks`. `program` is the
// name by which it was called. Returns the exit code.
int train_run(const char *program, Options *options, Ranks *ranks, const ModelType *type);

// Trains as the options say, from the start, or by resuming the run of --resume. Returns 0, or 128
// + the signal that stopped it.
int train_loop(Run *run);

// Computes the mean loss over a split, in which every target counts, and the task's metrics, over
// at most `batches` batches (0: all), shared among the ranks. Returns false, without a result, if a
// signal stopped one of them.
bool evaluate(Run *run, SplitName split, int64_t batches, Evaluation *result);

// Measures activations (statistics.h) on --stats batches of the validation split, and the matrices
// between hidden layers. Logs both, and prints the activations as a table. Does nothing if --stats
// is 0. A negative step is unknown. Returns false, without output, if a signal stopped it.
bool measure(Run *run, Log *log, int64_t step);

// With --stats, adds statistics over all layers (statistics.h) on those batches to an evaluation:
// "attention_max_abs", the largest |x| that attention adds to the residual stream;
// "saturated_share", if scores have a bound, the share beyond nine tenths of it; "sink_share", if
// there is a sink, its share of the mass; "activation_max_abs" and "activation_kurtosis", the
// largest |x| and the mean excess kurtosis of the residual stream after each layer;
// "weight_kurtosis", that of the matrices between hidden layers. Returns false if a signal stopped
// it.
bool measure_validation(Run *run, Evaluation *result);

// Exits with an error if --stats needs what the model or the data do not have. Needs no model.
void measure_check(const Run *run);

#endif
