// Memory allocation that never returns NULL, overflows or is misaligned.
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stddef.h>

// Allocates count * size bytes, zeroed and aligned to 64 bytes. Exits with an error that names the
// size and `what` if the product overflows or memory runs out. Free with free(). A count of 0
// returns a valid pointer.
void *allocate(size_t count, size_t size, const char *what);

// A reusable buffer: touching fresh pages takes longer than writing the data. Initialise to {0};
// free `memory` with free().
typedef struct {
    void *memory;
    size_t bytes;
} Room;

// Returns room for count * size bytes: the buffer with its old contents, or a new zeroed one if it
// is too small. Fails like allocate().
void *room_for(Room *room, size_t count, size_t size, const char *what);

// Makes room for one more item of `size` bytes after the first `count`, in a list that starts as
// NULL and grows by one item at a time. The list doubles when the count is a power of two. Exits
// with an error if memory runs out. Free with free().
void *grow_list(void *items, size_t count, size_t size, const char *what);

// Returns the bytes that the program can still allocate: the minimum of the machine's available
// memory and what is left of the cgroups' limits and of the address space limit (ulimit -v).
// SIZE_MAX if none is known.
size_t memory_available(void);

// Formats a number of bytes in KiB, MiB or GiB with three digits, as a new string: "1.25 MiB".
char *format_bytes(size_t bytes);

// Returns a copy of a string; fails like allocate().
char *copy_string(const char *text);

// printf into a new string; free with free().
char *format_string(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Appends printf output to a string made by these functions, which may move.
void append_format(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
