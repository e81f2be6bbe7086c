// The processes that train one model together ("ranks") and their communication. The trainer, tasks
// and models use only this header. It is implemented by ranks.c and one of
//
//   single.c   always a single process
//   mpi.c      MPI: joins the processes started by mpirun or srun
//
// Results are bitwise identical on every rank: sums are computed in the order of ranks, regardless
// of the order of messages. All ranks call the same functions in the same order. If a rank waits
// for another one longer than the time limit, the program ends on all machines, with an error
// message that names the other rank.
//
// NULL stands for a single process: sums and broadcasts do nothing.
#ifndef RANKS_H
#define RANKS_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct Ranks Ranks;

// Joins the other processes that a launcher started. Returns NULL if there are none. Gives each
// process of a machine its own cores, unless the launcher did. Must be called before the first
// thread starts. `timeout`: seconds that processes wait for each other.
Ranks *ranks_open(double timeout);

// Waits for all other ranks and leaves them.
void ranks_close(Ranks *ranks);

int ranks_rank(const Ranks *ranks); // 0 .. size - 1; rank 0 writes files and the terminal
int ranks_size(const Ranks *ranks);
int ranks_on_machine(const Ranks *ranks);       // processes on this machine
int ranks_place_on_machine(const Ranks *ranks); // 0 .. ranks_on_machine() - 1
int ranks_cores(const Ranks *ranks);            // cores of this process; 0: all
// Returns "4 on 2 machines, each bound to 8 cores", allocated; NULL for a single process.
char *ranks_describe(const Ranks *ranks);

// Returns the message library, "Open MPI v4.1.4", allocated; NULL: built for a single process.
char *ranks_library(void);

// Sets the number of seconds that a rank waits for another one.
void ranks_set_timeout(Ranks *ranks, double seconds);

// ---- a few numbers ----------------------------------------------------------
// All ranks get rank 0's data.
void ranks_broadcast(Ranks *ranks, void *data, size_t bytes);

// All ranks get the sums of values (count) over all ranks.
void ranks_sum(Ranks *ranks, double *values, size_t count);

// Returns the largest vote of all ranks, for example whether any rank wants to stop.
int ranks_vote(Ranks *ranks, int vote);

// All ranks get the union of their sets: set (count), 0 or 1.
void ranks_union(Ranks *ranks, unsigned char *set, size_t count);

// Exits with an error if this rank's text, lines of "name: value", differs from rank 0's. `what`
// begins the error message.
void ranks_compare(Ranks *ranks, const char *text, const char *what);

// Exits with an error if two ranks of a machine have the same `id` of a resource, `what`, that they
// must not share.
void ranks_refuse_same(Ranks *ranks, const char *id, const char *what);

// ---- gradients --------------------------------------------------------------
// A flat array that is summed over all ranks in chunks, as soon as elements are final: first those
// that are final early, then from its end to its beginning. A chunk consists of pieces of
// RANKS_PIECE elements.
enum { RANKS_PIECE = 16384 };
typedef struct Reduction Reduction;

typedef struct {
    size_t count; // elements of the array
    size_t early; // elements at its beginning that are final before all others
    bool bf16;    // elements are sent as bf16 and summed as `real`
} ReductionPlan;

// Returns NULL for a single process.
Reduction *reduction_create(Ranks *ranks, const ReductionPlan *plan);
void reduction_free(Reduction *reduction);

// Declare the early elements of `values`, or those from `from` on, as final. They may be summed in
// another thread, if MPI allows it, while the caller continues.
void reduction_early(Reduction *reduction, real *values);
void reduction_final(Reduction *reduction, real *values, size_t from);

// Declares all elements as final and waits until the array contains the sums.
void reduction_end(Reduction *reduction, real *values);

// Sums another array over all ranks.
void reduction_add(Reduction *reduction, real *values, size_t count);

// The cost of all reductions so far.
typedef struct {
    double bytes;          // of gradients sent by this rank
    double seconds;        // spent on chunks in flight
    double waited_seconds; // of these, spent waiting
} RanksReport;
RanksReport ranks_report(const Ranks *ranks);

#endif
