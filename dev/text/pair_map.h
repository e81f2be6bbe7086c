// Numbers for pairs of tokens: a hash table with open addressing.
#ifndef TEXT_PAIR_MAP_H
#define TEXT_PAIR_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t pair;
    int32_t number; // number + 1; 0: the slot is free
} PairSlot;

typedef struct {
    PairSlot *slots; // (2^bits), at most half of them used
    int bits;
    int32_t count;
} PairMap;

PairMap pair_map_create(void);
void pair_map_free(PairMap *map);

// Adds a pair that is not in the map; returns its number: 0, 1, 2, ...
int32_t pair_map_add(PairMap *map, int32_t left, int32_t right);

static inline uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

// Returns the slot of a pair, or the free slot for it.
static inline PairSlot *pair_map_slot(const PairMap *map, uint64_t pair) {
    const size_t mask = ((size_t)1 << map->bits) - 1;
    // Fibonacci hashing: the upper bits of the product depend on all bits of the pair.
    size_t i = (size_t)(pair * 0x9e3779b97f4a7c15u >> (64 - map->bits));
    while (map->slots[i].number != 0 && map->slots[i].pair != pair) i = (i + 1) & mask;
    return &map->slots[i];
}

// Returns the number of a pair, or -1 if it is not in the map.
static inline int32_t pair_map_find(const PairMap *map, int32_t left, int32_t right) {
    return pair_map_slot(map, pair_of(left, right))->number - 1;
}

#endif
