// A growing array of bytes.
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stddef.h>

typedef struct {
    char *data; // NULL while nothing was ever added
    size_t size, capacity;
} Bytes;

// Makes room for `size` more bytes after the end and returns where they begin; bytes->size is left
// to the caller.
char *bytes_reserve(Bytes *bytes, size_t size);
void bytes_append(Bytes *bytes, const void *data, size_t size);
void bytes_free(Bytes *bytes);

#endif
