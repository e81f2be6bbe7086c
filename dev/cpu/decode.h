// Products of a few rows with a model's weights, each of which is read once: decoding.
//
// Starting threads for each product takes longer than the small ones: all threads of one parallel
// region decode a token, each computes its share of every product's columns, and a barrier
// separates a product from what reads all of its result.
#ifndef CPU_DECODE_H
#define CPU_DECODE_H

#include "gemm.h"

// A copy of a weight in the order in which products read it.
typedef struct {
    size_t n, k;
    bool bf16;
    char *panels;
} DecodeWeight;

// Of N K values; bf16 where the precision says so, of which reading takes half as long as of
// `real`.
DecodeWeight decode_weight_create(Precision precision, const real *values, size_t n, size_t k,
                                  WeightLayout layout);
void decode_weight_free(DecodeWeight *weight);

// Threads worth starting for tokens that read so many weights.
int decode_threads(size_t weights);

// The columns that are the calling thread's, out of n.
typedef struct {
    size_t begin, count;
} DecodeShare;
DecodeShare decode_share(size_t n);

// The calling thread's share of the columns of y (S, N) = x (S, K) w^T + bias (N; NULL: none); all
// but w is `real` in every precision. The result of a stream does not depend on how many there are,
// nor on the number of threads.
void decode_product(real *restrict y, const real *restrict x, const DecodeWeight *weight,
                    const real *bias, size_t streams);

#endif
