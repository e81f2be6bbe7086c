// FNV-1a (Fowler, Noll, Vo; 64 bits), a hash of bytes, for hash tables and to compare data. It is
// not cryptographic.
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

// Continues a hash with these bytes. Start with HASH_START.
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
