#include "run.h"

#define DATA "Data and files"
#define LENGTH "Training"
#define REPORT "Reports"
#define MORE OPTION_GROUP_MORE

// Of a task that needs its own data, and of one that learns from the embedded text, too.
// clang-format off
static const Option input_rows[] = {
    {.letter = 'i', .name = "input", .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "shards and tokenizer; without: -e's"},
    {.letter = 'i', .name = "input", .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "shards and tokenizer; without: -e's, or the embedded"},
};
// clang-format on

// clang-format off
static const Option rows[] = {
    {.letter = 'o', .name = "output", .kind = OPTION_TEXT, .value = "DIR", .group = DATA,
     .help = "log and checkpoints; without: a new one in runs/"},
    {.letter = 'y', .name = "resume", .kind = OPTION_FLAG, .group = DATA,
     .help = "go on where -o DIR stopped"},
    {.letter = 'e', .name = "init", .kind = OPTION_TEXT, .value = "PATH", .group = DATA,
     .help = "start from weights: a file, a run, a Hugging Face model"},
    {.letter = 'n', .name = "save-every", .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = DATA,
     .help = "steps between checkpoints; 0: each evaluation"},
    {.name = "save-minutes", .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "M",
     .initial = "0", .max = 1e6, .group = MORE,
     .help = "minutes between further checkpoints; 0: none"},
    {.name = "keep", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "1",
     .min = 1, .max = 1e9, .group = MORE, .help = "checkpoints kept beside the best"},
    {.name = "average", .kind = OPTION_INTEGER, .value = "N", .initial = "0", .max = 1e6,
     .group = MORE, .help = "mean of N checkpoints up to the last, or -e FILE; 0: PATH"},
    {.name = "config", .kind = OPTION_TEXT, .value = "FILE", .group = DATA,
     .help = "options as JSON, or a run's log.jsonl"},

    {.letter = 'E', .name = "epochs", .kind = OPTION_NUMBER, .scope = OPTION_LENGTH, .value = "N",
     .initial = "25", .max = 1e9, .group = LENGTH, .help = "passes over the data"},
    {.letter = 'x', .name = "steps", .kind = OPTION_INTEGER, .scope = OPTION_LENGTH, .value = "N",
     .initial = "0", .max = 1e15, .group = LENGTH,
     .help = "updates instead of epochs; 0: by epochs"},
    {.name = "minutes", .kind = OPTION_NUMBER, .scope = OPTION_LENGTH, .value = "M", .initial = "0",
     .max = 1e7, .group = LENGTH, .help = "time instead; the schedule ends with it"},
    {.name = "patience", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "0", .max = 1e9, .group = LENGTH,
     .help = "end after N evaluations without a better one"},
    {.letter = 'l', .name = "lr", .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "5e-4", .max = 1e3, .group = LENGTH, .help = "peak learning rate"},
    {.letter = 'k', .name = "schedule", .kind = OPTION_CHOICE, .scope = OPTION_HABIT,
     .value = "NAME", .initial = "linear", .choices = "linear|cosine|constant|wsd|noam",
     .group = LENGTH, .help = "of the rate"},
    {.letter = 'u', .name = "warmup", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "0", .max = 1e15, .group = LENGTH, .help = "steps of rising rate"},
    {.letter = 'q', .name = "final-lr", .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X",
     .initial = "0", .max = 1, .group = LENGTH,
     .help = "last learning rate, a fraction of the peak"},
    {.letter = 'c', .name = "weight-decay", .kind = OPTION_NUMBER, .scope = OPTION_HABIT,
     .value = "X", .initial = "0.01", .max = 10, .group = LENGTH,
     .help = "of matrices, not of norms and biases"},
    {.name = "optimizer", .kind = OPTION_CHOICE, .scope = OPTION_TRAINING, .value = "NAME",
     .initial = "adamw", .choices = "adamw|adam|muon", .group = LENGTH,
     .help = "optimizer; muon: of hidden matrices, AdamW of all else"},
    {.name = "beta1", .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "0.9", .max = 0.999999, .group = MORE, .help = "AdamW's first-moment decay"},
    {.name = "beta2", .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "0.999", .max = 0.999999, .group = MORE, .help = "AdamW's second-moment decay"},
    {.name = "eps", .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "X",
     .initial = "1e-8", .min = 1e-30, .max = 1, .group = MORE,
     .help = "added to the root of AdamW's second moment"},
    {.name = "clip", .kind = OPTION_NUMBER, .scope = OPTION_HABIT, .value = "X", .initial = "1",
     .max = 1e9, .group = MORE, .help = "largest gradient norm; 0: any"},
    {.letter = 'p', .name = "precision", .kind = OPTION_CHOICE, .scope = OPTION_TRAINING,
     .value = "NAME", .initial = "auto", .choices = "auto|fp32|tf32|bf16", .group = LENGTH,
     .help = "of matrix products"},
    {.letter = 'S', .name = "seed", .kind = OPTION_INTEGER, .scope = OPTION_TRAINING, .value = "N",
     .initial = "42", .max = 9007199254740991.0, .group = LENGTH,
     .help = "of weights, order and dropout"},

    {.letter = 'v', .name = "val-every", .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = REPORT,
     .help = "steps between evaluations; 0: each epoch"},
    {.letter = 'm', .name = "val-batches", .kind = OPTION_INTEGER, .scope = OPTION_HABIT,
     .value = "N", .initial = "0", .max = 1e15, .group = REPORT,
     .help = "batches an evaluation takes; 0: all"},
    {.name = "log-every", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N",
     .initial = "10", .min = 1, .max = 1e15, .group = MORE,
     .help = "steps between lines where there is no terminal"},
    {.name = "stats", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "0",
     .max = 1e15, .group = MORE, .help = "batches to measure activations on; 0: none"},
    {.name = "profile", .kind = OPTION_FLAG, .group = MORE,
     .help = "time by kind of work at the end"},
    {.name = "audit", .kind = OPTION_INTEGER, .scope = OPTION_HABIT, .value = "N", .initial = "0",
     .max = 1e15, .group = MORE,
     .help = "compute every Nth step twice, stop if bits differ; 0: never"},
    {.name = "no-test", .kind = OPTION_FLAG, .scope = OPTION_HABIT, .group = MORE,
     .help = "leave the test split alone at the end"},
    {.name = "reduce", .kind = OPTION_CHOICE, .value = "NAME", .initial = "fp32",
     .choices = "fp32|bf16", .group = MORE, .help = "how gradients travel between processes"},
    {.name = "timeout", .kind = OPTION_NUMBER, .value = "S", .initial = "600", .min = 0.1,
     .max = 1e9, .group = MORE, .help = "seconds a process waits for the others"},
    {.name = "eval", .kind = OPTION_TEXT, .value = "WHAT", .group = REPORT,
     .help = "only evaluate -e's weights: val, test, a text file, -"},
    {.name = "verify", .kind = OPTION_TEXT, .value = "DIR", .group = REPORT,
     .help = "check the files of a run or a data set, and end"},
    {.name = "json", .kind = OPTION_FLAG, .group = REPORT,
     .help = "--eval and what is asked answer in JSON"},
};
// clang-format on

Options *trainer_options_create(const ModelType *type) {
    Options *options = options_create(type->program, type->task->summary);
    options_add(options, &input_rows[type->task->learns_embedded], 1);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    type->task->add_options(options);
    options_add(options, type->options, type->option_count);
    return options;
}
