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

// As if m had been given the numbers of `other` as well.
void moments_merge(Moments *m, const Moments *other);

// The larger one; NaN where one of them is, which fmax() passes over.
double larger_or_nan(double a, double b);

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
