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
    DeviceInfo device;
    double peak_flops;       // of all ranks
    bool peak_is_own;        // the processor was this run's own while the peak was measured
    double running;          // smoothed: the share of a step in which this thread had a processor
    double seconds_per_step; // smoothed, for the time that is left
    Progress progress;
    int bad_updates; // in a row; while they last nothing is saved, as a resumed run would repeat
                     // them
    bool save_due;   // as soon as an update is finite
    BestLoss best;
    double loss_sum; // of the steps, loss_steps, since the last evaluation
    int64_t loss_steps;
    double saved;                      // on the clock, when the last checkpoint was written
    double page_written, page_seconds; // on the clock, when the page was; how long that took
    int64_t first_step;                // of this process
    bool trained;                      // to the end
    int stop; // the signal that stops the run, the same on all ranks; 0: none
} Loop;

// Whether this process writes files and the terminal: of several, rank 0.
bool loop_leads(const Loop *loop);

// Whether the schedule is complete.
bool loop_ended(const Loop *loop);

// Whether validation has not become better for as long as --patience waits.
bool loop_out_of_patience(const Loop *loop);

// What will be trained, on what and how, to the terminal.
void loop_introduce(Loop *loop);

// All that is known of it, and all options, to the log; with --profile to the terminal, too.
void loop_log_start(Loop *loop);

// An update that took `elapsed` seconds, in which the calling thread had a processor for `running`
// seconds.
void loop_report_step(Loop *loop, const Update *update, double loss, double norm, double rate,
                      double elapsed, double running);

// Why the run ends, if it does.
void loop_log_status(const Loop *loop);

// What the ranks sent to each other, with the time per step on the terminal.
void loop_log_reduction(const Loop *loop);

// What to do with a run that has ended: whole commands.
void loop_log_next(const Loop *loop);

// Where a signal stopped the run, and how to resume it.
void loop_log_stopped(const Loop *loop);

#endif
