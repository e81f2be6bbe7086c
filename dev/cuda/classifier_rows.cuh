// A row of logits: its sum of exponentials, its loss, and the terms of its gradients. The notation
// is that of classifier.cuh.
#ifndef CUDA_CLASSIFIER_ROWS_CUH
#define CUDA_CLASSIFIER_ROWS_CUH

#include "device.cuh"

static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

// A partial sum of a row: the largest of its logits, and the sum of exp(logit - largest).
struct RowSum {
    float largest, sum;
};

static __device__ __forceinline__ float exponential(float x, float shift) {
    return exp2_fast((x - shift) * LOG2_E);
}

// The terms of a row's gradients: its largest logit m, the factor of exp(l - m), the amount that
// smoothing subtracts from each, and the target's own gradient.
struct RowGradient {
    float largest, factor, spread, target;
};

// The first row of a chunk in the arrays of (M).
struct RowResults {
    float *losses, *unsmoothed, *correct;
};

// The sums over a row: of the other tokens' exponentials, of all logits (if smoothed), and the
// target's logit, if there is a target.
struct RowTotal {
    RowSum others;
    float all, target;
    bool counts;
};

// Stores the losses with and without smoothing, 0 if there is no target.
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
