// Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", SC 2011): the numbers are a pure function of key and counter, so nothing is stored
// and any element can be computed anywhere.
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// What the numbers are used for. Streams of one seed never overlap.
typedef enum {
    RANDOM_INIT,
    RANDOM_SHUFFLE,
    RANDOM_DROPOUT,
    RANDOM_SAMPLE,
    RANDOM_TEST,
    RANDOM_MASK,       // training
    RANDOM_MASK_FIXED, // validation and test
    RANDOM_OFFSET = 8, // 7 was another purpose; the numbers must not change
    RANDOM_RECALL
} RandomPurpose;

// Computes one block of four numbers.
static inline void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0],
             k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// A stream of numbers, identified by (seed, purpose, a, b).
typedef struct {
    uint32_t key[2], counter[4], block[4];
    int used; // numbers taken from `block`
} Random;

Random random_stream(uint64_t seed, RandomPurpose purpose, uint32_t a, uint32_t b);
void random_seek(Random *r, uint64_t normals); // state after that many random_normal() (mod 2^32)
uint32_t random_u32(Random *r);
uint64_t random_below(Random *r, uint64_t bound); // uniform in [0, bound), without bias; bound >= 1
double random_uniform(Random *r);                 // uniform in [0, 1), 53 bits
double random_normal(Random *r);                  // mean 0, variance 1 (Box-Muller)

#endif
