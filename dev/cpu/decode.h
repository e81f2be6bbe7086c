// Products of a few rows with a model's weights, each of which is read once: decoding.
#ifndef CPU_DECODE_H
#define CPU_DECODE_H

#include "gemm.h"

// Parameters as products read them.
typedef struct {
    const real *values;
    uint16_t *bf16; // a copy, of which reading takes half as long; NULL: there is none
} DecodeWeights;

// Of all `count` parameters of a model; `values` must outlive it. bf16 where the precision says so.
DecodeWeights decode_weights_create(Precision precision, const real *values, size_t count);
void decode_weights_free(DecodeWeights *weights);

// y (S, N) = x (S, K) w^T + bias (N; NULL: none), w the N K parameters from `offset` on; all but w is `real`
// in every precision. The result of a stream does not depend on how many there are.
void decode_product(real *restrict y, const real *restrict x, DecodeWeights weights, size_t offset,
                    const real *bias, size_t streams, size_t n, size_t k, WeightLayout layout);

#endif
