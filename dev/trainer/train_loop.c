#include "loop.h"

#include "clock.h"
#include "error.h"
#include "memory.h"
#include "page_model.h"
#include "restart.h"
#include "run_data.h"
#include "settings.h"
#include "share.h"
#include "stop.h"
#include "threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BAD_UPDATES = 10 }; // in a row, before the run gives up

static int64_t integer(const Loop *loop, OptionName name) {
    return options_integer(loop->run->options, name);
}

static double number(const Loop *loop, OptionName name) {
    return options_number(loop->run->options, name);
}

// Tells all ranks of a signal that one of them got.
static void agree_on_stop(Loop *loop) {
    loop->stop = ranks_vote(loop->run->ranks, stop_requested());
}

// ---- planning ---------------------------------------------------------------

static int64_t planned_steps(const Loop *loop) {
    if (loop->budget > 0) return 0;
    const int64_t steps = integer(loop, OPT_STEPS);
    if (steps > 0) return steps;
    const double sequences = number(loop, OPT_EPOCHS) * (double)loop->plan->sequences;
    if (sequences < loop->plan->sequences_per_update)
        fail_usage("--epochs %g: is less than one update, which takes %g sequences",
                   number(loop, OPT_EPOCHS), loop->plan->sequences_per_update);
    // 9 sequences are 7 updates of 9/7, though their computed quotient may be less.
    return (int64_t)floor(sequences / loop->plan->sequences_per_update * (1 + 1e-12) + 1e-9) +
           loop->progress.extra_steps;
}

// If the batch of a resumed run has changed, --epochs covers the steps done, and new ones for the
// rest.
static void follow_batch(Loop *loop) {
    Progress *p = &loop->progress;
    const double now = loop->plan->sequences_per_update;
    if (p->sequences_per_update > 0 && p->sequences_per_update != now)
        p->extra_steps = p->step - (int64_t)((double)p->sequences / now);
    p->sequences_per_update = now;
    loop->steps = planned_steps(loop);
}

// Returns whether a count that grew from `before` to `after` crossed a multiple of `every`.
static bool crosses_multiple(int64_t before, int64_t after, int64_t every) {
    return every > 0 && after / every != before / every;
}

static void set_expected_steps(Loop *loop) {
    const Progress *p = &loop->progress;
    loop->schedule.steps =
        loop->budget > 0 ? expected_steps(p->step, p->seconds, loop->budget) : (double)loop->steps;
}

// ---- one update -------------------------------------------------------------
// Builds micro-batch i of an update, or this rank's rows of it; returns false if it has none. Each
// rank gets one micro-batch per round. The micro-batches left over, too few for another round, are
// split by rows among all ranks.
static bool share_batch(const Run *run, const Update *update, int64_t i, Batch *batch) {
    const int64_t size = ranks_size(run->ranks), rank = ranks_rank(run->ranks);
    const bool whole = i < update->batches - update->batches % size;
    if (whole && i % size != rank) return false;
    run->type->task->train_batch(run->task, update, i, batch);
    if (whole) return true;
    const int64_t part = (rank + i) % size, first = batch->batch * part / size;
    batch_cut(batch, first, batch->batch * (part + 1) / size - first);
    return batch->batch > 0;
}

// Returns whether share_batch() has nothing more after micro-batch i.
static bool is_last_share(const Run *run, const Update *update, int64_t i) {
    const int64_t size = ranks_size(run->ranks);
    return i + (update->batches % size > 0 ? 1 : size) >= update->batches;
}

// Runs forward and backward over all micro-batches of the update, and sums the gradients over all
// ranks. Returns the mean loss per target, without label smoothing.
static double accumulate(Loop *loop, const Update *update) {
    const Run *run = loop->run;
    const double scale = 1.0 / (double)update->targets;
    double loss = 0;
    for (int64_t i = 0; i < update->batches; i++) {
        Batch batch;
        if (!share_batch(run, update, i, &batch)) continue;
        batch.step = (uint64_t)loop->progress.step;
        batch.last = is_last_share(run, update, i);
        profile_lap(run->setup.profile, "loader", PROFILE_STEP, 0);
        const double smoothed = run->type->train(run->model, &batch, scale);
        loss += run->type->unsmoothed ? run->type->unsmoothed(run->model) : smoothed;
        profile_lap(run->setup.profile, "other", PROFILE_STEP, 0);
    }
    run->type->reduce(run->model);
    ranks_sum(run->ranks, &loss, 1);
    profile_lap(run->setup.profile, "other ranks", PROFILE_STEP, 0);
    return loss * scale;
}

// With --audit N, computes the loss and gradients of every Nth step again: a processor or memory
// with silent errors gives different bits. The last result is applied.
static void audit(Loop *loop, const Update *update, double loss) {
    const Run *run = loop->run;
    const int64_t every = integer(loop, OPT_AUDIT), step = loop->progress.step + 1;
    if (every == 0 || step % every != 0) return;
    const uint64_t first = model_checksum(run->type, run->model, MODEL_GRADIENTS);
    run->type->clear_gradients(run->model);
    const double again = accumulate(loop, update);
    const uint64_t second = model_checksum(run->type, run->model, MODEL_GRADIENTS);
    const bool same = first == second && (loss == again || (isnan(loss) && isnan(again)));
    if (ranks_vote(run->ranks, !same))
        fail("--audit: step %lld computed twice differs: loss %.17g and %.17g, checksum of the "
             "gradients %016llx and %016llx; processor or memory cannot be trusted: continue with "
             "--resume on another machine",
             (long long)step, loss, again, (unsigned long long)first, (unsigned long long)second);
}

// Returns whether gradients of that norm, once clipped, and their squares are finite.
static bool is_usable(const Loop *loop, double norm) {
    const double clipped = norm * clip_scale(norm, number(loop, OPT_CLIP));
    return isfinite(norm) && isfinite((real)(clipped * clipped));
}

// Loads weights on rank 0 and copies them to all ranks; path NULL: copies those it has.
static void load_weights(const Loop *loop, const char *path) {
    if (loop_leads(loop) && path) {
        Safetensors *file = safetensors_open(path);
        checkpoint_load_weights(file, loop->run);
        safetensors_close(file);
    }
    share_values(loop->run);
}

// Loads weights, and returns whether the next update and its evaluation are finite.
static bool is_good(Loop *loop, const char *path) {
    const Run *run = loop->run;
    load_weights(loop, path);
    const Update update = run->type->task->update(run->task, loop->progress.sequences);
    const double loss = accumulate(loop, &update), norm = run->type->gradient_norm(run->model);
    Evaluation result = {.loss = 0};
    run->type->clear_gradients(run->model);
    if (run->dataset->splits[SPLIT_VAL].tokens > 0)
        evaluate(loop->run, SPLIT_VAL, integer(loop, OPT_VAL_BATCHES), &result);
    return isfinite(loss) && is_usable(loop, norm) && isfinite(result.loss);
}

// Exits with an error after too many updates that were not finite; names the newest weights that
// can be trained on.
static _Noreturn void give_up(Loop *loop) {
    for (size_t newer = 0;; newer++) {
        char *found = loop_leads(loop) ? checkpoint_path(loop->directory, newer) : NULL;
        char *path = share_text(loop->run->ranks, found);
        if (!path) break;
        if (is_good(loop, path))
            fail("%d updates in a row were not finite; the last good checkpoint, which was tried, "
                 "is %s; lower --lr and start from it with -e",
                 MAX_BAD_UPDATES, path);
        free(path);
        free(found);
    }
    char *best = checkpoint_best_path(loop->directory ? loop->directory : "");
    if (ranks_vote(loop->run->ranks, loop_leads(loop) && file_exists(best)) && is_good(loop, best))
        fail("%d updates in a row were not finite, nor is one from any checkpoint of a step; lower "
             "--lr and start from %s with -e",
             MAX_BAD_UPDATES, best);
    fail("%d updates in a row were not finite and no good checkpoint was saved; lower --lr",
         MAX_BAD_UPDATES);
}

// Applies the gradients, or drops them if they or their second moments would not be finite. Exits
// with an error after too many such updates.
static void apply(Loop *loop, double loss, double norm, double rate) {
    const Run *run = loop->run;
    if (isfinite(loss) && is_usable(loop, norm)) {
        const UpdateSettings settings = {
            .learning_rate = rate,
            .beta1 = number(loop, OPT_BETA1),
            .beta2 = number(loop, OPT_BETA2),
            .epsilon = number(loop, OPT_EPS),
            .weight_decay = number(loop, OPT_WEIGHT_DECAY),
            .gradient_scale = clip_scale(norm, number(loop, OPT_CLIP)),
            .step = loop->progress.step - loop->progress.skipped + 1,
            .adam = strcmp(options_text(run->options, OPT_OPTIMIZER), "adam") == 0};
        run->type->update(run->model, &settings);
        loop->bad_updates = 0;
        return;
    }
    run->type->clear_gradients(run->model);
    loop->progress.skipped++;
    loop->bad_updates++;
    log_line(loop->log, "step %lld skipped: loss %g, gradient norm %g",
             (long long)loop->progress.step + 1, loss, norm);
    if (loop->bad_updates < MAX_BAD_UPDATES) return;
    give_up(loop);
}

static void train_step(Loop *loop) {
    const double start = clock_seconds(), ran = clock_thread_seconds();
    Profile *profile = loop->run->setup.profile;
    profile_step(profile);
    const double rate = schedule_rate(&loop->schedule, loop->progress.step);
    const Update update = loop->run->type->task->update(loop->run->task, loop->progress.sequences);
    const double loss = accumulate(loop, &update);
    audit(loop, &update, loss);
    const double norm = loop->run->type->gradient_norm(loop->run->model);
    profile_lap(profile, "gradient norm", PROFILE_STEP, 0);
    apply(loop, loss, norm, rate);
    profile_lap(profile, "optimiser", PROFILE_STEP, 0);
    loop->progress.step++;
    loop->progress.sequences += update.sequences;
    const double now = clock_seconds();
    loop->progress.seconds = now - loop->begin;
    ranks_broadcast(loop->run->ranks, &loop->progress.seconds, sizeof(double));
    set_expected_steps(loop);
    loop_report_step(loop, &update, loss, norm, rate, now - start, clock_thread_seconds() - ran);
    agree_on_stop(loop);
    profile_lap(profile, "log", PROFILE_BETWEEN, 0);
}

// ---- between updates --------------------------------------------------------
// Forgets a best loss over another number of tokens, as from before a run was resumed with another
// --val-batches.
static void forget_other_text(Loop *loop, int64_t tokens) {
    if (loop->best.tokens == 0 || loop->best.tokens == tokens) return;
    log_line(loop->log,
             "the best loss so far, %.4f, is of %lld tokens, this evaluation of %lld: the best "
             "loss begins again",
             loop->best.loss, (long long)loop->best.tokens, (long long)tokens);
    loop->best = (BestLoss){INFINITY, 0};
}

// Returns whether the evaluation was completed, on which all ranks agree; otherwise a signal
// interrupted it.
static bool validate(Loop *loop) {
    Run *run = loop->run;
    Evaluation result;
    if (run->dataset->splits[SPLIT_VAL].tokens == 0) return true;
    if (!evaluate(run, SPLIT_VAL, integer(loop, OPT_VAL_BATCHES), &result)) return false;
    if (ranks_vote(run->ranks, loop_leads(loop) && !measure_validation(run, &result))) return false;
    profile_lap(run->setup.profile, "evaluation", PROFILE_BETWEEN, 0);
    forget_other_text(loop, result.tokens);
    if (loop->loss_steps > 0) result.training = loop->loss_sum / (double)loop->loss_steps;
    loop->loss_sum = 0;
    loop->loss_steps = 0;
    const bool best = result.loss < loop->best.loss;
    loop->progress.stale = best ? 0 : loop->progress.stale + 1;
    if (best) loop->best = (BestLoss){result.loss, result.tokens};
    if (best && loop_leads(loop)) {
        log_sync(loop->log); // best weights without the log of their run would block the next run
        checkpoint_save_best(run, loop->directory, loop->progress.step, &result);
    }
    log_evaluation(loop->log, loop->progress.step, "val", &result, best);
    return true;
}

static void save(Loop *loop) {
    loop->save_due = false;
    log_sync(loop->log);
    checkpoint_save(loop->run, loop->directory, &loop->progress, integer(loop, OPT_KEEP));
    if (loop_leads(loop)) restart_forget_log(loop->directory, loop->progress.step);
    loop->saved = clock_seconds();
}

// Returns whether --save-minutes have passed on rank 0's clock.
static bool is_minutes_old(const Loop *loop) {
    const double seconds = 60 * number(loop, OPT_SAVE_MINUTES);
    return seconds > 0 && ranks_vote(loop->run->ranks,
                                     loop_leads(loop) && clock_seconds() - loop->saved >= seconds);
}

// ---- the page -----------------------------------------------------------------
// Writes the page with samples. All ranks measure the effect of rounding; rank 0 writes. Writes
// nothing if a signal asks to stop, as the samples would end early.
static void write_page(Loop *loop, double loss) {
    const double start = clock_seconds();
    const Run *run = loop->run;
    char *samples[RUN_PAGE_SAMPLES];
    int count = 0;
    for (; loop_leads(loop) && run->type->task->text && count < RUN_PAGE_SAMPLES; count++) {
        samples[count] = run->type->task->text(run, (uint32_t)count);
        if (!samples[count]) break;
    }
    PageModel model = page_model_create(loop->run, loop->directory, loss);
    char *path = format_string("%s/" RUN_PAGE_NAME, loop->directory ? loop->directory : "");
    agree_on_stop(loop);
    if (loop_leads(loop) && !loop->stop)
        run_page_write(path, loop->directory, &model, samples, count);
    page_model_free(&model);
    for (int i = 0; i < count; i++) free(samples[i]);
    free(path);
    loop->page_written = clock_seconds();
    loop->page_seconds = loop->page_written - start;
}

// Writes the page at an evaluation, unless pages would take more than a hundredth of the time.
static void update_page(Loop *loop) {
    const double since = clock_seconds() - loop->page_written;
    const bool due = loop_leads(loop) && since >= 100 * loop->page_seconds;
    if (!options_flag(loop->run->options, OPT_NO_PAGE) && ranks_vote(loop->run->ranks, due))
        write_page(loop, NAN);
    profile_lap(loop->run->setup.profile, "page", PROFILE_BETWEEN, 0);
}

// Writes the page with the best weights.
static void finish_page(Loop *loop) {
    if (!options_flag(loop->run->options, OPT_NO_PAGE))
        write_page(loop, isfinite(loop->best.loss) ? loop->best.loss : (double)NAN);
}

// Does what is due after an update: evaluation, sample, checkpoint, page.
static void after_step(Loop *loop, const Progress *before) {
    const Progress *now = &loop->progress;
    const bool last = loop_ended(loop);
    const int64_t val_every = integer(loop, OPT_VAL_EVERY),
                  save_every = integer(loop, OPT_SAVE_EVERY);
    const bool evaluates =
        last || (val_every > 0
                     ? crosses_multiple(before->step, now->step, val_every)
                     : crosses_multiple(before->sequences, now->sequences, loop->plan->sequences));
    loop->progress.evaluation_due = evaluates && (loop->stop || !validate(loop));
    const TaskType *task = loop->run->type->task;
    if (loop_leads(loop) && task->sample &&
        crosses_multiple(before->step, now->step, integer(loop, OPT_SAMPLE_EVERY))) {
        log_line(loop->log, "sample at step %lld:", (long long)now->step);
        task->sample(loop->run, now->step);
        profile_lap(loop->run->setup.profile, "sample", PROFILE_BETWEEN, 0);
    }
    agree_on_stop(loop);
    const bool saves =
        save_every > 0 ? crosses_multiple(before->step, now->step, save_every) : evaluates;
    loop->save_due |=
        saves || is_minutes_old(loop) || last || loop_out_of_patience(loop) || loop->stop;
    if (loop->save_due && loop->bad_updates == 0) save(loop);
    profile_lap(loop->run->setup.profile, "checkpoint", PROFILE_BETWEEN, 0);
    if (evaluates && !last && !loop->stop) update_page(loop);
}

// Runs the evaluation that a signal left out, as an uninterrupted run did. From then on the states
// of the two are equal.
static void run_pending_evaluation(Loop *loop) {
    loop->progress.evaluation_due = !validate(loop);
    agree_on_stop(loop);
    if (!loop->progress.evaluation_due) save(loop);
    profile_lap(loop->run->setup.profile, "checkpoint", PROFILE_BETWEEN, 0);
}

// Loads the best weights and takes their loss: those that an interrupted attempt left may be better
// than all of this one. Keeps the last ones if there was no validation.
static void load_best(Loop *loop) {
    char *path = loop_leads(loop) ? checkpoint_best_path(loop->directory) : NULL;
    const bool found = path && isfinite(loop->best.loss) && file_exists(path);
    if (found) {
        char *id = run_data_validation_id(loop->run->dataset);
        int64_t step;
        loop->best = checkpoint_best(loop->directory, INT64_MAX, id, &step);
        free(id);
    }
    ranks_broadcast(loop->run->ranks, &loop->best, sizeof(loop->best));
    load_weights(loop, found ? path : NULL);
    free(path);
}

static void test(Loop *loop) {
    Run *run = loop->run;
    Evaluation result;
    if (run->dataset->splits[SPLIT_TEST].tokens == 0 || options_flag(run->options, OPT_NO_TEST))
        return;
    if (evaluate(run, SPLIT_TEST, 0, &result))
        log_evaluation(loop->log, loop->progress.step, "test", &result, false);
}

// Runs the test and report at the end of a run, with its best weights. A signal may interrupt it.
static void finish(Loop *loop) {
    load_best(loop);
    test(loop);
    if (loop_leads(loop)) measure(loop->run, loop->log, loop->progress.step);
    profile_lap(loop->run->setup.profile, "test", PROFILE_BETWEEN, 0);
    agree_on_stop(loop);
}

// ---- start and end ----------------------------------------------------------
// Resumes from the saved state. The earlier losses are in the log; if that is lost, the best loss
// is in the best weights, unless it is of an evaluation that will be repeated.
static void resume(Loop *loop) {
    if (loop->run->state) checkpoint_load_state(loop->run->state, loop->run, &loop->progress);
    follow_batch(loop);
    const Progress *p = &loop->progress;
    const unsigned again = (loop_ended(loop) || loop_out_of_patience(loop) ? LOG_END : 0) |
                           (p->evaluation_due ? LOG_EVALUATION : 0);
    if (loop_leads(loop))
        checkpoint_tidy(loop->run->type, loop->directory, integer(loop, OPT_KEEP));
    if (loop_leads(loop) && p->step == 0) restart_keep_log(loop->directory);
    loop->log = log_open(loop_leads(loop) ? loop->directory : NULL, p->step, again);
    if (loop_leads(loop) && p->step > 0) {
        char *id = run_data_validation_id(loop->run->dataset);
        int64_t step;
        const BestLoss logged = log_best(loop->log, id),
                       saved =
                           checkpoint_best(loop->directory, p->step - p->evaluation_due, id, &step);
        // Without the file (step -1) the logged loss is of weights that do not exist any more.
        loop->best = step >= 0 && logged.loss < saved.loss ? logged : saved;
        free(id);
    }
    ranks_broadcast(loop->run->ranks, &loop->best, sizeof(loop->best));
    // A run that counted steps so far has its time in the log.
    if (loop->budget > 0 && p->step > 0 && p->seconds == 0)
        loop->progress.seconds = log_seconds(loop->log);
    ranks_broadcast(loop->run->ranks, &loop->progress.seconds, sizeof(double));
}

static Loop loop_create(Run *run) {
    const Options *o = run->options;
    Loop loop = {.run = run,
                 .plan = run->type->task->plan(run->task),
                 .budget = 60 * options_number(o, OPT_MINUTES),
                 .directory = options_text(o, OPT_OUTPUT),
                 .best = {.loss = INFINITY}};
    loop.steps = planned_steps(&loop);
    loop.schedule = (Schedule){.kind = (ScheduleKind)options_choice(o, OPT_SCHEDULE),
                               .peak = options_number(o, OPT_LR),
                               .final_fraction = options_number(o, OPT_FINAL_LR),
                               .warmup = options_integer(o, OPT_WARMUP),
                               .channels = run->type->facts(o, NULL).channels};
    return loop;
}

int train_loop(Run *run) {
    Loop loop = loop_create(run);
    resume(&loop);
    loop_introduce(&loop);
    if (loop_leads(&loop) && !loop_ended(&loop)) settings_check(run, &loop.schedule, loop.steps);
    loop_log_start(&loop);
    if (loop.device.threads > 1) threads_bind(); // a single thread, as for a GPU, may run anywhere
    if (loop.progress.step > 0)
        log_line(loop.log, "resuming after step %lld", (long long)loop.progress.step);
    profile_lap(run->setup.profile, "start", PROFILE_BETWEEN, 0);
    loop.saved = clock_seconds();
    loop.begin = loop.saved - loop.progress.seconds;
    loop.first_step = loop.progress.step;
    agree_on_stop(&loop);
    if (loop.progress.evaluation_due && !loop.stop) run_pending_evaluation(&loop);
    loop_log_status(&loop);

    set_expected_steps(&loop);
    while (!loop_ended(&loop) && !loop_out_of_patience(&loop) && !loop.stop) {
        const Progress before = loop.progress;
        train_step(&loop);
        after_step(&loop, &before);
    }
    loop.trained = !loop.stop;
    if (loop.trained && loop.progress.step > loop.first_step && loop_out_of_patience(&loop))
        loop_log_status(&loop);
    if (loop.trained) finish(&loop);
    loop_log_reduction(&loop);
    profile_report(run->setup.profile, loop.log, loop.peak_flops);
    if (!loop.stop) finish_page(&loop);
    agree_on_stop(&loop);
    if (!loop.stop && loop_leads(&loop)) loop_log_next(&loop);
    if (loop.stop && loop_leads(&loop)) loop_log_stopped(&loop);
    log_close(loop.log);
    return loop.stop ? 128 + loop.stop : 0;
}
