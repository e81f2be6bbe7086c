// The run's log: log.jsonl, with one object per line, and the terminal output.
#ifndef MODEL_LOG_H
#define MODEL_LOG_H

#include "json.h"
#include "metadata.h"
#include <stdbool.h>
#include <stdint.h>

// The report of a training step.
typedef struct {
    int64_t step, steps; // done, planned
    double epoch;        // done, fractional
    double epochs;
    double loss, learning_rate, gradient_norm, milliseconds, tokens_per_second;
    double peak_fraction; // of the measured peak FLOP/s, at most 1; 0: unknown
    double seconds_left;
} StepReport;

// A value that a task reports in addition to the loss.
typedef struct {
    const char *key;            // in log.jsonl, after "val_" or "test_"
    const char *before, *after; // around the value on the terminal; before NULL: log.jsonl only
    int decimals;
    double value;
} Metric;

enum { EVALUATION_METRICS = 12 };

// The result of an evaluation.
typedef struct {
    double loss;     // mean -log p per target, natural logarithm
    double training; // mean loss of the steps since the last evaluation, for the terminal; 0: none
    int64_t tokens;  // targets counted
    int64_t correct; // of these, the most probable token; 0 if the model does not count them
    double seconds;
    uint64_t parameters; // checksum of the parameters' bits
    Metric metrics[EVALUATION_METRICS];
    int metric_count;
} Evaluation;

void evaluation_add(Evaluation *result, Metric metric);

typedef struct Log Log;

// Opens DIR/log.jsonl; directory NULL: no file, only the terminal. If resume_step >= 0, lines of
// later steps, left by a run that stopped before its next checkpoint, are removed first. A cut off
// or damaged last line is removed with a warning. Exits with an error if a line to keep follows a
// damaged one. "seconds" counts from this call, or in a resumed run from the last line kept.
//
// again: a set of entries that the run will write again at that step. They are removed, so that
// they are in the log only once.
enum {
    LOG_END = 1,       // entries at the end of a run (test, statistics)
    LOG_EVALUATION = 2 // on the validation split
};
Log *log_open(const char *directory, int64_t resume_step, unsigned again);
void log_close(Log *log);

// Writes the lines of log.jsonl to standard output, and nothing else.
Log *log_open_json(void);

// The lowest validation loss so far and its number of targets. Losses over different numbers of
// targets, hence different text, are not comparable.
typedef struct {
    double loss;    // infinite: none
    int64_t tokens; // 0: unknown
} BestLoss;

// Returns the best loss in the lines that log_open() kept, or none if their last start or
// resumption used a validation split with another id ("val_id") than `validation`.
BestLoss log_best(const Log *log, const char *validation);

// Returns the current value of "seconds".
double log_seconds(const Log *log);

// Append one object: begin, add members with json_*, end. log_end() writes the whole line at once.
// Objects other than steps and evaluations begin with {"event": NAME}.
JsonWriter *log_begin(Log *log);
void log_end(Log *log);

// Waits until all lines are on disk. Called before saving a checkpoint, which a run resumes from,
// and the best weights, which belong to this log.
void log_sync(Log *log);

// Prints a table to the terminal: a title and rows of name and value, if any.
void log_table(const char *title, const Metadata *rows, int count);

// Prints a row of a table without a title. Names have at most LOG_NAME columns.
enum { LOG_NAME = 6 };
void log_row(const char *name, const char *value);

// Reports a step: to log.jsonl as {"step", "epoch", "loss", "lr", "grad_norm", "ms",
// "tokens_per_s", "peak_fraction", "seconds"}; to a terminal, when it is ready for output, as a
// progress line that overwrites itself; to other outputs as a plain line at the first, the last and
// every `every`-th step.
void log_step(Log *log, const StepReport *report, int64_t every);

// Reports an evaluation of "val" or "test": {"step", "val_loss", a "val_KEY" for each metric,
// "val_tokens", "val_ms", "best", "seconds", "parameters"}. `best`: the loss is the lowest so far.
// A negative step is unknown.
void log_evaluation(Log *log, int64_t step, const char *split, const Evaluation *result, bool best);

// Prints a line to the terminal, above the progress line.
void log_line(Log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Flushes standard output. Exits with an error if the disk is full. A closed pipe (`| head`)
// requests a stop (stop.h). A closed terminal is ignored.
void log_flush(void);

// Writes "1h 02m", "3m 20s" or "12.3s" to text (at least 32 bytes).
void format_duration(double seconds, char *text);

// Writes "12,345" to text (at least 32 bytes) and returns it.
const char *format_count(double value, char *text);

// Writes "1.11M", "138K" or "999" to text (at least 32 bytes) and returns it.
const char *format_about(double value, char *text);

#endif
