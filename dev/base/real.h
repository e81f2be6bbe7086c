// The floating-point type of parameters, activations and gradients on the CPU: float, or double in
// the build for gradient checks (-DREAL_IS_DOUBLE).
#ifndef BASE_REAL_H
#define BASE_REAL_H

#ifdef REAL_IS_DOUBLE
typedef double real;
#else
typedef float real;
#endif

#endif
