// Declarations that our sources need and WASI's C library lacks. Only for the build of
// dev/page/wasm.c, which includes this file before every source.

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RLIMIT_AS 9
#define RLIM_INFINITY UINT64_MAX
struct rlimit {
    uint64_t rlim_cur, rlim_max;
};
static inline int getrlimit(int resource, struct rlimit *limit) {
    errno = ENOSYS;
    return -1;
}

#define TIOCGWINSZ 0x5413
struct winsize {
    unsigned short ws_row, ws_col;
};

#define stat(path, status) file_status(path, status)

// Never called in the page.
char *realpath(const char *path, char *resolved);
int dup2(int from, int to);
ssize_t getrandom(void *buffer, size_t size, unsigned flags);
