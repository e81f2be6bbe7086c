#include "error.h"

#include "ranks.h"
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

// Names and texts out of hostile files end up in messages: control characters in them must neither break the
// line nor reach the terminal.
static void print_line(const char *kind, const char *format, va_list arguments) {
    char text[4096], place[256];
    vsnprintf(text, sizeof(text), format, arguments);
    ranks_place(place, sizeof(place));
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    fflush(stdout);                                       // what was said before stands before
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr); // a progress line may stand there
    fprintf(stderr, "%s: %s%s\n", kind, place, text);
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    ranks_let_others_speak();
    print_line("error", format, arguments);
    va_end(arguments);
    ranks_abort(1);
}

void fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    ranks_let_others_speak();
    print_line("error", format, arguments);
    va_end(arguments);
    ranks_abort(2);
}

void warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line("warning", format, arguments);
    va_end(arguments);
}
