// What asks the program to stop at the next good place: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and
// SIGUSR2, of which the second one of a kind ends it at once, SIGXCPU, and standard output that
// nobody reads any more.
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include <stdbool.h>

// From here on signals ask. SIGHUP stays ignored where it was (nohup). SIGPIPE is ignored: that a
// pipe is closed is an error of write().
void stop_install(void);

// From here on a signal ends a read() that waits, with EINTR; or, as at first, does not. For as
// long as input is read: a write() would end, too.
void stop_interrupts(bool interrupts);

// Asks as if that signal had come.
void stop_request(int number);

// 0, or the signal that came first.
int stop_requested(void);

#endif
