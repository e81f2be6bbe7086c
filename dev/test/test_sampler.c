#include "memory.h"
#include "sampler.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

#define MINUS_INFINITY ((real)-INFINITY)

static int32_t draw(double temperature, int64_t top_k, double top_p, const real *logits,
                    int64_t vocabulary, uint32_t number) {
    const SamplerSettings settings = {temperature, top_k, top_p};
    Random random = random_stream(1, RANDOM_TEST, 0, number);
    return sampler_draw(&settings, logits, vocabulary, &random);
}

static void test_greedy(void) {
    const real logits[] = {1, 3, (real)NAN, 3, MINUS_INFINITY, 2};
    for (uint32_t i = 0; i < 10; i++) {
        CHECK(draw(0, 0, 1, logits, 6, i) == 1); // the lower index of the two
        CHECK(draw(1, 1, 1, logits, 6, i) == 1);
        CHECK(draw(1, 0, 1e-9, logits, 6, i) == 1);
        CHECK(draw(1, 0, 0, logits, 6, i) == 1);
        CHECK(draw(1e-300, 0, 1, logits, 1, i) == 0);
    }
}

// Compares how often each token is drawn with the probabilities, by the chi-square statistic.
static void check_frequencies(double temperature, int64_t top_k, double top_p, const real *logits,
                              const double *probabilities, int64_t vocabulary) {
    enum { DRAWS = 20000 };
    const SamplerSettings settings = {temperature, top_k, top_p};
    Random random = random_stream(7, RANDOM_TEST, 1, 2);
    int *counts = allocate((size_t)vocabulary, sizeof *counts, "counts");
    for (int i = 0; i < DRAWS; i++) {
        const int32_t token = sampler_draw(&settings, logits, vocabulary, &random);
        if (token < 0 || token >= vocabulary) {
            test_fail(__FILE__, __LINE__, "token %d", token);
            continue;
        }
        counts[token]++;
    }
    double statistic = 0;
    int kinds = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        const double expected = DRAWS * probabilities[i];
        if (expected > 0) {
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
            kinds++;
        } else {
            CHECK(counts[i] == 0);
        }
    }
    // Mean kinds - 1, variance 2 (kinds - 1): five deviations above.
    CHECK(statistic <= kinds - 1 + 5 * sqrt(2.0 * (kinds - 1)) + 1e-9);
    free(counts);
}

static void test_frequencies(void) {
    // Probabilities 0.4, 0.1, 0.1, 0.3, 0, 0, 0.1 at temperature 1.
    const real logits[] = {(real)log(4), 0, 0, (real)log(3), MINUS_INFINITY, (real)NAN, 0};
    check_frequencies(1, 0, 1, logits, (const double[]){0.4, 0.1, 0.1, 0.3, 0, 0, 0.1}, 7);
    check_frequencies(0.5, 0, 1, logits,
                      (const double[]){16 / 28., 1 / 28., 1 / 28., 9 / 28., 0, 0, 1 / 28.}, 7);
    check_frequencies(1, 2, 1, logits, (const double[]){4 / 7., 0, 0, 3 / 7., 0, 0, 0}, 7);
    check_frequencies(1, 3, 1, logits, (const double[]){0.5, 0.125, 0, 0.375, 0, 0, 0},
                      7); // lowest of the tied
    check_frequencies(1, 100, 1, logits, (const double[]){0.4, 0.1, 0.1, 0.3, 0, 0, 0.1}, 7);
    check_frequencies(1, 0, 0.65, logits, (const double[]){4 / 7., 0, 0, 3 / 7., 0, 0, 0}, 7);
    check_frequencies(1, 0, 0.75, logits, (const double[]){0.5, 0.125, 0, 0.375, 0, 0, 0}, 7);
    // top_p applies to what top_k leaves: 4/7 = 0.571 of it.
    check_frequencies(1, 2, 0.57, logits, (const double[]){1, 0, 0, 0, 0, 0, 0}, 7);
    check_frequencies(1, 2, 0.58, logits, (const double[]){4 / 7., 0, 0, 3 / 7., 0, 0, 0}, 7);
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

// A whole vocabulary: a drawn token is at least as probable as the last one kept by the definition.
static void test_large(void) {
    enum { V = 5000 };
    real *logits = allocate(V, sizeof *logits, "logits");
    double *sorted = allocate(V, sizeof *sorted, "probabilities"), total = 0;
    Random random = random_stream(3, RANDOM_TEST, 0, 0);
    for (int i = 0; i < V; i++) {
        logits[i] = (real)(3 * random_normal(&random));
        total += sorted[i] = exp((double)logits[i]);
    }
    qsort(sorted, V, sizeof *sorted, descending);
    for (int n = 1; n < V; n *= 3) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += sorted[i] / total;
        for (uint32_t i = 0; i < 50; i++) {
            CHECK(exp((double)logits[draw(1, n, 1, logits, V, i)]) >= sorted[n - 1]);
            CHECK(exp((double)logits[draw(1, 0, sum - 1e-9, logits, V, i)]) >= sorted[n - 1]);
        }
    }
    free(sorted);
    free(logits);
}

static void test_hostile(void) {
    const real none[] = {MINUS_INFINITY, (real)NAN, MINUS_INFINITY};
    const real endless[] = {0, (real)INFINITY, (real)NAN, (real)INFINITY};
    const real far_apart[] = {(real)-3e38, (real)3e38, 0};
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(draw(1, 0, 1, none, 3, i) == 0);
        CHECK(draw(0, 2, 0.5, none, 3, i) == 0);
        CHECK(draw(1, 0, 1, endless, 4, i) == 1);
        CHECK(draw(1, 0, 1, far_apart, 3, i) == 1);
        CHECK(draw(1, 2, 0.9, far_apart, 3, i) == 1);
        CHECK(draw(1, 5, 0.5, far_apart, 1, i) == 0);
    }
}

static void test_repeats(void) {
    real logits[100];
    for (int i = 0; i < 100; i++) logits[i] = (real)(i % 7);
    for (uint32_t i = 0; i < 20; i++)
        CHECK(draw(0.8, 40, 0.9, logits, 100, i) == draw(0.8, 40, 0.9, logits, 100, i));
}

static void test_penalty(void) {
    real logits[] = {2, -2, 3, 0};
    const bool seen[] = {true, true, false, true};
    sampler_penalise(logits, seen, 4, 1);
    CHECK(logits[0] == 2 && logits[1] == -2);
    sampler_penalise(logits, seen, 4, 2);
    CHECK(logits[0] == 1 && logits[1] == -4 && logits[2] == 3 && logits[3] == 0);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"greedy", test_greedy},   {"frequencies", test_frequencies}, {"large", test_large},
        {"hostile", test_hostile}, {"repeats", test_repeats},         {"penalty", test_penalty},
    };
    return test_main(argc, argv, "sampler", cases, sizeof cases / sizeof *cases);
}
