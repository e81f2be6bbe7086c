#include "schedule.h"
#include "test.h"
#include <math.h>

static Schedule schedule_of(ScheduleKind kind, int64_t warmup, int64_t steps) {
    return (Schedule){
        .kind = kind, .peak = 2, .final_fraction = 0.1, .warmup = warmup, .steps = (double)steps};
}

static void test_warmup(void) {
    const ScheduleKind kinds[] = {SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_CONSTANT,
                                  SCHEDULE_WSD};
    for (int i = 0; i < 4; i++) {
        const Schedule s = schedule_of(kinds[i], 10, 100);
        CHECK_CLOSE(schedule_rate(&s, 0), 0.2, 1e-15);
        CHECK_CLOSE(schedule_rate(&s, 4), 1, 1e-15);
        CHECK(schedule_rate(&s, 9) == 2);
        CHECK(schedule_rate(&s, 10) == 2);
    }
}

static void test_linear(void) {
    const Schedule s = schedule_of(SCHEDULE_LINEAR, 10, 110);
    CHECK_CLOSE(schedule_rate(&s, 60), 2 * 0.55, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 110), 0.2, 1e-15);
    // Without warmup and down to 0, it is the published lr * (1 - i / steps).
    const Schedule published = {.kind = SCHEDULE_LINEAR, .peak = 5e-4, .steps = 20};
    for (int i = 0; i <= 20; i++)
        CHECK_CLOSE(schedule_rate(&published, i), 5e-4 * (1 - i / 20.0), 1e-18);
}

static void test_cosine(void) {
    const Schedule s = schedule_of(SCHEDULE_COSINE, 0, 100);
    CHECK(schedule_rate(&s, 0) == 2);
    CHECK_CLOSE(schedule_rate(&s, 25), 0.2 + 1.8 * (1 + sqrt(0.5)) / 2, 1e-14);
    CHECK_CLOSE(schedule_rate(&s, 50), 1.1, 1e-14);
    CHECK_CLOSE(schedule_rate(&s, 100), 0.2, 1e-14);
}

static void test_wsd(void) {
    const Schedule s = schedule_of(SCHEDULE_WSD, 10, 16000);
    CHECK(schedule_rate(&s, 11) == 2);
    CHECK(schedule_rate(&s, 12800) == 2); // the decay starts at 4/5
    CHECK(schedule_rate(&s, 12801) < 2);
    CHECK_CLOSE(schedule_rate(&s, 13600), 2 * (1 - 0.9 * 0.5),
                1e-14); // a quarter of the decay: 1 - sqrt(1/4)
    CHECK_CLOSE(schedule_rate(&s, 16000), 0.2, 1e-14);
}

// The paper's schedule: its base model with 4,000 warmup steps has a maximum of 7.0e-4.
static void test_noam(void) {
    const Schedule s = {
        .kind = SCHEDULE_NOAM, .peak = 1, .warmup = 4000, .channels = 512, .steps = 10};
    CHECK_CLOSE(schedule_rate(&s, 0), pow(512, -0.5) * pow(4000, -1.5), 1e-18);
    CHECK_CLOSE(schedule_rate(&s, 3999), pow(512 * 4000.0, -0.5), 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 15999), pow(512 * 16000.0, -0.5),
                1e-15); // for any length of the run
    const Schedule none = {.kind = SCHEDULE_NOAM, .peak = 2, .channels = 4, .steps = 10};
    CHECK_CLOSE(schedule_rate(&none, 3), 0.5, 1e-15);
}

static void test_constant(void) {
    const Schedule s = schedule_of(SCHEDULE_CONSTANT, 0, 100);
    CHECK(schedule_rate(&s, 0) == 2 && schedule_rate(&s, 50) == 2 && schedule_rate(&s, 100) == 2);
}

// A warmup of all steps or more, a run of one step, steps beyond the plan.
static void test_edges(void) {
    for (ScheduleKind kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++) {
        const double end = kind == SCHEDULE_CONSTANT ? 2 : 0.2;
        Schedule s = {.kind = kind, .peak = 2, .final_fraction = 0.1, .warmup = 5, .steps = 5};
        CHECK(schedule_rate(&s, 4) == 2);
        CHECK_CLOSE(schedule_rate(&s, 5), end, 1e-14);
        s.warmup = 50;
        CHECK_CLOSE(schedule_rate(&s, 4), 0.2, 1e-15);
        s.warmup = 0;
        CHECK_CLOSE(schedule_rate(&s, 1000), end, 1e-14);
        s.steps = 1;
        CHECK(schedule_rate(&s, 0) == 2);
        s.steps = 100;
        s.warmup = 90; // after wsd's decay would start
        CHECK(schedule_rate(&s, 90) == 2);
        CHECK_CLOSE(schedule_rate(&s, 100), end, 1e-14);
        for (int i = 91; i < 100; i++) CHECK(schedule_rate(&s, i) <= schedule_rate(&s, i - 1));
    }
}

// With a time budget and no warmup, the schedule follows the elapsed time at any pace.
static void test_time(void) {
    Schedule s = schedule_of(SCHEDULE_LINEAR, 0, 0);
    s.final_fraction = 0;
    static const double seconds[] = {0, 3, 4, 60, 90, 119, 120, 130};
    for (int i = 0; i < 8; i++) {
        s.steps = expected_steps(i, seconds[i], 120);
        CHECK_CLOSE(schedule_rate(&s, i), 2 * fmax(0, 1 - seconds[i] / 120), 1e-12);
    }
    for (ScheduleKind kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++) {
        s = (Schedule){.kind = kind, .peak = 2, .warmup = 10, .steps = expected_steps(0, 0, 60)};
        CHECK_CLOSE(schedule_rate(&s, 0), 0.2, 1e-15);
        s.steps = expected_steps(10, 1, 60);
        CHECK(schedule_rate(&s, 10) == 2);
        s.steps = expected_steps(600, 60, 60);
        CHECK_CLOSE(schedule_rate(&s, 600), kind == SCHEDULE_CONSTANT ? 2 : 0, 1e-14);
    }
    CHECK(expected_steps(10, 1, 60) == 600 && expected_steps(10, 70, 60) == 10);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"warmup", test_warmup}, {"linear", test_linear}, {"cosine", test_cosine},
        {"wsd", test_wsd},       {"noam", test_noam},     {"constant", test_constant},
        {"edges", test_edges},   {"time", test_time},
    };
    return test_main(argc, argv, "schedule", cases, sizeof cases / sizeof *cases);
}
