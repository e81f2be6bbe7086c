// Memory-mapped reading, and atomic writing that keeps the old version of a file until the new one
// is complete.
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "path.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *path;
    const unsigned char *data; // read-only map of the whole file
    size_t size;
} FileMap;

// Opens a regular file for reading. Returns -1 if it does not exist; exits with an error if it
// cannot be opened.
struct stat;
int file_open(const char *path, struct stat *status);

// Maps a regular file; size is 0 if it is empty. Exits with an error if it cannot be opened.
FileMap file_map(const char *path);
bool file_try_map(const char *path, FileMap *file);    // the same; false if it does not exist
FileMap file_map_descriptor(const char *name, int fd); // maps an open file and closes it
void file_unmap(FileMap *file);

// Returns whether a file exists. Exits with an error if that cannot be determined (no permission, a
// broken disk).
bool file_exists(const char *path);

// Returns the number after `key` in the first line that begins with it, times `unit`. With key "",
// returns the first number at the start of a line. SIZE_MAX: none.
size_t file_number(const char *path, const char *key, size_t unit);

// Locks an open file or directory until the program ends. On failure returns false and sets errno:
// to EWOULDBLOCK if another process still holds the lock after a second (a killed program's child
// may take that long to exit), else to the reason why it cannot be locked.
bool file_lock(int fd);

// Syncs an open file and its name to disk; exits with an error on failure.
void file_sync(int fd, const char *path);

// Syncs the directory of a file whose name was created or removed.
void file_sync_name(const char *path);

// Creates DIR and its parents and syncs them to disk. Exits with an error if one of them cannot be
// created or is not a directory.
void directory_create(const char *path);

// The same; returns false if DIR already exists.
bool directory_create_new(const char *path);

// Returns the names in DIR as new strings in byte order, or NULL if DIR is missing. Exits with an
// error if DIR cannot be read, so that no directory looks emptier than it is.
char **directory_list(const char *path, size_t *count);
void directory_list_free(char **names, size_t count);

// Writes go to a temporary file next to PATH, whose name ends in ".tmp". atomic_commit() flushes it
// to disk (fsync), renames it to PATH and syncs the directory. A failed write removes the temporary
// file and exits with an error, so that PATH keeps its old contents.
typedef struct AtomicFile AtomicFile;
AtomicFile *atomic_open(const char *path);
void atomic_write(AtomicFile *file, const void *data, size_t size);
void atomic_commit(AtomicFile *file);

// Writes a whole file.
void atomic_save(const char *path, const void *data, size_t size);

#endif
