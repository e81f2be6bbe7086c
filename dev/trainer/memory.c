#include "memory.h"
#include "error.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

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

// ---- what there is -------------------------------------------------------------------------------------

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

// The number behind `key` in a file of such lines, times 1024, or with key "" a file's only number; SIZE_MAX:
// there is none ("max").
static size_t number_in(const char *path, const char *key, size_t unit) {
    FILE *file = fopen(path, "r");
    size_t result = SIZE_MAX;
    char line[256];
    while (file && fgets(line, sizeof(line), file)) {
        unsigned long long value;
        if (strncmp(line, key, strlen(key)) != 0 || sscanf(line + strlen(key), "%llu", &value) != 1) continue;
        if (value < SIZE_MAX / unit) result = (size_t)value * unit;
        break;
    }
    if (file) fclose(file);
    return result;
}

// What a cgroup (version 2) and those that it is in leave.
static size_t cgroup_available(void) {
    char path[4096] = "", file[4200];
    size_t available = SIZE_MAX;
    FILE *self = fopen("/proc/self/cgroup", "r");
    if (!self) return SIZE_MAX;
    while (fgets(path, sizeof(path), self) && strncmp(path, "0::", 3) != 0) path[0] = 0;
    fclose(self);
    if (!path[0]) return SIZE_MAX;
    path[strcspn(path, "\n")] = 0;
    for (char *end; (end = strrchr(path, '/'));) {
        snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.max", path + 3);
        const size_t limit = number_in(file, "", 1);
        snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.current", path + 3);
        const size_t used = number_in(file, "", 1);
        if (limit != SIZE_MAX && used != SIZE_MAX)
            available = smaller(available, limit > used ? limit - used : 0);
        if (end == path + 3 && !end[1]) break;
        end[end == path + 3 ? 1 : 0] = 0;
    }
    return available;
}

size_t memory_available(void) {
    size_t available = smaller(number_in("/proc/meminfo", "MemAvailable:", 1024), cgroup_available());
    struct rlimit limit;
    const size_t used = number_in("/proc/self/status", "VmSize:", 1024);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && used != SIZE_MAX)
        available = smaller(available, limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0);
    return available;
}

size_t memory_held(void) {
    const size_t held = number_in("/proc/self/status", "RssAnon:", 1024);
    return held == SIZE_MAX ? 0 : held;
}

// ---- strings -------------------------------------------------------------------------------------------

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
