// Scaling of updates: learning-rate schedules and gradient clipping.
#ifndef TRAINER_SCHEDULE_H
#define TRAINER_SCHEDULE_H

#include <stdint.h>

// In the order of the choices of --schedule.
typedef enum {
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD,
    SCHEDULE_NOAM
} ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double peak;           // learning rate after the warmup
    double final_fraction; // of the peak, at the end
    int64_t warmup;        // updates
    int64_t channels;      // the model's, for noam
    double steps; // updates: planned, or, if time limits the run, as many as at the pace so far
} Schedule;

// Returns the learning rate of update `step`, 0 <= step < steps. Warmup rises linearly: peak *
// (step + 1) / warmup. Then linear falls to the final fraction by 1 - i/n, with n the steps after
// the warmup (it is reached at step `steps`); cosine likewise along half a cosine; wsd is constant,
// then falls as 1 - sqrt over the last fifth (Hagele et al. 2024).
// noam (Vaswani et al. 2017): peak * channels^-0.5 * min(n^-0.5, n * warmup^-1.5), n = step + 1,
// independent of the length of the run.
double schedule_rate(const Schedule *schedule, int64_t step);

// Returns the expected number of updates of a run that ends after `budget` seconds, at the pace of
// its first `step` updates, which took `seconds`. Without a warmup the schedule then progresses as
// time does. Returns INT64_MAX before the first update.
double expected_steps(int64_t step, double seconds, double budget);

// Returns the factor that scales gradients of this norm to at most `limit` (0: no limit), as
// PyTorch's clip_grad_norm_ does: limit / (norm + 1e-6) if that is below 1.
double clip_scale(double norm, double limit);

#endif
