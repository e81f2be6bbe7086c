#include "loop.h"

#include "error.h"
#include "memory.h"
#include "run_data.h"
#include "run_page.h"
#include "settings.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

bool loop_leads(const Loop *loop) {
    return ranks_rank(loop->run->ranks) == 0;
}

bool loop_ended(const Loop *loop) {
    const Progress *p = &loop->progress;
    return loop->budget > 0 ? p->seconds >= loop->budget : p->step >= loop->steps;
}

bool loop_out_of_patience(const Loop *loop) {
    const int64_t patience = options_integer(loop->run->options, OPT_PATIENCE);
    return patience > 0 && loop->progress.stale >= patience;
}

// What stops a process for a while (Ctrl-Z, a laptop that sleeps) says nothing about the steps to
// come: a step counts as three of the mean at most.
static double smooth(double mean, double elapsed) {
    return mean > 0 ? 0.95 * mean + 0.05 * fmin(elapsed, 3 * mean) : elapsed;
}

// That so many steps from the beginning take.
static double epochs_of(const Loop *loop, int64_t steps) {
    return (double)(steps - loop->progress.extra_steps) * loop->plan->sequences_per_update /
           (double)loop->plan->sequences;
}

void loop_report_step(Loop *loop, int64_t tokens, double loss, double norm, double rate,
                      double elapsed) {
    loop->seconds_per_step = smooth(loop->seconds_per_step, elapsed);
    const int64_t step = loop->progress.step;
    const int64_t steps =
        loop_ended(loop) ? step : (int64_t)fmax((double)step + 1, floor(loop->schedule.steps));
    const StepReport report = {
        .step = step,
        .steps = steps,
        .epoch = (double)loop->progress.sequences / (double)loop->plan->sequences,
        .epochs = epochs_of(loop, steps),
        .loss = loss,
        .learning_rate = rate,
        .gradient_norm = norm,
        .milliseconds = 1e3 * elapsed,
        .tokens_per_second = (double)tokens / elapsed,
        .peak_fraction = loop->flops_per_token * (double)tokens / elapsed / loop->peak_flops,
        .seconds_left = loop->budget > 0 ? fmax(loop->budget - loop->progress.seconds, 0)
                                         : loop->seconds_per_step * (double)(steps - step)};
    log_step(loop->log, &report, options_integer(loop->run->options, OPT_LOG_EVERY));
}

// As a shell takes it, fresh: the program and the options that were given.
static char *command_text(const Run *run) {
    static const OptionName none[] = {OPT_NONE};
    char *command = options_quoted(run->program);
    for (OptionScope scope = OPTION_RUN; scope <= OPTION_MODEL; scope++) {
        char *options = options_given_text(run->options, scope, none);
        append_format(&command, "%s", options);
        free(options);
    }
    return command;
}

// The event that begins a run or its resumption: the rows, and all options.
static void log_options(const Loop *loop, const Metadata *rows, int count) {
    JsonWriter *w = log_begin(loop->log);
    json_add_string(w, "event", loop->progress.step > 0 ? "resume" : "start");
    json_add_string(w, "version", VERSION);
    for (int i = 0; i < count; i++) json_add_string(w, rows[i].key, rows[i].value);
    json_open(w, "options", '{');
    options_to_json(loop->run->options, w);
    json_end(w, '}');
    log_end(loop->log);
}

void loop_introduce(Loop *loop) {
    Run *run = loop->run;
    DeviceInfo device;
    run->type->device(run->model, &device);
    loop->threads = device.threads;
    loop->peak_flops = device.peak_flops;
    ranks_sum(run->ranks, &loop->peak_flops, 1);
    loop->flops_per_token = run->type->flops_per_token(run->model, run->setup.length);
    const size_t parameters = run->type->parameters(run->model)->parameters;

    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "model",
                 format_string("%s, %zu parameters", run->type->name, parameters));
    if (run->type->describe) run->type->describe(run->model, &rows, &count);
    char *sizes = run_data_sizes(run->dataset);
    metadata_add(&rows, &count, "data", format_string("%s: %s", run->dataset->name, sizes));
    free(sizes);
    char *update = run->type->task->describe(run->task);
    metadata_add(&rows, &count, "plan",
                 loop->budget > 0
                     ? format_string("%g minutes of steps of %s", loop->budget / 60, update)
                     : format_string("%lld steps of %s", (long long)loop->steps, update));
    free(update);
    metadata_add(&rows, &count, "processor",
                 format_string("%s, %d threads%s", device.processor, device.threads,
                               ranks_size(run->ranks) > 1 ? " a process" : ""));
    char *processes = ranks_describe(run->ranks);
    if (processes)
        metadata_add(&rows, &count, "processes",
                     format_string("%s; gradients travel in %s", processes,
                                   options_text(run->options, OPT_REDUCE)));
    free(processes);
    metadata_add(&rows, &count, "products",
                 format_string("%s, %s, peak %.0f GFLOP/s", device.library, device.precision,
                               loop->peak_flops * 1e-9));
    if (loop_leads(loop)) {
        const double every = (double)options_integer(run->options, OPT_VAL_EVERY),
                     epochs = loop->steps > 0 ? epochs_of(loop, loop->steps)
                                              : options_number(run->options, OPT_EPOCHS);
        metadata_add(&rows, &count, "output", copy_string(loop->directory));
        metadata_add(&rows, &count, "disk",
                     settings_check_room(run, loop->steps,
                                         every > 0 ? (double)loop->steps / every : epochs));
    }
    char *changes = options_changes(run->options);
    if (*changes)
        metadata_add(&rows, &count, "changed",
                     format_string("%s%s", changes, run->state ? "; moments are kept" : ""));
    free(changes);
    log_table(run->type->name, rows, count);
    if (run->type->state_bytes)
        metadata_add(&rows, &count, "decoding_state_bytes",
                     format_string("%.0f", run->type->state_bytes(run->model, run->setup.length)));
    metadata_add(&rows, &count, "command", command_text(run));
    metadata_add(&rows, &count, "val_id", run_data_validation_id(run->dataset));
    char directory[4096]; // that relative paths begin in
    if (getcwd(directory, sizeof(directory)))
        metadata_add(&rows, &count, "directory", copy_string(directory));
    // It was said before it was taken.
    if (run->type->memory) metadata_add(&rows, &count, "memory", run->type->memory(run->model));
    log_options(loop, rows, count);
    metadata_free(rows, count);
}

void loop_log_status(const Loop *loop) {
    const Progress *p = &loop->progress;
    if (loop_out_of_patience(loop))
        log_line(loop->log, "no better validation loss in the last %lld evaluations (--patience)",
                 (long long)p->stale);
    else if (loop_ended(loop) && loop->budget > 0)
        log_line(loop->log, "the %g minutes are over; raise --minutes to train on",
                 loop->budget / 60);
    else if (loop_ended(loop))
        log_line(loop->log, "all %lld steps are done; raise --steps or --epochs to train on",
                 (long long)loop->steps);
}

void loop_log_reduction(const Loop *loop) {
    const RanksReport report = ranks_report(loop->run->ranks);
    const double steps = (double)(loop->progress.step - loop->first_step);
    const bool timed = report.seconds > 0; // NCCL's streams are not
    if (report.bytes <= 0 || steps <= 0) return;
    const double hidden = timed ? fmax(0, 1 - report.waited_seconds / report.seconds) : 0;
    char *time = timed
                     ? format_string(", %.1f ms in transfer, %.0f%% of it during the backward pass",
                                     1e3 * report.seconds / steps, 100 * hidden)
                     : copy_string("");
    log_line(loop->log, "other processes: %.3f MB sent per step%s", report.bytes / steps * 1e-6,
             time);
    free(time);
    JsonWriter *w = log_begin(loop->log);
    json_add_string(w, "event", "processes");
    json_add_number(w, "bytes_a_step", round(report.bytes / steps));
    if (timed) {
        json_add_number(w, "reduction_ms", round(1e6 * report.seconds / steps) / 1e3);
        json_add_number(w, "hidden", round(1e3 * hidden) / 1e3);
    }
    log_end(loop->log);
}

void loop_log_next(const Loop *loop) {
    const Run *run = loop->run;
    const Split *splits = run->dataset->splits;
    const int64_t steps = options_integer(run->options, OPT_STEPS);
    char *program = options_quoted(run->program), *directory = options_quoted(loop->directory);
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, run->type->task->use,
                 format_string("%s -e %s %s", program, directory, run->type->task->used_by));
    char *longer = loop->budget > 0 ? format_string("--minutes %g", 2 * loop->budget / 60)
                   : steps > 0
                       ? format_string("-x %lld", 2 * (long long)steps)
                       : format_string("-E %g", 2 * options_number(run->options, OPT_EPOCHS));
    metadata_add(&rows, &count, "train on",
                 format_string("%s -o %s -y %s", program, directory, longer));
    if (splits[SPLIT_TEST].tokens > 0 || splits[SPLIT_VAL].tokens > 0)
        metadata_add(&rows, &count, "evaluate",
                     format_string("%s -e %s --eval %s", program, directory,
                                   splits[SPLIT_TEST].tokens > 0 ? "test" : "val"));
    if (!options_flag(run->options, OPT_NO_PAGE))
        metadata_add(&rows, &count, "look at", format_string("%s/" RUN_PAGE_NAME, directory));
    log_table("next", rows, count);
    metadata_free(rows, count);
    free(longer);
    free(program);
    free(directory);
}

// The command that resumes, fresh: the data and all that belongs to the run are in its checkpoint.
static char *resuming_command(const Loop *loop) {
    static const OptionName known[] = {OPT_INPUT,   OPT_OUTPUT, OPT_RESUME, OPT_INIT,
                                       OPT_AVERAGE, OPT_CONFIG, OPT_NONE};
    char *options = options_given_text(loop->run->options, OPTION_RUN, known);
    char *program = options_quoted(loop->run->program),
         *directory = options_quoted(loop->directory);
    char *command = format_string("%s -o %s -y%s", program, directory, options);
    free(program);
    free(directory);
    free(options);
    return command;
}

void loop_log_stopped(const Loop *loop) {
    char *command = resuming_command(loop), *line;
    if (loop->progress.step == 0)
        line = copy_string("stopped before the first step; nothing was saved");
    else if (loop->trained)
        line = format_string("test and page were interrupted; resume with: %s", command);
    else
        line = format_string(
            "stopped after step %lld%s; resume with: %s", (long long)loop->progress.step,
            loop->bad_updates > 0 ? ", and not saved since updates were skipped" : "", command);
    if (loop->stop == SIGPIPE)
        warn("standard output was closed: %s", line);
    else
        log_line(loop->log, "%s", line);
    free(line);
    free(command);
}
