// The processes that train one model together ("ranks"): how many there are, and what they tell
// each other. The trainer, tasks and models know this header alone. It is implemented by ranks.c
// and one of
//
//   single.c   a program that is always alone
//   mpi.c      MPI: joins the processes that mpirun or srun started
//
// Whatever comes back from here is the same bits on every rank: sums are taken in the order of
// ranks, and how messages travel does not matter. All ranks call the same functions in the same
// order. A rank that waits for another one longer than the time limit ends the program on all
// machines, with an error message that names the other.
//
// NULL is a process that is alone: sums and broadcasts leave everything as it is.
#ifndef RANKS_H
#define RANKS_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct Ranks Ranks;

// Joins the other processes that a launcher started; NULL: there are none. Gives each process of a
// machine its own cores, unless the launcher did. Before the first thread. `timeout`: seconds that
// they wait for each other.
Ranks *ranks_open(double timeout);

// Waits for all others, and leaves them.
void ranks_close(Ranks *ranks);

int ranks_rank(const Ranks *ranks); // 0 .. size - 1; rank 0 writes files and the terminal
int ranks_size(const Ranks *ranks);
int ranks_on_machine(const Ranks *ranks);       // processes on this machine
int ranks_place_on_machine(const Ranks *ranks); // 0 .. that - 1
int ranks_cores(const Ranks *ranks); // that this process has for itself; 0: all that there are
// "4 on 2 machines, each bound to 8 cores", fresh; NULL for a process that is alone.
char *ranks_describe(const Ranks *ranks);

// The library that moves messages, "Open MPI v4.1.4", fresh; NULL: a program that is always alone.
char *ranks_library(void);

// Seconds for which a rank waits for another one.
void ranks_set_timeout(Ranks *ranks, double seconds);

// ---- a few numbers ----------------------------------------------------------
// Everybody gets rank 0's.
void ranks_broadcast(Ranks *ranks, void *data, size_t bytes);

// Everybody gets the sums of values (count).
void ranks_sum(Ranks *ranks, double *values, size_t count);

// Everybody gets the largest vote: "does anyone want to stop?"
int ranks_vote(Ranks *ranks, int vote);

// Everybody gets a set that holds what anybody's holds: set (count), 0 or 1.
void ranks_union(Ranks *ranks, unsigned char *set, size_t count);

// Ends the program where this rank's text, lines of "what: value", is not rank 0's; `what` heads
// the error.
void ranks_compare(Ranks *ranks, const char *text, const char *what);

// Ends the program where two ranks of a machine have the same `id` of a thing, `what`, that each
// needs alone.
void ranks_refuse_same(Ranks *ranks, const char *id, const char *what);

// ---- gradients --------------------------------------------------------------
// A flat array that is summed over all ranks in chunks, as soon as elements are final: first those
// that a model says are final early, then from its end to its beginning. A chunk is cut into pieces
// of RANKS_PIECE elements.
enum { RANKS_PIECE = 16384 };
typedef struct Reduction Reduction;

typedef struct {
    size_t count; // elements of the array
    size_t early; // at its beginning, final before all others
    bool bf16;    // they travel as bf16; sums are taken as they are
} ReductionPlan;

// NULL for a process that is alone.
Reduction *reduction_create(Ranks *ranks, const ReductionPlan *plan);
void reduction_free(Reduction *reduction);

// The early elements of `values` are final, or those from `from` on: their sums may be taken, by
// another thread where MPI allows it, while the caller works on.
void reduction_early(Reduction *reduction, real *values);
void reduction_final(Reduction *reduction, real *values, size_t from);

// All are; waits until the array holds the sums.
void reduction_end(Reduction *reduction, real *values);

// Sums another array over all ranks.
void reduction_add(Reduction *reduction, real *values, size_t count);

// What reductions took so far.
typedef struct {
    double bytes;          // of gradients that this rank sent
    double seconds;        // that chunks were on their way
    double waited_seconds; // of these, that nothing else was done
} RanksReport;
RanksReport ranks_report(const Ranks *ranks);

#endif
