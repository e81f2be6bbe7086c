#include "checksum.h"
#include "test.h"

#include <string.h>

enum { SIZE = 3 * CHECKSUM_BLOCK + 13 };

static uint64_t checksum_of(const unsigned char *data, size_t size) {
    Checksum checksum = checksum_begin();
    checksum_add(&checksum, data, size);
    return checksum_end(&checksum);
}

static void fill(unsigned char data[SIZE]) {
    for (int i = 0; i < SIZE; i++) data[i] = (unsigned char)(7 * i);
}

// Files hold it, so it is fixed.
static void test_known(void) {
    unsigned char data[SIZE];
    fill(data);
    CHECK(checksum_of(data, 0) == UINT64_C(0x6abb856578513fcd));
    CHECK(checksum_of(data, SIZE) == UINT64_C(0x45732a74d675eca0));
}

// Every bit, in every lane and in the rest, and how many bytes there are.
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
        {"part by part", test_parts},
    };
    return test_main(argc, argv, "checksum", cases, sizeof(cases) / sizeof(*cases));
}
