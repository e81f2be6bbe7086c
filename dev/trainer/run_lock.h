// Ensures that only one program at a time trains in a directory.
#ifndef TRAINER_RUN_LOCK_H
#define TRAINER_RUN_LOCK_H

#include <stdbool.h>

// Locks DIR/lock and writes the holder, process and host, into it. Exits with an error that names
// the holder if another program trains there. The lock is held until the returned descriptor is
// closed or the program ends, however it ends. Prints a warning if the file system has no locks.
int run_lock(const char *directory);

// Returns whether a program has ever trained in DIR.
bool run_lock_exists(const char *directory);

#endif
