// What the processes that train one model (ranks.h) make sure of before they begin, and what rank 0
// gives to the others. Nothing happens where a process is alone.
#ifndef TRAINER_SHARE_H
#define TRAINER_SHARE_H

#include "run.h"

// Ends the program where this process is another program than rank 0's, or has other options.
void share_start(Ranks *ranks, const Options *options);

// What rank 0 found to begin with; the others open the same files. They have to see them.
Checkpoint share_checkpoint(Ranks *ranks, const Checkpoint *found);

// Rank 0's text, fresh; NULL: it has none.
char *share_text(Ranks *ranks, const char *text);

// Ends the program where this process has other data than rank 0: other shards, sizes, or tokens in
// some places of a shard; or where a token is none of the vocabulary. Each shard is read as a whole
// by one process.
void share_check_data(Ranks *ranks, const Dataset *dataset);

// All ranks take over rank 0's parameters.
void share_values(const Run *run);

#endif
