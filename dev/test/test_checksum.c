#include "checksum.h"
#include "test.h"

#include <string.h>

enum { SIZE = 3 * CHECKSUM_BLOCK + 13 };

static void fill(unsigned char data[SIZE]) {
    for (int i = 0; i < SIZE; i++) data[i] = (unsigned char)(7 * i);
}

// Files store the checksum, so it must not change.
static void test_known(void) {
    unsigned char data[SIZE];
    fill(data);
    CHECK(checksum_of(data, 0) == UINT64_C(0x79c6e17a605368f1));
    CHECK(checksum_of(data, SIZE) == UINT64_C(0xbe2a30c13afcad08));
}

// Every bit changes the checksum, in every lane and in the remainder; so does the length.
static void test_changes(void) {
    unsigned char data[SIZE];
    fill(data);
    const uint64_t whole = checksum_of(data, SIZE);
    for (int bit = 0; bit < 8 * SIZE; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(checksum_of(data, SIZE) != whole);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    memset(data, 0, sizeof(data));
    for (size_t size = 0; size < SIZE; size++)
        CHECK(checksum_of(data, size) != checksum_of(data, size + 1));
}

// No bit flip undoes another: in the same word, the next word of the same lane, or another lane.
static void test_pairs(void) {
    unsigned char data[SIZE];
    fill(data);
    const uint64_t whole = checksum_of(data, SIZE);
    int same = 0;
    for (int first = 0; first < 8 * SIZE; first++) {
        data[first / 8] ^= (unsigned char)(1 << first % 8);
        for (int other = first + 1; other < 8 * SIZE; other++) {
            const unsigned char bit = (unsigned char)(1 << other % 8);
            data[other / 8] ^= bit;
            same += checksum_of(data, SIZE) == whole;
            data[other / 8] ^= bit;
        }
        data[first / 8] ^= (unsigned char)(1 << first % 8);
    }
    CHECK(same == 0);
}

static void test_parts(void) {
    unsigned char data[SIZE];
    fill(data);
    Checksum checksum = checksum_begin();
    checksum_add(&checksum, data, CHECKSUM_BLOCK);
    checksum_add(&checksum, data + CHECKSUM_BLOCK, 0);
    checksum_add(&checksum, data + CHECKSUM_BLOCK, 2 * CHECKSUM_BLOCK);
    checksum_add(&checksum, data + 3 * CHECKSUM_BLOCK, SIZE - 3 * CHECKSUM_BLOCK);
    CHECK(checksum_end(&checksum) == checksum_of(data, SIZE));
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"known sums", test_known},
        {"every change shows", test_changes},
        {"no change undoes another", test_pairs},
        {"part by part", test_parts},
    };
    return test_main(argc, argv, "checksum", cases, sizeof(cases) / sizeof(*cases));
}
