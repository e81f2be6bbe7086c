// An error ends the program with one clear line on stderr: what failed, in which file or option,
// and what was expected.
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stddef.h>

// Prints "error: ..." and exits with code 1 immediately, without running exit handlers. For bad
// files, bad data, a full disk or no memory. With several processes (ranks.h) the line names this
// one, and all of them exit.
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// The same with exit code 2, for an invalid command line.
void fail_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Prints "warning: ..." and continues.
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Sets the text appended to all later error lines, for use while reading a file that the user can
// repair. NULL: none.
void error_advise(const char *format, ...) __attribute__((format(printf, 1, 2)));

// What a process does on an error if it is one of several. Set by ranks.c, a layer above this one.
typedef struct {
    void (*name)(char *text, size_t size); // writes "rank 1 of 4 on HOST: "
    void (*let_others_speak)(void);        // waits, so that rank 0 can print the error first
    void (*end_all)(int status);           // ends every process, including this one
} ErrorProcesses;
void error_set_processes(const ErrorProcesses *processes); // NULL: a single process

#endif
