// Measures the time to sum gradients over processes, by number of elements. scaling.py derives
// latency and bandwidth from it. Prints lines of "ELEMENTS SECONDS", medians.
//
//   mpirun -n 2 --bind-to none build/float-onednn/bench/reduction
#include "measure.h"
#include "ranks.h"

enum { ROUNDS = 15 };

static double measure(Ranks *ranks, size_t count) {
    const ReductionPlan plan = {.count = count};
    Reduction *reduction = reduction_create(ranks, &plan);
    real *values = allocate(count, sizeof(real), "values");
    double taken[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        ranks_vote(ranks, 0); // all processes begin together
        const double start = clock_seconds();
        reduction_end(reduction, values);
        taken[i] = clock_seconds() - start;
    }
    reduction_free(reduction);
    free(values);
    return bench_median(taken, ROUNDS);
}

int main(void) {
    Ranks *ranks = ranks_open(60);
    for (size_t count = RANKS_PIECE; count <= (size_t)RANKS_PIECE << 11; count *= 2) {
        const double taken = measure(ranks, count);
        if (ranks_rank(ranks) == 0) printf("%zu %.6f\n", count, taken);
    }
    ranks_close(ranks);
    return 0;
}
