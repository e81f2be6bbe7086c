// cuDNN's attention for the emulator, by its definition: it reads and writes where a problem's
// strides say, and what is rounded to bf16 is rounded here.
#ifndef EMULATOR_CUDNN_ON_CPU_H
#define EMULATOR_CUDNN_ON_CPU_H

#include "cudnn_library.h"
#include <math.h>
#include <vector>

struct Cudnn {};

Cudnn *cudnn_create() {
    return new Cudnn();
}

void cudnn_free(Cudnn *cudnn) {
    delete cudnn;
}

// A head's row.
static inline bf16 *cudnn_row(const CudnnProblem *p, void *rows, int64_t stride, int64_t length,
                              int64_t b, int64_t h, int64_t t) {
    return (bf16 *)rows + (b * length + t) * stride + h * p->size;
}

static inline double cudnn_dot(const bf16 *x, const bf16 *y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)(float)x[i] * (double)(float)y[i];
    return sum;
}

// A query's weights (Tk), and the logarithm of their denominator.
static inline double cudnn_weights(const CudnnProblem *p, const CudnnOperands *on, int64_t b,
                                   int64_t h, int64_t i, std::vector<double> &weights) {
    const bf16 *q = cudnn_row(p, on->parts[0], p->strides[0], p->queries, b, h, i);
    double sum = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        const bf16 *k = cudnn_row(p, on->parts[1], p->strides[1], p->keys, b, h, j);
        const bool seen = !p->causal || j <= i;
        weights[(size_t)j] = seen ? exp(cudnn_dot(q, k, p->size) / sqrt((double)p->size)) : 0;
        sum += weights[(size_t)j];
    }
    for (double &weight : weights) weight /= sum;
    return log(sum);
}

static inline void cudnn_forward_head(const CudnnProblem *p, const CudnnOperands *on, int64_t b,
                                      int64_t h) {
    const int64_t D = p->size;
    std::vector<double> weights((size_t)p->keys), sums((size_t)D);
    for (int64_t i = 0; i < p->queries; i++) {
        on->logsumexp[(b * p->heads + h) * p->queries + i] =
            (float)cudnn_weights(p, on, b, h, i, weights);
        std::fill(sums.begin(), sums.end(), 0);
        for (int64_t j = 0; j < p->keys; j++) {
            const bf16 *v = cudnn_row(p, on->parts[2], p->strides[2], p->keys, b, h, j);
            for (int64_t d = 0; d < D; d++)
                sums[(size_t)d] += weights[(size_t)j] * (double)(float)v[d];
        }
        bf16 *y = cudnn_row(p, on->y, p->heads * D, p->queries, b, h, i);
        for (int64_t d = 0; d < D; d++) y[d] = (bf16)(float)sums[(size_t)d];
    }
}

static inline void cudnn_backward_head(const CudnnProblem *p, const CudnnOperands *on, int64_t b,
                                       int64_t h) {
    const int64_t D = p->size, channels = p->heads * D, lengths[] = {p->queries, p->keys, p->keys};
    std::vector<double> weights((size_t)p->keys), gradients[3];
    for (int part = 0; part < 3; part++) gradients[part].resize((size_t)(lengths[part] * D));
    for (int64_t i = 0; i < p->queries; i++) {
        const bf16 *q = cudnn_row(p, on->parts[0], p->strides[0], p->queries, b, h, i),
                   *y = cudnn_row(p, on->y, channels, p->queries, b, h, i),
                   *dy = cudnn_row(p, on->dy, channels, p->queries, b, h, i);
        cudnn_weights(p, on, b, h, i, weights);
        const double along = cudnn_dot(dy, y, D);
        for (int64_t j = 0; j < p->keys; j++) {
            const bf16 *k = cudnn_row(p, on->parts[1], p->strides[1], p->keys, b, h, j),
                       *v = cudnn_row(p, on->parts[2], p->strides[2], p->keys, b, h, j);
            const double weight = weights[(size_t)j],
                         ds = weight * (cudnn_dot(dy, v, D) - along) / sqrt((double)D);
            for (int64_t d = 0; d < D; d++) {
                gradients[0][(size_t)(i * D + d)] += ds * (double)(float)k[d];
                gradients[1][(size_t)(j * D + d)] += ds * (double)(float)q[d];
                gradients[2][(size_t)(j * D + d)] += weight * (double)(float)dy[d];
            }
        }
    }
    for (int part = 0; part < 3; part++)
        for (int64_t t = 0; t < lengths[part]; t++) {
            bf16 *to = cudnn_row(p, on->gradients[part], p->gradient_strides[part], lengths[part],
                                 b, h, t);
            for (int64_t d = 0; d < D; d++)
                to[d] = (bf16)(float)gradients[part][(size_t)(t * D + d)];
        }
}

bool cudnn_run(Cudnn *, const CudnnProblem *p, const CudnnOperands *on, void *) {
    for (int64_t unit = 0; unit < p->batch * p->heads; unit++)
        (p->backward ? cudnn_backward_head : cudnn_forward_head)(p, on, unit / p->heads,
                                                                 unit % p->heads);
    return true;
}

#endif
