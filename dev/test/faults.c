// LD_PRELOAD library: makes one call of the program fail, or kills the program there. Only calls by
// the program itself are counted, not those by its libraries. faults.sh and kill.sh use it:
//
//   FAULT_AT=N      the N-th counted call, from 1 on; 0: none
//   FAULT_CALLS     which calls are counted: "files" (reads and writes), "changes" (only calls that
//                   change the disk), "memory", or the name of one function ("readdir")
//   FAULT_MODE      fail          the call returns its error: disk full, no memory, no permission
//                   half          write() writes half of its data; only write() is counted
//                   interrupt     write(), read(), poll() and waitpid() return EINTR once; only
//                                 these are counted
//                   kill-before, kill-after   SIGKILL before or after the call
//                   kill-half     SIGKILL after half of a write(); only write() is counted
//   FAULT_REPORT    a file that receives "fired NAME" when the call is reached, else "calls N" at
//                   the end of the program
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum { READS = 1, CHANGES = 2, MEMORY = 4 } Kind;
typedef enum { FAIL, HALF, INTERRUPT, KILL_BEFORE, KILL_HALF, KILL_AFTER } Mode;

// Global, because the functions below have no argument to pass it.
static struct {
    bool active;
    unsigned kinds;   // bits of Kind
    const char *only; // the only function that is counted; NULL: all of `kinds`
    Mode mode;
    long at;
    const char *report;
    uintptr_t program, program_end; // addresses of the program's own code
} settings;
static atomic_long calls;

// ---- start and end ----------------------------------------------------------

static int find_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        settings.program = info->dlpi_addr + part->p_vaddr;
        settings.program_end = settings.program + part->p_memsz;
    }
    return 1; // the program is the first in the list
}

// Returns -1 if `text` is none of the names.
static int index_of(const char *text, const char *const *names, int count) {
    for (int i = 0; text && i < count; i++)
        if (strcmp(text, names[i]) == 0) return i;
    return -1;
}

static _Noreturn void not_understood(const char *text) {
    fprintf(stderr, "faults.so: cannot understand \"%s\"\n", text);
    _exit(99);
}

__attribute__((constructor)) static void start(void) {
    static const char *const kinds[] = {"files", "changes", "memory"};
    static const char *const modes[] = {"fail",        "half",      "interrupt",
                                        "kill-before", "kill-half", "kill-after"};
    static const unsigned kind_bits[] = {READS | CHANGES, CHANGES, MEMORY};
    const char *at = getenv("FAULT_AT");
    if (!at) return;
    settings.at = strtol(at, NULL, 10);
    const char *counted = getenv("FAULT_CALLS"), *mode = getenv("FAULT_MODE");
    const int kind = index_of(counted, kinds, 3), wanted = index_of(mode, modes, 6);
    if (!counted) not_understood("FAULT_CALLS");
    if (wanted < 0) not_understood(mode ? mode : "FAULT_MODE");
    settings.kinds = kind >= 0 ? kind_bits[kind] : READS | CHANGES | MEMORY;
    settings.only = kind >= 0 ? NULL : counted;
    settings.mode = (Mode)wanted;
    settings.report = getenv("FAULT_REPORT");
    dl_iterate_phdr(find_program, NULL);
    unsetenv("LD_PRELOAD"); // not for child processes
    settings.active = true;
}

// Uses system calls, because this library replaces the functions.
static void report(const char *format, const char *name, long number) {
    char text[128];
    if (!settings.report) return;
    const int length = snprintf(text, sizeof(text), format, name, number);
    const long file =
        syscall(SYS_openat, AT_FDCWD, settings.report, O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, file, text, (size_t)length);
    syscall(SYS_close, file);
}

__attribute__((destructor)) static void end(void) {
    if (settings.active && calls < settings.at) settings.at = 0;
    if (settings.active && settings.at == 0) report("%s %ld\n", "calls", calls);
}

// ---- which call -------------------------------------------------------------

static bool fits_mode(const char *name) {
    const bool writes = strcmp(name, "write") == 0;
    if (settings.mode == HALF || settings.mode == KILL_HALF) return writes;
    if (settings.mode != INTERRUPT) return true;
    return writes || strcmp(name, "read") == 0 || strcmp(name, "poll") == 0 ||
           strcmp(name, "waitpid") == 0;
}

// Returns whether this is the selected call. `caller`: the call's return address.
static bool is_the_one(Kind kind, const char *name, const void *caller) {
    const uintptr_t from = (uintptr_t)caller;
    if (!settings.active || !(settings.kinds & kind) || from < settings.program ||
        from >= settings.program_end || !fits_mode(name) ||
        (settings.only && strcmp(settings.only, name) != 0) || ++calls != settings.at)
        return false;
    report("fired %s at +0x%lx\n", name, (long)(from - settings.program));
    if (settings.mode == KILL_BEFORE) kill(getpid(), SIGKILL);
    return true;
}

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) abort();
    return function;
}

// NOLINTBEGIN(bugprone-macro-parentheses): parameters and arguments are lists
// Defines a function that fails with `error` if it is the selected call, and otherwise calls the
// next library's.
#define REPLACE(kind, type, name, parameters, arguments, failure, error)                           \
    type name parameters {                                                                         \
        static type(*real) parameters;                                                             \
        if (!real) real = (type(*) parameters)next(#name);                                         \
        const bool fires = is_the_one(kind, #name, __builtin_return_address(0));                   \
        if (fires && (settings.mode == FAIL || settings.mode == INTERRUPT)) {                      \
            errno = settings.mode == FAIL ? (error) : EINTR;                                       \
            return failure;                                                                        \
        }                                                                                          \
        type result = real arguments;                                                              \
        if (fires && settings.mode == KILL_AFTER) kill(getpid(), SIGKILL);                         \
        return result;                                                                             \
    }
// NOLINTEND(bugprone-macro-parentheses)

// ---- files ------------------------------------------------------------------
// Writes to stderr report a failure and are not counted.
ssize_t write(int file, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))next("write");
    if (file == STDERR_FILENO || !is_the_one(CHANGES, "write", __builtin_return_address(0)))
        return real(file, data, size);
    if (settings.mode == FAIL || settings.mode == INTERRUPT) {
        errno = settings.mode == FAIL ? ENOSPC : EINTR;
        return -1;
    }
    const bool half = settings.mode == HALF || settings.mode == KILL_HALF;
    const ssize_t written = real(file, data, half ? (size + 1) / 2 : size);
    if (settings.mode != HALF) kill(getpid(), SIGKILL);
    return written;
}

int open(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!real) real = (int (*)(const char *, int, ...))next("open");
    const bool fires =
        is_the_one(flags & O_CREAT ? CHANGES : READS, "open", __builtin_return_address(0));
    if (fires && settings.mode == FAIL) {
        errno = EMFILE;
        return -1;
    }
    const int file = real(path, flags, mode);
    if (fires && settings.mode == KILL_AFTER) kill(getpid(), SIGKILL);
    return file;
}

// Linux closes the descriptor even if close() reports an error.
int close(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))next("close");
    const bool fires = is_the_one(CHANGES, "close", __builtin_return_address(0));
    const int result = real(file);
    if (fires && settings.mode == KILL_AFTER) kill(getpid(), SIGKILL);
    if (!fires || settings.mode != FAIL) return result;
    errno = EIO;
    return -1;
}

REPLACE(CHANGES, int, fsync, (int file), (file), -1, EIO)
REPLACE(CHANGES, int, fdatasync, (int file), (file), -1, EIO)
REPLACE(CHANGES, int, rename, (const char *from, const char *to), (from, to), -1, EIO)
REPLACE(CHANGES, int, unlink, (const char *path), (path), -1, EACCES)
REPLACE(CHANGES, int, mkdir, (const char *path, mode_t mode), (path, mode), -1, ENOSPC)
REPLACE(CHANGES, int, rmdir, (const char *path), (path), -1, EACCES)
REPLACE(CHANGES, int, symlink, (const char *target, const char *path), (target, path), -1, ENOSPC)
REPLACE(CHANGES, int, link, (const char *from, const char *to), (from, to), -1, EMLINK)
REPLACE(CHANGES, int, ftruncate, (int file, off_t size), (file, size), -1, EIO)
REPLACE(READS, int, fflush, (FILE * stream), (stream), EOF, ENOSPC)
REPLACE(READS, int, stat, (const char *path, struct stat *status), (path, status), -1, EACCES)
REPLACE(READS, int, lstat, (const char *path, struct stat *status), (path, status), -1, EACCES)
REPLACE(READS, int, fstat, (int file, struct stat *status), (file, status), -1, EIO)
REPLACE(READS, ssize_t, read, (int file, void *data, size_t size), (file, data, size), -1, EIO)
REPLACE(READS, ssize_t, pread, (int file, void *data, size_t size, off_t at),
        (file, data, size, at), -1, EIO)
REPLACE(READS, ssize_t, readlink, (const char *path, char *text, size_t size), (path, text, size),
        -1, EIO)
REPLACE(READS, DIR *, opendir, (const char *path), (path), NULL, EMFILE)
REPLACE(READS, struct dirent *, readdir, (DIR * dir), (dir), NULL, EIO)
REPLACE(READS, int, scandir,
        (const char *restrict path, struct dirent ***restrict entries,
         int (*filter)(const struct dirent *),
         int (*compare)(const struct dirent **, const struct dirent **)),
        (path, entries, filter, compare), -1, EIO)
REPLACE(READS, FILE *, fopen, (const char *restrict path, const char *restrict mode), (path, mode),
        NULL, EMFILE)
REPLACE(READS, int, flock, (int file, int operation), (file, operation), -1, ENOLCK)
REPLACE(READS, int, pipe2, (int ends[2], int flags), (ends, flags), -1, EMFILE)
REPLACE(READS, int, poll, (struct pollfd * ends, nfds_t count, int timeout), (ends, count, timeout),
        -1, ENOMEM)
REPLACE(READS, pid_t, waitpid, (pid_t child, int *status, int options), (child, status, options),
        -1, ECHILD)
REPLACE(READS, int, posix_spawnp,
        (pid_t *restrict child, const char *restrict file,
         const posix_spawn_file_actions_t *restrict actions,
         const posix_spawnattr_t *restrict attributes, char *const arguments[restrict],
         char *const environment[restrict]),
        (child, file, actions, attributes, arguments, environment), EAGAIN, EAGAIN)

// ---- memory -----------------------------------------------------------------

REPLACE(MEMORY, void *, malloc, (size_t size), (size), NULL, ENOMEM)
REPLACE(MEMORY, void *, calloc, (size_t count, size_t size), (count, size), NULL, ENOMEM)
REPLACE(MEMORY, void *, realloc, (void *memory, size_t size), (memory, size), NULL, ENOMEM)
REPLACE(MEMORY, void *, reallocarray, (void *memory, size_t count, size_t size),
        (memory, count, size), NULL, ENOMEM)
REPLACE(MEMORY, void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size), NULL,
        ENOMEM)
REPLACE(MEMORY, int, posix_memalign, (void **memory, size_t alignment, size_t size),
        (memory, alignment, size), ENOMEM, ENOMEM)
REPLACE(MEMORY, int, vasprintf,
        (char **restrict text, const char *restrict format, va_list arguments),
        (text, format, arguments), -1, ENOMEM)
REPLACE(MEMORY, char *, strdup, (const char *text), (text), NULL, ENOMEM)
REPLACE(MEMORY, void *, mmap, (void *where, size_t size, int access, int flags, int file, off_t at),
        (where, size, access, flags, file, at), MAP_FAILED, ENOMEM)
