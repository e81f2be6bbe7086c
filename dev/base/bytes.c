#include "bytes.h"
#include "error.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 4096 };

char *bytes_reserve(Bytes *bytes, size_t size) {
    size_t needed;
    if (__builtin_add_overflow(bytes->size, size, &needed))
        fail("no memory for %zu bytes of text", size);
    if (needed > bytes->capacity || !bytes->data) {
        size_t capacity = bytes->capacity > 0 ? bytes->capacity : FIRST_CAPACITY;
        while (capacity < needed) capacity = capacity > needed / 2 ? needed : 2 * capacity;
        // Grow at least twofold, so that appending n bytes one by one copies O(n) bytes.
        if (capacity < 2 * bytes->capacity) capacity = 2 * bytes->capacity;
        char *data = allocate(capacity, 1, "a buffer");
        if (bytes->data) memcpy(data, bytes->data, bytes->size);
        free(bytes->data);
        bytes->data = data;
        bytes->capacity = capacity;
    }
    return bytes->data + bytes->size;
}

void bytes_append(Bytes *bytes, const void *data, size_t size) {
    if (size == 0) return;
    memcpy(bytes_reserve(bytes, size), data, size);
    bytes->size += size;
}

void bytes_free(Bytes *bytes) {
    free(bytes->data);
    *bytes = (Bytes){0};
}
