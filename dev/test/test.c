#include "test.h"
#include "threads.h"
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { CASE_SECONDS = 600, BODY_SECONDS = 120 }; // a test that hangs fails

// State of the running case; global, because CHECK has no argument to pass it.
static struct {
    int failures;
    char directory[256];
    char **paths; // (path_count) made by test_file
    size_t path_count;
} running;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "test: %s: %s\n", what, strerror(errno));
    exit(1);
}

// ---- checks -----------------------------------------------------------------

void test_fail(const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("  %s:%d: ", file, line);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    running.failures++;
}

void test_close(const char *file, int line, const char *what, double value, double expected,
                double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) // also if one is NaN
        test_fail(file, line, "%s is %.9g, expected %.9g within %.3g", what, value, expected,
                  tolerance);
}

void test_text(const char *file, int line, const char *what, const char *value,
               const char *expected) {
    if (!value || strcmp(value, expected) != 0)
        test_fail(file, line, "%s is \"%s\", expected \"%s\"", what, value ? value : "(null)",
                  expected);
}

// ---- children ---------------------------------------------------------------
// Reads to the end; discards what does not fit, so that the writer does not block.
static void read_all(int fd, char *text, size_t size) {
    size_t used = 0;
    char rest[4096];
    for (;;) {
        const bool fits = used + 1 < size;
        const ssize_t got =
            fits ? read(fd, text + used, size - 1 - used) : read(fd, rest, sizeof(rest));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (fits) used += (size_t)got;
    }
    text[used] = '\0';
}

static int wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void test_set_threads(int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

int test_child(void (*body)(void *), void *argument, char *text, size_t size) {
    int ends[2];
    fflush(NULL); // or the child would print it again
    if (pipe(ends) != 0) die("pipe");
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        alarm(BODY_SECONDS);
        test_set_threads(1); // the parent's threads do not exist after fork()
        body(argument);
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    read_all(ends[0], text, size);
    close(ends[0]);
    return wait_for(child);
}

void test_fails(const char *file, int line, const char *what, void (*body)(void *), void *argument,
                int exit_code, const char *message) {
    char text[8192];
    const int code = test_child(body, argument, text, sizeof(text));
    if (code != exit_code)
        test_fail(file, line, "%s ended with %s %d, expected exit code %d; stderr: %s", what,
                  code < 0 ? "signal" : "exit code", abs(code), exit_code, text);
    const char *end = strchr(text, '\n');
    if (!end || end[1] != '\0')
        test_fail(file, line, "%s wrote \"%s\" to stderr, expected one line", what, text);
    if (!strstr(text, message))
        test_fail(file, line, "%s wrote \"%s\" to stderr, expected \"%s\" in it", what, text,
                  message);
}

// ---- files ------------------------------------------------------------------

const char *test_directory(void) {
    return running.directory;
}

const char *test_file(const char *name, const void *data, size_t size) {
    char *path;
    running.paths = reallocarray(running.paths, running.path_count + 1, sizeof(char *));
    if (!running.paths || asprintf(&path, "%s/%s", running.directory, name) < 0) die("memory");
    running.paths[running.path_count++] = path;
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) die(path);
    return path;
}

static void make_directory(void) {
    const char *parent = getenv("TMPDIR");
    const int length = snprintf(running.directory, sizeof(running.directory),
                                "%s/fastformer-test-XXXXXX", parent && *parent ? parent : "/tmp");
    if (length >= (int)sizeof(running.directory) || !mkdtemp(running.directory))
        die(running.directory);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status, (void)type, (void)place;
    return remove(path);
}

static void remove_directory(void) {
    if (nftw(running.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        die(running.directory);
}

// ---- main -------------------------------------------------------------------

static void run_case(const TestCase *test) {
    alarm(CASE_SECONDS);
    test->run();
    for (size_t i = 0; i < running.path_count; i++) free(running.paths[i]);
    free(running.paths);
    exit(running.failures > 0);
}

// Runs each case in its own process: a case that crashes, exits or changes the process is one
// failure, and the next case starts clean.
static bool case_passes(const char *suite, const TestCase *test) {
    make_directory();
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) run_case(test);
    const int code = wait_for(child);
    remove_directory();
    if (code < 0) printf("  ended by signal %d (%s)\n", -code, strsignal(-code));
    if (code != 0) printf("FAIL %s: %s\n", suite, test->name);
    return code == 0;
}

int test_main(int argc, char **argv, const char *suite, const TestCase *cases, int count) {
    threads_wait_briefly(argv);
    int passed = 0, failed = 0;
    for (int i = 0; i < count; i++) {
        if (argc > 1 && !strstr(cases[i].name, argv[1])) continue;
        if (case_passes(suite, &cases[i]))
            passed++;
        else
            failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
