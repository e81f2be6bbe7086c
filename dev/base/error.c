#include "error.h"

#include "terminal.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static const ErrorProcesses *others;
static char advice[1024]; // appended to error lines
#define NO_GAP "\n"       // do not wrap errors: they may end with a command to copy

void error_set_processes(const ErrorProcesses *processes) {
    others = processes;
}

void error_advise(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    advice[0] = '\0';
    if (format) vsnprintf(advice, sizeof(advice), format, arguments);
    va_end(arguments);
}

// Messages may contain text from hostile files: its control characters must neither break the line
// nor reach the terminal. gap: where the line may wrap on a terminal.
static void print_line(const char *kind, const char *format, va_list arguments, const char *end,
                       const char *gap) {
    char text[4096], process[256] = "";
    const int used = vsnprintf(text, sizeof(text), format, arguments);
    if (used >= 0 && (size_t)used < sizeof(text))
        snprintf(text + used, sizeof(text) - (size_t)used, "%s", end);
    if (others) others->name(process, sizeof(process));
    for (char *c = text; *c; c++) {
        const bool c1 = c[0] == '\xc2' && (c[1] & 0xe0) == 0x80; // U+0080 to U+009F
        if ((unsigned char)*c < 0x20 || *c == 0x7f || c1) *c = '?';
        if (c1) c[1] = '?';
    }
    fflush(stdout); // print earlier output first
    if (isatty(STDERR_FILENO)) terminal_clear_line(stderr);
    char line[sizeof(text) + sizeof(process) + 16];
    snprintf(line, sizeof(line), "%s: %s%s", kind, process, text);
    terminal_print(stderr, line, gap, 2);
}

// Calls _exit: exit handlers would destroy data that other threads still use, and a forked child
// must not run its parent's handlers.
__attribute__((noreturn)) static void end_program(int status) {
    if (others) others->end_all(status);
    _exit(status);
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (others) others->let_others_speak();
    print_line("error", format, arguments, advice, NO_GAP);
    va_end(arguments);
    end_program(1);
}

void fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (others) others->let_others_speak();
    print_line("error", format, arguments, advice, NO_GAP);
    va_end(arguments);
    end_program(2);
}

void warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line("warning", format, arguments, "", " ");
    va_end(arguments);
}
