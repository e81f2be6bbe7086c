// A directory of files in memory, which a fuzz target's program takes for one on the disk: the
// linker puts open(), pread(), rename() and so on of this file in the place of the C library's
// (--wrap). System calls would take ten times as long as what is tried.
#ifndef FUZZ_MEMORY_FILES_H
#define FUZZ_MEMORY_FILES_H

#include <stddef.h>

// Its name. Paths that begin otherwise are those of the disk.
#define MEMORY_DIRECTORY "/fuzz-memory"

// Makes or replaces NAME (a copy of `data`, of `size` bytes).
void memory_files_put(const char *name, const void *data, size_t size);

// Before and after an input: files that it made itself go, and descriptors that it left open are
// closed.
void memory_files_watch(void);
void memory_files_clean(void);

// The bytes of an open file, for a map; NULL: not one of these descriptors.
const unsigned char *memory_files_data(int descriptor);

#endif
