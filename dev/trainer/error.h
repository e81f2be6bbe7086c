// Errors end the program with one clear line on stderr: what, in which file or option, what was expected.
#ifndef TRAINER_ERROR_H
#define TRAINER_ERROR_H

// Prints "error: ..." and exits with code 1, at once: exit handlers do not run. For bad files, bad data, a
// full disk, no memory. Of several processes (ranks.h) the line names this one, and all of them end.
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// The same with exit code 2, for a command line that cannot be understood.
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Prints "warning: ..." and goes on.
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
