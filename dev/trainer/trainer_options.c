#include "run.h"
#include <stdlib.h>

#define DATA "Data and files"
#define LENGTH "Training"
#define REPORT "Evaluation"
#define MORE OPTION_GROUP_MORE

// One row for tasks that need their own data, one for tasks that can learn from the embedded text.
// clang-format off
static const Option input_rows[] = {
    {.letter = 'i', .name = OPT_INPUT, .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "data set (default: that of -e)"},
    {.letter = 'i', .name = OPT_INPUT, .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "data set (default: that of -e, or the embedded text)"},
};
// clang-format on

// clang-format off
static const Option rows[] = {
    {.letter = 'o', .name = OPT_OUTPUT, .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "directory of the run (default: a new one in runs/)"},
    {.letter = 'y', .name = OPT_RESUME, .kind = OPTION_FLAG, .group = DATA,
     .help = "resume the run in -o DIR"},
    {.letter = 'e', .name = OPT_INIT, .kind = OPTION_TEXT, .value = "PATH", .group = DATA,
     .help = "initial weights: a file, a run, a Hugging Face model"},
    {.letter = 'n', .name = OPT_SAVE_EVERY, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = MORE,
     .help = "steps between checkpoints; 0: at each evaluation"},
    {.name = OPT_SAVE_MINUTES, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "M",
     .initial = "0", .max = 1e6, .group = MORE,
     .help = "minutes between further checkpoints; 0: none"},
    {.name = OPT_KEEP, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "1",
     .min = 1, .max = 1e9, .group = MORE, .help = "checkpoints to keep in addition to the best"},
    {.name = OPT_AVERAGE, .kind = OPTION_INTEGER, .value = "N", .initial = "0", .max = 1e6,
     .group = MORE, .help = "average the last N checkpoints of -e's run; 0: use PATH alone"},
    {.name = OPT_CONFIG, .kind = OPTION_TEXT, .value = "FILE", .group = MORE,
     .help = "file with options: JSON, or the log.jsonl of a run"},

    {.letter = 'E', .name = OPT_EPOCHS, .kind = OPTION_NUMBER, .scope = OPTION_LENGTH, .value = "N",
     .initial = "25", .max = 1e9, .group = LENGTH, .help = "passes over the data"},
    {.letter = 'x', .name = OPT_STEPS, .kind = OPTION_INTEGER, .scope = OPTION_LENGTH, .value = "N",
     .initial = "0", .max = 1e15, .group = LENGTH, .help = "train for N steps instead of --epochs"},
    {.name = OPT_MINUTES, .kind = OPTION_NUMBER, .scope = OPTION_LENGTH, .value = "M",
     .initial = "0", .max = 1e7, .group = LENGTH,
     .help = "train for M minutes; the schedule ends then"},
    {.name = OPT_PATIENCE, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "0", .max = 1e9, .group = MORE,
     .help = "stop after N evaluations without improvement; 0: never"},
    {.letter = 'l', .name = OPT_LR, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "5e-4", .max = 1e3, .group = LENGTH, .help = "peak learning rate"},
    {.letter = 'k', .name = OPT_SCHEDULE, .kind = OPTION_CHOICE, .scope = OPTION_HABIT,
     .value = "NAME", .initial = "linear", .choices = "linear|cosine|constant|wsd|noam",
     .group = LENGTH, .help = "schedule"},
    {.letter = 'u', .name = OPT_WARMUP, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "0", .max = 1e15, .group = LENGTH, .help = "warmup steps"},
    {.letter = 'q', .name = OPT_FINAL_LR, .kind = OPTION_NUMBER, .scope = OPTION_HABIT,
     .value = "X", .initial = "0", .max = 1, .group = MORE,
     .help = "last learning rate as a fraction of the peak"},
    {.letter = 'c', .name = OPT_WEIGHT_DECAY, .kind = OPTION_NUMBER, .scope = OPTION_HABIT,
     .value = "X", .initial = "0.01", .max = 10, .group = MORE,
     .help = "weight decay (matrices only)"},
    {.name = OPT_OPTIMIZER, .kind = OPTION_CHOICE, .scope = OPTION_TRAINING, .value = "NAME",
     .initial = "adamw", .choices = "adamw|adam|muon", .group = LENGTH, .help = "optimizer"},
    {.name = OPT_BETA1, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "0.9", .max = 0.999999, .group = MORE, .help = "AdamW's first-moment decay"},
    {.name = OPT_BETA2, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "0.999", .max = 0.999999, .group = MORE, .help = "AdamW's second-moment decay"},
    {.name = OPT_EPS, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "1e-8", .min = 1e-30, .max = 1, .group = MORE,
     .help = "term added to the root of AdamW's second moment"},
    {.name = OPT_CLIP, .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X", .initial = "1",
     .max = 1e9, .group = MORE, .help = "largest gradient norm; 0: no limit"},
    {.letter = 'p', .name = OPT_PRECISION, .kind = OPTION_CHOICE, .scope = OPTION_TRAINING,
     .value = "NAME", .initial = "auto", .choices = "auto|fp32|tf32|bf16", .group = LENGTH,
     .help = "matrix product precision"},
    {.letter = 'S', .name = OPT_SEED, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING,
     .value = "N", .initial = "42", .max = 9007199254740991.0, .group = LENGTH,
     .help = "random seed (weights, data order, dropout)"},

    {.letter = 'v', .name = OPT_VAL_EVERY, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = REPORT,
     .help = "steps between evaluations; 0: each epoch"},
    {.letter = 'm', .name = OPT_VAL_BATCHES, .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = MORE,
     .help = "batches per evaluation; 0: all"},
    {.name = OPT_LOG_EVERY, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "10", .min = 1, .max = 1e15, .group = MORE,
     .help = "steps between printed lines, unless on a terminal"},
    {.name = OPT_STATS, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "0",
     .max = 1e15, .group = MORE, .help = "batches for statistics of activations; 0: none"},
    {.name = OPT_PROFILE, .kind = OPTION_FLAG, .group = MORE,
     .help = "print the time by kind of work at the end"},
    {.name = OPT_AUDIT, .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "0",
     .max = 1e15, .group = MORE, .help = "compute every Nth step twice and compare bits; 0: never"},
    {.name = OPT_NO_TEST, .kind = OPTION_FLAG, .scope = OPTION_HABIT, .group = MORE,
     .help = "skip the test split at the end"},
    {.name = OPT_NO_PAGE, .kind = OPTION_FLAG, .scope = OPTION_HABIT, .group = MORE,
     .help = "write no run.html"},
    {.name = OPT_REDUCE, .kind = OPTION_CHOICE, .value = "NAME", .initial = "fp32",
     .choices = "fp32|bf16", .group = MORE,
     .help = "number format of gradients sent between processes"},
    {.name = OPT_TIMEOUT, .kind = OPTION_NUMBER, .value = "S", .initial = "600", .min = 0.1,
     .max = 1e9, .group = MORE, .help = "seconds a process waits for the others"},
    {.name = OPT_EVAL, .kind = OPTION_TEXT, .value = "WHAT", .group = REPORT,
     .help = "evaluate -e's weights on val, test, a file or -"},
    {.name = OPT_EVAL_POSITIONS, .kind = OPTION_FLAG, .group = MORE,
     .help = "with --eval, the loss by position in the context"},
    {.name = OPT_PAGE, .kind = OPTION_TEXT, .value = "FILE", .group = MORE,
     .help = "write a page of -e's model to FILE, and exit"},
    {.name = OPT_VERIFY, .kind = OPTION_TEXT, .value = "DIR", .group = MORE,
     .help = "check the files of a run or a data set, and exit"},
    {.name = OPT_JSON, .kind = OPTION_FLAG, .group = MORE, .help = "print results as JSON"},
};
// clang-format on

Options *trainer_options_create(const ModelType *type) {
    Options *options = options_create(type->program, type->task->summary);
    char *processes = ranks_library();
    options_set_build(options, type->build(processes));
    free(processes);
    options_add(options, &input_rows[type->task->learns_embedded], 1);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    type->task->add_options(options);
    options_add(options, type->options, type->option_count);
    return options;
}
