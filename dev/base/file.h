// Files read through a map, and files written so that the old version stays until the new one is
// complete.
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

// Opens a regular file to read; -1: there is none. Ends the program if it cannot be opened.
struct stat;
int file_open(const char *path, struct stat *status);

// Maps a regular file; an empty one gives size 0. Ends the program if it cannot be opened.
FileMap file_map(const char *path);
bool file_try_map(const char *path, FileMap *file);    // the same; false if there is no such file
FileMap file_map_descriptor(const char *name, int fd); // of an open file, which it closes
void file_unmap(FileMap *file);

// Whether there is a file; ends the program if that cannot be known (no permission, a broken disk).
bool file_exists(const char *path);

// The number after `key` in a file of such lines, or with key "" a file's first one, times `unit`;
// SIZE_MAX: there is none.
size_t file_number(const char *path, const char *key, size_t unit);

// Locks an open file or directory until the program ends. False, with errno: EWOULDBLOCK, somebody
// else still has it after a second, which a child of a killed program may take to end with it;
// anything else, it cannot be locked.
bool file_lock(int fd);

// Waits until an open file and its name are on the disk; ends the program if they cannot be.
void file_sync(int fd, const char *path);

// Waits until it is on the disk that a name was given or removed.
void file_sync_name(const char *path);

// Makes DIR and its parents, on the disk; ends the program if one of them cannot be made or is no
// directory.
void directory_create(const char *path);

// Makes DIR and its parents, likewise; false if DIR was there already.
bool directory_create_new(const char *path);

// The names in DIR, fresh strings, in the order of their bytes; NULL: DIR is missing, or empty.
// Ends the program if it cannot be read, so that no directory looks emptier than it is.
char **directory_list(const char *path, size_t *count);
void directory_list_free(char **names, size_t count);

// Writes go to a temporary file next to PATH; atomic_commit() flushes it to the disk (fsync),
// renames it to PATH and syncs the directory. A failed write removes the temporary file and ends
// the program with the cause, so that PATH keeps what it held. Temporary names end in ".tmp".
typedef struct AtomicFile AtomicFile;
AtomicFile *atomic_open(const char *path);
void atomic_write(AtomicFile *file, const void *data, size_t size);
void atomic_commit(AtomicFile *file);

// All of a file at once.
void atomic_save(const char *path, const void *data, size_t size);

#endif
