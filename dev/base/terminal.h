// What a person at a terminal sees and a pipe does not get: lines that break between words, and how
// far a long piece of work is.
#ifndef BASE_TERMINAL_H
#define BASE_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

// Columns that a line may fill: all but the last, where a terminal may wrap; INT_MAX: no terminal.
int terminal_columns(FILE *out);

// A line, which a terminal gets as several where it is too long: it breaks at `gap` ("  ", " "), as
// late as possible and not in its first `indent` columns, and continues below them.
void terminal_print(FILE *out, const char *line, const char *gap, int indent);

// Whether standard output and error are one terminal or two. Open MPI gives rank 0 a terminal of
// its own for standard output, whatever takes it, and a pipe for errors.
bool terminal_is_used(void);

// Whether standard output takes more at once: a terminal that is stopped (Ctrl-S), or whose other
// side has more to do (mpirun that ends), does not hold up the work.
bool terminal_is_ready(void);

// Removes a line of progress, which may be there.
void terminal_clear_line(FILE *out);

// How far a piece of work is, on a terminal that is used: in a line that replaces itself, from the
// third second on.
typedef struct {
    double due; // on the clock: when it is shown next
    bool shown;
} Meter;

Meter meter_start(void);
// share: of the work that is done
void meter_show(Meter *meter, const char *work, double share);
void meter_end(Meter *meter);

#endif
