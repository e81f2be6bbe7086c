#include "memory.h"
#include "error.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64,      // a cache line, and the widest vector
    ZERO_CHUNK = 1 << 20 // bytes that a thread sets to zero at a time
};

// All threads touch the pages of a large block for the first time: that takes the kernel longer than anything
// else before the first step, and lays them out over the memory of all processors.
static void *zero(char *memory, size_t bytes) {
#pragma omp parallel for schedule(static) if (bytes > 4 * ZERO_CHUNK)
    for (size_t at = 0; at < bytes; at += ZERO_CHUNK)
        memset(memory + at, 0, bytes - at < ZERO_CHUNK ? bytes - at : ZERO_CHUNK);
    return memory;
}

void *allocate(size_t count, size_t size, const char *what) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX - ALIGNMENT)
        fail("no memory for %s: %zu elements of %zu bytes", what, count, size);
    const size_t rounded = bytes == 0 ? ALIGNMENT : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded);
    if (!memory) fail("no memory for %s: %zu bytes (%.1f MiB)", what, bytes, (double)bytes / (1 << 20));
    return zero(memory, rounded);
}

void *grow_list(void *items, size_t count, size_t size, const char *what) {
    if ((count & (count - 1)) != 0) return items;
    items = reallocarray(items, count == 0 ? 1 : 2 * count, size);
    if (!items) fail("no memory for %s: %zu elements of %zu bytes", what, count, size);
    return items;
}

char *copy_string(const char *text) {
    const size_t size = strlen(text) + 1;
    return memcpy(allocate(size, 1, "a string"), text, size);
}

char *format_string(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = NULL;
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) fail("no memory for a string");
    return text;
}
