#include "file.h"
#include "error.h"
#include "memory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- reading ----------------------------------------------------------------

FileMap file_map_descriptor(const char *name, int fd) {
    struct stat status;
    if (fstat(fd, &status) != 0) fail("%s: cannot read: %s", name, strerror(errno));
    FileMap file = {copy_string(name), (const unsigned char *)"", (size_t)status.st_size};
    if (file.size > 0) { // mmap rejects a size of 0
        void *data = mmap(NULL, file.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            fail("%s: cannot map %zu bytes: %s", name, file.size, strerror(errno));
        file.data = data;
    }
    close(fd);
    return file;
}

int file_open(const char *path, struct stat *status) {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return -1;
    if (fd < 0 || fstat(fd, status) != 0) fail("%s: cannot open: %s", path, strerror(errno));
    if (S_ISDIR(status->st_mode)) fail("%s: is a directory, expected a file", path);
    if (!S_ISREG(status->st_mode)) fail("%s: is not a regular file", path);
    return fd;
}

bool file_try_map(const char *path, FileMap *file) {
    struct stat status;
    const int fd = file_open(path, &status);
    if (fd >= 0) *file = file_map_descriptor(path, fd);
    return fd >= 0;
}

FileMap file_map(const char *path) {
    FileMap file;
    if (!file_try_map(path, &file)) fail("%s: cannot open: %s", path, strerror(ENOENT));
    return file;
}

void file_unmap(FileMap *file) {
    if (file->size > 0) munmap((void *)file->data, file->size);
    free(file->path);
    *file = (FileMap){0};
}

bool file_exists(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR)
        fail("%s: cannot read its attributes: %s", path, strerror(errno));
    return false;
}

bool file_lock(int fd) {
    enum { TRIES = 20, MILLISECONDS = 50 };
    for (int i = 0; i < TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno != EWOULDBLOCK) return false;
        if (i < TRIES - 1) poll(NULL, 0, MILLISECONDS);
    }
    errno = EWOULDBLOCK;
    return false;
}

// ---- directories ------------------------------------------------------------

// A file name is on disk only after its directory is synced.
void file_sync_name(const char *path) {
    char *directory = path_directory(path);
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // EINVAL: the file system cannot sync directories.
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        fail("%s: cannot sync its directory: %s", path, strerror(errno));
    close(fd);
    free(directory);
}

void file_sync(int fd, const char *path) {
    if (fsync(fd) != 0 && errno != EINVAL) fail("%s: cannot sync: %s", path, strerror(errno));
    file_sync_name(path);
}

// Creates a directory, whose parent exists.
static void make_directory(const char *path) {
    struct stat status;
    if (mkdir(path, 0777) == 0) {
        file_sync_name(path);
        return;
    }
    const int cause = errno;
    if (cause == EEXIST && stat(path, &status) != 0) fail("%s: is a link that leads nowhere", path);
    if (stat(path, &status) != 0) fail("%s: cannot make the directory: %s", path, strerror(cause));
    if (!S_ISDIR(status.st_mode)) fail("%s: exists and is not a directory", path);
}

void directory_create(const char *path) {
    if (!*path) fail("the name of a directory is empty");
    char *prefix = copy_string(path);
    for (char *c = prefix + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        make_directory(prefix);
        *c = '/';
    }
    make_directory(prefix);
    free(prefix);
}

bool directory_create_new(const char *path) {
    char *parent = path_directory(path);
    directory_create(parent);
    free(parent);
    if (mkdir(path, 0777) != 0) {
        if (errno != EEXIST) fail("%s: cannot make the directory: %s", path, strerror(errno));
        return false;
    }
    file_sync_name(path);
    return true;
}

static int compare_entries(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); // byte order in every locale
}

char **directory_list(const char *path, size_t *count) {
    struct dirent **entries;
    const int found = scandir(path, &entries, NULL, compare_entries);
    *count = found > 0 ? (size_t)found : 0;
    if (found < 0 && errno == ENOENT) return NULL;
    if (found < 0) fail("%s: cannot be listed: %s", path, strerror(errno));
    char **names = allocate(*count, sizeof(char *), "a list of files");
    for (size_t i = 0; i < *count; i++) {
        names[i] = copy_string(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return names;
}

void directory_list_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

// ---- atomic writing ---------------------------------------------------------

struct AtomicFile {
    char *path, *temporary;
    int fd;
    size_t used; // bytes in `buffer`
    char buffer[1 << 16];
};

// Exits with an error; PATH keeps its old contents.
static _Noreturn void write_failed(const AtomicFile *file, int cause) {
    unlink(file->temporary);
    fail("%s: cannot write: %s", file->path, strerror(cause));
}

AtomicFile *atomic_open(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        fail("%s: cannot write: exists and is not a regular file", path);
    AtomicFile *file = allocate(1, sizeof(AtomicFile), "a file buffer");
    file->path = copy_string(path);
    file->temporary = format_string("%s.tmp", path);
    // A killed run may have left one. Remove it instead of truncating it, so that no link is
    // followed.
    if (unlink(file->temporary) != 0 && errno != ENOENT)
        fail("%s: cannot write: %s", file->temporary, strerror(errno));
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0) fail("%s: cannot write: %s", file->temporary, strerror(errno));
    return file;
}

static void write_through(AtomicFile *file, const char *data, size_t size) {
    while (size > 0) {
        const ssize_t written = write(file->fd, data, size); // may be partial: at most 2 GiB a call
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) write_failed(file, errno);
        data += written;
        size -= (size_t)written;
    }
}

void atomic_write(AtomicFile *file, const void *data, size_t size) {
    if (size > sizeof(file->buffer) - file->used) {
        write_through(file, file->buffer, file->used);
        file->used = 0;
    }
    if (size > sizeof(file->buffer)) {
        write_through(file, data, size);
    } else {
        memcpy(file->buffer + file->used, data, size);
        file->used += size;
    }
}

void atomic_commit(AtomicFile *file) {
    write_through(file, file->buffer, file->used);
    struct stat ours, named;
    if (fsync(file->fd) != 0 || fstat(file->fd, &ours) != 0) write_failed(file, errno);
    // Two runs with the same output must not rename each other's half-written files.
    if (lstat(file->temporary, &named) != 0 || named.st_ino != ours.st_ino ||
        named.st_dev != ours.st_dev)
        fail("%s: another process writes the same file", file->path);
    if (close(file->fd) != 0 || rename(file->temporary, file->path) != 0) write_failed(file, errno);
    file_sync_name(file->path);
    free(file->path);
    free(file->temporary);
    free(file);
}

void atomic_save(const char *path, const void *data, size_t size) {
    AtomicFile *file = atomic_open(path);
    atomic_write(file, data, size);
    atomic_commit(file);
}

size_t file_number(const char *path, const char *key, size_t unit) {
    FILE *file = fopen(path, "r");
    size_t result = SIZE_MAX;
    char line[256];
    while (file && fgets(line, sizeof(line), file)) {
        unsigned long long value;
        if (strncmp(line, key, strlen(key)) != 0 || sscanf(line + strlen(key), "%llu", &value) != 1)
            continue;
        if (value < SIZE_MAX / unit) result = (size_t)value * unit;
        break;
    }
    if (file) fclose(file);
    return result;
}
