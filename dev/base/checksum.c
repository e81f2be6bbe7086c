#include "checksum.h"

#include <string.h>

// Odd multipliers without a pattern in their bits. The first is 2^64 divided by the golden ratio.
static const uint64_t FACTOR = UINT64_C(0x9e3779b97f4a7c15),
                      WORD_FACTOR = UINT64_C(0xd6e8feb86659fd93);

// Multiplies the word too, so that no flipped bit in the next word cancels one in this word.
static uint64_t mix(uint64_t lane, uint64_t word) {
    const uint64_t sum = lane + word * WORD_FACTOR;
    return (sum << 29 | sum >> 35) * FACTOR;
}

Checksum checksum_begin(void) {
    Checksum checksum = {{0}, 0};
    for (int i = 0; i < CHECKSUM_LANES; i++) checksum.lanes[i] = FACTOR * (uint64_t)(i + 1);
    return checksum;
}

static void add_block(uint64_t lanes[CHECKSUM_LANES], const unsigned char block[CHECKSUM_BLOCK]) {
    uint64_t words[CHECKSUM_LANES];
    memcpy(words, block, sizeof(words));
    for (int i = 0; i < CHECKSUM_LANES; i++) lanes[i] = mix(lanes[i], words[i]);
}

void checksum_add(Checksum *checksum, const void *data, size_t size) {
    const unsigned char *bytes = data;
    const size_t whole = size - size % CHECKSUM_BLOCK;
    uint64_t lanes[CHECKSUM_LANES]; // in registers
    memcpy(lanes, checksum->lanes, sizeof(lanes));
    for (size_t done = 0; done < whole; done += CHECKSUM_BLOCK) add_block(lanes, bytes + done);
    if (whole < size) {
        unsigned char rest[CHECKSUM_BLOCK] = {0};
        memcpy(rest, bytes + whole, size - whole);
        add_block(lanes, rest);
    }
    memcpy(checksum->lanes, lanes, sizeof(lanes));
    checksum->size += size;
}

uint64_t checksum_end(const Checksum *checksum) {
    uint64_t sum = checksum->size;
    for (int i = 0; i < CHECKSUM_LANES; i++) {
        sum = mix(sum, checksum->lanes[i]);
        sum ^= sum >> 32;
    }
    return sum;
}

uint64_t checksum_of(const void *data, size_t size) {
    Checksum checksum = checksum_begin();
    checksum_add(&checksum, data, size);
    return checksum_end(&checksum);
}
