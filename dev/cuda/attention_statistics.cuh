// Attention statistics for --stats: the scores of each query's keys or of the tokens of a pooling,
// which no other kernel stores, and the weights computed from them (statistics.cuh). Part of
// attention.cu.
#ifndef CUDA_ATTENTION_STATISTICS_CUH
#define CUDA_ATTENTION_STATISTICS_CUH

#include "additive_rows.cuh"
#include "cosine_attention.cuh"
#include "statistics.cuh"

// The rows of tokens, head by head.
template <typename T>
static inline HeadRows<T> head_rows(const DeviceAttentionInput *in, AttentionPart part) {
    const Matrix rows = in->rows[part];
    return {(const T *)rows.data, (part == QUERY ? in->queries : in->keys) * rows.columns,
            in->channels / in->heads, rows.columns};
}

// One row for each head of a sequence, with one number per token.
static inline DeviceAttentionInput head_input(DeviceAttentionInput in) {
    in.queries = 1;
    in.causal = false;
    in.window = 0;
    return in;
}

namespace measuring {

static constexpr unsigned THREADS = 256;

// ---- queries with keys ------------------------------------------------------
// q . k times `scale`, or the cosine of their angle.
template <typename T> struct PairScores {
    HeadRows<T> queries;
    const float *keys; // (B, H, D, Tk) of keys_kernel()
    size_t heads, length;
    int size;
    bool cosine;
    float scale;
    __device__ __forceinline__ float operator()(size_t b, size_t h, size_t i, size_t j) const {
        const T *q = queries.at(b, h, i);
        const float *k = keys + (b * heads + h) * (size_t)size * length + j;
        float dot = 0, square = 0;
        for (int d = 0; d < size; d++) {
            const float x = (float)q[d];
            dot += x * k[(size_t)d * length];
            square += x * x;
        }
        return dot * (cosine ? cosine::inverse_length(square) : scale);
    }
};

// keys (B, H, D, Tk), with the dimensions outermost, so that the lanes of a warp read adjacent
// keys; normalised to length 1 for cosines. One thread per key.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    keys_kernel(float *keys, const HeadRows<T> from, size_t heads, size_t length, int size,
                bool cosine, size_t count) {
    begin_kernel();
    const size_t index = (size_t)blockIdx.x * THREADS + threadIdx.x, j = index % length,
                 unit = index / length;
    if (index >= count) return;
    const T *k = from.at(unit / heads, unit % heads, j);
    float square = 0;
    for (int d = 0; d < size; d++) square += (float)k[d] * (float)k[d];
    const float scale = cosine ? cosine::inverse_length(square) : 1;
    for (int d = 0; d < size; d++)
        keys[(unit * (size_t)size + (size_t)d) * length + j] = scale * (float)k[d];
}

template <typename T>
static void measure_pairs(const Device *d, const DeviceStatistics *s, const MeasuredRows &rows,
                          float scale, Measurement *scores, Measurement *weights) {
    const DeviceAttentionInput *in = &rows.in;
    const bool cosine = rows.weights == QUOTIENTS;
    const size_t count = in->batch * in->heads * in->keys;
    const int size = (int)(in->channels / in->heads);
    launch_early(d, keys_kernel<T>, dim3(blocks_of(count, THREADS)), dim3(THREADS), 0, s->scores,
                 head_rows<T>(in, KEY), in->heads, in->keys, size, cosine, count);
    const PairScores<T> value = {
        head_rows<T>(in, QUERY), s->scores, in->heads, in->keys, size, cosine, scale};
    statistics_rows(d, s, rows, value, scores, weights);
}

// ---- poolings ---------------------------------------------------------------
// scores (B, H, T) of x: plain x . w / sqrt(D), else x' . w' / D, a fraction of its bound. w (H,
// D). One thread per token.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    pooling_kernel(float *scores, const Values<T> value, const float *w, bool plain, size_t heads,
                   size_t length, int size, size_t count) {
    begin_kernel();
    const size_t index = (size_t)blockIdx.x * THREADS + threadIdx.x, i = index % length,
                 h = index / length % heads, b = index / length / heads;
    if (index >= count) return;
    float mean = 0, weight_mean = 0, product = 0, square = 0, weight_square = 0;
    w += h * (size_t)size;
    for (int d = 0; !plain && d < size; d++) {
        mean += value(b, h, i, (size_t)d) / (float)size;
        weight_mean += w[d] / (float)size;
    }
    for (int d = 0; d < size; d++) {
        const float x = value(b, h, i, (size_t)d) - mean, y = w[d] - weight_mean;
        product += x * y;
        square += x * x;
        weight_square += y * y;
    }
    const float n = (float)(size - 1),
                deviations = (sqrtf(square / n) + additive::NORMAL_EPSILON) *
                             (sqrtf(weight_square / n) + additive::NORMAL_EPSILON);
    scores[index] = product / (plain ? sqrtf((float)size) : (float)size * deviations);
}

// Stores the scores of a pooling in s->scores.
template <typename T>
static void score_pooling(const Device *d, const DeviceStatistics *s, const Values<T> &x,
                          const float *w, bool plain, const DeviceAttentionInput *in) {
    const size_t count = in->batch * in->heads * in->keys;
    launch_early(d, pooling_kernel<T>, dim3(blocks_of(count, THREADS)), dim3(THREADS), 0, s->scores,
                 x, w, plain, in->heads, in->keys, (int)(in->channels / in->heads), count);
}

// Those scores, one row for each head of a sequence.
static inline Values<float> pooling_scores(const DeviceStatistics *s,
                                           const DeviceAttentionInput *in) {
    return {{s->scores, in->heads * in->keys, in->keys, 0}, {}};
}

} // namespace measuring

#endif
