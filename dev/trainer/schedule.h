// What each update is scaled by: learning-rate schedules and gradient clipping.
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
    int64_t channels;      // noam: of the model
    double steps; // updates: planned, or, where time ends a run, as many as at the pace so far
} Schedule;

// The learning rate of update `step`, 0 <= step < steps. Warmup rises linearly: peak * (step + 1) /
// warmup. Then linear: falls to the final fraction by 1 - i/n with n the steps after the warmup (at
// step `steps` it is reached); cosine likewise along half a cosine; wsd: constant, then down as 1 -
// sqrt over the last fifth (Hagele et al. 2024). noam (Vaswani et al. 2017): peak * channels^-0.5 *
// min(n^-0.5, n * warmup^-1.5), n = step + 1, which no length of the run enters.
double schedule_rate(const Schedule *schedule, int64_t step);

// The updates of a run that ends after `budget` seconds, at the pace of its first `step` updates,
// which took `seconds`: so without a warmup the schedule passes as the time does. Before the first
// a number without end.
double expected_steps(int64_t step, double seconds, double budget);

// What gradients of this norm are multiplied with so that it is at most `limit` (0: any), as
// PyTorch's clip_grad_norm_ does: limit / (norm + 1e-6) where that is below 1.
double clip_scale(double norm, double limit);

#endif
