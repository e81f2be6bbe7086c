// Thread pinning: each thread on its own core.
#include "test.h"
#include "threads.h"
#include <sched.h>

#ifdef _OPENMP
enum { MOST = 64 };

// Stores how many cores each thread of a region may use; returns the number of all these cores.
static int look(size_t *cores) {
    cpu_set_t sets[MOST], all;
    int count = 0;
    CPU_ZERO(&all);
#pragma omp parallel
    {
        sched_getaffinity(0, sizeof(sets[0]), &sets[omp_get_thread_num()]);
#pragma omp single
        count = omp_get_num_threads();
    }
    for (int i = 0; i < count; i++) {
        cores[i] = (size_t)CPU_COUNT(&sets[i]);
        CPU_OR(&all, &all, &sets[i]);
    }
    return CPU_COUNT(&all);
}

static void test_bind(void) {
    cpu_set_t cores;
    size_t of_thread[MOST];
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0 || CPU_COUNT(&cores) >= MOST) return;
    const int count = CPU_COUNT(&cores);
    omp_set_dynamic(0);
    omp_set_num_threads(count + 1); // more threads than cores
    threads_bind();
    CHECK(look(of_thread) == count && of_thread[0] == (size_t)count);
    omp_set_num_threads(count);
    for (int round = 0; round < 2; round++) { // a second call changes nothing
        threads_bind();
        CHECK(look(of_thread) == count);
        for (int i = 0; i < count; i++) CHECK(of_thread[i] == 1);
    }
}
#else
static void test_bind(void) {
    threads_bind();
}
#endif

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"bind", test_bind}};
    return test_main(argc, argv, "threads", cases, sizeof(cases) / sizeof(cases[0]));
}
