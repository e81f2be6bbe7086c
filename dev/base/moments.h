// Mean, standard deviation and kurtosis of a stream of numbers, in one pass and in double
// precision.
//
// Stores sums of powers of x - mean, which do not cancel however far the numbers are from 0. Parts
// are merged with the pairwise formulas of Chan et al. (1979), extended to the fourth power by
// Pebay (2008, SAND2008-6212). The fourth powers stay within double's range for numbers up to 1e70,
// which includes every float.
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
    double largest;    // |x|; NaN if a number is NaN
} Moments;

void moments_add(Moments *m, const double *values, size_t count);
void moments_add_real(Moments *m, const real *values, size_t count);

// Also compiled for GPU kernels.
#ifdef __CUDACC__
#define MOMENTS_FUNCTION static inline __host__ __device__
#else
#define MOMENTS_FUNCTION static inline
#endif

// Returns the larger number, or NaN if either is NaN; fmax() ignores NaN.
MOMENTS_FUNCTION double larger_or_nan(double a, double b) {
    return b > a || b != b ? b : a;
}

// Merges the numbers of `other` into m.
MOMENTS_FUNCTION void moments_merge(Moments *m, const Moments *other) {
    const Moments a = *m, b = *other;
    if (b.count == 0) return;
    if (a.count == 0) {
        *m = b;
        return;
    }
    // Fractions of n, so that nothing overflows if there are many numbers.
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

// NaN if undefined: all of these without numbers, the last two if all numbers are equal.
double moments_mean(const Moments *m);
double moments_deviation(const Moments *m);         // sqrt(m2 / n)
double moments_largest_deviation(const Moments *m); // largest |x| / deviation
double moments_kurtosis(const Moments *m); // excess: n m4 / m2^2 - 3, 0 for a normal distribution

// Adds the members "n", "mean", "std", "max_abs", "max_abs_over_std" and "kurtosis" to the open
// object of w. Undefined values become null.
void moments_to_json(const Moments *m, JsonWriter *w);

// Formats a number for a table, with four digits, into text (at least 32 bytes). NaN is written as
// `undefined`.
void moments_format(double value, const char *undefined, char *text);

#endif
