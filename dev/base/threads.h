// OpenMP threads, or one thread if the build has no OpenMP.
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#endif

// Makes waiting threads sleep after a short while. By default OpenMP's libraries let them spin for
// milliseconds, which takes the core from the thread they wait for if other programs run
// (dev/bench/busy.py). The libraries read their settings from the environment before main, so this
// sets GOMP_SPINCOUNT, KMP_BLOCKTIME and KMP_USE_YIELD and executes the program again, once.
// Returns if the user has set one of the first two, OMP_WAIT_POLICY or KMP_LIBRARY, or if this is
// not possible. Call it in the first line of main, while no file is open.
void threads_wait_briefly(char **argv);

// Pins each thread of the calling thread's parallel regions to a core of its own. If other programs
// run, the kernel otherwise puts two threads on one core and leaves a core to the others
// (dev/bench/busy.py). Does nothing if the number of threads is not the number of cores that the
// process may use, or if the user places the threads (OMP_PROC_BIND, OMP_PLACES). Call it once the
// number of threads is known: after threads_settle().
void threads_bind(void);

// Sets the number of threads of parallel regions (0: the processors that the process may run on),
// limited to the quota of its cgroups: threads that wait for each other are slow if the kernel
// stops some of them. Does nothing if the user sets the number (OMP_NUM_THREADS).
void threads_use(int count);

// Makes the next parallel regions of the calling thread get exactly thread_limit() threads. OpenMP
// may start fewer than it promises (OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS, nested
// regions), and oneDNN then skips the rows of the missing threads. The number is counted in a real
// region.
void threads_settle(void);

// Returns the number of threads of the next parallel region.
static inline int thread_limit(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Returns the number of threads of the parallel region that the calling thread is in.
static inline int thread_count(void) {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

// Returns the calling thread's index in its parallel region.
static inline int thread_index(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
