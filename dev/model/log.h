// The run's log: log.jsonl, one object per line, and what the user sees.
#ifndef MODEL_LOG_H
#define MODEL_LOG_H

#include "json.h"
#include "metadata.h"
#include <stdbool.h>
#include <stdint.h>

// One training step as it is reported.
typedef struct {
    int64_t step, steps; // done, planned
    double epoch;        // passed, fractional
    double epochs;
    double loss, learning_rate, gradient_norm, milliseconds, tokens_per_second;
    double peak_fraction; // of the measured peak FLOP/s, at most 1; 0: unknown
    double seconds_left;
} StepReport;

// What a task reports in addition to the loss.
typedef struct {
    const char *key;            // in log.jsonl, after "val_" or "test_"
    const char *before, *after; // the value on the terminal; before NULL: only in log.jsonl
    int decimals;
    double value;
} Metric;

enum { EVALUATION_METRICS = 12 };

// The result of an evaluation.
typedef struct {
    double loss;     // mean -log p a target, natural logarithm
    double training; // the mean loss of the steps since the one before, for the terminal; 0: none
    int64_t tokens;  // targets counted
    int64_t correct; // of these, the most probable token; 0 where the model does not count them
    double seconds;
    uint64_t parameters; // checksum of their bits
    Metric metrics[EVALUATION_METRICS];
    int metric_count;
} Evaluation;

void evaluation_add(Evaluation *result, Metric metric);

typedef struct Log Log;

// DIR/log.jsonl; NULL: no file, only the terminal. With resume_step >= 0 the lines of later steps,
// left by a run that did not save them, are removed first. A last line that was cut off or is
// damaged is removed too, with a warning; a damaged line before one that is kept ends the program.
// "seconds" in the lines counts from here, in a resumed run from the last line that is left.
//
// again: a set of what is written again at that step, and is removed if it exists, so that it is in
// the log once.
enum {
    LOG_END = 1,       // what a run says at its end (test, statistics)
    LOG_EVALUATION = 2 // on the validation split
};
Log *log_open(const char *directory, int64_t resume_step, unsigned again);
void log_close(Log *log);

// The lines that log.jsonl would get, on standard output, and nothing else there.
Log *log_open_json(void);

// A validation loss, the lowest so far, and the targets that it is the mean of. Losses of other
// numbers of targets, other text, do not compare.
typedef struct {
    double loss;    // infinite: none
    int64_t tokens; // 0: unknown
} BestLoss;

// That of the lines that log_open() kept; none where the last start or resumption that they tell of
// had a validation split whose id ("val_id") is not `validation`.
BestLoss log_best(const Log *log, const char *validation);

// What "seconds" would say now.
double log_seconds(const Log *log);

// Appends one object: begin, add members with json_*, end. The line is written in one piece and at
// once. What is not a step or an evaluation begins with {"event": NAME}.
JsonWriter *log_begin(Log *log);
void log_end(Log *log);

// Waits until all lines are on the disk: before a checkpoint, which a run
// continues from, and best weights, which belong to the log's run.
void log_sync(Log *log);

// A table, to the terminal: rows of name and value, or its title alone.
void log_table(const char *title, const Metadata *rows, int count);

// A row of a table without a title whose names have at most LOG_NAME columns.
enum { LOG_NAME = 6 };
void log_row(const char *name, const char *value);

// A step: to log.jsonl as {"step", "epoch", "loss", "lr", "grad_norm", "ms", "tokens_per_s",
// "peak_fraction", "seconds"}, and to the terminal as a progress line that overwrites itself
// (stdout is a terminal that is ready) or as a plain line at the first, the last and every
// `every`-th step.
void log_step(Log *log, const StepReport *report, int64_t every);

// An evaluation of "val" or "test": {"step", "val_loss", a "val_KEY" for each metric, "val_tokens",
// "val_ms", "best", "seconds", "parameters"}. `best`: the lowest loss so far. A negative step is
// unknown.
void log_evaluation(Log *log, int64_t step, const char *split, const Evaluation *result, bool best);

// A line for the user, above the progress line.
void log_line(Log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Writes out what was printed. A full disk ends the program; a closed pipe (`| head`) stops it
// (stop.h); a terminal that went away does neither.
void log_flush(void);

// "1h 02m", "3m 20s", "12.3s" into text (at least 32 bytes).
void format_duration(double seconds, char *text);

// "12,345" into text (at least 32 bytes), which is returned.
const char *format_count(double value, char *text);

// "1.11M", "138K", "999" likewise.
const char *format_about(double value, char *text);

#endif
