// Errors end the program with one clear line on stderr: what, in which file or option, what was
// expected.
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stddef.h>

// Prints "error: ..." and exits with code 1, at once: exit handlers do not run. For bad files, bad
// data, a full disk, no memory. Of several processes (ranks.h) the line names this one, and all of
// them end.
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// The same with exit code 2, for a command line that cannot be understood.
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Prints "warning: ..." and continues.
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

// What is added to the end of an error line from now on, while a file is read whose damage somebody
// can do something about; NULL: nothing.
void error_advise(const char *format, ...) __attribute__((format(printf, 1, 2)));

// What one of several processes does at an error; ranks.c, a layer above this one, sets it.
typedef struct {
    void (*name)(char *text, size_t size); // writes "rank 1 of 4 on HOST: "
    void (*let_others_speak)(void);        // waits for the process that prints the same error first
    void (*end_all)(int status);           // ends every process, this one too
} ErrorProcesses;
void error_set_processes(const ErrorProcesses *processes); // NULL: this process is alone

#endif
