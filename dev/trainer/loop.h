// The state of training and its messages, shared by train_loop.c, which trains, and
// loop_messages.c, which writes to the terminal and the log.
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
    int64_t steps; // planned; 0: --minutes limits the run
    double budget; // seconds of --minutes; 0: `steps` limits the run
    double begin;  // clock time of the run's start, as if it had never been interrupted
    const char *directory;
    DeviceInfo device;
    double peak_flops;       // of all ranks
    bool peak_is_own;        // no other program used the processor while the peak was measured
    double running;          // smoothed: share of a step in which this thread had a processor
    double seconds_per_step; // smoothed, to estimate the remaining time
    Progress progress;
    int bad_updates; // in a row; nothing is saved meanwhile, as a resumed run would repeat them
    bool save_due;   // at the next finite update
    BestLoss best;
    double loss_sum; // over the loss_steps steps since the last evaluation
    int64_t loss_steps;
    double saved;                      // clock time of the last checkpoint
    double page_written, page_seconds; // clock time of the last page; seconds it took
    int64_t first_step;                // of this process
    bool trained;                      // training is complete
    int stop; // the signal that stops the run, the same on all ranks; 0: none
} Loop;

// Returns whether this process writes files and to the terminal: only rank 0 does.
bool loop_leads(const Loop *loop);

// Returns whether the schedule is complete.
bool loop_ended(const Loop *loop);

// Returns whether validation has not improved for as long as --patience allows.
bool loop_out_of_patience(const Loop *loop);

// Prints what is trained, on which data and how.
void loop_introduce(Loop *loop);

// Logs all that is known about the run, and all options; with --profile, prints it, too.
void loop_log_start(Loop *loop);

// Reports an update that took `elapsed` seconds, in which the calling thread had a processor for
// `running` seconds.
void loop_report_step(Loop *loop, const Update *update, double loss, double norm, double rate,
                      double elapsed, double running);

// Logs why the run ends, if it does.
void loop_log_status(const Loop *loop);

// Logs how much data the ranks sent to each other, and the time per step.
void loop_log_reduction(const Loop *loop);

// Logs what to do with a run that has ended, as complete commands.
void loop_log_next(const Loop *loop);

// Logs after which step a signal stopped the run, and how to resume it.
void loop_log_stopped(const Loop *loop);

#endif
