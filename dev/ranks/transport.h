// What is between ranks.c, which knows what ranks tell each other, and mpi.c, which moves the bytes
// by MPI.
#ifndef RANKS_TRANSPORT_H
#define RANKS_TRANSPORT_H

#include "ranks.h"

enum { RANKS_HOST = 64 };

struct Ranks {
    void *engine; // what mpi.c needs
    int rank, size;
    int on_machine, place,
        machines; // processes on this machine, those of them that come before this one
    int cores;
    bool bound; // to these cores
    double timeout;
    char (*hosts)[RANKS_HOST]; // (size)
    RanksReport report;
};

// The rest of ranks_open(), once `engine`, `rank`, `size` (more than 1) and `timeout` are known:
// learns who is where, and shares out the cores. Gives ranks back.
Ranks *ranks_join(Ranks *ranks);

// Messages end the program where others do not answer in time. All ranks call them in the same
// order.
void transport_broadcast(Ranks *ranks, void *data, size_t bytes); // everybody gets rank 0's
// Rank 0 gets everybody's, all (size, bytes), which others leave alone; `what` names them in an
// error.
void transport_gather(Ranks *ranks, const void *data, size_t bytes, void *all, const char *what);
void transport_leave(Ranks *ranks);                   // after the last message
void transport_abort(const Ranks *ranks, int status); // ends all other processes

void ranks_nap(void); // for as long as a message may take

// How long others may take to answer, checked repeatedly: a second and more between two
// looks is time in which this process stood still (Ctrl-Z, a machine that sleeps), as perhaps all
// did, and does not count.
typedef struct {
    double end, looked;
} Deadline;
Deadline deadline_in(double seconds);
bool deadline_passed(Deadline *deadline);

// Ends the program where `what` takes longer than that many seconds, for what cannot be called with
// a limit.
typedef struct Watchdog Watchdog;
Watchdog *watchdog_start(double seconds, const char *what);
void watchdog_stop(Watchdog *watchdog);

#endif
