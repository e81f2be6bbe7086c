// Allocation that cannot return NULL, overflow or be misaligned.
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stddef.h>

// count * size bytes, zeroed, aligned to 64 bytes. Ends the program, naming the size
// and for `what`, when the product overflows or memory runs out. Freed with free(). A count of 0
// gives a valid pointer.
void *allocate(size_t count, size_t size, const char *what);

// Memory that is used again and again: to touch fresh pages takes longer than to write what they
// are for. Begins as {0}; `memory` is freed with free().
typedef struct {
    void *memory;
    size_t bytes;
} Room;

// Room for count * size bytes, with its old contents; a larger one than before is allocated again,
// zeroed. The same errors.
void *room_for(Room *room, size_t count, size_t size, const char *what);

// Room for one more item of `size` bytes after `count` of them, in a list that began as NULL and
// grows by one item at a time: it doubles where the count is a power of two. The same errors. Freed
// with free().
void *grow_list(void *items, size_t count, size_t size, const char *what);

// Bytes that the program can still take: the least that is left of the machine's memory, of a
// cgroup's limits and of the limit on the address space (ulimit -v). SIZE_MAX where nothing says.
size_t memory_available(void);

// A number of bytes in KiB, MiB or GiB with three digits, fresh: "1.25 MiB".
char *format_bytes(size_t bytes);

// A copy of a string; the same errors.
char *copy_string(const char *text);

// printf into a fresh string, freed with free().
char *format_string(const char *format, ...) __attribute__((format(printf, 1, 2)));

// printf after the end of a string of these functions, which may move.
void append_format(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
