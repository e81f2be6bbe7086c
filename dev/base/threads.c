#include "threads.h"

#include "cgroup.h"
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifdef _OPENMP
// How long threads spin: libgomp counts iterations, libomp milliseconds. With fewer iterations an
// idle machine is slower (dev/bench/busy.py).
static const char gomp_looks[] = "30000", kmp_milliseconds[] = "1";
// libomp also yields while it spins, which gives away a whole time slice. 2 makes it yield only if
// threads outnumber cores.
static const char kmp_yield[] = "2";

// If the user binds threads (OMP_PROC_BIND), the library has bound this one before main. Lets it
// run in all places again, so that the program executed next finds them.
static void leave_place(void) {
    if (omp_get_proc_bind() == omp_proc_bind_false) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int place = 0; place < omp_get_num_places(); place++) {
        int ids[CPU_SETSIZE];
        const int count = omp_get_place_num_procs(place);
        if (count > CPU_SETSIZE) return;
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < count; i++) CPU_SET((size_t)ids[i], &cores);
    }
    sched_setaffinity(0, sizeof(cores), &cores);
}
#endif

void threads_wait_briefly(char **argv) {
#ifdef _OPENMP
    static const char *const policies[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME",
                                           "KMP_LIBRARY"};
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (getenv(policies[i])) return;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "vgpreload")) return; // valgrind would not follow the exec
    if (setenv("GOMP_SPINCOUNT", gomp_looks, 1) != 0 ||
        setenv("KMP_BLOCKTIME", kmp_milliseconds, 1) != 0 ||
        setenv("KMP_USE_YIELD", kmp_yield, 0) != 0)
        return;
    leave_place();
    execve((const char *)getauxval(AT_EXECFN), argv, environ);
#else
    (void)argv;
#endif
}

#ifdef _OPENMP
// Returns core number `n` of a set.
static int core_of(const cpu_set_t *cores, int n) {
    int core = 0;
    while (!CPU_ISSET(core, cores) || n-- > 0) core++;
    return core;
}
#endif

void threads_bind(void) {
#ifdef _OPENMP
    cpu_set_t cores; // that the process may use
    if (getenv("OMP_PROC_BIND") || omp_get_proc_bind() != omp_proc_bind_false ||
        sched_getaffinity(0, sizeof(cores), &cores) != 0 ||
        CPU_COUNT(&cores) != omp_get_max_threads())
        return;
    const int count = CPU_COUNT(&cores),
              first = (int)getpid() % count; // separates the main threads of runs, too
#pragma omp parallel
    {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(core_of(&cores, (first + omp_get_thread_num()) % count), &own);
        sched_setaffinity(0, sizeof(own), &own); // on failure the thread stays unbound
    }
#endif
}

void threads_use(int count) {
#ifdef _OPENMP
    if (getenv("OMP_NUM_THREADS")) return;
    if (count == 0) count = omp_get_max_threads();
    const size_t quota = cgroup_processors("/proc/self/cgroup", "/sys/fs/cgroup");
    omp_set_num_threads((size_t)count < quota ? count : (int)quota);
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

#if defined(_OPENMP) && defined(__linux__) && !defined(__GLIBC__)
// GCC's OpenMP library, as built by distributions with glibc, needs these functions, which musl
// lacks. They allow a musl program to be linked with it (make static).
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

long __sysconf(int name);
__attribute__((weak)) long __sysconf(int name) {
    return sysconf(name);
}

// OMP_PROC_BIND and OMP_PLACES have no effect.
int pthread_attr_setaffinity_np(pthread_attr_t *attributes, size_t size, const cpu_set_t *set);
__attribute__((weak)) int pthread_attr_setaffinity_np(pthread_attr_t *attributes, size_t size,
                                                      const cpu_set_t *set) {
    (void)attributes, (void)size, (void)set;
    return 0;
}
#endif
