// The interface between ranks.c, which defines the communication of ranks, and mpi.c, which
// transfers the bytes with MPI.
#ifndef RANKS_TRANSPORT_H
#define RANKS_TRANSPORT_H

#include "ranks.h"

enum { RANKS_HOST = 64 };

struct Ranks {
    void *engine; // state of mpi.c
    int rank, size;
    int on_machine, place, machines; // processes on this machine, those of lower rank, machines
    int cores;
    bool bound; // to these cores
    double timeout;
    char (*hosts)[RANKS_HOST]; // (size)
    RanksReport report;
};

// The rest of ranks_open(), when `engine`, `rank`, `size` (more than 1) and `timeout` are known:
// finds the machine of each rank and distributes the cores. Returns ranks.
Ranks *ranks_join(Ranks *ranks);

// These functions exit with an error if another rank does not answer in time. All ranks call them
// in the same order.
void transport_broadcast(Ranks *ranks, void *data, size_t bytes); // all ranks get rank 0's data
// Rank 0 gets the data of all ranks, all (size, bytes), which other ranks do not use. `what`: the
// name of the data in error messages.
void transport_gather(Ranks *ranks, const void *data, size_t bytes, void *all, const char *what);
void transport_leave(Ranks *ranks);                   // after the last message
void transport_abort(const Ranks *ranks, int status); // ends all other processes

void ranks_nap(void); // sleeps for about the time of a message

// The time limit for answers of other ranks, checked repeatedly. If more than a second passes
// between two checks, this process was suspended (Ctrl-Z, a sleeping machine), and perhaps all
// were: such time does not count.
typedef struct {
    double end, looked;
} Deadline;
Deadline deadline_in(double seconds);
bool deadline_passed(Deadline *deadline);

// Exits with an error if `what` takes longer than `seconds`. For calls without a time limit of
// their own.
typedef struct Watchdog Watchdog;
Watchdog *watchdog_start(double seconds, const char *what);
void watchdog_stop(Watchdog *watchdog);

#endif
