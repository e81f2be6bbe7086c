// Standard input, output and error.
#ifndef BASE_STREAMS_H
#define BASE_STREAMS_H

#include "bytes.h"
#include <stddef.h>

// Opens /dev/null for each of the three that is closed, so that no file of the program gets its
// descriptor and receives output meant for a terminal. main() calls this first.
void streams_open(void);

// Discards everything that is printed to standard output from now on.
void streams_silence(void);

// Flushes standard output. Returns 0, or the errno of a failed write.
int streams_error(void);

// The same; exits with an error if a write failed (a full disk).
void streams_flush(void);

// Reads an open file to its end, or until a signal requests a stop (stop.h). `name` is for errors.
Bytes streams_read(int fd, const char *name);

// Prints text written by a model to standard output. On a terminal, control characters that it
// would obey are printed as U+FFFD. The text must not split a character.
void streams_show(const char *text, size_t size);

#endif
