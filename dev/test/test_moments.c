// Moments against known distributions and against direct sums of powers.
#include "memory.h"
#include "moments.h"
#include "random.h"
#include "test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { COUNT = 1000000 };

static double *numbers(size_t count) {
    return allocate(count, sizeof(double), "a test");
}

static Moments moments_of(const double *x, size_t count) {
    Moments m = {0};
    moments_add(&m, x, count);
    return m;
}

// Quantiles (i + 1/2) / n of distributions with a formula; they match the distribution up to 1/n.
static double uniform_quantile(double p) {
    return p;
}

static double laplace_quantile(double p) {
    return p < 0.5 ? log(2 * p) : -log(2 - 2 * p);
}

static double bernoulli_quantile(double p) {
    return p < 0.9 ? 0 : 1;
}

static void check_distribution(double (*quantile)(double), double mean, double deviation,
                               double kurtosis, double tolerance) {
    double *x = numbers(COUNT);
    for (int i = 0; i < COUNT; i++) x[i] = quantile((i + 0.5) / COUNT);
    const Moments m = moments_of(x, COUNT);
    CHECK(m.count == COUNT);
    CHECK_CLOSE(moments_mean(&m), mean, tolerance);
    CHECK_CLOSE(moments_deviation(&m), deviation, tolerance);
    CHECK_CLOSE(moments_kurtosis(&m), kurtosis, tolerance);
    free(x);
}

static void test_distributions(void) {
    check_distribution(uniform_quantile, 0.5, sqrt(1.0 / 12), -1.2, 1e-9);
    check_distribution(laplace_quantile, 0, sqrt(2), 3, 1e-2);
    check_distribution(bernoulli_quantile, 0.1, 0.3, 1 / (0.1 * 0.9) - 6, 1e-9);
}

static void test_normal(void) {
    double *x = numbers(COUNT);
    Random r = random_stream(1, RANDOM_TEST, 0, 0);
    for (int i = 0; i < COUNT; i++) x[i] = -7 + 0.01 * random_normal(&r);
    const Moments m = moments_of(x, COUNT);
    CHECK_CLOSE(moments_mean(&m), -7, 5e-5); // five standard errors
    CHECK_CLOSE(moments_deviation(&m), 0.01, 4e-5);
    CHECK_CLOSE(moments_kurtosis(&m), 0, 0.025);
    free(x);
}

// Formulas with known results: two numbers, and one outlier among many.
static void test_small(void) {
    Moments m = moments_of((double[]){-1, 3}, 2);
    CHECK(m.mean == 1 && moments_deviation(&m) == 2 && moments_kurtosis(&m) == -2);
    CHECK(moments_largest_deviation(&m) == 1.5);
    double x[1000] = {0};
    x[17] = -5;
    m = moments_of(x, 1000);
    const double p = 1e-3;
    CHECK_CLOSE(moments_kurtosis(&m), 1 / (p * (1 - p)) - 6, 1e-9);
    CHECK_CLOSE(moments_largest_deviation(&m), 1 / sqrt(p * (1 - p)), 1e-12);
}

static void test_undefined(void) {
    Moments m = {0};
    CHECK(isnan(moments_mean(&m)) && isnan(moments_deviation(&m)) &&
          isnan(moments_largest_deviation(&m)) && isnan(moments_kurtosis(&m)));
    double x[1000];
    for (int i = 0; i < 1000; i++) x[i] = 0.1;
    m = moments_of(x, 1000);
    CHECK(m.mean == 0.1 && moments_deviation(&m) == 0 && m.largest == 0.1);
    CHECK(isnan(moments_largest_deviation(&m)) && isnan(moments_kurtosis(&m)));
    for (int i = 0; i < 1000; i++) x[i] = 0;
    m = moments_of(x, 1000);
    CHECK(m.mean == 0 && m.largest == 0 && isnan(moments_largest_deviation(&m)));
}

// An offset that makes x^2 and x^4 lose all their digits changes nothing.
static void test_offset(void) {
    double *x = numbers(COUNT), *shifted = numbers(COUNT);
    Random r = random_stream(2, RANDOM_TEST, 0, 0);
    for (int i = 0; i < COUNT; i++) {
        shifted[i] = 1e8 + exp(random_normal(&r)); // skewed
        x[i] = shifted[i] - 1e8;
    }
    const Moments near = moments_of(x, COUNT), far = moments_of(shifted, COUNT);
    CHECK_CLOSE(far.mean - 1e8, near.mean, 1e-6);
    CHECK_CLOSE(moments_deviation(&far), moments_deviation(&near), 1e-9 * moments_deviation(&near));
    CHECK_CLOSE(moments_kurtosis(&far), moments_kurtosis(&near), 1e-7 * moments_kurtosis(&near));
    free(x);
    free(shifted);
}

static void check_same(const Moments *a, const Moments *b) {
    CHECK(a->count == b->count && a->largest == b->largest);
    CHECK_CLOSE(a->mean, b->mean, 1e-12 * moments_deviation(b));
    CHECK_CLOSE(a->m2, b->m2, 1e-12 * b->m2);
    CHECK_CLOSE(a->m3, b->m3, 1e-12 * pow(b->m2, 1.5));
    CHECK_CLOSE(a->m4, b->m4, 1e-12 * b->m4);
}

static void test_merge(void) {
    enum { SIZE = 10007 };
    double *x = numbers(SIZE), *backwards = numbers(SIZE);
    Random r = random_stream(3, RANDOM_TEST, 0, 0);
    for (int i = 0; i < SIZE; i++)
        x[i] = 5 + (double)i / SIZE + exp(2 * random_normal(&r)); // drifts
    for (int i = 0; i < SIZE; i++) backwards[i] = x[SIZE - 1 - i];
    const Moments whole = moments_of(x, SIZE), reversed = moments_of(backwards, SIZE);
    check_same(&reversed, &whole);
    Moments single = {0};
    for (int i = 0; i < SIZE; i++) moments_add(&single, x + i, 1);
    check_same(&single, &whole);
    const size_t cuts[] = {0, 1, 2, 255, 256, 257, 5000, SIZE - 1, SIZE};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(*cuts); i++) {
        Moments front = moments_of(x, cuts[i]), back = moments_of(x + cuts[i], SIZE - cuts[i]);
        const Moments tail = back;
        moments_merge(&back, &front);
        moments_merge(&front, &tail);
        check_same(&front, &whole);
        check_same(&back, &whole);
    }

    double m2 = 0, m3 = 0, m4 = 0, mean = 0;
    for (int i = 0; i < SIZE; i++) mean += x[i] / SIZE;
    for (int i = 0; i < SIZE; i++) {
        m2 += pow(x[i] - mean, 2);
        m3 += pow(x[i] - mean, 3);
        m4 += pow(x[i] - mean, 4);
    }
    CHECK_CLOSE(whole.mean, mean, 1e-12 * mean);
    CHECK_CLOSE(whole.m2, m2, 1e-11 * m2);
    CHECK_CLOSE(whole.m3, m3, 1e-11 * m3);
    CHECK_CLOSE(whole.m4, m4, 1e-11 * m4);
    free(x);
    free(backwards);
}

// The range of floats, from the smallest to the largest, and numbers whose sizes differ as much.
static void check_scale(double scale) {
    double x[3000];
    for (int i = 0; i < 3000; i++) x[i] = scale * (i % 3 - 1);
    Moments m = moments_of(x, 3000);
    CHECK_CLOSE(moments_deviation(&m), scale * sqrt(2.0 / 3), 1e-12 * scale);
    CHECK_CLOSE(moments_kurtosis(&m), -1.5, 1e-12);
    CHECK(m.largest == scale);
}

static void test_extremes(void) {
    check_scale(1e70);
    check_scale((double)FLT_MAX);
    check_scale((double)FLT_MIN);
    check_scale(0x1p-149); // the smallest float
    check_scale(1e-70);
    const double p = 1.0 / 4;
    Moments m = moments_of((double[]){0x1p-149, (double)FLT_MAX, -0x1p-149, 0}, 4);
    CHECK_CLOSE(moments_kurtosis(&m), 1 / (p * (1 - p)) - 6, 1e-12);
}

static void test_not_finite(void) {
    double x[600];
    for (int i = 0; i < 600; i++) x[i] = i;
    x[300] = (double)NAN;
    Moments m = moments_of(x, 600);
    CHECK(isnan(moments_mean(&m)) && isnan(moments_deviation(&m)) && isnan(moments_kurtosis(&m)));
    x[300] = (double)-INFINITY;
    m = moments_of(x, 600);
    CHECK(!isfinite(moments_mean(&m)) && isnan(moments_kurtosis(&m)) && isinf(m.largest));
    for (int at = 0; at < 600; at += 599) { // at any position
        x[300] = x[at];
        x[at] = (double)NAN;
        m = moments_of(x, 600);
        CHECK(isnan(m.largest));
        x[at] = x[300];
    }
}

static void test_real(void) {
    enum { SIZE = 1000 };
    real x[SIZE];
    double wide[SIZE];
    Random r = random_stream(4, RANDOM_TEST, 0, 0);
    for (int i = 0; i < SIZE; i++) {
        x[i] = (real)random_normal(&r);
        wide[i] = (double)x[i];
    }
    Moments m = {0};
    moments_add_real(&m, x, SIZE);
    const Moments expected = moments_of(wide, SIZE);
    check_same(&m, &expected);
}

static void test_output(void) {
    JsonWriter w = {0};
    Moments m = moments_of((double[]){-1, 3}, 2);
    json_begin(&w, '{');
    moments_to_json(&m, &w);
    json_end(&w, '}');
    CHECK_TEXT(
        w.text,
        "{\"n\":2,\"mean\":1,\"std\":2,\"max_abs\":3,\"max_abs_over_std\":1.5,\"kurtosis\":-2}");
    json_writer_free(&w);
    m = moments_of((double[]){4}, 1);
    json_begin(&w, '{');
    moments_to_json(&m, &w);
    json_end(&w, '}');
    CHECK_TEXT(
        w.text,
        "{\"n\":1,\"mean\":4,\"std\":0,\"max_abs\":4,\"max_abs_over_std\":null,\"kurtosis\":null}");
    json_writer_free(&w);

    char text[32];
    moments_format(1.0 / 3, "-", text);
    CHECK_TEXT(text, "0.3333");
    moments_format(-1.23456e-300, "-", text);
    CHECK_TEXT(text, "-1.235e-300");
    moments_format(-(double)NAN, "-", text);
    CHECK_TEXT(text, "-");
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"distributions", test_distributions},
        {"normal distribution", test_normal},
        {"a few numbers", test_small},
        {"undefined", test_undefined},
        {"far from zero", test_offset},
        {"merging and order", test_merge},
        {"extreme sizes", test_extremes},
        {"not finite", test_not_finite},
        {"real", test_real},
        {"output", test_output},
    };
    return test_main(argc, argv, "moments", cases, sizeof(cases) / sizeof(*cases));
}
