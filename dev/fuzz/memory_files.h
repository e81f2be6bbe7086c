// A directory of files in memory, which the code under test uses like one on disk. The linker
// replaces the C library's open(), pread(), rename() and so on with those of this file (--wrap).
// System calls would take ten times as long as the code under test.
#ifndef FUZZ_MEMORY_FILES_H
#define FUZZ_MEMORY_FILES_H

#include <stddef.h>

// The path of the directory. All other paths are on disk.
#define MEMORY_DIRECTORY "/fuzz-memory"

// Creates or replaces file NAME with a copy of data (size).
void memory_files_put(const char *name, const void *data, size_t size);

// Called before and after each input. memory_files_clean() removes files that memory_files_put()
// did not create and closes descriptors that the input left open.
void memory_files_watch(void);
void memory_files_clean(void);

// Returns the bytes of an open file, for mmap(), or NULL if it is not a file in memory.
const unsigned char *memory_files_data(int descriptor);

#endif
