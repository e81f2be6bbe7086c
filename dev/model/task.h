// How the training loop reaches its data, whatever is learnt from it. A task says what a batch is,
// in which order batches come, how many targets count, and how a result is reported. Everything it
// builds is a function of the options, the data and a place, so that a run can be resumed anywhere,
// and the micro-batches of an update can be built in any order and by any process.
#ifndef MODEL_TASK_H
#define MODEL_TASK_H

#include "batch.h"
#include "dataset.h"
#include "log.h"
#include "options.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct Run Run; // train.h

typedef struct {
    const Options *options; // the task's own rows among them
    const Dataset *dataset;
    int64_t positions;      // the longest sequence that the model of a checkpoint takes; 0: any
    bool resumed;           // the options say how these weights were trained
    bool training;          // false: only evaluation
    bool uses[SPLIT_COUNT]; // splits whose batches will be used
} TaskSetup;

// The option's length of a sequence, no longer than the model's positions; a user who asks for more
// ends the program. Weights are evaluated at the length that they take, unless the user or a run's
// state says another.
int64_t task_length(const TaskSetup *setup, OptionName option);

// What stays the same over a run.
typedef struct {
    int64_t batch, length; // the largest B and T of a batch
    int64_t rows;          // the most positions of a side, where that is less than B T; else 0
    int64_t sequences; // in an epoch; a place in the data is counted in sequences since the start
    double sequences_per_update; // on average
} TaskPlan;

// What one update takes from the data.
typedef struct {
    int64_t place;     // sequences before it
    int64_t batches;   // micro-batches
    int64_t sequences; // by which the place moves on
    int64_t tokens;    // positions that the model computes, for tokens/s
    int64_t targets; // counted over all micro-batches: the denominator of the loss and its gradient
} Update;

// Something the program does instead of training, when its option is given. It needs weights.
typedef struct {
    OptionName option;
    bool batches; // it runs the model on batches; false: it only decodes
    void (*run)(Run *run);
    const OptionName *own;   // options that nothing else reads, up to OPT_NONE
    const OptionName *meant; // options that with -e mean it, unless samples are asked for; or NULL
} Action;

typedef struct {
    const char *name;                      // "language"
    const char *summary;                   // what a trainer of this task does, for --help
    void (*add_options)(Options *options); // the rows of the task
    bool learns_embedded;                  // from the text in the program, where no data are given
    OptionName lower[2];                   // those that make a batch smaller: batch, seq-len
    OptionName length;                     // tokens of a sequence: seq-len
    const Action *actions;
    int action_count;
    // The preset of data that --preset says nothing about: the rule; NULL: there are no presets,
    // and no such option.
    const char *(*preset)(const Dataset *dataset);
    const char *use,
        *used_by; // of a trained model, for the end of a run: "write text", "--prompt The"

    // Ends the program where options and data do not fit together.
    void *(*create)(const TaskSetup *setup);
    void (*destroy)(void *task);
    const TaskPlan *(*plan)(const void *task);
    char *(*describe)(const void *task); // of an update: "2 x 2048 tokens", fresh

    // The update that begins `place` sequences after the start of training, and its micro-batch i <
    // batches, whose arrays are valid until the next batch is made. `step` and what else is the
    // loop's stay 0.
    Update (*update)(void *task, int64_t place);
    void (*train_batch)(void *task, const Update *update, int64_t i, Batch *batch);

    // Batch i of a split, which the batches from 0 on cover once, every target counted; false:
    // there is none.
    bool (*evaluation_batch)(void *task, SplitName split, int64_t i, Batch *batch);
    int64_t (*evaluation_batches)(const void *task, SplitName split); // how many these are
    // Adds the task's metrics to a result whose loss and tokens are known.
    void (*report)(const void *task, SplitName split, Evaluation *result);

    // Shows on the terminal what the model can do at this step (--sample-every); NULL: nothing to
    // show.
    void (*sample)(const Run *run, int64_t step);
    // A text that the model writes, for the run's report: fresh, NULL: it cannot; or NULL: nothing
    // to show.
    char *(*text)(const Run *run, uint32_t number);
} TaskType;

#endif
