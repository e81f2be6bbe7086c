#include "schedule.h"
#include <math.h>

// Returns how much of the way from the peak to the final rate is done, in [0, 1], after a fraction
// x in [0, 1] of the falling part.
static double fallen(ScheduleKind kind, double x) {
    switch (kind) {
    case SCHEDULE_LINEAR:
        return x;
    case SCHEDULE_COSINE:
        return 0.5 * (1 - cos(acos(-1.0) * x));
    case SCHEDULE_WSD:
        return sqrt(x);
    case SCHEDULE_CONSTANT:
    case SCHEDULE_NOAM:
        break;
    }
    return 0;
}

static double noam_rate(const Schedule *schedule, double n) {
    const double warmup = fmax((double)schedule->warmup, 1);
    return schedule->peak / sqrt((double)schedule->channels) *
           fmin(1 / sqrt(n), n / (warmup * sqrt(warmup)));
}

double schedule_rate(const Schedule *schedule, int64_t step) {
    const double steps = schedule->steps, warmup = (double)schedule->warmup, now = (double)step;
    if (schedule->kind == SCHEDULE_NOAM) return noam_rate(schedule, now + 1);
    if (now < warmup) return schedule->peak * (now + 1) / warmup;

    const double stable_end = steps - steps / 5; // where wsd begins to fall
    const double start = schedule->kind == SCHEDULE_WSD ? fmax(warmup, stable_end) : warmup;
    const double x = now >= steps ? 1 : fmax(0, (now - start) / (steps - start));
    return schedule->peak * (1 - (1 - schedule->final_fraction) * fallen(schedule->kind, x));
}

double clip_scale(double norm, double limit) {
    const double scale = limit / (norm + 1e-6);
    return limit > 0 && scale < 1 ? scale : 1;
}

double expected_steps(int64_t step, double seconds, double budget) {
    if (step == 0 || seconds <= 0) return (double)INT64_MAX;
    return (double)step * fmax(1, budget / seconds);
}
