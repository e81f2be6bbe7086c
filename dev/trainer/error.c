#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

// Names and texts out of hostile files end up in messages: control characters in them must neither break the
// line nor reach the terminal.
static void print_line(const char *kind, const char *format, va_list arguments) {
    char text[4096];
    vsnprintf(text, sizeof(text), format, arguments);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    fflush(stdout);                                       // what was said before stands before
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr); // a progress line may stand there
    fprintf(stderr, "%s: %s\n", kind, text);
}

// _exit, as other threads may be at work whose data exit handlers would tear down, and as a forked child must
// not run its parent's handlers.
void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line("error", format, arguments);
    va_end(arguments);
    _exit(1);
}

void fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line("error", format, arguments);
    va_end(arguments);
    _exit(2);
}

void warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line("warning", format, arguments);
    va_end(arguments);
}
