// --profile: the time of a training run by kind of work.
//
// A stopwatch with laps: each call of profile_lap() records the time since the previous call. The
// pointer to the profile is NULL if profiling is disabled, so that a lap then costs only one test.
#ifndef MODEL_PROFILE_H
#define MODEL_PROFILE_H

#include "log.h"

typedef struct Profile Profile;

typedef enum {
    PROFILE_FORWARD,
    PROFILE_BACKWARD,
    PROFILE_STEP,    // in a step: forward and backward together, or neither
    PROFILE_BETWEEN, // before or between steps
    PROFILE_PARTS
} ProfilePart;

Profile *profile_create(void); // starts the stopwatch
void profile_free(Profile *profile);

// Begins a step; does nothing if profile is NULL. The laps of the first step, which touches memory
// for the first time and generates kernels, are dropped if a second step follows.
void profile_step(Profile *profile);

// Adds the time since the last lap and its FLOP (0: not counted) to a kind of work; does nothing if
// profile is NULL. `kind` must outlive the profile. Kinds are printed in the order of their first
// lap. More than PROFILE_KINDS kinds are a programming error (abort).
enum { PROFILE_KINDS = 64 };
void profile_lap(Profile *profile, const char *kind, ProfilePart part, double flops);

// Prints the table to the terminal, and appends to the log {"event": "profile", "steps", "ms" (per
// step), "peak_gflops", "kinds": [{"kind", "forward_ms", "backward_ms", "ms", "percent",
// "gflops"}], "between_ms": {KIND: ms}}, without values that are 0. Does nothing if profile is NULL
// or no step was made. peak_flops: FLOP/s, 0: unknown.
void profile_report(const Profile *profile, Log *log, double peak_flops);

#endif
