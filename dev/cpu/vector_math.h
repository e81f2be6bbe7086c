// Elementary functions, accurate to a few units in the last place: of a number, written so that
// compilers vectorise them, and of a vector.
#ifndef CPU_VECTOR_MATH_H
#define CPU_VECTOR_MATH_H

#include "real.h"
#include "tile.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

static const double LOG2_E = 1.44269504088896341, LN2 = 0.693147180559945309;

// Returns 1 - tail for x >= 0, and tail below, so that small values keep all their digits.
TILE_INLINE TileVector tile_mirror(TileVector tail, TileVector x) {
    const TileBits sign = (TileBits)x & (TileBits) - (TileVector){0};
    const TileVector step = (TileVector)((TileBits)((TileVector){0} + 1) & (sign == 0));
    return step - (TileVector)((TileBits)tail | sign);
}

#ifdef REAL_IS_DOUBLE

static inline real vector_exp(real x) {
    return exp(x);
}

TILE_INLINE TileVector tile_normal(TileVector x, TileVector *density) {
    TileVector normal = {0}, at = {0};
    for (size_t l = 0; l < TILE_LANES; l++) {
        at[l] = 0.39894228040143268 * exp(-0.5 * x[l] * x[l]);
        normal[l] = 0.5 * erfc(-0.70710678118654752 * x[l]);
    }
    *density = at;
    return normal;
}

#else

// exp(x) = 2^n e^r with r = x - n ln 2 in two parts and a polynomial for e^r (Cephes expf); error
// up to 1 unit in the last place. Saturates instead of overflowing: 0 below -87.3 (no subnormal
// numbers), e^88 above 88. NaN stays NaN.
static inline real vector_exp(real x) {
    // Adding 1.5 * 2^23 rounds to an integer in the low bits of the sum; adding 127 more makes it
    // an exponent field.
    const float shifted = x * 1.44269504f + (12582912.0f + 127.0f);
    const float n = shifted - (12582912.0f + 127.0f);
    const float high = x - n * 0.693359375f;
    const float r = high + n * 2.12194440e-4f;
    const float r2 = r * r;
    const float p = ((1.9875691500e-4f * r + 1.3981999507e-3f) * r2 +
                     (8.3334519073e-3f * r + 4.1665795894e-2f)) *
                        r2 +
                    (1.6666665459e-1f * r + 5.0000001201e-1f);
    const float series = p * r2 + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits <<= 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    const float bounded = x > 88.0f ? 1.65163625e38f : series * power;
    return x < -87.3365447f ? 0.0f : bounded;
}

// The standard normal distribution Phi(x) = (1 + erf(x / sqrt(2))) / 2, and its density. The tail
// is computed as e^(-t^2/2) P(t) / Q(t), t = |x|, with a minimax fit of the quotient (relative
// error 5e-9 up to t = 13.2, where the tail leaves the range of float). All coefficients are
// positive and the lower tail is not computed as a difference, so nothing cancels: the absolute
// error stays below 1.7e-7, and small values keep their digits.
TILE_INLINE TileVector tile_normal(TileVector x, TileVector *density) {
    const TileBits sign = (TileBits){0} + INT32_MIN;
    const TileVector t = (TileVector)((TileBits)x & ~sign), t2 = t * t;
    const TileVector e = tile_exp2(t2 * -0.721347520f, false);
    const TileVector p = (4.011438827e-3f * t2 + (3.992497749e-2f * t + 1.811306554e-1f)) * t2 +
                         (4.354476300e-1f * t + 5.000000024e-1f);
    const TileVector q =
        ((1.005504049e-2f * t + 1.000845475e-1f) * t2 + (4.639155033e-1f * t + 1.193751173f)) * t2 +
        (1.668780172f * t + 1.0f);
    // The tail is 0 above 14, also where p and q overflow.
    const TileBits tail = (TileBits)(p / q * e) & ~(t > 14.0f);
    *density = 0.398942280f * e;
    return tile_mirror((TileVector)tail, x);
}

#endif

#endif
