#include "streams.h"

#include "error.h"
#include "stop.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void streams_open(void) {
    // open() returns the lowest free descriptor.
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            fail("/dev/null: cannot open: %s", strerror(errno));
}

void streams_silence(void) {
    const int null = open("/dev/null", O_WRONLY);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0)
        fail("/dev/null: cannot open: %s", strerror(errno));
    close(null);
}

Bytes streams_read(int fd, const char *name) {
    enum { AT_ONCE = 1 << 16 };
    Bytes all = {0};
    stop_interrupts(true);
    for (ssize_t got = 1; got != 0 && !stop_requested();) {
        got = read(fd, bytes_reserve(&all, AT_ONCE), AT_ONCE);
        if (got < 0 && errno != EINTR) fail("%s: cannot be read: %s", name, strerror(errno));
        if (got > 0) all.size += (size_t)got;
    }
    stop_interrupts(false);
    return all;
}

// Returns the size of the control character at the start of the text (C0 except white space, DEL,
// C1), or 0 if there is none.
static size_t control_size(const char *text, size_t size) {
    const unsigned char first = (unsigned char)text[0],
                        second = size > 1 ? (unsigned char)text[1] : 0;
    if (first == '\n' || first == '\t' || first == '\r') return 0;
    if (first < 0x20 || first == 0x7f) return 1;
    return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

void streams_show(const char *text, size_t size) {
    static const char replacement[] = "\xef\xbf\xbd"; // U+FFFD
    const bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < size;) {
        size_t end = i, control = 0;
        while (end < size && !(terminal && (control = control_size(text + end, size - end)))) end++;
        fwrite(text + i, 1, end - i, stdout);
        if (control) fwrite(replacement, 1, sizeof(replacement) - 1, stdout);
        i = end + control;
    }
}

int streams_error(void) {
    errno = 0;
    const bool good = fflush(stdout) == 0 && !ferror(stdout);
    const int cause = errno ? errno : EIO; // 0: an earlier write failed and its cause is lost
    clearerr(stdout);
    return good ? 0 : cause;
}

void streams_flush(void) {
    const int cause = streams_error();
    if (cause) fail("standard output: cannot write: %s", strerror(cause));
}
