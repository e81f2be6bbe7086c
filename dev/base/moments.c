#include "moments.h"
#include <math.h>
#include <stdio.h>

enum { BLOCK = 256 }; // numbers whose moments are computed directly, while they are in L1

// Subtracts the first number before summing, so that the mean is as exact as a double can be and
// the moments of equal numbers are exactly 0.
static Moments block_moments(const double *x, size_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += x[i] - x[0];
    const double mean = x[0] + sum / (double)n;
    double m2 = 0, m3 = 0, m4 = 0, largest = 0;
#pragma omp simd reduction(+ : m2, m3, m4)
    for (size_t i = 0; i < n; i++) {
        const double d = x[i] - mean, square = d * d;
        m2 += square;
        m3 += square * d;
        m4 += square * square;
    }
    int unknown = 0;
#pragma omp simd reduction(max : largest) reduction(| : unknown)
    for (size_t i = 0; i < n; i++) {
        largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
        unknown |= x[i] != x[i];
    }
    return (Moments){(int64_t)n, mean, m2, m3, m4, unknown ? (double)NAN : largest};
}

void moments_add(Moments *m, const double *values, size_t count) {
    for (size_t start = 0; start < count; start += BLOCK) {
        const Moments block =
            block_moments(values + start, count - start < BLOCK ? count - start : BLOCK);
        moments_merge(m, &block);
    }
}

void moments_add_real(Moments *m, const real *values, size_t count) {
    double block[BLOCK];
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t n = count - start < BLOCK ? count - start : BLOCK;
        for (size_t i = 0; i < n; i++) block[i] = (double)values[start + i];
        moments_add(m, block, n);
    }
}

double moments_mean(const Moments *m) {
    return m->count > 0 ? m->mean : (double)NAN;
}

double moments_deviation(const Moments *m) {
    return m->count > 0 ? sqrt(m->m2 / (double)m->count) : (double)NAN;
}

double moments_largest_deviation(const Moments *m) {
    const double deviation = moments_deviation(m);
    return deviation == 0 ? (double)NAN : m->largest / deviation;
}

double moments_kurtosis(const Moments *m) {
    if (m->m2 == 0) return (double)NAN;
    const double n = (double)m->count, variance = m->m2 / n;
    return m->m4 / n / (variance * variance) - 3;
}

void moments_to_json(const Moments *m, JsonWriter *w) {
    json_add_integer(w, "n", m->count);
    json_add_number(w, "mean", moments_mean(m));
    json_add_number(w, "std", moments_deviation(m));
    json_add_number(w, "max_abs", m->count > 0 ? m->largest : (double)NAN);
    json_add_number(w, "max_abs_over_std", moments_largest_deviation(m));
    json_add_number(w, "kurtosis", moments_kurtosis(m));
}

void moments_format(double value, const char *undefined, char *text) {
    if (isnan(value))
        snprintf(text, 32, "%s", undefined);
    else
        snprintf(text, 32, "%.4g", value);
}
