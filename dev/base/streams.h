// Standard input, output and error.
#ifndef BASE_STREAMS_H
#define BASE_STREAMS_H

#include "bytes.h"
#include <stddef.h>

// What main() calls first: opens /dev/null in the place of each of the three that is closed, so
// that no file of the program takes its number and is written what was meant for a terminal.
void streams_open(void);

// From here on nothing that is printed to standard output is seen.
void streams_silence(void);

// Writes out what was printed; 0, or the errno with which standard output refused some of it.
int streams_error(void);

// The same, ending the program where it is refused (a full disk).
void streams_flush(void);

// All that can be read from an open file, or what came before a signal asked to stop (stop.h); the
// name is for errors.
Bytes streams_read(int fd, const char *name);

// Text that a model wrote, to standard output: as it is, but for control characters that a terminal
// would obey, which it has as U+FFFD. No character is cut.
void streams_show(const char *text, size_t size);

#endif
