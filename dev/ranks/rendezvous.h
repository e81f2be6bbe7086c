// How processes that no launcher connects find each other: at a file on a disk that all of them
// see.
//
// Rank r > 0 writes FILE.r, its card, with a number that nobody else has. Rank 0 waits for all
// cards, and writes FILE: all cards, and the data that everybody needs. A rank takes FILE where its
// own card stands in it, and removes FILE.r; when all are gone rank 0 removes FILE. So what an
// earlier run left is never taken: a FILE without this rank's card is passed over, and where a card
// becomes another one rank 0 writes FILE again. Files are written beside, flushed and renamed, so
// nobody reads a half.
#ifndef RANKS_RENDEZVOUS_H
#define RANKS_RENDEZVOUS_H

#include <stddef.h>

typedef struct {
    int rank, size;
    int local; // place among the processes of this machine; -1: nobody says
} Place;

// Who this process is: RANK, WORLD_SIZE and LOCAL_RANK of the environment (torchrun's names), or
// what srun sets, SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID. Ends the program where neither is
// there, or makes no sense.
Place place_in_environment(void);

// Everybody gets rank 0's data (bytes, at most 4096). `device` names this process's own; ends the
// program where two on a machine have the same, or somebody does not come within that many seconds.
void rendezvous(const char *file, const Place *place, double timeout, const char *device,
                void *data, size_t bytes);

#endif
