#include "threads.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

void threads_wait_briefly(char **argv) {
#ifdef _OPENMP
    static const char *const policies[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME",
                                           "KMP_LIBRARY"};
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (getenv(policies[i])) return;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "vgpreload")) return; // valgrind would not follow
    // libgomp counts looks, libomp milliseconds. With fewer looks an idle machine is slower
    // (dev/bench/busy.sh).
    if (setenv("GOMP_SPINCOUNT", "30000", 1) != 0 || setenv("KMP_BLOCKTIME", "0", 1) != 0) return;
    execve((const char *)getauxval(AT_EXECFN), argv, environ);
#else
    (void)argv;
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
