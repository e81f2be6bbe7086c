// Decoding: products of a few rows with a model's weights, each of which is read once.
//
// Starting threads takes longer than a small product. So a token is decoded in one parallel region:
// each thread computes its share of the columns of every product, and a barrier separates a product
// from the code that reads all of its result.
#ifndef CPU_DECODE_H
#define CPU_DECODE_H

#include "gemm.h"

// A copy of a weight in the order in which products read it.
typedef struct {
    size_t n, k;
    bool bf16;
    char *panels;
} DecodeWeight;

// Packs N K values, as bf16 if `precision` says so, which takes half as long to read as `real`.
DecodeWeight decode_weight_create(Precision precision, const real *values, size_t n, size_t k,
                                  WeightLayout layout);
void decode_weight_free(DecodeWeight *weight);

// Returns how many threads to start for tokens that read that many weights.
int decode_threads(size_t weights);

// The calling thread's share of n columns.
typedef struct {
    size_t begin, count;
} DecodeShare;
DecodeShare decode_share(size_t n);

// Computes the calling thread's share of the columns of y (S, N) = x (S, K) w^T + bias (N; NULL:
// none). Everything but w is `real` in every precision. The result of a stream depends neither on
// the number of streams nor on the number of threads.
void decode_product(real *restrict y, const real *restrict x, const DecodeWeight *weight,
                    const real *bias, size_t streams);

#endif
