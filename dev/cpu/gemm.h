// Matrix products of linear layers: by oneDNN if the build found it (float32, and bf16 with float32
// accumulation), else by a portable blocked kernel in `real`.
//
// A linear layer maps x (M, K) to y (M, N) with a weight w; M is the number of tokens. Inputs are
// stored in the type that the product reads: layers write their results straight into a Matrix, so
// that nothing is converted twice.
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "layer_parameters.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { PRECISION_FLOAT32, PRECISION_BFLOAT16 } Precision;

// A library handle with its plans and scratch memory. It runs on all OpenMP threads, but only one
// thread at a time may use it.
typedef struct Gemm Gemm;
Gemm *gemm_create(Precision precision);

// Creates a handle that runs on the calling thread alone, so that each thread of a parallel region
// can have its own. It multiplies with the weights of `parent`, which must outlive it.
Gemm *gemm_create_serial(const Gemm *parent);
void gemm_free(Gemm *gemm);

// Whether this processor has instructions for this precision and this build uses them.
bool gemm_supports(Precision precision);

const char *gemm_library(const Gemm *gemm); // "oneDNN 3.2", "built-in"
char *gemm_library_name(void);              // allocated; needs no handle
Precision gemm_precision(const Gemm *gemm);

// Measures the FLOP/s of a large product in this precision, best of several runs (about 0.07 s).
double gemm_measure_peak(Gemm *gemm);

// Measures whether bf16 products take less time than float32 products (11 to 28 ms). Not all
// processors with AVX512-BF16 are fast at it: Xeons whose AMX is hidden by a virtual machine need
// twice as long.
bool gemm_bf16_is_fast(void);

struct Arena;

// A row-major matrix (rows, columns) that a product reads: bf16 (as uint16_t) or real.
typedef struct {
    void *data;
    size_t columns;
    bool bf16;
} Matrix;

// Carves a matrix of the type that products by `gemm` read.
Matrix gemm_input_carve(const Gemm *gemm, struct Arena *arena, size_t rows, size_t columns,
                        const char *what);

// The same matrix, starting at row `row`.
static inline Matrix gemm_input_rows(Matrix input, size_t row) {
    const size_t width = input.bf16 ? sizeof(uint16_t) : sizeof(real);
    return (Matrix){(char *)input.data + row * input.columns * width, input.columns, input.bf16};
}

// Exits with an error if the input has another type, other columns or too many rows, which is a bug
// in the caller.
void gemm_check_input(const Gemm *gemm, Matrix input, size_t rows, size_t columns,
                      const char *name);

// Stores values (count) in row `row`, starting at column `column`. Rounds bf16 to nearest even.
void gemm_input_store(Matrix input, size_t row, size_t column, const real *restrict values,
                      size_t count);

// Stores values (rows, count) in rows row .. row+rows-1, starting at column `column`.
void gemm_input_store_rows(Matrix input, size_t row, size_t column, const real *restrict values,
                           size_t rows, size_t count);

// Reads values (count) from row `row`, starting at column `column`.
void gemm_input_load(Matrix input, size_t row, size_t column, real *restrict values, size_t count);

// The weight of a linear layer, packed in the layout that the library prefers; `values` is not used
// after gemm_weight_pack(). Several threads may read one packed weight, or pack different ones.
typedef struct GemmWeight GemmWeight;
GemmWeight *gemm_weight_create(Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                               const char *what);
void gemm_weight_carve(GemmWeight *weight, struct Arena *arena); // carves the packed values
void gemm_weight_free(GemmWeight *weight);
void gemm_weight_pack(GemmWeight *weight, const real *values); // after every update of the values

// y (M, N) = x (M, K) w^T
void gemm_forward(Gemm *gemm, real *y, Matrix x, const GemmWeight *weight, size_t m);

// dx (M, K) = dy (M, N) w
void gemm_backward_input(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m);

// dx += dy w
void gemm_backward_input_add(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m);

// dw += dy^T x in the layout of the weight. If dw is small and M large, oneDNN divides the sum over
// M among the threads, so that its rounding depends on their number; the built-in kernel and AMX
// (weight_gradient.h) give the same bits for any number of threads.
void gemm_backward_weight(Gemm *gemm, real *dw, Matrix dy, Matrix x, const GemmWeight *weight,
                          size_t m);

#endif
