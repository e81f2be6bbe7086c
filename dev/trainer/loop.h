// The state of training, and its messages: shared by train_loop.c, which trains, and
// loop_messages.c, which talks to the terminal and the log.
#ifndef TRAINER_LOOP_H
#define TRAINER_LOOP_H

#include "checkpoint.h"
#include "run.h"
#include "schedule.h"

typedef struct {
    Run *run;
    Log *log;
    const TaskPlan *plan;
    Schedule schedule;
    int64_t steps; // planned; 0: --minutes says when it ends
    double budget; // seconds of --minutes; 0: `steps` says when it ends
    double begin;  // of the run on the clock, as if it had never been interrupted
    const char *directory;
    double flops_per_token, peak_flops;
    int threads;             // that compute
    double seconds_per_step; // smoothed, for the time that is left
    Progress progress;
    int bad_updates; // in a row; while they last nothing is saved, as a resumed run would repeat
                     // them
    bool save_due;   // as soon as an update is finite
    BestLoss best;
    double saved;                      // on the clock, when the last checkpoint was written
    double page_written, page_seconds; // on the clock, when the page was; how long that took
    int64_t first_step;                // of this process
    bool trained;                      // to the end
    int stop; // the signal that stops the run, the same on all ranks; 0: none
} Loop;

// Whether this process writes files and the terminal: of several, rank 0.
bool loop_leads(const Loop *loop);

// Whether the schedule came to its end.
bool loop_ended(const Loop *loop);

// Whether validation has not become better for as long as --patience waits.
bool loop_out_of_patience(const Loop *loop);

// What will be trained, on what: to the terminal, and with all options to the log.
void loop_introduce(Loop *loop);

// An update of so many tokens that took `elapsed` seconds.
void loop_report_step(Loop *loop, int64_t tokens, double loss, double norm, double rate,
                      double elapsed);

// Why the run ends, if it does.
void loop_log_status(const Loop *loop);

// What the ranks sent to each other, with the time per step on the terminal.
void loop_log_reduction(const Loop *loop);

// What to do with a run that has ended: whole commands.
void loop_log_next(const Loop *loop);

// Where a signal stopped the run, and how to resume it.
void loop_log_stopped(const Loop *loop);

#endif
