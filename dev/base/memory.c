#include "memory.h"
#include "cgroup.h"
#include "error.h"
#include "file.h"
#include "sizes.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum {
    ALIGNMENT = 64,       // a cache line, and the widest vector
    ZERO_CHUNK = 1 << 20, // bytes that a thread zeroes at a time
    HUGE_PAGE = 1 << 21   // on x86-64, and on arm64 with pages of 4 KiB
};

// Requests huge pages for the part of a block that consists of whole ones: with small pages, caches
// and TLBs cover less of it (dev/bench/JOURNAL.md). This is only a hint, so errors are ignored.
static void wish_huge_pages(char *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const size_t before = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    if (bytes < before + HUGE_PAGE) return;
    madvise(memory + before, (bytes - before) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

// All threads zero a large block: touching its pages for the first time takes the kernel longer
// than anything else before the first step, and this distributes them over the memory of all
// processors.
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
    if (!memory)
        fail("no memory for %s: %zu bytes (%.1f MiB)", what, bytes, (double)bytes / (1 << 20));
    wish_huge_pages(memory, rounded);
    return zero(memory, rounded);
}

void *room_for(Room *room, size_t count, size_t size, const char *what) {
    size_t bytes;
    if (!room->memory || __builtin_mul_overflow(count, size, &bytes) || bytes > room->bytes) {
        free(room->memory);
        *room = (Room){0};
        room->memory = allocate(count, size, what);
        room->bytes = count * size;
    }
    return room->memory;
}

void *grow_list(void *items, size_t count, size_t size, const char *what) {
    if ((count & (count - 1)) != 0) return items;
    items = reallocarray(items, count == 0 ? 1 : 2 * count, size);
    if (!items) fail("no memory for %s: %zu elements of %zu bytes", what, count, size);
    return items;
}

// ---- available memory -------------------------------------------------------

size_t memory_available(void) {
    size_t available = smaller(file_number("/proc/meminfo", "MemAvailable:", 1024),
                               cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup"));
    struct rlimit limit;
    const size_t used = file_number("/proc/self/status", "VmSize:", 1024);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && used != SIZE_MAX)
        available = smaller(available, limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0);
    return available;
}

// ---- strings ----------------------------------------------------------------

char *copy_string(const char *text) {
    const size_t size = strlen(text) + 1;
    return memcpy(allocate(size, 1, "a string"), text, size);
}

static char *format_arguments(const char *format, va_list arguments) {
    char *text = NULL;
    if (vasprintf(&text, format, arguments) < 0) fail("no memory for a string");
    return text;
}

char *format_string(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = format_arguments(format, arguments);
    va_end(arguments);
    return text;
}

void append_format(char **text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *end = format_arguments(format, arguments);
    va_end(arguments);
    const size_t before = strlen(*text), added = strlen(end) + 1;
    char *longer = realloc(*text, before + added);
    if (!longer) fail("no memory for a string");
    memcpy(longer + before, end, added);
    *text = longer;
    free(end);
}

char *format_bytes(size_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    double size = (double)bytes / 1024;
    int unit = 0;
    for (; unit < 2 && size >= 999.5; unit++) size /= 1024;
    return format_string("%.*f %s", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, size, units[unit]);
}
