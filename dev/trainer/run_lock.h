// One program at a time trains in a directory.
#ifndef TRAINER_RUN_LOCK_H
#define TRAINER_RUN_LOCK_H

#include <stdbool.h>

// Takes DIR/lock and writes into it who holds it, process and host; ends the program, naming the
// holder, if another one trains there. The lock is held until the descriptor that is returned is
// closed or the program ends, however it ends. A file system that has no locks is worth a warning.
int run_lock(const char *directory);

// Whether a program has ever trained in DIR.
bool run_lock_exists(const char *directory);

#endif
