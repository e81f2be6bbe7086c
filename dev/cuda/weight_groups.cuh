// Products for the gradients of weights, dW += dy^T x, of a stack's layers. The products at the
// same place of similar layers run as one batched product, at the latest after the stack's backward
// pass. A small product on its own leaves most of a GPU idle, and takes as long to launch as to
// compute.
#ifndef CUDA_WEIGHT_GROUPS_CUH
#define CUDA_WEIGHT_GROUPS_CUH

#include "gemm.cuh"
#include <stddef.h>

// dw += dy^T x in the weight's layout; dy (M, N), x (M, K)
struct WeightProduct {
    float *dw;
    Matrix dy, x;
    DeviceWeight w;
    size_t m;
};

static inline double weight_product_flops(const WeightProduct *p) {
    return 2 * (double)p->m * (double)p->w.n * (double)p->w.k;
}

// Products at the same place of consecutive layers. Their operands and results are equally spaced
// in memory.
struct WeightGroup {
    const char *kind;     // name in --profile
    WeightProduct lowest; // the first in memory, of the layer added last
    WeightBatch batch;    // count 0: empty
};

// Number of elements from the start of `lower` to that of `upper`; may be negative.
static inline ptrdiff_t numbers_between(Matrix lower, Matrix upper) {
    const ptrdiff_t size = upper.bf16 ? sizeof(bf16) : sizeof(float);
    return ((const char *)upper.data - (const char *)lower.data) / size;
}

// Adds the product of the next lower layer. Returns false if it does not fit into the group. The
// operands must not change until weight_group_run() computes the product.
static inline bool weight_group_add(WeightGroup *group, const char *kind,
                                    const WeightProduct &product) {
    const WeightProduct *upper = &group->lowest;
    const size_t before = group->batch.count, columns = product.w.k;
    if (before == 0) {
        *group = {kind, product, {1, 0, 0, 0}};
        return true;
    }
    const ptrdiff_t dw = numbers_between(float_matrix(product.dw, columns),
                                         float_matrix(upper->dw, columns)),
                    dy = numbers_between(product.dy, upper->dy),
                    x = numbers_between(product.x, upper->x);
    const WeightBatch batch = {before + 1, (size_t)dw, (size_t)dy, (size_t)x};
    if (product.m != upper->m || product.w.n != upper->w.n || product.w.k != upper->w.k ||
        product.dy.columns != upper->dy.columns || product.x.columns != upper->x.columns ||
        dw < 0 || dy < 0 || x < 0 ||
        (before > 1 &&
         (batch.dw != group->batch.dw || batch.dy != group->batch.dy || batch.x != group->batch.x)))
        return false;
    group->lowest = product;
    group->batch = batch;
    return true;
}

// Computes the products of the group and empties it.
static inline void weight_group_run(Blas *blas, WeightGroup *group) {
    const WeightProduct *p = &group->lowest;
    gemm_backward_weights(blas, p->dw, p->dy, p->x, p->w, p->m, group->batch);
    group->batch.count = 0;
}

#endif
