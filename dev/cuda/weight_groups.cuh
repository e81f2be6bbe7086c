// Products for the gradients of weights, dW += dy^T x, of the layers of a stack: those of one place
// in all layers as one batched product after the stack's backward pass. A small one alone leaves
// most of a GPU idle, and takes as long to start as to compute.
#ifndef CUDA_WEIGHT_GROUPS_CUH
#define CUDA_WEIGHT_GROUPS_CUH

#include "gemm.cuh"

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

// Those of one place in a layer, of all layers so far. What they read and write begins at equal
// distances.
struct WeightGroup {
    const char *kind;     // --profile's
    WeightProduct lowest; // the one that lies first, which is of the layer that came last
    WeightBatch batch;
};

static constexpr size_t WEIGHT_GROUPS = 8; // products of a layer, at most

struct WeightGroups {
    WeightGroup groups[WEIGHT_GROUPS];
    size_t count, next; // groups; the one that the layer's next product belongs to
};

static inline void weight_groups_start(WeightGroups *g) {
    g->count = g->next = 0;
}

// Products of the next layer follow, in the order of the others'. Layers come from the last one
// down.
static inline void weight_groups_layer(WeightGroups *g) {
    g->next = 0;
}

// How many numbers `lower` begins before `upper`.
static inline size_t numbers_between(Matrix lower, Matrix upper) {
    const char *from = (const char *)lower.data, *to = (const char *)upper.data;
    if (from > to)
        fail("products of layers: a lower layer's operands are stored after those of the one above "
             "it");
    return (size_t)(to - from) / (upper.bf16 ? sizeof(bf16) : sizeof(float));
}

// Nothing that the product reads may change until weight_group_run(), which computes it.
static inline void weight_groups_add(WeightGroups *g, const char *kind,
                                     const WeightProduct &product) {
    if (g->next == WEIGHT_GROUPS) fail("a layer of more than %zu products", WEIGHT_GROUPS);
    WeightGroup *group = &g->groups[g->next++];
    if (g->next > g->count) {
        g->count = g->next;
        *group = {kind, product, {1, 0, 0, 0}};
        return;
    }
    const WeightProduct *upper = &group->lowest;
    const size_t columns = product.w.k;
    const WeightBatch batch = {
        group->batch.count + 1,
        numbers_between(float_matrix(product.dw, columns), float_matrix(upper->dw, columns)),
        numbers_between(product.dy, upper->dy), numbers_between(product.x, upper->x)};
    if (product.m != upper->m || product.w.n != upper->w.n || product.w.k != upper->w.k ||
        (batch.count > 2 &&
         (batch.dw != group->batch.dw || batch.dy != group->batch.dy || batch.x != group->batch.x)))
        fail("%s: products of layers differ in shape, or lie at different distances", kind);
    group->lowest = product;
    group->batch = batch;
}

static inline void weight_group_run(Blas *blas, const WeightGroup *group) {
    const WeightProduct *p = &group->lowest;
    gemm_backward_weights(blas, p->dw, p->dy, p->x, p->w, p->m, group->batch);
}

#endif
