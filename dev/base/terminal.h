// Output for a terminal only: lines wrapped between words, and the progress of long work.
#ifndef BASE_TERMINAL_H
#define BASE_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

// Returns the columns that a line may fill: all but the last, where a terminal may wrap. INT_MAX if
// `out` is not a terminal.
int terminal_columns(FILE *out);

// Prints a line. On a terminal, a line that is too long is broken at `gap` ("  ", " "), as late as
// possible and not in its first `indent` columns; the following lines are indented by `indent`.
void terminal_print(FILE *out, const char *line, const char *gap, int indent);

// Returns whether standard output and standard error are both terminals. Open MPI gives rank 0 a
// terminal for standard output, wherever its output goes, and a pipe for errors.
bool terminal_is_used(void);

// Returns whether a write to standard output would not block, so that a stopped terminal (Ctrl-S)
// or a busy reader (mpirun while it exits) does not hold up the work.
bool terminal_is_ready(void);

// Clears the progress line, if any.
void terminal_clear_line(FILE *out);

// Progress of long work, shown if terminal_is_used(): a line that is rewritten in place, from the
// third second on.
typedef struct {
    double due; // clock time of the next update
    bool shown;
} Meter;

Meter meter_start(void);
// share: fraction of the work done
void meter_show(Meter *meter, const char *work, double share);
void meter_end(Meter *meter);

#endif
