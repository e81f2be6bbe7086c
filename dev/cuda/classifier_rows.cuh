// A row of logits: its sum of exponentials, its loss, and what its gradients are made of. The
// notation is that of classifier.cuh.
#ifndef CUDA_CLASSIFIER_ROWS_CUH
#define CUDA_CLASSIFIER_ROWS_CUH

#include "device.cuh"

static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

// Some of a row's terms: the largest of their logits, and the sum of exp(logit - largest).
struct RowSum {
    float largest, sum;
};

static __device__ __forceinline__ float exponential(float x, float shift) {
    return exp2_fast((x - shift) * LOG2_E);
}

// What the gradients of a row of logits are made of: its largest logit m, the factor of exp(l - m),
// what smoothing takes from each, and the target's own gradient.
struct RowGradient {
    float largest, factor, spread, target;
};

// Where the rows of a chunk begin in the arrays of (M).
struct RowResults {
    float *losses, *unsmoothed, *correct;
};

// What all sums over a row come to: of the others' logits, of all logits (where it is smoothed),
// and the target's logit, where there is a target.
struct RowTotal {
    RowSum others;
    float all, target;
    bool counts;
};

// Losses and those without smoothing, 0 where there is no target.
static __device__ __forceinline__ void store_losses(const RowResults &to, size_t i,
                                                    const RowTotal &row, uint32_t vocabulary,
                                                    float smoothing) {
    const float largest = fmaxf(row.others.largest, row.target);
    const float rest = row.others.sum * exponential(row.others.largest, largest);
    const float loss = row.target == largest
                           ? log1pf(rest)
                           : logf(rest + exponential(row.target, largest)) + (largest - row.target);
    const float mean = (row.all + row.target) / (float)vocabulary;
    const float more = smoothing > 0 ? smoothing * (row.target - mean) : 0;
    to.losses[i] = row.counts ? loss + more : 0;
    to.unsmoothed[i] = row.counts ? loss : 0;
}

// scale: of the loss.
static __device__ __forceinline__ RowGradient row_gradient(const RowTotal &row, float scale,
                                                           uint32_t vocabulary, float smoothing) {
    const float largest = fmaxf(row.others.largest, row.target);
    const float rest = row.others.sum * exponential(row.others.largest, largest);
    const float factor = row.counts ? scale / (rest + exponential(row.target, largest)) : 0,
                smooth = row.counts ? scale * smoothing : 0, spread = smooth / (float)vocabulary;
    return {largest, factor, spread, smooth - spread - factor * rest};
}

#endif
