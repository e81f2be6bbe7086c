#include "random.h"
#include <math.h>

Random random_stream(uint64_t seed, RandomPurpose purpose, uint32_t a, uint32_t b) {
    return (Random){.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                    .counter = {0, a, b, (uint32_t)purpose},
                    .used = 4};
}

void random_seek(Random *r, uint64_t normals) {
    r->counter[0] = (uint32_t)normals; // each uses one block of four numbers
    r->used = 4;
}

uint32_t random_u32(Random *r) {
    if (r->used == 4) {
        philox4x32(r->counter, r->key, r->block);
        r->counter[0]++;
        r->used = 0;
    }
    return r->block[r->used++];
}

static uint64_t random_u64(Random *r) {
    const uint64_t low = random_u32(r);
    return low | (uint64_t)random_u32(r) << 32;
}

uint64_t random_below(Random *r, uint64_t bound) {
    // Rejects the lowest 2^64 mod bound numbers, so that every residue is equally likely.
    const uint64_t refused = (UINT64_MAX - bound + 1) % bound;
    uint64_t x = random_u64(r);
    while (x < refused) x = random_u64(r);
    return x % bound;
}

double random_uniform(Random *r) {
    return (double)(random_u64(r) >> 11) * 0x1p-53;
}

double random_normal(Random *r) {
    const double u = 1.0 - random_uniform(r); // (0, 1]: its logarithm is finite
    const double angle = 6.283185307179586477 * random_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(angle);
}
