// Seconds since an arbitrary moment, for differences: of a clock that never jumps, and of the
// calling thread's CPU time.
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <time.h>

static inline double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline double clock_thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
