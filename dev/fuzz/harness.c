#include "harness.h"
#include "error.h"
#include "memory_files.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS_AT_FIRST = 1024 }; // a power of two

// The functions below have no argument that could carry it.
static struct {
    bool inside, accepted; // an input is being read; the last one was read to its end
    jmp_buf back;
    void **slots; // what was allocated inside: a hash table, NULL where free
    size_t slot_count, used;
} harness;

// ---- error.h ---------------------------------------------------------------------------------------

static _Noreturn void leave(void) {
    if (!harness.inside) abort(); // in fuzz_start: the target is broken
    longjmp(harness.back, 1);
}

// The message is made, as it is a part of what may go wrong.
static void format(const char *format, va_list arguments) {
    char text[4096];
    vsnprintf(text, sizeof(text), format, arguments);
    if (!harness.inside || getenv("FUZZ_VERBOSE")) fprintf(stderr, "%s\n", text);
}

void fail(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
    leave();
}

void fail_usage(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
    leave();
}

void warn(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(text, arguments);
    va_end(arguments);
}

// ---- memory that an input left behind. The linker puts these in the place of the C library's (--wrap). ----

static size_t slot_of(const void *memory) {
    return (size_t)(((uintptr_t)memory >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (harness.slot_count - 1);
}

static void insert(void *memory) {
    size_t i = slot_of(memory);
    while (harness.slots[i]) i = (i + 1) & (harness.slot_count - 1);
    harness.slots[i] = memory;
    harness.used++;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_vasprintf(char **text, const char *format, va_list arguments);
void __real_free(void *memory);
void *__real_mmap(void *where, size_t size, int access, int flags, int file, off_t at);
int __real_munmap(void *memory, size_t size);
void __real_exit(int code) __attribute__((noreturn));

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_vasprintf(char **text, const char *format, va_list arguments);
void __wrap_free(void *memory);
void *__wrap_mmap(void *where, size_t size, int access, int flags, int file, off_t at);
int __wrap_munmap(void *memory, size_t size);
void __wrap_exit(int code) __attribute__((noreturn));

static void *keep(void *memory) {
    if (!memory || !harness.inside) return memory;
    if (2 * (harness.used + 1) > harness.slot_count) {
        void **old = harness.slots;
        const size_t count = harness.slot_count;
        harness.slot_count = 2 * count;
        harness.slots = __real_calloc(harness.slot_count, sizeof(*harness.slots));
        harness.used = 0;
        for (size_t i = 0; i < count; i++)
            if (old[i]) insert(old[i]);
        __real_free(old);
    }
    insert(memory);
    return memory;
}

// Takes an address out of the table, and puts what lies behind it where it is found without it.
static void forget(const void *memory) {
    if (!harness.inside || !memory) return;
    const size_t mask = harness.slot_count - 1;
    size_t i = slot_of(memory);
    while (harness.slots[i] != memory) {
        if (!harness.slots[i]) return; // the C library's own, or of fuzz_start
        i = (i + 1) & mask;
    }
    harness.slots[i] = NULL;
    harness.used--;
    for (i = (i + 1) & mask; harness.slots[i]; i = (i + 1) & mask) {
        void *moved = harness.slots[i];
        harness.slots[i] = NULL;
        harness.used--;
        insert(moved);
    }
}

void *__wrap_malloc(size_t size) {
    return keep(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return keep(__real_calloc(count, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return keep(__real_aligned_alloc(alignment, size));
}

void *__wrap_realloc(void *memory, size_t size) {
    void *moved = __real_realloc(memory, size);
    if (moved) forget(memory);
    return keep(moved);
}

void *__wrap_reallocarray(void *memory, size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : __wrap_realloc(memory, bytes);
}

int __wrap_vasprintf(char **text, const char *format, va_list arguments) {
    const int length = __real_vasprintf(text, format, arguments);
    if (length >= 0) keep(*text);
    return length;
}

void __wrap_free(void *memory) {
    forget(memory);
    __real_free(memory);
}

// A map is memory of exactly the file's size, so that AddressSanitizer sees what reads behind its end.
void *__wrap_mmap(void *where, size_t size, int access, int flags, int file, off_t at) {
    const unsigned char *data = memory_files_data(file);
    if (!harness.inside || !data) return __real_mmap(where, size, access, flags, file, at);
    void *memory = __wrap_malloc(size);
    return memory ? memcpy(memory, data + at, size) : MAP_FAILED;
}

int __wrap_munmap(void *memory, size_t size) {
    if (!harness.inside) return __real_munmap(memory, size);
    __wrap_free(memory);
    return 0;
}

void __wrap_exit(int code) {
    if (!harness.inside) __real_exit(code);
    leave(); // --help
}

// ---- inputs ----------------------------------------------------------------------------------------

const char *fuzz_directory(void) {
    return MEMORY_DIRECTORY;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", MEMORY_DIRECTORY, name);
    memory_files_put(name, data, size);
    return path;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    setenv("OMP_WAIT_POLICY", "passive", 1); // a trainer that is asked for nothing starts itself anew
    harness.slot_count = SLOTS_AT_FIRST;
    harness.slots = __real_calloc(harness.slot_count, sizeof(*harness.slots));
    fuzz_start();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_files_watch();
    harness.accepted = false;
    harness.inside = true;
    if (setjmp(harness.back) == 0) {
        fuzz_one(data, size);
        harness.accepted = true;
    }
    harness.inside = false;
    for (size_t i = 0; harness.used > 0; i++) {
        if (!harness.slots[i]) continue;
        __real_free(harness.slots[i]);
        harness.slots[i] = NULL;
        harness.used--;
    }
    memory_files_clean();
    return 0;
}

int fuzz_accepted(void) {
    return harness.accepted;
}
