// A test program: cases whose failed checks are counted; the last line is "N passed, N failed".
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    const char *name;
    void (*run)(void);
} TestCase;

// Runs the cases whose names contain argv[1] (default: all), each in its own process. Prints the
// failed cases and the last line; returns the exit code.
int test_main(int argc, char **argv, const char *suite, const TestCase *cases, int count);

// Records a failure of the running case and prints its location; the case continues.
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

// Runs `body(argument)` in a child process and checks that it exits with `exit_code` and writes one
// line to stderr that contains `message`.
#define CHECK_FAILS(body, argument, exit_code, message)                                            \
    test_fails(__FILE__, __LINE__, #body, body, argument, exit_code, message)
void test_fails(const char *file, int line, const char *what, void (*body)(void *), void *argument,
                int exit_code, const char *message);

// Runs `body(argument)` in a child process with one OpenMP thread. Stores its stderr in text (size
// bytes with the final NUL). Returns its exit code, or minus the signal that ended it.
int test_child(void (*body)(void *), void *argument, char *text, size_t size);

// Sets the number of threads of later parallel regions; does nothing without OpenMP.
void test_set_threads(int threads);

// Returns a new directory for the running case, removed with its contents when the case ends.
const char *test_directory(void);

// Writes bytes to NAME in test_directory() and returns the path (valid until the case ends).
const char *test_file(const char *name, const void *data, size_t size);

#endif
