#include "arena.h"

#include "error.h"
#include "memory.h"
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; // a cache line, and the widest vector

typedef struct {
    void *slot;
    size_t offset;
} Array;

struct Arena {
    Array *arrays; // (array_count)
    size_t array_count, array_room;
    ArenaItem *items; // (item_count)
    size_t item_count;
    size_t end, bytes; // of what is planned now, and the most that it came to
    char *memory;
};

Arena *arena_create(void) {
    return allocate(1, sizeof(Arena), "an arena");
}

void arena_free(Arena *arena) {
    if (!arena) return;
    free(arena->memory);
    free(arena->arrays);
    free(arena->items);
    free(arena);
}

// Room for one more element in an array that doubles.
static void *grow(void *items, size_t count, size_t *room, size_t size) {
    if (count < *room) return items;
    *room = *room ? 2 * *room : 64;
    void *larger = realloc(items, *room * size);
    if (!larger) fail("no memory for a plan of %zu arrays", *room);
    return larger;
}

static void add_array(Arena *arena, void *slot, size_t offset) {
    arena->arrays = grow(arena->arrays, arena->array_count, &arena->array_room, sizeof(Array));
    arena->arrays[arena->array_count++] = (Array){slot, offset};
}

// Books bytes by which the block grew.
static void book(Arena *arena, const char *what, size_t bytes) {
    for (size_t i = 0; i < arena->item_count; i++) {
        if (strcmp(arena->items[i].what, what) != 0) continue;
        arena->items[i].bytes += bytes;
        return;
    }
    ArenaItem *items = realloc(arena->items, (arena->item_count + 1) * sizeof(ArenaItem));
    if (!items) fail("no memory for a plan");
    arena->items = items;
    arena->items[arena->item_count++] = (ArenaItem){what, bytes};
}

void arena_array(Arena *arena, void *slot, size_t count, size_t size, const char *what) {
    assert(!arena->memory);
    size_t bytes, end;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX - ALIGNMENT ||
        __builtin_add_overflow(arena->end, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &end) ||
        end > PTRDIFF_MAX - ALIGNMENT)
        fail("no memory for %s: %zu elements of %zu bytes", what, count, size);
    add_array(arena, slot, arena->end);
    book(arena, what, end > arena->bytes ? end - arena->bytes : 0);
    arena->end = end;
    if (end > arena->bytes) arena->bytes = end;
}

void arena_reals(Arena *arena, real **slot, size_t rows, size_t columns, const char *what) {
    size_t row;
    if (__builtin_mul_overflow(columns, sizeof(real), &row))
        fail("no memory for %s: %zu rows of %zu numbers", what, rows, columns);
    arena_array(arena, slot, rows, row, what);
}

void arena_alias(Arena *arena, void *slot) {
    assert(arena->array_count > 0);
    add_array(arena, slot, arena->arrays[arena->array_count - 1].offset);
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
    for (size_t i = 0; i < arena->array_count; i++) {
        void *array = arena->memory + arena->arrays[i].offset;
        memcpy(arena->arrays[i].slot, &array, sizeof(array)); // a pointer of any type
    }
}

size_t arena_bytes(const Arena *arena) {
    return arena->bytes;
}

const ArenaItem *arena_items(const Arena *arena, size_t *count) {
    *count = arena->item_count;
    return arena->items;
}
