// One process, always.
#include "ranks.h"

#include "error.h"
#include <stdlib.h>
#include <unistd.h>

// Several programs that do not know of each other would overwrite each other's files.
Ranks *ranks_open(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const char *size = getenv(sizes[i]);
        if (size && atoi(size) > 1)
            fail("one of %s processes that were started together, but built without MPI: install mpicc "
                 "(libopenmpi-dev) and make again",
                 size);
    }
    return NULL;
}

void ranks_close(Ranks *ranks) {
    (void)ranks;
}

int ranks_rank(const Ranks *ranks) {
    (void)ranks;
    return 0;
}

int ranks_size(const Ranks *ranks) {
    (void)ranks;
    return 1;
}

int ranks_on_machine(const Ranks *ranks) {
    (void)ranks;
    return 1;
}

int ranks_cores(const Ranks *ranks) {
    (void)ranks;
    return 0;
}

char *ranks_describe(const Ranks *ranks) {
    (void)ranks;
    return NULL;
}

void ranks_set_timeout(Ranks *ranks, double seconds) {
    (void)ranks;
    (void)seconds;
}

void ranks_broadcast(Ranks *ranks, void *data, size_t bytes) {
    (void)ranks;
    (void)data;
    (void)bytes;
}

void ranks_sum(Ranks *ranks, double *values, size_t count) {
    (void)ranks;
    (void)values;
    (void)count;
}

int ranks_vote(Ranks *ranks, int vote) {
    (void)ranks;
    return vote;
}

void ranks_union(Ranks *ranks, unsigned char *set, size_t count) {
    (void)ranks;
    (void)set;
    (void)count;
}

void ranks_compare(Ranks *ranks, const char *text, const char *what) {
    (void)ranks;
    (void)text;
    (void)what;
}

RanksReport ranks_report(const Ranks *ranks) {
    (void)ranks;
    return (RanksReport){0};
}

Reduction *reduction_create(Ranks *ranks, const ReductionPlan *plan) {
    (void)ranks;
    (void)plan;
    return NULL;
}

void reduction_free(Reduction *reduction) {
    (void)reduction;
}

void reduction_early(Reduction *reduction, real *values) {
    (void)reduction;
    (void)values;
}

void reduction_add(Reduction *reduction, real *values, size_t count) {
    (void)reduction;
    (void)values;
    (void)count;
}

void reduction_final(Reduction *reduction, real *values, size_t from) {
    (void)reduction;
    (void)values;
    (void)from;
}

void reduction_end(Reduction *reduction, real *values) {
    (void)reduction;
    (void)values;
}

bool reduction_part(const Reduction *reduction, size_t count, size_t i, ReductionPart *part) {
    (void)reduction;
    *part = (ReductionPart){0, count, 0};
    return i == 0;
}

size_t reduction_own(const Reduction *reduction, size_t count) {
    (void)reduction;
    return count;
}

void reduction_sum(Reduction *reduction, double *values, size_t count) {
    (void)reduction;
    (void)values;
    (void)count;
}

void reduction_gather(Reduction *reduction, real *values) {
    (void)reduction;
    (void)values;
}

void ranks_place(char *text, size_t size) {
    if (size > 0) *text = '\0';
}

void ranks_let_others_speak(void) {}

// _exit, as other threads may be at work whose data exit handlers would tear down, and as a forked child must
// not run its parent's handlers.
void ranks_abort(int status) {
    _exit(status);
}
