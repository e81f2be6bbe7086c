#include "run.h"

#define DATA "Data and files"
#define LENGTH "Training"
#define REPORT "Reports"
#define MORE OPTION_GROUP_MORE

// Of a task that needs its own data, and of one that learns from the embedded text, too.
static const Option input_rows[] = {
    {'i', "input", OPTION_TEXT, OPTION_RUN, "DIR", NULL, 0, 0, NULL, NULL, DATA,
     "shards and tokenizer; without: -e's"},
    {'i', "input", OPTION_TEXT, OPTION_RUN, "DIR", NULL, 0, 0, NULL, NULL, DATA,
     "shards and tokenizer; without: -e's, or the embedded"},
};

static const Option rows[] = {
    {'o', "output", OPTION_TEXT, OPTION_RUN, "DIR", NULL, 0, 0, NULL, NULL, DATA,
     "log and checkpoints; without: a new one in runs/"},
    {'y', "resume", OPTION_FLAG, OPTION_RUN, NULL, NULL, 0, 0, NULL, NULL, DATA,
     "go on where -o DIR stopped"},
    {'e', "init", OPTION_TEXT, OPTION_RUN, "PATH", NULL, 0, 0, NULL, NULL, DATA,
     "start from weights: a file, a run, a Hugging Face model"},
    {'n', "save-every", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, DATA,
     "steps between checkpoints; 0: each evaluation"},
    {0, "save-minutes", OPTION_NUMBER, OPTION_HABIT, "M", "0", 0, 1e6, NULL, NULL, MORE,
     "minutes between further checkpoints; 0: none"},
    {0, "keep", OPTION_INTEGER, OPTION_HABIT, "N", "1", 1, 1e9, NULL, NULL, MORE,
     "checkpoints kept beside the best"},
    {0, "average", OPTION_INTEGER, OPTION_RUN, "N", "0", 0, 1e6, NULL, NULL, MORE,
     "mean of N checkpoints up to the last, or -e FILE; 0: PATH"},
    {0, "config", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, DATA,
     "options as JSON, or a run's log.jsonl"},

    {'E', "epochs", OPTION_NUMBER, OPTION_LENGTH, "N", "25", 0, 1e9, NULL, NULL, LENGTH,
     "passes over the data"},
    {'x', "steps", OPTION_INTEGER, OPTION_LENGTH, "N", "0", 0, 1e15, NULL, NULL, LENGTH,
     "updates instead of epochs; 0: by epochs"},
    {0, "minutes", OPTION_NUMBER, OPTION_LENGTH, "M", "0", 0, 1e7, NULL, NULL, LENGTH,
     "time instead; the schedule ends with it"},
    {0, "patience", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e9, NULL, NULL, LENGTH,
     "end after N evaluations without a better one"},
    {'l', "lr", OPTION_NUMBER, OPTION_HABIT, "X", "5e-4", 0, 1e3, NULL, NULL, LENGTH,
     "peak learning rate"},
    {'k', "schedule", OPTION_CHOICE, OPTION_HABIT, "NAME", "linear", 0, 0,
     "linear|cosine|constant|wsd|noam", NULL, LENGTH, "of the rate"},
    {'u', "warmup", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, LENGTH,
     "steps of rising rate"},
    {'q', "final-lr", OPTION_NUMBER, OPTION_HABIT, "X", "0", 0, 1, NULL, NULL, LENGTH,
     "last learning rate, a fraction of the peak"},
    {'c', "weight-decay", OPTION_NUMBER, OPTION_HABIT, "X", "0.01", 0, 10, NULL, NULL, LENGTH,
     "of matrices, not of norms and biases"},
    {0, "optimizer", OPTION_CHOICE, OPTION_TRAINING, "NAME", "adamw", 0, 0, "adamw|adam|muon", NULL,
     LENGTH, "optimizer; muon: of hidden matrices, AdamW of all else"},
    {0, "beta1", OPTION_NUMBER, OPTION_TRAINING, "X", "0.9", 0, 0.999999, NULL, NULL, MORE,
     "AdamW's first-moment decay"},
    {0, "beta2", OPTION_NUMBER, OPTION_TRAINING, "X", "0.999", 0, 0.999999, NULL, NULL, MORE,
     "AdamW's second-moment decay"},
    {0, "eps", OPTION_NUMBER, OPTION_TRAINING, "X", "1e-8", 1e-30, 1, NULL, NULL, MORE,
     "added to the root of AdamW's second moment"},
    {0, "clip", OPTION_NUMBER, OPTION_HABIT, "X", "1", 0, 1e9, NULL, NULL, MORE,
     "largest gradient norm; 0: any"},
    {'p', "precision", OPTION_CHOICE, OPTION_TRAINING, "NAME", "auto", 0, 0, "auto|fp32|tf32|bf16",
     NULL, LENGTH, "of matrix products"},
    {'S', "seed", OPTION_INTEGER, OPTION_TRAINING, "N", "42", 0, 9007199254740991.0, NULL, NULL,
     LENGTH, "of weights, order and dropout"},

    {'v', "val-every", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, REPORT,
     "steps between evaluations; 0: each epoch"},
    {'m', "val-batches", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, REPORT,
     "batches an evaluation takes; 0: all"},
    {0, "log-every", OPTION_INTEGER, OPTION_HABIT, "N", "10", 1, 1e15, NULL, NULL, MORE,
     "steps between lines where there is no terminal"},
    {0, "stats", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, MORE,
     "batches to measure activations on; 0: none"},
    {0, "profile", OPTION_FLAG, OPTION_RUN, NULL, NULL, 0, 0, NULL, NULL, MORE,
     "time by kind of work at the end"},
    {0, "audit", OPTION_INTEGER, OPTION_HABIT, "N", "0", 0, 1e15, NULL, NULL, MORE,
     "compute every Nth step twice, stop if bits differ; 0: never"},
    {0, "no-test", OPTION_FLAG, OPTION_HABIT, NULL, NULL, 0, 0, NULL, NULL, MORE,
     "leave the test split alone at the end"},
    {0, "reduce", OPTION_CHOICE, OPTION_RUN, "NAME", "fp32", 0, 0, "fp32|bf16", NULL, MORE,
     "how gradients travel between processes"},
    {0, "timeout", OPTION_NUMBER, OPTION_RUN, "S", "600", 0.1, 1e9, NULL, NULL, MORE,
     "seconds a process waits for the others"},
    {0, "eval", OPTION_TEXT, OPTION_RUN, "WHAT", NULL, 0, 0, NULL, NULL, REPORT,
     "only evaluate -e's weights: val, test, a text file, -"},
    {0, "verify", OPTION_TEXT, OPTION_RUN, "DIR", NULL, 0, 0, NULL, NULL, REPORT,
     "check the files of a run or a data set, and end"},
    {0, "json", OPTION_FLAG, OPTION_RUN, NULL, NULL, 0, 0, NULL, NULL, REPORT,
     "--eval and what is asked answer in JSON"},
};

Options *trainer_options_create(const ModelType *type) {
    Options *options = options_create(type->program, type->task->summary);
    options_add(options, &input_rows[type->task->learns_embedded], 1);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    type->task->add_options(options);
    options_add(options, type->options, type->option_count);
    return options;
}
