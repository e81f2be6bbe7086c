// OpenMP's threads, or one thread where the build has no OpenMP.
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#endif

// Lets threads that wait sleep after a short while, where OpenMP's libraries would let them spin
// for milliseconds and take the core from the thread they wait for when other programs are at work
// (dev/bench/busy.py). The libraries read this from the environment, and before main: so this sets
// GOMP_SPINCOUNT, KMP_BLOCKTIME and KMP_USE_YIELD and executes the program again, once; returns
// where the user has set one of the first two, OMP_WAIT_POLICY or KMP_LIBRARY, and where that is
// not possible. For the first line of main, while nothing is open.
void threads_wait_briefly(char **argv);

// Gives each thread of the calling thread's parallel regions a core of its own. When other programs
// run the kernel else puts two on one and leaves a core to the others (dev/bench/busy.py). Does
// nothing where there are not as many threads as cores that the process may use, and where the user
// says where they run (OMP_PROC_BIND, OMP_PLACES). For once, when their number is known: after
// threads_settle().
void threads_bind(void);

// Parallel regions get so many threads (0: as many as the processors that the process may run on),
// but no more than the quota of its cgroups has room for: threads that wait for each other are slow
// where the kernel stops some of them. Nothing where the user says how many (OMP_NUM_THREADS).
void threads_use(int count);

// Makes the next parallel regions get exactly thread_limit() threads: OpenMP may deliver fewer than
// it promises (OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS, a region inside another), and
// oneDNN then leaves out the rows of the threads that did not come. The number is counted in a real
// region; holds for the calling thread.
void threads_settle(void);

// Threads of the next parallel region.
static inline int thread_limit(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Threads of the parallel region that the calling thread is in.
static inline int thread_count(void) {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

// The calling thread's place in its parallel region.
static inline int thread_index(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
