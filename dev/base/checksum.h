// A 64-bit checksum that detects damage in gigabytes of data at memory speed. Eight lanes take
// eight bytes each in turn. Each step of a lane, and of the sum over lanes, is one-to-one, so a
// change within eight bytes that start at a multiple of eight is always detected. Any other change
// is missed with probability 2^-64. The checksum is not cryptographic.
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_LANES = 8, CHECKSUM_BLOCK = 64 }; // 64-bit words, bytes

typedef struct {
    uint64_t lanes[CHECKSUM_LANES], size;
} Checksum;

Checksum checksum_begin(void);
// Adds bytes. `size` must be a multiple of CHECKSUM_BLOCK in all calls but the last.
void checksum_add(Checksum *checksum, const void *data, size_t size);
uint64_t checksum_end(const Checksum *checksum);
uint64_t checksum_of(const void *data, size_t size); // of a whole buffer

#endif
