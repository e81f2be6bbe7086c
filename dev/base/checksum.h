// A 64-bit checksum at the speed of memory, of gigabytes: whether data are still what they were.
// Eight lanes take eight bytes each in turn; each step of a lane, and of their sum, is one to one,
// so that a change within eight bytes that start at a multiple of eight is always found, any other
// but with probability 2^-64. It does not resist an enemy.
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_LANES = 8, CHECKSUM_BLOCK = 64 }; // 64-bit words, bytes

typedef struct {
    uint64_t lanes[CHECKSUM_LANES], size;
} Checksum;

Checksum checksum_begin(void);
// The next bytes: a multiple of CHECKSUM_BLOCK, but for the last ones.
void checksum_add(Checksum *checksum, const void *data, size_t size);
uint64_t checksum_end(const Checksum *checksum);
uint64_t checksum_of(const void *data, size_t size); // of all bytes at once

#endif
