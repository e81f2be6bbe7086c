// A test program: functions that check, counted; the last line is "N passed, N failed".
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    const char *name;
    void (*run)(void);
} TestCase;

// Runs the cases whose names contain argv[1] (all without it), each in a process of its own; prints
// those that fail and the last line; returns the exit code.
int test_main(int argc, char **argv, const char *suite, const TestCase *cases, int count);

// Counts a failure of the running case and prints where; the case continues.
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) test_fail(__FILE__, __LINE__, "%s", #condition);                         \
    } while (0)

#define CHECK_CLOSE(value, expected, tolerance)                                                    \
    test_close(__FILE__, __LINE__, #value, (double)(value), (double)(expected), (double)(tolerance))

#define CHECK_TEXT(value, expected) test_text(__FILE__, __LINE__, #value, value, expected)

void test_close(const char *file, int line, const char *what, double value, double expected,
                double tolerance);
void test_text(const char *file, int line, const char *what, const char *value,
               const char *expected);

// Runs `body(argument)` in a child process and checks that it ends with `exit_code`, having written
// one line to stderr that contains `message`.
#define CHECK_FAILS(body, argument, exit_code, message)                                            \
    test_fails(__FILE__, __LINE__, #body, body, argument, exit_code, message)
void test_fails(const char *file, int line, const char *what, void (*body)(void *), void *argument,
                int exit_code, const char *message);

// Runs `body(argument)` in a child process, with one OpenMP thread; puts what it writes to stderr
// into text (size bytes with the final NUL) and returns its exit code, or minus the number of the
// signal that ended it.
int test_child(void (*body)(void *), void *argument, char *text, size_t size);

// Of the parallel regions that follow; nothing without OpenMP.
void test_set_threads(int threads);

// A fresh directory for the running case, removed with all it holds when the case ends.
const char *test_directory(void);

// Writes bytes to NAME in test_directory() and returns the path (valid until the case ends).
const char *test_file(const char *name, const void *data, size_t size);

#endif
