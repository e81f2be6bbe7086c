// Matrix products of linear layers: through oneDNN where the build found it (float32 and bf16 with
// float32 accumulation), else by a portable blocked kernel in `real`.
//
// A linear layer maps x (M, K) to y (M, N) with a weight w; M counts tokens. What the product reads
// is stored in the type it reads: layers write their results straight into a Matrix, so that
// nothing is converted twice.
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "layer_parameters.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { PRECISION_FLOAT32, PRECISION_BFLOAT16 } Precision;

// One library handle, its plans and scratch memory; used by one thread at a time, working on all
// OpenMP threads.
typedef struct Gemm Gemm;
Gemm *gemm_create(Precision precision);

// One that works on the calling thread alone: each thread of a parallel region can have its own. It
// multiplies with the weights of `parent`, which must outlive it.
Gemm *gemm_create_serial(const Gemm *parent);
void gemm_free(Gemm *gemm);

bool gemm_supports(
    Precision precision); // this processor has instructions for it, this build uses them
const char *gemm_library(const Gemm *gemm); // "oneDNN 3.2", "built-in"
char *gemm_library_name(void);              // fresh, without a handle
Precision gemm_precision(const Gemm *gemm);

// FLOP/s of a large product in this precision, best of a few (about 0.07 s).
double gemm_measure_peak(Gemm *gemm);

// Whether bf16 products take less time than float32's, measured (11 to 28 ms). Not all processors
// that have AVX512-BF16 are fast at it: Xeons where a virtual machine hides AMX need twice as long.
bool gemm_bf16_is_fast(void);

struct Arena;

// A row-major matrix (rows, columns) that a product reads: bf16 (as uint16_t) or real.
typedef struct {
    void *data;
    size_t columns;
    bool bf16;
} Matrix;

// One of the type that products by `gemm` read.
Matrix gemm_input_carve(const Gemm *gemm, struct Arena *arena, size_t rows, size_t columns,
                        const char *what);

// The same matrix from row `row` on.
static inline Matrix gemm_input_rows(Matrix input, size_t row) {
    const size_t width = input.bf16 ? sizeof(uint16_t) : sizeof(real);
    return (Matrix){(char *)input.data + row * input.columns * width, input.columns, input.bf16};
}

// A caller that passes another type, other columns or too many rows has a bug, which ends the
// program.
void gemm_check_input(const Gemm *gemm, Matrix input, size_t rows, size_t columns,
                      const char *name);

// Stores values (count) into row `row` from column `column` on, rounding to nearest even for bf16.
void gemm_input_store(Matrix input, size_t row, size_t column, const real *restrict values,
                      size_t count);

// Stores values (rows, count) into rows row .. row+rows-1 from column `column` on.
void gemm_input_store_rows(Matrix input, size_t row, size_t column, const real *restrict values,
                           size_t rows, size_t count);

// Reads values (count) back, from row `row` and column `column` on.
void gemm_input_load(Matrix input, size_t row, size_t column, real *restrict values, size_t count);

// A weight of a linear layer, packed as the library likes it; `values` is not used after
// gemm_weight_pack. Several threads may read a packed weight, and pack different ones.
typedef struct GemmWeight GemmWeight;
GemmWeight *gemm_weight_create(Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                               const char *what);
void gemm_weight_carve(GemmWeight *weight, struct Arena *arena); // its packed values
void gemm_weight_free(GemmWeight *weight);
void gemm_weight_pack(GemmWeight *weight, const real *values); // after every update of the values

// y (M, N) = x (M, K) w^T
void gemm_forward(Gemm *gemm, real *y, Matrix x, const GemmWeight *weight, size_t m);

// dx (M, K) = dy (M, N) w
void gemm_backward_input(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m);

// dx += dy w
void gemm_backward_input_add(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m);

// dw += dy^T x in the weight's own layout. oneDNN shares out the sum over M where dw is small and M
// large, so that its rounding depends on the number of threads; the built-in kernel and AMX
// (weight_gradient.h) have the same bits for any.
void gemm_backward_weight(Gemm *gemm, real *dw, Matrix dy, Matrix x, const GemmWeight *weight,
                          size_t m);

#endif
