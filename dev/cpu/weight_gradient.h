// The gradient of a linear layer's weight, computed with AMX if the processor has it: a sum over
// rows, for which a library would transpose and pack both matrices as a whole before it multiplies.
#ifndef CPU_WEIGHT_GRADIENT_H
#define CPU_WEIGHT_GRADIENT_H

#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whether the processor has AMX. The check takes some microseconds.
bool weight_gradient_available(void);

// Whether weight_gradient() supports dw (n, k).
bool weight_gradient_suits(size_t n, size_t k);

// Bytes of scratch memory, aligned to 64, for `threads` threads.
size_t weight_gradient_scratch(int threads);

// dw (n, k) += left^T (n, m) right (m, k), both bf16. The result does not depend on the number of
// threads.
void weight_gradient(real *dw, const uint16_t *left, const uint16_t *right, size_t n, size_t k,
                     size_t m, void *scratch, int threads);

#endif
