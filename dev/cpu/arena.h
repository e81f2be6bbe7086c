// One block of memory for all that a model works on. The code that carves arrays out of it runs
// twice: once to count, when every array is NULL, then, with the memory taken, to place them. So
// sizes, sharing and freeing follow from one text, and no pointer is set afterwards.
//
// Arrays that are never alive together share memory, as the members of a union do:
//
//   ArenaUnion shared = arena_union(arena);
//   hidden = arena_reals(arena, M, 4 * C, "activations");   while the first layer works
//   arena_member(arena, &shared);
//   other = arena_reals(arena, M, 4 * C, "activations");    while the second one does: the same
//   arena_close(arena, &shared);                            memory; what follows comes after both
#ifndef CPU_ARENA_H
#define CPU_ARENA_H

#include "real.h"
#include <stddef.h>

typedef struct Arena Arena;
Arena *arena_create(void);
void arena_free(Arena *arena); // and all arrays in it

// An array of count * size bytes, aligned to 64 and zeroed; NULL while only counting. `what` must
// outlive the arena. Ends the program where the sizes overflow.
void *arena_array(Arena *arena, size_t count, size_t size, const char *what);

// An array of `real` (rows, columns).
real *arena_reals(Arena *arena, size_t rows, size_t columns, const char *what);

typedef struct {
    size_t begin, end;
} ArenaUnion;
ArenaUnion arena_union(const Arena *arena);
void arena_member(Arena *arena, ArenaUnion *shared);
void arena_close(Arena *arena, const ArenaUnion *shared);

// Takes the memory that was counted; once. What is carved from here on is placed in it, from its
// beginning.
void arena_allocate(Arena *arena);

// Runs a statement that carves, both times.
#define ARENA_CARVE(arena, statement)                                                              \
    do {                                                                                           \
        statement;                                                                                 \
        arena_allocate(arena);                                                                     \
        statement;                                                                                 \
    } while (0)

// What was counted: the bytes of the block, and how they add up, an item for each `what` in the
// order in which they came (what shares the memory of another counts as that).
typedef struct {
    const char *what;
    size_t bytes;
} ArenaItem;
size_t arena_bytes(const Arena *arena);
const ArenaItem *arena_items(const Arena *arena, size_t *count);

#endif
