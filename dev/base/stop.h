// Requests to stop the program at the next suitable point: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and
// SIGUSR2 (the second signal of a kind ends the program immediately), SIGXCPU, and standard output
// that nobody reads any more.
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include <stdbool.h>

// Installs the signal handlers. SIGHUP stays ignored if it was (nohup). SIGPIPE is ignored, so that
// write() to a closed pipe fails with an error.
void stop_install(void);

// Sets whether a signal interrupts a blocking read() with EINTR; initially it does not. Enable this
// only while input is read: it would interrupt a write(), too.
void stop_interrupts(bool interrupts);

// Requests a stop as if that signal had arrived.
void stop_request(int number);

// Returns 0, or the signal that arrived first.
int stop_requested(void);

#endif
