// Mean, deviation and kurtosis of a stream of numbers, in one pass and in double.
//
// Kept are sums of powers of x - mean, which do not cancel however far from 0 the numbers are.
// Parts are put together by the pairwise formulas of Chan et al. (1979), extended to the fourth
// power by Pebay (2008, SAND2008-6212). The fourth powers stay inside double's range for numbers up
// to 1e70, as all of float's are.
#ifndef BASE_MOMENTS_H
#define BASE_MOMENTS_H

#include "json.h"
#include "real.h"
#include <stddef.h>
#include <stdint.h>

// All zero: no numbers yet.
typedef struct {
    int64_t count;
    double mean;
    double m2, m3, m4; // sums of (x - mean)^2, ^3, ^4
    double largest;    // |x|; NaN where a number is
} Moments;

void moments_add(Moments *m, const double *values, size_t count);
void moments_add_real(Moments *m, const real *values, size_t count);

// Also for kernels on a GPU.
#ifdef __CUDACC__
#define MOMENTS_FUNCTION static inline __host__ __device__
#else
#define MOMENTS_FUNCTION static inline
#endif

// The larger one; NaN where one of them is, which fmax() passes over.
MOMENTS_FUNCTION double larger_or_nan(double a, double b) {
    return b > a || b != b ? b : a;
}

// As if m had been given the numbers of `other` as well.
MOMENTS_FUNCTION void moments_merge(Moments *m, const Moments *other) {
    const Moments a = *m, b = *other;
    if (b.count == 0) return;
    if (a.count == 0) {
        *m = b;
        return;
    }
    // As fractions of n, so that nothing passes double's range where the numbers are many.
    const double n = (double)a.count + (double)b.count, p = (double)a.count / n,
                 q = (double)b.count / n;
    const double delta = b.mean - a.mean, delta2 = delta * delta, npq = n * p * q;
    m->count = a.count + b.count;
    m->mean = a.mean + delta * q;
    m->m2 = a.m2 + b.m2 + delta2 * npq;
    m->m3 = a.m3 + b.m3 + delta2 * delta * npq * (p - q) + 3 * delta * (p * b.m2 - q * a.m2);
    m->m4 = a.m4 + b.m4 + delta2 * delta2 * npq * (p * p - p * q + q * q) +
            6 * delta2 * (p * p * b.m2 + q * q * a.m2) + 4 * delta * (p * b.m3 - q * a.m3);
    m->largest = larger_or_nan(a.largest, b.largest);
}

// NaN where undefined: all of no numbers, the last two of numbers that are all equal.
double moments_mean(const Moments *m);
double moments_deviation(const Moments *m);         // sqrt(m2 / n)
double moments_largest_deviation(const Moments *m); // largest |x| / deviation
double moments_kurtosis(const Moments *m); // excess: n m4 / m2^2 - 3, 0 for a normal distribution

// Members "n", "mean", "std", "max_abs", "max_abs_over_std", "kurtosis" of the object that is open
// in w; what is undefined is null.
void moments_to_json(const Moments *m, JsonWriter *w);

// A number for a table, four digits, into text (at least 32 bytes); `undefined` is written for NaN.
void moments_format(double value, const char *undefined, char *text);

#endif
