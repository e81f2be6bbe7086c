#include "memory_blocks.h"
#include "memory_files.h"
#include "sizes.h"
#include <sanitizer/asan_interface.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ALIGNMENT = 16,    // of malloc()
    SMALLEST_GAP = 32, // poisoned bytes between two blocks; more after larger blocks
    LARGEST_GAP = 2048,
    FILLED = 4096,       // bytes at the start of a new block that are set to non-zero
    AHEAD = 1 << 20,     // poisoned bytes after the last block
    RESIDENT = 64 << 20, // memory beyond this is returned to the system after each input
    LARGEST = 512 << 20  // bytes of a block: no input that is refused in time needs as much
};
static const size_t MOST = (size_t)2 << 30; // bytes of all blocks

typedef enum { LIVE = 0x6c697665, FREED = 0x66726565 } State;

// Stored directly before each block.
typedef struct {
    size_t size, previous; // in bytes; offset of the previous block, or 0
    State state;
} Header;

// Global, as the functions below have no argument that could carry this state.
static struct {
    bool use;
    char *memory;
    size_t end, closed; // bytes used; bytes that are poisoned (AddressSanitizer), except blocks
    size_t last;        // offset of the last block; 0: none
    char *kept;         // contents of the blocks at memory_blocks_keep()
    size_t kept_end, kept_last;
} blocks;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_vasprintf(char **text, const char *format, va_list arguments);
void __real_free(void *memory);
void *__real_mmap(void *where, size_t size, int access, int flags, int file, off_t at);
int __real_munmap(void *memory, size_t size);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_vasprintf(char **text, const char *format, va_list arguments);
void __wrap_free(void *memory);
void *__wrap_mmap(void *where, size_t size, int access, int flags, int file, off_t at);
int __wrap_munmap(void *memory, size_t size);

// ---- blocks -----------------------------------------------------------------

#define BEHIND_ASAN __attribute__((no_sanitize("address"))) // reads headers, which are poisoned

// Prints a message and aborts.
static _Noreturn void broken(const char *what, size_t size) {
    fprintf(stderr, "%s: %zu bytes\n", what, size);
    abort();
}

BEHIND_ASAN static Header *header_at(size_t at) {
    return (Header *)(void *)(blocks.memory + at) - 1;
}

static bool is_block(const void *memory) {
    return blocks.memory && (const char *)memory >= blocks.memory &&
           (const char *)memory < blocks.memory + MOST;
}

// Poisons the bytes up to AHEAD after `end`, so that reads far beyond the last block are detected.
static void close_until(size_t end) {
    if (end <= blocks.closed) return;
    ASAN_POISON_MEMORY_REGION(blocks.memory + blocks.closed, end + AHEAD - blocks.closed);
    blocks.closed = end + AHEAD;
}

BEHIND_ASAN static void *take(size_t alignment, size_t size) {
    if (alignment < ALIGNMENT) alignment = ALIGNMENT;
    const size_t wanted = size / 4, widest = wanted < LARGEST_GAP ? wanted : LARGEST_GAP,
                 gap = widest > SMALLEST_GAP ? widest : SMALLEST_GAP;
    const size_t at = round_up(blocks.end + sizeof(Header), alignment);
    if (size > LARGEST || at + size > MOST - AHEAD - LARGEST_GAP)
        broken("too large an allocation", size);
    blocks.end = round_up(at + size + gap, ALIGNMENT);
    close_until(blocks.end);
    *header_at(at) = (Header){size, blocks.last, LIVE};
    blocks.last = at;
    ASAN_UNPOISON_MEMORY_REGION(blocks.memory + at, size);
    return blocks.memory + at;
}

// Returns the size of a block. Aborts if it was freed or never allocated.
BEHIND_ASAN static size_t size_of(const void *block) {
    const Header *header = header_at((size_t)((const char *)block - blocks.memory));
    if (header->state != LIVE) broken("freed twice, or never allocated", 0);
    return header->size;
}

BEHIND_ASAN static void give_back(void *block) {
    ASAN_POISON_MEMORY_REGION(block, size_of(block));
    header_at((size_t)((char *)block - blocks.memory))->state = FREED;
}

void memory_blocks_use(bool use) {
    if (use && !blocks.memory) {
        blocks.memory = __real_mmap(NULL, MOST, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (blocks.memory == MAP_FAILED) broken("no memory for blocks", MOST);
        blocks.end = SMALLEST_GAP;
    }
    blocks.use = use;
}

BEHIND_ASAN void memory_blocks_keep(void) {
    blocks.kept_end = blocks.end;
    blocks.kept_last = blocks.last;
    blocks.kept = __real_malloc(blocks.end);
    if (!blocks.kept) broken("no memory for kept blocks", blocks.end);
    for (size_t at = blocks.last; at > 0; at = header_at(at)->previous)
        if (header_at(at)->state == LIVE)
            memcpy(blocks.kept + at, blocks.memory + at, header_at(at)->size);
}

BEHIND_ASAN void memory_blocks_restore(void) {
    ASAN_POISON_MEMORY_REGION(blocks.memory + blocks.kept_end, blocks.end - blocks.kept_end);
    if (blocks.end > RESIDENT)
        madvise(blocks.memory + RESIDENT, blocks.end - RESIDENT, MADV_DONTNEED);
    blocks.end = blocks.kept_end;
    blocks.last = blocks.kept_last;
    for (size_t at = blocks.last; at > 0; at = header_at(at)->previous) {
        Header *header = header_at(at);
        if (header->state == FREED) ASAN_UNPOISON_MEMORY_REGION(blocks.memory + at, header->size);
        header->state = LIVE;
        memcpy(blocks.memory + at, blocks.kept + at, header->size);
    }
}

// ---- the C library's functions ----------------------------------------------

static void *take_filled(size_t alignment, size_t size) {
    return memset(take(alignment, size), 0xbe, size < FILLED ? size : FILLED);
}

void *__wrap_malloc(size_t size) {
    return blocks.use ? take_filled(ALIGNMENT, size) : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    size_t bytes;
    if (!blocks.use) return __real_calloc(count, size);
    return __builtin_mul_overflow(count, size, &bytes) ? NULL
                                                       : memset(take(ALIGNMENT, bytes), 0, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return blocks.use ? take_filled(alignment, size) : __real_aligned_alloc(alignment, size);
}

void __wrap_free(void *memory) {
    if (is_block(memory))
        give_back(memory);
    else
        __real_free(memory); // a block of the C library
}

void *__wrap_realloc(void *memory, size_t size) {
    if (!is_block(memory) && (memory || !blocks.use)) return __real_realloc(memory, size);
    const size_t old = memory ? size_of(memory) : 0;
    void *moved = take_filled(ALIGNMENT, size);
    if (old > 0) memcpy(moved, memory, old < size ? old : size);
    if (memory) give_back(memory);
    return moved;
}

void *__wrap_reallocarray(void *memory, size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : __wrap_realloc(memory, bytes);
}

int __wrap_vasprintf(char **text, const char *format, va_list arguments) {
    if (!blocks.use) return __real_vasprintf(text, format, arguments);
    char short_text[512];
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(short_text, sizeof(short_text), format, arguments);
    if (length >= 0) *text = take(ALIGNMENT, (size_t)length + 1);
    if (length >= (int)sizeof(short_text))
        vsnprintf(*text, (size_t)length + 1, format, again);
    else if (length >= 0)
        memcpy(*text, short_text, (size_t)length + 1);
    va_end(again);
    return length;
}

// A map is a block of exactly the file's size, so that AddressSanitizer detects reads beyond its
// end.
void *__wrap_mmap(void *where, size_t size, int access, int flags, int file, off_t at) {
    const unsigned char *data = memory_files_data(file);
    if (!blocks.use || !data) return __real_mmap(where, size, access, flags, file, at);
    return memcpy(take(ALIGNMENT, size), data + at, size);
}

int __wrap_munmap(void *memory, size_t size) {
    if (!is_block(memory)) return __real_munmap(memory, size);
    give_back(memory);
    return 0;
}
