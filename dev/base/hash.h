// A hash of bytes, FNV-1a (Fowler, Noll, Vo; 64 bits): for tables, and to tell whether two things
// are the same. It does not resist an enemy.
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

// The hash so far, HASH_START at first, continued with these bytes.
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
