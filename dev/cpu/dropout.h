// Dropout (Srivastava et al. 2014) whose masks are a pure function of seed, update, site and
// element. Nothing is stored: the backward pass recomputes the same mask.
//
// An update's key is the first two numbers of the random stream (seed, RANDOM_DROPOUT, low and high
// half of the step). Blocks have 128 elements: element e belongs to block e / 128, and its lane = e
// % 16, word = (e / 16) % 4 and half = (e / 64) % 2 select the 16 bits that decide. They are the
// low (half 0) or high (half 1) bits of word `word` of philox4x32 at counter {low n, high n, site,
// 0}, where n = (e / 128) * 16 + lane. The element is kept if these bits are below `threshold`,
// round(65536 * (1 - rate)), and is then scaled by 65536 / threshold.
#ifndef CPU_DROPOUT_H
#define CPU_DROPOUT_H

#include "real.h"
#include <stddef.h>
#include <stdint.h>

enum { DROPOUT_BLOCK = 128 }; // elements decided by 16 counters

typedef struct {
    uint32_t key[2];    // of seed and step
    uint32_t site;      // layer and place in it
    uint32_t threshold; // 65536: keep everything
    real scale;         // of kept elements
} Dropout;

// rate in [0, 1); 0 keeps everything. At most 65535/65536 of the elements are dropped, so that the
// scale stays finite.
Dropout dropout_create(double rate, uint64_t seed, uint64_t step, uint32_t site);

// factors (count): 0 or the scale for elements first .. first+count-1. Whole blocks of 128 are
// fastest, so number the elements such that those computed together are consecutive.
void dropout_factors(const Dropout *dropout, uint64_t first, size_t count, real *restrict factors);

// Multiplies x (count), elements first .. first+count-1, by their factors.
void dropout_apply(const Dropout *dropout, uint64_t first, size_t count, real *restrict x);

// The same as bits, so that the caller multiplies by the scale: bits (count, DROPOUT_BLOCK / 32)
// for `count` blocks from `block` on, `stride` apart. Bit e % 32 of number e / 32 is set if element
// e is kept.
void dropout_bits(const Dropout *dropout, uint64_t block, uint64_t stride, size_t count,
                  uint32_t *restrict bits);

#endif
