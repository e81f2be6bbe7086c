// Where the time of a training run goes, by kind of work: what --profile shows.
//
// A stopwatch with laps: each call of profile_lap() books the time since the call before it. What
// is measured holds a pointer that is NULL if profiling is disabled, so that a lap then costs one
// test.
#ifndef MODEL_PROFILE_H
#define MODEL_PROFILE_H

#include "log.h"

typedef struct Profile Profile;

typedef enum {
    PROFILE_FORWARD,
    PROFILE_BACKWARD,
    PROFILE_STEP,    // in a step, and both of them in one, or neither
    PROFILE_BETWEEN, // before or between steps
    PROFILE_PARTS
} ProfilePart;

Profile *profile_create(void); // the stopwatch starts
void profile_free(Profile *profile);

// A step begins; nothing happens if profile is NULL. The laps of the first step, in which memory is
// touched and kernels are made, are dropped when there is a second one.
void profile_step(Profile *profile);

// Books the time since the last lap, and the FLOP that were done in it (0: not counted), as one of
// these kinds of work; nothing happens if profile is NULL. `kind` must outlive the profile. Kinds
// are shown in the order in which they first came; more than PROFILE_KINDS are a programming error
// (abort).
enum { PROFILE_KINDS = 64 };
void profile_lap(Profile *profile, const char *kind, ProfilePart part, double flops);

// The table, to the terminal; and to the log {"event": "profile", "steps", "ms" (per step),
// "peak_gflops", "kinds": [{"kind", "forward_ms", "backward_ms", "ms", "percent", "gflops"}],
// "between_ms": {KIND: ms}}, without what is 0. Nothing if profile is NULL or no step was taken.
// peak_flops: FLOP/s, 0: unknown.
void profile_report(const Profile *profile, Log *log, double peak_flops);

#endif
