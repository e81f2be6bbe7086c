#include "threads.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifdef _OPENMP
// libgomp counts looks, libomp milliseconds. With fewer looks an idle machine is slower (dev/bench/busy.sh).
static const char gomp_looks[] = "30000", kmp_milliseconds[] = "0";

// libomp's; not there in a program that has libgomp.
extern void kmp_set_blocktime(int milliseconds) __attribute__((weak));

static bool is_set(const char *variable, const char *value) {
    const char *found = getenv(variable);
    return found && strcmp(found, value) == 0;
}
#endif

void threads_wait_briefly(char **argv) {
#ifdef _OPENMP
    static const char *const policies[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME",
                                           "KMP_LIBRARY"};
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (getenv(policies[i])) return;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "vgpreload")) return; // valgrind would not follow
    if (setenv("GOMP_SPINCOUNT", gomp_looks, 1) != 0 || setenv("KMP_BLOCKTIME", kmp_milliseconds, 1) != 0)
        return;
    execve((const char *)getauxval(AT_EXECFN), argv, environ);
#else
    (void)argv;
#endif
}

#ifdef _OPENMP
// How long the main thread has waited for a core so far, in seconds; -1 where the kernel does not say.
static double seconds_without_core(void) {
    FILE *file = fopen("/proc/self/schedstat", "re");
    if (!file) return -1;
    double nanoseconds;
    const bool found = fscanf(file, "%*s %lf", &nanoseconds) == 1;
    fclose(file);
    return found ? 1e-9 * nanoseconds : -1;
}
#endif

void threads_follow_load(double now) {
#ifdef _OPENMP
    enum { SPIN = 200 }; // milliseconds, libomp's default
    static double last_look, last_waited;
    if (!kmp_set_blocktime || now - last_look < 0.2 || !is_set("GOMP_SPINCOUNT", gomp_looks) ||
        !is_set("KMP_BLOCKTIME", kmp_milliseconds))
        return;
    const double waited = seconds_without_core();
    const bool alone = last_look > 0 && waited >= 0 && waited - last_waited < 0.05 * (now - last_look);
    kmp_set_blocktime(alone ? SPIN : 0);
    last_look = now;
    last_waited = waited;
#else
    (void)now;
#endif
}

void threads_use(int count) {
#ifdef _OPENMP
    if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(count);
#else
    (void)count;
#endif
}

void threads_settle(void) {
#ifdef _OPENMP
    omp_set_dynamic(0);
    int count = 1;
#pragma omp parallel
#pragma omp single
    count = omp_get_num_threads();
    omp_set_num_threads(count);
#endif
}
