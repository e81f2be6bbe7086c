#include "dropout.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns an element's factor, computed from the words of dropout.h one at a time.
static real expected_factor(const Dropout *d, uint64_t element) {
    const uint64_t n = element / 128 * 16 + element % 16;
    const uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32), d->site, 0};
    uint32_t words[4];
    philox4x32(counter, d->key, words);
    const uint32_t word = words[element / 16 % 4];
    const uint32_t bits = element / 64 % 2 ? word >> 16 : word & 0xffff;
    return bits < d->threshold ? d->scale : 0;
}

static void test_known_answer(void) {
    const Dropout d = dropout_create(0.3, 0x123456789abcdefULL, 77, 5);
    const uint64_t starts[] = {0, 1, 100, 127, 128, 1000003, (1ULL << 35) - 70, (1ULL << 60) + 13};
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        real factors[500];
        dropout_factors(&d, starts[i], 500, factors);
        for (uint64_t e = 0; e < 500; e++) CHECK(factors[e] == expected_factor(&d, starts[i] + e));
    }
}

static void test_bits(void) {
    const uint64_t blocks[] = {0, 7, (1ULL << 28) - 3, 1ULL << 52};
    const double rates[] = {0, 0.1, 0.5, 0.9};
    for (size_t i = 0; i < 16; i++) {
        const Dropout d = dropout_create(rates[i % 4], 11, 5, 2);
        const uint64_t block = blocks[i / 4], stride = 1 + i % 3 * 4;
        enum { BLOCKS = 10, WORDS = DROPOUT_BLOCK / 32 };
        uint32_t bits[BLOCKS * WORDS + 1];
        for (size_t count = 0; count <= BLOCKS; count++) {
            memset(bits, 0x5a, sizeof(bits));
            dropout_bits(&d, block, stride, count, bits);
            for (uint64_t e = 0; e < count * DROPOUT_BLOCK; e++) {
                const uint64_t element =
                    (block + e / DROPOUT_BLOCK * stride) * DROPOUT_BLOCK + e % DROPOUT_BLOCK;
                CHECK((bits[e / 32] >> e % 32 & 1) == (expected_factor(&d, element) > 0));
            }
            CHECK(bits[count * WORDS] == 0x5a5a5a5a);
        }
    }
}

static void test_key(void) {
    const Dropout d = dropout_create(0.1, 42, 0x300000007ULL, 9);
    Random stream = random_stream(42, RANDOM_DROPOUT, 7, 3);
    const uint32_t first = random_u32(&stream), second = random_u32(&stream);
    CHECK(d.key[0] == first && d.key[1] == second && d.site == 9);
}

static void test_any_cut(void) {
    const Dropout d = dropout_create(0.5, 1, 2, 3);
    static real whole[3000], parts[3000];
    dropout_factors(&d, 17, 3000, whole);
    for (size_t width = 1; width <= 300; width += 1 + width / 8) {
        memset(parts, 0, sizeof(parts));
        for (size_t at = 0; at < 3000; at += width)
            dropout_factors(&d, 17 + at, 3000 - at < width ? 3000 - at : width, parts + at);
        for (size_t i = 0; i < 3000; i++) CHECK(whole[i] == parts[i]);
    }
}

// Nothing is written outside the requested range.
static void test_bounds(void) {
    const Dropout drops[] = {dropout_create(0.5, 1, 2, 3), dropout_create(0, 1, 2, 3)};
    for (int k = 0; k < 2; k++)
        for (size_t count = 0; count < 300; count += 7) {
            real factors[302];
            for (size_t i = 0; i < 302; i++) factors[i] = -7;
            dropout_factors(&drops[k], 55, count, factors + 1);
            CHECK(factors[0] == -7 && factors[count + 1] == -7);
            for (size_t i = 1; i <= count; i++) CHECK(factors[i] >= 0);
        }
}

enum { MANY = 1 << 20 };

static double kept_share(const Dropout *d) {
    real *factors = malloc(MANY * sizeof(real));
    if (!factors) abort();
    dropout_factors(d, 12345, MANY, factors);
    size_t kept = 0;
    for (size_t i = 0; i < MANY; i++) {
        CHECK(factors[i] == 0 || factors[i] == d->scale);
        kept += factors[i] != 0;
    }
    free(factors);
    return (double)kept / MANY;
}

static void test_rate(void) {
    const double rates[] = {0.001, 0.1, 0.25, 0.5, 0.9, 0.999};
    for (int i = 0; i < 6; i++) {
        const Dropout d = dropout_create(rates[i], 99, 5, 1);
        const double keep = d.threshold / 65536.0;
        CHECK_CLOSE(keep, 1 - rates[i], 0.5 / 65536);
        CHECK_CLOSE((double)d.scale * keep, 1, 1e-6);
        CHECK_CLOSE(kept_share(&d), keep,
                    5 * sqrt(keep * (1 - keep) / MANY)); // five standard deviations
    }
}

static void test_extreme_rates(void) {
    const Dropout none = dropout_create(0, 1, 1, 1), little = dropout_create(1e-9, 1, 1, 1);
    CHECK(none.threshold == 65536 && none.scale == 1 && kept_share(&none) == 1);
    CHECK(little.threshold == 65536 && kept_share(&little) == 1);
    const Dropout most = dropout_create(1 - 1e-9, 1, 1, 1);
    CHECK(most.threshold == 1 && most.scale == 65536);
}

// Masks of another seed, step (either half) or site agree as often as by chance.
static void test_independence(void) {
    const Dropout masks[] = {dropout_create(0.5, 1, 1, 1),
                             dropout_create(0.5, 2, 1, 1),
                             dropout_create(0.5, 1ULL << 32 | 1, 1, 1),
                             dropout_create(0.5, 1, 2, 1),
                             dropout_create(0.5, 1, 1ULL << 32 | 1, 1),
                             dropout_create(0.5, 1, 1, 2)};
    enum { COUNT = 1 << 16, MASKS = sizeof(masks) / sizeof(*masks) };
    static real factors[MASKS][COUNT];
    for (int i = 0; i < MASKS; i++) dropout_factors(&masks[i], 0, COUNT, factors[i]);
    for (int i = 0; i < MASKS; i++)
        for (int j = 0; j < i; j++) {
            int equal = 0;
            for (int e = 0; e < COUNT; e++) equal += factors[i][e] == factors[j][e];
            CHECK_CLOSE((double)equal / COUNT, 0.5, 5 * 0.5 / sqrt(COUNT));
        }
}

// Neighbours at every distance used inside a block are independent.
static void test_autocorrelation(void) {
    const Dropout d = dropout_create(0.5, 3, 1, 4);
    enum { COUNT = 1 << 17 };
    static real factors[COUNT + 256];
    dropout_factors(&d, 0, COUNT + 256, factors);
    for (int lag = 1; lag <= 256; lag++) {
        int equal = 0;
        for (int e = 0; e < COUNT; e++) equal += factors[e] == factors[e + lag];
        CHECK_CLOSE((double)equal / COUNT, 0.5, 5 * 0.5 / sqrt(COUNT));
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"known answer", test_known_answer},
        {"bits", test_bits},
        {"key", test_key},
        {"any cut of a range", test_any_cut},
        {"bounds", test_bounds},
        {"rate", test_rate},
        {"extreme rates", test_extreme_rates},
        {"independence", test_independence},
        {"autocorrelation", test_autocorrelation},
    };
    return test_main(argc, argv, "dropout", cases, sizeof(cases) / sizeof(*cases));
}
