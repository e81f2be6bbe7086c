// The training program, whichever the model: command line, training loop, evaluation, generation.
#ifndef TRAINER_TRAIN_H
#define TRAINER_TRAIN_H

#include "dataset.h"
#include "log.h"
#include "model.h"
#include "options.h"

// What main() of a trainer calls; returns its exit code.
int train_main(int argc, char **argv, const ModelType *type);

// The options of every trainer followed by the model's own, each at its default.
Options *trainer_options_create(const ModelType *type);

// A model at work on a data set.
typedef struct {
    const ModelType *type;
    void *model;
    Options *options;
    Dataset *dataset;
    ModelSetup setup;
} Run;

// Ends the program if the training split does not hold one update of the run. Needs no model.
void train_check(const Run *run);

// Trains as the options say, from the start or from the run that --resume names. Returns 0, or 128 + the
// signal that stopped it.
int train_loop(Run *run);

// Mean loss over a split, in order, every token counted; at most `batches` batches (0: all). Returns false,
// and no result, if a signal asked to stop meanwhile.
bool evaluate(Run *run, SplitName split, int64_t batches, Evaluation *result);

// Continues `prompt` by --sample-tokens tokens and prints the text as it comes. number: which sample of the
// run it is.
void generate(const Run *run, const char *prompt, uint32_t number);

#endif
