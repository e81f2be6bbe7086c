#include "harness.h"
#include "error.h"
#include "memory_blocks.h"
#include "memory_files.h"
#include "threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

// Global, as the functions below have no argument that could carry this state.
static struct {
    bool inside, accepted; // an input is being read; the last input was read to its end
    jmp_buf back;
} harness;

// ---- error.h ----------------------------------------------------------------

static _Noreturn void leave(void) {
    if (!harness.inside) abort(); // fuzz_start() failed: the target is broken
    longjmp(harness.back, 1);
}

// Formats the message even if it is not printed: formatting is tested, too.
static void format(const char *format, va_list arguments) {
    char text[4096];
    vsnprintf(text, sizeof(text), format, arguments);
    if (!harness.inside || getenv("FUZZ_VERBOSE")) fprintf(stderr, "%s\n", text);
}

void fail(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
    leave();
}

void fail_usage(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
    leave();
}

void warn(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
}

void error_advise(const char *text, ...) {
    (void)text;
}

void error_set_processes(const ErrorProcesses *processes) {
    (void)processes;
}

// ---- exit() -----------------------------------------------------------------

// --help calls exit(). The linker replaces the C library's with this one (--wrap).

void __real_exit(int code) __attribute__((noreturn));
void __wrap_exit(int code) __attribute__((noreturn));

void __wrap_exit(int code) {
    if (!harness.inside) __real_exit(code);
    leave();
}

// ---- inputs -----------------------------------------------------------------

const char *fuzz_directory(void) {
    return MEMORY_DIRECTORY;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", MEMORY_DIRECTORY, name);
    memory_files_put(name, data, size);
    return path;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    setenv("OMP_WAIT_POLICY", "passive",
           1); // otherwise the trainer restarts itself to set this
#ifdef _OPENMP
    // memory_blocks.c and memory_files.c have no locks, and runs must be deterministic.
    omp_set_num_threads(1);
#endif
    memory_blocks_use(true);
    fuzz_start();
    memory_blocks_keep();
    memory_blocks_use(false);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_files_watch();
    harness.accepted = false;
    harness.inside = true;
    memory_blocks_use(true);
    if (setjmp(harness.back) == 0) {
        fuzz_one(data, size);
        harness.accepted = true;
    }
    memory_blocks_use(false);
    harness.inside = false;
    memory_blocks_restore();
    memory_files_clean();
    return 0;
}

int fuzz_accepted(void) {
    return harness.accepted;
}
