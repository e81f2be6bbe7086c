// OpenMP's threads, or one thread where the build has no OpenMP.
#ifndef CPU_THREADS_H
#define CPU_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#endif

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
