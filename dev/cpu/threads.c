#include "threads.h"

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
