// Checks by the processes that train one model (ranks.h) before they begin, and data that rank 0
// sends to the others. A single process compares and sends nothing.
#ifndef TRAINER_SHARE_H
#define TRAINER_SHARE_H

#include "run.h"

// Exits with an error if this process is another program than rank 0's, or has other options.
void share_start(Ranks *ranks, const Options *options);

// Tells the others what rank 0 found to begin with; they open the same files, which they must be
// able to see.
Checkpoint share_checkpoint(Ranks *ranks, const Checkpoint *found);

// Returns rank 0's text, newly allocated; NULL if it has none.
char *share_text(Ranks *ranks, const char *text);

// Exits with an error if this process has other data than rank 0 (other shards, sizes, or tokens at
// some places of a shard), or if a token is outside the vocabulary. Each shard is read completely
// by one process.
void share_check_data(Ranks *ranks, const Dataset *dataset);

// Copies rank 0's parameters to all ranks.
void share_values(const Run *run);

#endif
