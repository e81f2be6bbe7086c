#include "pair_map.h"
#include "error.h"
#include "memory.h"
#include <stdlib.h>

enum { FIRST_BITS = 10, MOST_BITS = 31 };

PairMap pair_map_create(void) {
    return (PairMap){.slots =
                         allocate((size_t)1 << FIRST_BITS, sizeof(PairSlot), "pairs of tokens"),
                     .bits = FIRST_BITS};
}

void pair_map_free(PairMap *map) {
    free(map->slots);
    *map = (PairMap){0};
}

static void grow(PairMap *map) {
    if (map->bits == MOST_BITS)
        fail("a text has more than %d different pairs of tokens", map->count);
    PairMap larger = {.bits = map->bits + 1, .count = map->count};
    larger.slots = allocate((size_t)1 << larger.bits, sizeof(PairSlot), "pairs of tokens");
    for (size_t i = 0; i < (size_t)1 << map->bits; i++)
        if (map->slots[i].number != 0) *pair_map_slot(&larger, map->slots[i].pair) = map->slots[i];
    free(map->slots);
    *map = larger;
}

int32_t pair_map_add(PairMap *map, int32_t left, int32_t right) {
    if ((size_t)map->count >= (size_t)1 << (map->bits - 1)) grow(map);
    *pair_map_slot(map, pair_of(left, right)) = (PairSlot){pair_of(left, right), ++map->count};
    return map->count - 1;
}
