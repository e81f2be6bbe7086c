#include "arena.h"

#include "error.h"
#include "memory.h"
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; // a cache line, which is also the widest vector

struct Arena {
    ArenaItem *items; // (item_count)
    size_t item_count;
    size_t end, bytes; // of the arrays carved so far, and the maximum of `end`
    char *memory;      // NULL while counting
};

Arena *arena_create(void) {
    return allocate(1, sizeof(Arena), "an arena");
}

void arena_free(Arena *arena) {
    if (!arena) return;
    free(arena->memory);
    free(arena->items);
    free(arena);
}

// Records the bytes by which the block grew.
static void book(Arena *arena, const char *what, size_t bytes) {
    for (size_t i = 0; i < arena->item_count; i++) {
        if (strcmp(arena->items[i].what, what) != 0) continue;
        arena->items[i].bytes += bytes;
        return;
    }
    arena->items = grow_list(arena->items, arena->item_count, sizeof(ArenaItem), what);
    arena->items[arena->item_count++] = (ArenaItem){what, bytes};
}

void *arena_array(Arena *arena, size_t count, size_t size, const char *what) {
    size_t bytes, end;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX - ALIGNMENT ||
        __builtin_add_overflow(arena->end, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &end) ||
        end > PTRDIFF_MAX - ALIGNMENT)
        fail("no memory for %s: %zu elements of %zu bytes", what, count, size);
    void *array = arena->memory ? arena->memory + arena->end : NULL;
    arena->end = end;
    if (arena->memory) {
        assert(end <= arena->bytes); // both runs carve the same arrays
        return array;
    }
    book(arena, what, end > arena->bytes ? end - arena->bytes : 0);
    if (end > arena->bytes) arena->bytes = end;
    return array;
}

real *arena_reals(Arena *arena, size_t rows, size_t columns, const char *what) {
    size_t row;
    if (__builtin_mul_overflow(columns, sizeof(real), &row))
        fail("no memory for %s: %zu rows of %zu numbers", what, rows, columns);
    return arena_array(arena, rows, row, what);
}

ArenaUnion arena_union(const Arena *arena) {
    return (ArenaUnion){arena->end, arena->end};
}

void arena_member(Arena *arena, ArenaUnion *shared) {
    if (arena->end > shared->end) shared->end = arena->end;
    arena->end = shared->begin;
}

void arena_close(Arena *arena, const ArenaUnion *shared) {
    if (arena->end < shared->end) arena->end = shared->end;
}

void arena_allocate(Arena *arena) {
    assert(!arena->memory);
    arena->memory = allocate(arena->bytes, 1, "the model");
    arena->end = 0;
}

size_t arena_bytes(const Arena *arena) {
    return arena->bytes;
}

const ArenaItem *arena_items(const Arena *arena, size_t *count) {
    *count = arena->item_count;
    return arena->items;
}
