// One block of memory for everything a model uses. The code that carves arrays out of it runs
// twice: first to count, with every array NULL, then, after the allocation, to place them. So the
// same code determines sizes, sharing and freeing, and no pointer has to be set afterwards.
//
// Arrays that are never in use together share memory, like the members of a union:
//
//   ArenaUnion shared = arena_union(arena);
//   hidden = arena_reals(arena, M, 4 * C, "activations");   used by the first layer
//   arena_member(arena, &shared);
//   other = arena_reals(arena, M, 4 * C, "activations");    used by the second: the same memory
//   arena_close(arena, &shared);                            later arrays follow both
#ifndef CPU_ARENA_H
#define CPU_ARENA_H

#include "real.h"
#include <stddef.h>

typedef struct Arena Arena;
Arena *arena_create(void);
void arena_free(Arena *arena); // and all arrays in it

// Returns an array of count * size bytes, aligned to 64 and zeroed; NULL while counting. `what`
// must outlive the arena. Exits with an error if the sizes overflow.
void *arena_array(Arena *arena, size_t count, size_t size, const char *what);

// Returns an array of `real` (rows, columns).
real *arena_reals(Arena *arena, size_t rows, size_t columns, const char *what);

typedef struct {
    size_t begin, end;
} ArenaUnion;
ArenaUnion arena_union(const Arena *arena);
void arena_member(Arena *arena, ArenaUnion *shared);
void arena_close(Arena *arena, const ArenaUnion *shared);

// Allocates the memory that was counted; called once. Later arrays are placed in it, from its
// beginning.
void arena_allocate(Arena *arena);

// Runs a statement that carves arrays twice: to count and to place them.
#define ARENA_CARVE(arena, statement)                                                              \
    do {                                                                                           \
        statement;                                                                                 \
        arena_allocate(arena);                                                                     \
        statement;                                                                                 \
    } while (0)

// The result of counting: the bytes of the block, and its parts, one item per `what` in order of
// first use. Memory that arrays share counts for the first of them.
typedef struct {
    const char *what;
    size_t bytes;
} ArenaItem;
size_t arena_bytes(const Arena *arena);
const ArenaItem *arena_items(const Arena *arena, size_t *count);

#endif
