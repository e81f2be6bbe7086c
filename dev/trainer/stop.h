// SIGINT and SIGTERM ask the program to stop at the next good place; the second one of a kind ends it at
// once.
#ifndef TRAINER_STOP_H
#define TRAINER_STOP_H

void stop_install(void);

// 0, or the signal that came.
int stop_requested(void);

#endif
