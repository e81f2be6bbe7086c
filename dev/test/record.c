// LD_PRELOAD library: records how a program changes the files below one directory, so that power.c
// can replay what a crash at any moment may leave. Supports only one program with one thread.
//
//   RECORD_DIR   the directory, as the program spells it
//   RECORD_TO    the file that receives one line per event, and the bytes of each write:
//                open FILE PATH / trunc FILE SIZE / write FILE SIZE / sync FILE / syncdir PATH /
//                mkdir PATH / rename FROM TO / unlink PATH / rmdir PATH / symlink PATH TARGET
//                FILE is the number of the open() call
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DESCRIPTORS = 1024 };

static const char *directory;
static int journal = -1;
static int files[DESCRIPTORS];         // number of the file; 0: not recorded
static char *directories[DESCRIPTORS]; // path of a directory; NULL: not a directory

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) abort();
    return function;
}

static ssize_t write_real(int file, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))next("write");
    return real(file, data, size);
}

static int open_real(const char *path, int flags, mode_t mode) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))next("open");
    return real(path, flags, mode);
}

__attribute__((constructor)) static void start(void) {
    const char *to = getenv("RECORD_TO");
    directory = getenv("RECORD_DIR");
    if (!to || !directory) return;
    journal = open_real(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    unsetenv("LD_PRELOAD"); // not for child processes
}

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (write_real(journal, line, (size_t)length) != length) abort();
}

static bool recorded(const char *path) {
    const size_t length = strlen(directory);
    return journal >= 0 && strncmp(path, directory, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

int open(const char *path, int flags, ...) {
    static int count;
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    const int file = open_real(path, flags, mode);
    if (journal < 0 || file < 0 || file >= DESCRIPTORS) return file;
    files[file] = 0;
    free(directories[file]);
    directories[file] = flags & O_DIRECTORY ? strdup(path) : NULL;
    if (!recorded(path) || (flags & O_DIRECTORY) || !(flags & (O_WRONLY | O_RDWR))) return file;
    files[file] = ++count;
    note("open %d %s\n", count, path);
    if (flags & O_TRUNC) note("trunc %d 0\n", count);
    return file;
}

static bool is_file(int file) {
    return journal >= 0 && file >= 0 && file < DESCRIPTORS && files[file] > 0;
}

ssize_t write(int file, const void *data, size_t size) {
    const ssize_t written = write_real(file, data, size);
    if (written > 0 && is_file(file)) {
        note("write %d %zd\n", files[file], written);
        if (write_real(journal, data, (size_t)written) != written) abort();
    }
    return written;
}

int ftruncate(int file, off_t size) {
    static int (*real)(int, off_t);
    if (!real) real = (int (*)(int, off_t))next("ftruncate");
    const int result = real(file, size);
    if (result == 0 && is_file(file)) note("trunc %d %lld\n", files[file], (long long)size);
    return result;
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))next("fsync");
    const int result = real(file);
    if (is_file(file)) note("sync %d\n", files[file]);
    if (journal >= 0 && file < DESCRIPTORS && directories[file])
        note("syncdir %s\n", directories[file]);
    return result;
}

int close(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))next("close");
    if (is_file(file)) files[file] = 0;
    return real(file);
}

// NOLINTBEGIN(bugprone-macro-parentheses): parameters and arguments are lists
// Defines a function that is recorded if it succeeds.
#define RECORD(name, parameters, arguments, path, ...)                                             \
    int name parameters {                                                                          \
        static int(*real) parameters;                                                              \
        if (!real) real = (int(*) parameters)next(#name);                                          \
        const int result = real arguments;                                                         \
        if (result == 0 && journal >= 0 && recorded(path)) note(__VA_ARGS__);                      \
        return result;                                                                             \
    }
// NOLINTEND(bugprone-macro-parentheses)

RECORD(rename, (const char *from, const char *to), (from, to), to, "rename %s %s\n", from, to)
RECORD(unlink, (const char *path), (path), path, "unlink %s\n", path)
RECORD(rmdir, (const char *path), (path), path, "rmdir %s\n", path)
RECORD(mkdir, (const char *path, mode_t mode), (path, mode), path, "mkdir %s\n", path)
RECORD(symlink, (const char *target, const char *path), (target, path), path, "symlink %s %s\n",
       path, target)
