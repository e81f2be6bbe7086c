#include "streams.h"

#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void streams_open(void) {
    // open() takes the lowest number that is free.
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            fail("/dev/null: cannot open: %s", strerror(errno));
}

void streams_silence(void) {
    const int null = open("/dev/null", O_WRONLY);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0) fail("/dev/null: cannot open: %s", strerror(errno));
    close(null);
}

int streams_error(void) {
    errno = 0;
    const bool good = fflush(stdout) == 0 && !ferror(stdout);
    const int cause = errno ? errno : EIO; // 0: an earlier write failed, whose cause is gone
    clearerr(stdout);
    return good ? 0 : cause;
}

void streams_flush(void) {
    const int cause = streams_error();
    if (cause) fail("standard output: cannot write: %s", strerror(cause));
}
