// A barrier for the threads of a parallel region that synchronise every few microseconds, as in
// decoding. OpenMP's own barrier takes three times as long.
#ifndef BASE_BARRIER_H
#define BASE_BARRIER_H

#include "threads.h"
#include <sched.h>
#include <stdatomic.h>

// Initialise to zero.
typedef struct {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint round;
} Barrier;

// Tells a core with two hardware threads that this one is only waiting.
static inline void barrier_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Returns when all threads of the region have arrived.
static inline void barrier_wait(Barrier *b) {
    enum { PATIENCE = 256 }; // polls before yielding the core, a few microseconds
    const unsigned threads = (unsigned)thread_count();
    const unsigned round = atomic_load_explicit(&b->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) + 1 == threads) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&b->round, round + 1, memory_order_release);
        return;
    }
    int looks = 0;
    while (atomic_load_explicit(&b->round, memory_order_acquire) == round) {
        if (looks < PATIENCE) {
            looks++;
            barrier_pause();
        } else {
            sched_yield();
        }
    }
}

#endif
