#include "dropout.h"

#include "random.h"
#include <math.h>
#include <string.h>

enum { LANES = 16, WORDS = 4, BLOCK = 2 * WORDS * LANES, CHANCES = 65536 };

Dropout dropout_create(double rate, uint64_t seed, uint64_t step, uint32_t site) {
    Random random = random_stream(seed, RANDOM_DROPOUT, (uint32_t)step, (uint32_t)(step >> 32));
    const uint32_t low = random_u32(&random), high = random_u32(&random);
    const double kept = fmax(1.0, round(CHANCES * (1.0 - rate)));
    return (Dropout){
        .key = {low, high}, .site = site, .threshold = (uint32_t)kept, .scale = (real)(CHANCES / kept)};
}

// Philox4x32-10 (random.h) at counters first .. first+15. A number of 32 bits sits in 64, where the upper
// half may hold anything: that is how vector units multiply 32 by 32 bits, so that nothing is moved between
// lanes.
static void philox_lanes(const uint32_t key[2], uint64_t first, uint32_t site,
                         uint32_t *restrict words) { // (WORDS, LANES)
    const uint32_t key0 = key[0], key1 = key[1];
#pragma omp simd
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint64_t n = first + lane;
        uint64_t c0 = n, c1 = n >> 32, c2 = site, c3 = 0;
        uint32_t k0 = key0, k1 = key1;
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)(uint32_t)c0 * 0xD2511F53u,
                           p1 = (uint64_t)(uint32_t)c2 * 0xCD9E8D57u;
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c1 = p1;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[lane] = (uint32_t)c0;
        words[LANES + lane] = (uint32_t)c1;
        words[2 * LANES + lane] = (uint32_t)c2;
        words[3 * LANES + lane] = (uint32_t)c3;
    }
}

// The factors of a whole block, for a threshold below 65536.
static void block_factors(const Dropout *dropout, uint64_t block, real *restrict factors) {
    uint32_t words[WORDS * LANES];
    philox_lanes(dropout->key, block * LANES, dropout->site, words);
    const uint32_t limit = dropout->threshold << 16; // compared with 16 bits at the top of a word
    const real scale = dropout->scale;
    for (size_t i = 0; i < BLOCK / 2; i++) {
        factors[i] = words[i] << 16 < limit ? scale : 0;
        factors[BLOCK / 2 + i] = words[i] < limit ? scale : 0;
    }
}

void dropout_factors(const Dropout *dropout, uint64_t first, size_t count, real *restrict factors) {
    if (dropout->threshold == CHANCES) {
        for (size_t i = 0; i < count; i++) factors[i] = 1;
        return;
    }
    size_t done = 0;
    while (done < count) {
        const uint64_t element = first + done;
        const size_t skip = element % BLOCK;
        const size_t n = count - done < BLOCK - skip ? count - done : BLOCK - skip;
        if (n == BLOCK) {
            block_factors(dropout, element / BLOCK, factors + done);
        } else {
            real whole[BLOCK];
            block_factors(dropout, element / BLOCK, whole);
            memcpy(factors + done, whole + skip, n * sizeof(real));
        }
        done += n;
    }
}
