#include "settings.h"

#include "checkpoint.h"
#include "error.h"
#include "memory.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { LINE_BYTES = 256, MOST_LINES = 100000 }; // of the log, as counted here

static void check_rate(const Options *o, const Schedule *schedule, int64_t steps) {
    const double lr = schedule->peak, warmup = (double)schedule->warmup;
    const bool noam = schedule->kind == SCHEDULE_NOAM;
    const double last = steps > 0 ? (double)steps : INFINITY;
    const double peak = noam ? schedule_rate(schedule, (int64_t)fmin(fmax(warmup, 1), last) - 1)
                        : warmup > last ? lr * last / warmup
                                        : lr;
    if (lr == 0)
        warn("--lr 0: the model does not learn");
    else if (noam && peak < 1e-4)
        warn("--schedule noam with --lr %g: the rate peaks at %.2g, as it is --lr / "
             "sqrt(channels * warmup); --lr is usually 1 to 2 with it",
             lr, peak);
    else if (peak > 0.1)
        warn("--lr %g: the rate peaks at %.2g, at which training hardly ever converges", lr, peak);
    if (!noam && warmup >= last)
        warn("--warmup %lld: the run has %lld steps, so the rate rises to %.2g and never falls",
             (long long)schedule->warmup, (long long)steps, peak);
    if (schedule->final_fraction > 0 && (noam || schedule->kind == SCHEDULE_CONSTANT))
        warn("--final-lr: has no effect with --schedule %s", options_text(o, OPT_SCHEDULE));
    if (peak * options_number(o, OPT_WEIGHT_DECAY) >= 1)
        warn("--weight-decay %g: with a rate of %.2g one step turns the signs of all weights",
             options_number(o, OPT_WEIGHT_DECAY), peak);
}

void settings_check(const Run *run, const Schedule *schedule, int64_t steps) {
    const Options *o = run->options;
    const Split *splits = run->dataset->splits;
    const int64_t patience = options_integer(o, OPT_PATIENCE),
                  every = options_integer(o, OPT_VAL_EVERY);
    const double clip = options_number(o, OPT_CLIP);
    if (patience > 0 && splits[SPLIT_VAL].tokens == 0)
        fail("%s: has no val split, which --patience needs", run->dataset->name);
    if (patience > 0 && every > 0 && steps > 0 && patience > steps / every)
        warn("--patience %lld: the run has %lld evaluations, so it never ends early",
             (long long)patience, (long long)(steps / every));
    check_rate(o, schedule, steps);
    if (clip > 0 && clip < 1e-4)
        warn("--clip %g: gradients are cut so short that --eps decides the size of a step", clip);
    if (options_changed(o, OPT_EPOCHS) && (steps == 0 || options_integer(o, OPT_STEPS) > 0))
        warn("--epochs %g: has no effect with --%s", options_number(o, OPT_EPOCHS),
             steps == 0 ? "minutes" : "steps");
    if (run->dataset->vocabulary > splits[SPLIT_TRAIN].tokens)
        warn("%s: a vocabulary of %d tokens for a text of %lld: most of them are never seen; make "
             "the data with a smaller --vocab-size",
             run->dataset->name, run->dataset->vocabulary, (long long)splits[SPLIT_TRAIN].tokens);
}

char *settings_check_room(const Run *run, int64_t steps, double evaluations) {
    const Options *o = run->options;
    const char *directory = options_text(o, OPT_OUTPUT);
    const double every = (double)options_integer(o, OPT_SAVE_EVERY);
    const double saves = ceil(every > 0 ? (double)steps / every : evaluations) + 1;
    const double kept = fmin((double)options_integer(o, OPT_KEEP), saves);
    const double weights = (double)(run->type->parameters(run->model)->parameters * sizeof(float));
    size_t pairs;
    bool best;
    checkpoint_count(directory, &pairs, &best);
    // The next pair and the next best weights are complete before older ones are removed.
    const double needed = 3 * weights * fmax(kept + 1 - (double)pairs, 1) + weights * (2 - best) +
                          LINE_BYTES * fmin((double)steps, MOST_LINES);
    struct statvfs disk;
    if (statvfs(directory, &disk) != 0) fail("%s: %s", directory, strerror(errno));
    const double available = (double)disk.f_bavail * (double)disk.f_frsize;
    char *left = format_bytes((size_t)fmin(available, 1e18)),
         *text = format_bytes((size_t)fmin(needed, 1e18));
    if (needed > available)
        fail("%s: the run needs %s on this disk for its checkpoints (--keep %lld), best weights "
             "and log, and %s are available; lower --keep, or choose another --output",
             directory, text, (long long)options_integer(o, OPT_KEEP), left);
    append_format(&text, " of the %s available", left);
    free(left);
    return text;
}
