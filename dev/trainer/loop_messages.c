#include "loop.h"

#include "clock.h"
#include "error.h"
#include "huggingface.h"
#include "memory.h"
#include "run_data.h"
#include "run_page.h"
#include "settings.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
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

// Pauses of the process (Ctrl-Z, a sleeping laptop) do not predict the time of later steps, so a
// step counts as at most three times the mean.
static double smooth(double mean, double value) {
    return mean > 0 ? 0.95 * mean + 0.05 * fmin(value, 3 * mean) : value;
}

// Returns how many epochs the first `steps` steps take.
static double epochs_of(const Loop *loop, int64_t steps) {
    return (double)(steps - loop->progress.extra_steps) * loop->plan->sequences_per_update /
           (double)loop->plan->sequences;
}

static const double OWN_SHARE = 0.9; // running time of a thread with a processor of its own

// Returns the fraction of the peak, or 0 if it is unknown, as when other programs take processors
// from this one: the leading thread then waits for a processor, or for a thread that does. Only the
// smoothed share of running time shows this; a single step does not.
static double peak_fraction(Loop *loop, const Update *update, double elapsed, double running) {
    const Run *run = loop->run;
    loop->running = smooth(loop->running, running / elapsed);
    const double tokens = (double)update->tokens;
    const double flops = tokens * run->type->flops_per_token(run->model, run->setup.length,
                                                             (double)update->targets / tokens);
    const double fraction = flops / elapsed / loop->peak_flops;
    const bool own = loop->peak_is_own && (loop->device.on_gpu || loop->running >= OWN_SHARE);
    return own && fraction <= 1 ? fraction : 0;
}

void loop_report_step(Loop *loop, const Update *update, double loss, double norm, double rate,
                      double elapsed, double running) {
    loop->seconds_per_step = smooth(loop->seconds_per_step, elapsed);
    if (isfinite(loss)) {
        loop->loss_sum += loss;
        loop->loss_steps++;
    }
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
        .tokens_per_second = (double)update->tokens / elapsed,
        .peak_fraction = peak_fraction(loop, update, elapsed, running),
        .seconds_left = loop->budget > 0 ? fmax(loop->budget - loop->progress.seconds, 0)
                                         : loop->seconds_per_step * (double)(steps - step)};
    log_step(loop->log, &report, options_integer(loop->run->options, OPT_LOG_EVERY));
}

// Returns the command as a shell takes it, newly allocated: the program and the options given.
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

// Logs the event that begins or resumes a run: the rows, and all options.
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

// Finds the processor or GPU, and its peak. No other program uses the processor if the leading
// thread of every rank runs all the time while the peak is measured.
static DeviceInfo find_device(Loop *loop) {
    const Run *run = loop->run;
    DeviceInfo device = {0};
    const double start = clock_seconds(), ran = clock_thread_seconds();
    run->type->device(run->model, &device);
    const double elapsed = clock_seconds() - start, running = clock_thread_seconds() - ran;
    loop->peak_is_own = !ranks_vote(run->ranks, !device.on_gpu && running < OWN_SHARE * elapsed);
    loop->peak_flops = device.peak_flops;
    ranks_sum(run->ranks, &loop->peak_flops, 1);
    return device;
}

static void show_data(const Loop *loop) {
    char *sizes = run_data_in_short(loop->run->dataset);
    log_row("data", sizes);
    free(sizes);
}

static void show_device(const Loop *loop) {
    const DeviceInfo *device = &loop->device;
    const int64_t processes = ranks_size(loop->run->ranks);
    char peak[32], *text = copy_string(device->processor);
    if (processes > 1) append_format(&text, ", %lld processes", (long long)processes);
    if (device->threads > 1)
        append_format(&text, ", %d threads%s", device->threads, processes > 1 ? " each" : "");
    append_format(&text, ", %s, peak %s GFLOP/s%s", device->precision,
                  format_count(loop->peak_flops * 1e-9, peak),
                  loop->peak_is_own ? "" : " (busy with other programs)");
    log_row("device", text);
    free(text);
}

// "2,000 steps of 8 x 128 tokens".
static char *plan_text(const Loop *loop) {
    char *update = loop->run->type->task->describe(loop->run->task), *text, steps[32];
    text = loop->budget > 0
               ? format_string("%g minutes of steps of %s", loop->budget / 60, update)
               : format_string("%s steps of %s", format_count((double)loop->steps, steps), update);
    free(update);
    return text;
}

// Returns the user's changes to a resumed run, newly allocated; "": none.
static char *changes_text(const Run *run) {
    char *changes = options_changes(run->options);
    if (*changes && run->state) append_format(&changes, "; moments are kept");
    return changes;
}

static void show_recipe(const Loop *loop) {
    const Run *run = loop->run;
    const char *preset = run->type->task->preset ? options_text(run->options, OPT_PRESET) : "auto";
    const bool named = strcmp(preset, "auto") != 0;
    char *plan = plan_text(loop), *changes = changes_text(run);
    char *text = format_string("%s%s%s%s, in %s", named ? "preset " : "", named ? preset : "",
                               named ? " (--preset), " : "", plan, loop->directory);
    log_row("recipe", text);
    if (*changes) log_row("changed", changes);
    free(text);
    free(plan);
    free(changes);
}

void loop_introduce(Loop *loop) {
    loop->device = find_device(loop);
    if (!loop_leads(loop)) return;
    show_data(loop); // the model was printed before its memory was allocated (ModelSetup.say_size)
    show_device(loop);
    show_recipe(loop);
}

void loop_log_start(Loop *loop) {
    Run *run = loop->run;
    const DeviceInfo *device = &loop->device;
    const size_t parameters = run->type->parameters(run->model)->parameters;
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "model",
                 format_string("%s, %zu parameters", run->type->name, parameters));
    if (run->type->describe) run->type->describe(run->model, &rows, &count);
    char *sizes = run_data_sizes(run->dataset);
    metadata_add(&rows, &count, "data", format_string("%s: %s", run->dataset->name, sizes));
    free(sizes);
    metadata_add(&rows, &count, "plan", plan_text(loop));
    metadata_add(&rows, &count, "processor",
                 format_string("%s, %d threads%s", device->processor, device->threads,
                               ranks_size(run->ranks) > 1 ? " a process" : ""));
    char *processes = ranks_describe(run->ranks);
    if (processes)
        metadata_add(&rows, &count, "processes",
                     format_string("%s; gradients travel in %s", processes,
                                   options_text(run->options, OPT_REDUCE)));
    free(processes);
    metadata_add(&rows, &count, "products",
                 format_string("%s, %s, peak %.0f GFLOP/s", device->library, device->precision,
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
    char *changes = changes_text(run);
    if (*changes) metadata_add(&rows, &count, "changed", copy_string(changes));
    free(changes);
    if (run->type->state_bytes)
        metadata_add(&rows, &count, "decoding_state_bytes",
                     format_string("%.0f", run->type->state_bytes(run->model, run->setup.length)));
    metadata_add(&rows, &count, "command", command_text(run));
    metadata_add(&rows, &count, "val_id", run_data_validation_id(run->dataset));
    char directory[4096]; // base of relative paths
    if (getcwd(directory, sizeof(directory)))
        metadata_add(&rows, &count, "directory", copy_string(directory));
    if (run->type->memory) metadata_add(&rows, &count, "memory", run->type->memory(run->model));
    if (run->setup.profile) log_table("start", rows, count);
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
    const bool timed = report.seconds > 0; // NCCL's streams are not timed
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

// Returns the options with which a run that has ended trains on, newly allocated.
static char *options_to_train_on(const Loop *loop) {
    const Options *options = loop->run->options;
    const int64_t steps = options_integer(options, OPT_STEPS),
                  patience = loop->progress.stale + options_integer(options, OPT_PATIENCE);
    char *text = copy_string("");
    if (loop_out_of_patience(loop)) {
        append_format(&text, "--patience %" PRId64, patience);
        if (!loop_ended(loop)) return text; // its length is enough
        append_format(&text, " ");
    }
    if (loop->budget > 0)
        append_format(&text, "--minutes %g", 2 * loop->budget / 60);
    else if (steps > 0)
        append_format(&text, "-x %lld", 2 * (long long)steps);
    else
        append_format(&text, "-E %g", 2 * options_number(options, OPT_EPOCHS));
    return text;
}

void loop_log_next(const Loop *loop) {
    const Run *run = loop->run;
    const Split *splits = run->dataset->splits;
    char *program = options_quoted(run->program), *directory = options_quoted(loop->directory);
    const bool tests = splits[SPLIT_TEST].tokens > 0;
    char *longer = options_to_train_on(loop);
    log_line(loop->log, "next"); // each command stays on one line
    log_line(loop->log, "  %-10s  %s -e %s %s", run->type->task->use, program, directory,
             run->type->task->used_by);
    log_line(loop->log, "  train on    %s -o %s -y %s", program, directory, longer);
    if (tests || splits[SPLIT_VAL].tokens > 0)
        log_line(loop->log, "  evaluate    %s -e %s --eval %s", program, directory,
                 tests ? "test" : "val");
    if (!options_flag(run->options, OPT_NO_PAGE))
        log_line(loop->log, "  look at     %s/" RUN_PAGE_NAME, directory);
    if (!huggingface_has_class(run))
        log_line(loop->log, "  (no config.json: transformers has no class for this model)");
    free(longer);
    free(program);
    free(directory);
}

// Returns the command that resumes the run, newly allocated. The data and everything else that
// belongs to the run are in its checkpoint.
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
