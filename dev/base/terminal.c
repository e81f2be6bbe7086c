#include "terminal.h"

#include "clock.h"
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int terminal_columns(FILE *out) {
    struct winsize size;
    if (!isatty(fileno(out))) return INT_MAX;
    const bool known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (known ? size.ws_col : 80) - 1;
}

// Returns where to break a line longer than `columns`: at a gap after its first `from` bytes. NULL:
// the line is not broken.
static const char *find_break(const char *line, const char *gap, size_t from, size_t columns) {
    const size_t size = strlen(line);
    if (size <= columns || from > size) return NULL;
    const char *last = strstr(line + from, gap);
    for (const char *next = last; next && (size_t)(next - line) <= columns;
         next = strstr(next + strlen(gap), gap))
        last = next;
    return last;
}

void terminal_print(FILE *out, const char *line, const char *gap, int indent) {
    const int columns = terminal_columns(out);
    const size_t rest = columns > indent ? (size_t)(columns - indent) : 1;
    const char *end = find_break(line, gap, (size_t)indent, (size_t)columns);
    for (; end; end = find_break(line, gap, 0, rest)) {
        fprintf(out, "%.*s\n%*s", (int)(end - line), line, indent, "");
        line = end + strlen(gap);
    }
    fprintf(out, "%s\n", line);
}

bool terminal_is_used(void) {
    return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
}

bool terminal_is_ready(void) {
    struct pollfd end = {STDOUT_FILENO, POLLOUT, 0};
    return poll(&end, 1, 0) > 0;
}

void terminal_clear_line(FILE *out) {
    fputs("\r\033[K", out);
}

Meter meter_start(void) {
    return (Meter){.due = terminal_is_used() ? clock_seconds() + 2 : (double)INFINITY};
}

void meter_show(Meter *meter, const char *work, double share) {
    if (clock_seconds() < meter->due || !terminal_is_ready()) return;
    meter->due = clock_seconds() + 0.2;
    meter->shown = true;
    terminal_clear_line(stdout);
    char line[128];
    snprintf(line, sizeof(line), "%s %3.0f%%", work, floor(100 * fmin(share, 1)));
    printf("%.*s", terminal_columns(stdout), line);
    fflush(stdout);
}

void meter_end(Meter *meter) {
    if (meter->shown) terminal_clear_line(stdout);
    meter->shown = false;
}
