#include "memory_files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILES = 16, MOST_OPEN = 16, LONGEST_NAME = 64, FIRST_DESCRIPTOR = 1 << 20 };

typedef struct {
    char name[LONGEST_NAME]; // "": the entry is unused
    unsigned char *data;
    size_t size, room;
    ino_t number; // unique, even among files of the same name
    bool put;     // created by memory_files_put()
} File;

// Global, as the functions below have no argument that could carry this state.
static struct {
    File files[MOST_FILES];
    File directory;        // programs open it to sync it
    File *open[MOST_OPEN]; // by descriptor; NULL: free
    ino_t numbers;
    int first_real; // the first descriptor on disk that this input opened; -1: none
} memory = {.first_real = -1};

void *__real_realloc(void *old, size_t size);
int __real_open(const char *path, int flags, ...);
int __real_close(int descriptor);
int __real_pipe2(int ends[2], int flags);
int __real_stat(const char *path, struct stat *status);
int __real_lstat(const char *path, struct stat *status);
int __real_fstat(int descriptor, struct stat *status);
ssize_t __real_pread(int descriptor, void *out, size_t size, off_t at);
ssize_t __real_write(int descriptor, const void *data, size_t size);
int __real_fsync(int descriptor);
int __real_scandir(const char *path, struct dirent ***entries, int (*filter)(const struct dirent *),
                   int (*compare)(const struct dirent **, const struct dirent **));
int __real_unlink(const char *path);
int __real_rename(const char *from, const char *to);

int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int descriptor);
int __wrap_pipe2(int ends[2], int flags);
int __wrap_stat(const char *path, struct stat *status);
int __wrap_lstat(const char *path, struct stat *status);
int __wrap_fstat(int descriptor, struct stat *status);
ssize_t __wrap_pread(int descriptor, void *out, size_t size, off_t at);
ssize_t __wrap_write(int descriptor, const void *data, size_t size);
int __wrap_fsync(int descriptor);
int __wrap_scandir(const char *path, struct dirent ***entries, int (*filter)(const struct dirent *),
                   int (*compare)(const struct dirent **, const struct dirent **));
int __wrap_unlink(const char *path);
int __wrap_rename(const char *from, const char *to);

// ---- the directory ----------------------------------------------------------

// Returns the path after the directory's: "" for the directory itself, NULL for a path on disk.
static const char *name_of(const char *path) {
    const size_t length = sizeof(MEMORY_DIRECTORY) - 1;
    if (strncmp(path, MEMORY_DIRECTORY, length) != 0) return NULL;
    if (path[length] == '\0') return "";
    if (path[length] != '/') return NULL;
    path += length;
    return path + strspn(path, "/");
}

static File *find(const char *name) {
    for (int i = 0; i < MOST_FILES; i++)
        if (*name && strcmp(memory.files[i].name, name) == 0) return &memory.files[i];
    return NULL;
}

// Returns an empty file, new or truncated; NULL if the directory is full or the name is too long.
static File *create(const char *name) {
    File *file = find(name);
    for (int i = 0; !file && i < MOST_FILES; i++)
        if (!*memory.files[i].name) file = &memory.files[i];
    if (!file || strlen(name) >= LONGEST_NAME) {
        errno = ENOSPC;
        return NULL;
    }
    memcpy(file->name, name, strlen(name) + 1);
    file->number = ++memory.numbers;
    file->size = 0;
    file->put = false;
    return file;
}

static void append(File *file, const void *data, size_t size) {
    if (size > file->room - file->size) {
        file->room = 2 * file->room + size;
        file->data = __real_realloc(file->data, file->room);
        if (!file->data) abort();
    }
    if (size > 0) memcpy(file->data + file->size, data, size);
    file->size += size;
}

static void erase(File *file) {
    file->name[0] = '\0';
}

void memory_files_put(const char *name, const void *data, size_t size) {
    File *file = create(name);
    if (!file) abort();
    append(file, data, size);
    file->put = true;
}

void memory_files_watch(void) {
    memory.first_real = -1;
}

void memory_files_clean(void) {
    for (int i = 0; i < MOST_FILES; i++)
        if (!memory.files[i].put) erase(&memory.files[i]);
    memset(memory.open, 0, sizeof(memory.open));
    if (memory.first_real >= 0) close_range((unsigned)memory.first_real, ~0U, 0);
}

// ---- descriptors ------------------------------------------------------------

static File *opened(int descriptor) {
    const int i = descriptor - FIRST_DESCRIPTOR;
    return i >= 0 && i < MOST_OPEN ? memory.open[i] : NULL;
}

const unsigned char *memory_files_data(int descriptor) {
    const File *file = opened(descriptor);
    return file ? file->data : NULL;
}

// The system returns the lowest free descriptor, so all later ones of an input are above its first.
static void note_real(int descriptor) {
    if (memory.first_real < 0) memory.first_real = descriptor;
}

int __wrap_open(const char *path, int flags, ...) {
    const char *name = name_of(path);
    if (!name) {
        va_list arguments;
        va_start(arguments, flags);
        const mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
        va_end(arguments);
        const int descriptor = __real_open(path, flags, mode);
        note_real(descriptor);
        return descriptor;
    }
    File *file = *name ? find(name) : &memory.directory;
    if (file && flags & O_EXCL) {
        errno = EEXIST;
        return -1;
    }
    if (!file && !(flags & O_CREAT)) {
        errno = ENOENT;
        return -1;
    }
    if (!file || flags & O_TRUNC) file = create(name);
    for (int i = 0; file && i < MOST_OPEN; i++) {
        if (memory.open[i]) continue;
        memory.open[i] = file;
        return FIRST_DESCRIPTOR + i;
    }
    if (file) errno = EMFILE;
    return -1;
}

int __wrap_close(int descriptor) {
    if (!opened(descriptor)) return __real_close(descriptor);
    memory.open[descriptor - FIRST_DESCRIPTOR] = NULL;
    return 0;
}

int __wrap_pipe2(int ends[2], int flags) {
    const int result = __real_pipe2(ends, flags);
    if (result == 0) note_real(ends[0]);
    return result;
}

static int describe(const File *file, struct stat *status) {
    memset(status, 0, sizeof(*status));
    status->st_mode = S_IFREG | 0644;
    status->st_nlink = 1;
    status->st_ino = file->number;
    status->st_size = (off_t)file->size;
    return 0;
}

static int look_up(const char *name, struct stat *status) {
    const File *file = find(name);
    if (file) return describe(file, status);
    memset(status, 0, sizeof(*status));
    status->st_mode = S_IFDIR | 0755;
    if (!*name) return 0;
    errno = ENOENT;
    return -1;
}

int __wrap_stat(const char *path, struct stat *status) {
    const char *name = name_of(path);
    return name ? look_up(name, status) : __real_stat(path, status);
}

int __wrap_lstat(const char *path, struct stat *status) {
    const char *name = name_of(path);
    return name ? look_up(name, status) : __real_lstat(path, status);
}

int __wrap_fstat(int descriptor, struct stat *status) {
    const File *file = opened(descriptor);
    return file ? describe(file, status) : __real_fstat(descriptor, status);
}

ssize_t __wrap_pread(int descriptor, void *out, size_t size, off_t at) {
    const File *file = opened(descriptor);
    if (!file) return __real_pread(descriptor, out, size, at);
    if ((size_t)at >= file->size) return 0;
    if (size > file->size - (size_t)at) size = file->size - (size_t)at;
    memcpy(out, file->data + at, size);
    return (ssize_t)size;
}

// Appends: no caller seeks.
ssize_t __wrap_write(int descriptor, const void *data, size_t size) {
    File *file = opened(descriptor);
    if (!file) return __real_write(descriptor, data, size);
    append(file, data, size);
    return (ssize_t)size;
}

static void *must(void *allocated) {
    if (!allocated) abort();
    return allocated;
}

// The caller frees the entries, as with scandir(3).
int __wrap_scandir(const char *path, struct dirent ***entries, int (*filter)(const struct dirent *),
                   int (*compare)(const struct dirent **, const struct dirent **)) {
    const char *name = name_of(path);
    if (!name || *name) return __real_scandir(path, entries, filter, compare);
    int count = 0;
    *entries = must(malloc(MOST_FILES * sizeof(void *)));
    for (int i = 0; i < MOST_FILES; i++) {
        struct dirent entry = {.d_type = DT_REG};
        memcpy(entry.d_name, memory.files[i].name, LONGEST_NAME);
        if (!*entry.d_name || (filter && !filter(&entry))) continue;
        (*entries)[count] = must(malloc(sizeof(entry)));
        *(*entries)[count++] = entry;
    }
    if (compare)
        qsort(*entries, (size_t)count, sizeof(void *),
              (int (*)(const void *, const void *))compare);
    return count;
}

int __wrap_fsync(int descriptor) {
    return opened(descriptor) ? 0 : __real_fsync(descriptor);
}

int __wrap_unlink(const char *path) {
    const char *name = name_of(path);
    if (!name) return __real_unlink(path);
    File *file = find(name);
    if (!file) {
        errno = ENOENT;
        return -1;
    }
    erase(file);
    return 0;
}

int __wrap_rename(const char *from, const char *to) {
    const char *old = name_of(from), *new = name_of(to);
    if (!old || !new) return __real_rename(from, to);
    File *file = find(old), *replaced = find(new);
    if (!file || strlen(new) >= LONGEST_NAME) {
        errno = file ? ENAMETOOLONG : ENOENT;
        return -1;
    }
    if (replaced && replaced != file) erase(replaced);
    memcpy(file->name, new, strlen(new) + 1);
    return 0;
}
