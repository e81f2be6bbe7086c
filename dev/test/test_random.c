#include "random.h"
#include "test.h"
#include <math.h>
#include <string.h>

// kat_vectors of the Random123 distribution, philox4x32 with 10 rounds.
static void test_known_answers(void) {
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++) {
        uint32_t out[4];
        philox4x32(vectors[i].counter, vectors[i].key, out);
        CHECK(memcmp(out, vectors[i].expected, sizeof(out)) == 0);
    }
}

// The layout of a stream is fixed, because checkpoints depend on it.
static void test_stream_layout(void) {
    Random r = random_stream(0x0123456789abcdefu, RANDOM_DROPOUT, 11, 22);
    const uint32_t key[2] = {0x89abcdef, 0x01234567};
    for (uint32_t block = 0; block < 5; block++) {
        const uint32_t counter[4] = {block, 11, 22, RANDOM_DROPOUT};
        uint32_t out[4];
        philox4x32(counter, key, out);
        for (int i = 0; i < 4; i++) CHECK(random_u32(&r) == out[i]);
    }
}

static void test_streams_differ(void) {
    Random streams[] = {
        random_stream(1, RANDOM_INIT, 0, 0), random_stream(1, RANDOM_TEST, 0, 0),
        random_stream(1, RANDOM_INIT, 1, 0), random_stream(1, RANDOM_INIT, 0, 1),
        random_stream(2, RANDOM_INIT, 0, 0), random_stream(1ull << 32, RANDOM_INIT, 0, 0)};
    enum { COUNT = sizeof(streams) / sizeof(*streams) };
    uint32_t first[COUNT];
    for (int i = 0; i < COUNT; i++) {
        first[i] = random_u32(&streams[i]);
        for (int j = 0; j < i; j++) CHECK(first[i] != first[j]);
    }
}

// Six values: chi-square with 5 degrees of freedom is below 25.7 with a probability of 99.99%.
static void test_below_is_uniform(void) {
    enum { SIDES = 6, DRAWS = 60000 };
    Random r = random_stream(3, RANDOM_TEST, 0, 0);
    int counts[SIDES] = {0};
    for (int i = 0; i < DRAWS; i++) counts[random_below(&r, SIDES)]++;
    double chi_square = 0;
    for (int i = 0; i < SIDES; i++) {
        const double expected = (double)DRAWS / SIDES;
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    CHECK(chi_square < 25.7);
}

// With 3/4 of 2^64, a plain remainder would give the lowest quarter twice as often.
static void test_below_has_no_bias(void) {
    enum { DRAWS = 30000 };
    const uint64_t quarter = 1ull << 62;
    Random r = random_stream(4, RANDOM_TEST, 0, 0);
    int low = 0;
    for (int i = 0; i < DRAWS; i++) {
        const uint64_t x = random_below(&r, 3 * quarter);
        CHECK(x < 3 * quarter);
        low += x < quarter;
    }
    CHECK_CLOSE(low / (double)DRAWS, 1.0 / 3, 0.012); // 4 deviations
}

static void test_below_one(void) {
    Random r = random_stream(5, RANDOM_TEST, 0, 0);
    for (int i = 0; i < 100; i++) CHECK(random_below(&r, 1) == 0);
    for (int i = 0; i < 100; i++) CHECK(random_below(&r, UINT64_MAX) < UINT64_MAX);
}

static void test_uniform(void) {
    enum { DRAWS = 100000 };
    Random r = random_stream(6, RANDOM_TEST, 0, 0);
    double sum = 0, squares = 0, product = 0, last = 0.5, lowest = 1, highest = 0;
    for (int i = 0; i < DRAWS; i++) {
        const double u = random_uniform(&r);
        sum += u - 0.5;
        squares += (u - 0.5) * (u - 0.5);
        product += (u - 0.5) * (last - 0.5);
        lowest = fmin(lowest, u);
        highest = fmax(highest, u);
        last = u;
    }
    CHECK(lowest >= 0 && lowest < 1e-4 && highest < 1 && highest > 1 - 1e-4);
    CHECK_CLOSE(sum / DRAWS, 0, 0.004);
    CHECK_CLOSE(squares / DRAWS, 1.0 / 12, 0.001);
    CHECK_CLOSE(product / DRAWS, 0, 0.0011);
}

static void test_normal(void) {
    enum { DRAWS = 100000 };
    Random r = random_stream(7, RANDOM_TEST, 0, 0);
    double moments[5] = {0}; // of order 0 to 4
    int below[7] = {0};      // numbers below -3 .. 3
    for (int i = 0; i < DRAWS; i++) {
        const double x = random_normal(&r);
        double power = 1;
        CHECK(isfinite(x));
        for (int k = 0; k < 5; k++, power *= x) moments[k] += power / DRAWS;
        for (int k = 0; k < 7; k++) below[k] += x < k - 3;
    }
    CHECK_CLOSE(moments[1], 0, 0.013);
    CHECK_CLOSE(moments[2], 1, 0.018);
    CHECK_CLOSE(moments[3], 0, 0.05);
    CHECK_CLOSE(moments[4], 3, 0.13);
    for (int k = 0; k < 7; k++)
        CHECK_CLOSE(below[k] / (double)DRAWS, 0.5 * erfc(-(k - 3) / sqrt(2)), 0.0065);
}

static void test_seek(void) {
    Random r = random_stream(7, RANDOM_TEST, 1, 2), there = r;
    for (uint64_t normals = 0; normals < 5; normals++) {
        random_seek(&there, normals);
        CHECK(random_normal(&there) == random_normal(&r));
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"known answers", test_known_answers},
        {"stream layout", test_stream_layout},
        {"streams differ", test_streams_differ},
        {"below is uniform", test_below_is_uniform},
        {"below has no bias", test_below_has_no_bias},
        {"below one", test_below_one},
        {"uniform", test_uniform},
        {"normal", test_normal},
        {"seek", test_seek},
    };
    return test_main(argc, argv, "random", cases, sizeof(cases) / sizeof(*cases));
}
