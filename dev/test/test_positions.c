// Loss by position: ranges of powers of two; positions without a target do not count.
#include "positions.h"
#include "test.h"

static void test_ranges(void) {
    enum { B = 2, T = 9 };
    const int32_t targets[B * T] = {1, 1, 1, 1, 1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 1, 1, -1};
    real losses[B * T];
    for (int i = 0; i < B * T; i++) losses[i] = targets[i] < 0 ? 0 : (real)(i % T + 1);
    const Batch batch = {.batch = B, .length = T, .targets = targets};
    PositionLosses p = {0};
    positions_add(&p, &batch, losses);
    positions_add(&p, &batch, losses);
    const double sums[] = {2 * 1, 2 * 2 * (2 + 3), 2 * 2 * (4 + 5 + 6 + 7), 2 * (8 + 8 + 9)},
                 counts[] = {2, 8, 16, 6};
    for (int range = 0; range < POSITION_RANGES; range++) {
        CHECK(p.losses[range] == (range < 4 ? sums[range] : 0));
        CHECK(p.targets[range] == (range < 4 ? counts[range] : 0));
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"ranges", test_ranges}};
    return test_main(argc, argv, "positions", cases, 1);
}
