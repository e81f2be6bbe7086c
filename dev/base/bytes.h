// A growing array of bytes.
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stddef.h>

typedef struct {
    char *data; // NULL until something is added
    size_t size, capacity;
} Bytes;

// Reserves room for `size` more bytes after the end and returns a pointer to it. The caller updates
// bytes->size.
char *bytes_reserve(Bytes *bytes, size_t size);
void bytes_append(Bytes *bytes, const void *data, size_t size);
void bytes_free(Bytes *bytes);

#endif
