// One block of memory for all that a model works on, laid out by a plan before any of it is taken:
// each array is named once with its shape; sizes, allocation, sharing and freeing follow.
//
// Arrays that are never alive together share memory, as the members of a union do:
//
//   ArenaUnion shared = arena_union(arena);
//   arena_reals(arena, &hidden, M, 4 * C, "activations");   while the first layer works
//   arena_member(arena, &shared);
//   arena_reals(arena, &other, M, 4 * C, "activations");    while the second one does: the same
//   memory arena_close(arena, &shared);                            what follows lies behind the
//   largest member
#ifndef CPU_ARENA_H
#define CPU_ARENA_H

#include "real.h"
#include <stddef.h>

typedef struct Arena Arena;
Arena *arena_create(void);
void arena_free(Arena *arena); // and all arrays in it

// Plans an array of count * size bytes, aligned to 64. `slot` is the address of the pointer to it,
// which arena_allocate() sets and which must still be there then. `what` must outlive the arena.
// Ends the program where the sizes overflow.
void arena_array(Arena *arena, void *slot, size_t count, size_t size, const char *what);

// An array of `real` (rows, columns).
void arena_reals(Arena *arena, real **slot, size_t rows, size_t columns, const char *what);

// Sets the pointer at `slot` to the array planned last, too.
void arena_alias(Arena *arena, void *slot);

typedef struct {
    size_t begin, end;
} ArenaUnion;
ArenaUnion arena_union(const Arena *arena);
void arena_member(Arena *arena, ArenaUnion *shared);
void arena_close(Arena *arena, const ArenaUnion *shared);

// Takes the memory, zeroed, and sets all pointers; once, when the plan is complete.
void arena_allocate(Arena *arena);

// What the plan comes to: the bytes of the block, and how they add up, an item for each `what` in
// the order in which they came (what lies in the memory of another counts as that).
typedef struct {
    const char *what;
    size_t bytes;
} ArenaItem;
size_t arena_bytes(const Arena *arena);
const ArenaItem *arena_items(const Arena *arena, size_t *count);

#endif
