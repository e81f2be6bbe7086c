// Which softmax attention cuDNN computes, in programs that have it (cudnn_library.h): bf16, without
// sink, dropout and padding, of heads of whole eights of up to 128 channels. Its masks of dropout
// are not ours, its padding is lengths, and it knows no sink of this kind.
#ifndef CUDA_CUDNN_ATTENTION_CUH
#define CUDA_CUDNN_ATTENTION_CUH

#include "attention_input.cuh"
#include "cudnn_library.h"

static inline bool cudnn_takes(const DeviceAttentionInput *in, Matrix y, double sink) {
    const size_t size = in->channels / in->heads;
    return y.bf16 && sink == 0 && !in->mask && !drops_out(in->dropout) && size % 8 == 0 &&
           size <= 128;
}

// gradients NULL: the forward pass.
static inline CudnnProblem cudnn_problem(const DeviceAttentionInput *in,
                                         const DeviceAttentionGradients *gradients) {
    CudnnProblem p = {};
    p.backward = gradients != NULL;
    p.causal = in->causal;
    p.batch = (int64_t)in->batch;
    p.heads = (int64_t)in->heads;
    p.size = (int64_t)(in->channels / in->heads);
    p.queries = (int64_t)in->queries;
    p.keys = (int64_t)in->keys;
    for (size_t i = 0; i < 3; i++) {
        p.strides[i] = (int64_t)in->rows[i].columns;
        p.gradient_strides[i] = gradients ? (int64_t)gradients->parts[i].columns : 0;
    }
    return p;
}

static inline CudnnOperands cudnn_operands(const DeviceAttentionInput *in, Matrix y,
                                           float *logsumexp) {
    CudnnOperands on = {};
    for (size_t i = 0; i < 3; i++) on.parts[i] = in->rows[i].data;
    on.y = y.data;
    on.logsumexp = logsumexp;
    return on;
}

// What softmax_attention.cuh says of these functions holds here, and what one of either leaves,
// each of the others takes. False, and nothing is done: it is not for cuDNN, or cuDNN (NULL) is not
// there.
static inline bool cudnn_attention_forward(Cudnn *cudnn, const Device *d, Matrix y,
                                           float *logsumexp, const DeviceAttentionInput *in,
                                           double sink) {
    attention_check(in, y);
    if (!cudnn || !logsumexp || !cudnn_takes(in, y, sink)) return false;
    const CudnnProblem problem = cudnn_problem(in, NULL);
    const CudnnOperands on = cudnn_operands(in, y, logsumexp);
    return cudnn_run(cudnn, &problem, &on, d->stream);
}

static inline bool cudnn_attention_backward(Cudnn *cudnn, const Device *d,
                                            const DeviceAttentionGradients *gradients, Matrix dy,
                                            Matrix y, const float *logsumexp,
                                            const DeviceAttentionInput *in, double sink) {
    attention_check(in, y);
    if (!cudnn || !cudnn_takes(in, y, sink)) return false;
    const CudnnProblem problem = cudnn_problem(in, gradients);
    CudnnOperands on = cudnn_operands(in, y, (float *)logsumexp); // which is read only
    for (size_t i = 0; i < 3; i++) on.gradients[i] = gradients->parts[i].data;
    on.dy = dy.data;
    return cudnn_run(cudnn, &problem, &on, d->stream);
}

#endif
