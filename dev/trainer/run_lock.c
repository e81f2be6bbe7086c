#include "run_lock.h"

#include "error.h"
#include "file.h"
#include "memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void refuse(const char *directory, int fd) {
    char holder[256] = "another process";
    const ssize_t size = pread(fd, holder, sizeof(holder) - 1, 0);
    if (size > 0) holder[size] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    fail("%s: %s trains here; wait until it ends or choose another --output", directory, holder);
}

// Names the holder for later readers. On a full disk the name is missing, but the lock still holds.
static void write_holder(int fd) {
    char host[65] = "", holder[128];
    gethostname(host, sizeof(host) - 1);
    const int length =
        snprintf(holder, sizeof(holder), "process %lld on %s\n", (long long)getpid(), host);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, holder, (size_t)length, 0) < 0) errno = 0;
}

bool run_lock_exists(const char *directory) {
    char *path = path_in(directory, "lock");
    const bool exists = file_exists(path);
    free(path);
    return exists;
}

int run_lock(const char *directory) {
    char *path = path_in(directory, "lock");
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) fail("%s: cannot write: %s", path, strerror(errno));
    if (file_lock(fd))
        write_holder(fd);
    else if (errno == EWOULDBLOCK)
        refuse(directory, fd);
    else
        warn("%s: cannot be locked (%s): see that no other run has this --output", path,
             strerror(errno));
    free(path);
    return fd;
}
