// Softmax attention of cuDNN, in numbers and pointers alone: cudnn_library.cpp is no CUDA source.
// Programs built without CUDNN=1 lack these functions, whose addresses are NULL then.
#ifndef CUDA_CUDNN_LIBRARY_H
#define CUDA_CUDNN_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

// Attention in bf16 without sink, dropout and padding. A row is the numbers of a token; those of a
// head stand together, heads without gaps.
struct CudnnProblem {
    bool backward, causal;
    int64_t batch, heads, size, queries, keys; // B, H, D, Tq, Tk
    int64_t strides[3], gradient_strides[3]; // numbers from row to row of queries, keys and values,
                                             // and of their gradients (forward: 0)
};

// Where it lies on the device. Forward: neither gradients nor dy.
struct CudnnOperands {
    void *parts[3], *gradients[3]; // queries (B, Tq), keys and values (B, Tk)
    void *y, *dy;                  // (B, Tq, C)
    float *logsumexp;              // (B, H, Tq)
};

// The library, and its plans for the problems that came.
struct Cudnn;

#define WHERE_BUILT_IN __attribute__((weak))

// For the current device. Ends the program where cuDNN does not work.
WHERE_BUILT_IN Cudnn *cudnn_create();
WHERE_BUILT_IN void cudnn_free(Cudnn *cudnn);

// Computes y and logsumexp, or gradients, on that stream (a cudaStream_t), by kernels that give the
// same bits each time. False, with a warning the first time: cuDNN has none. A problem that comes
// for the first time allocates memory, and cannot be captured.
WHERE_BUILT_IN bool cudnn_run(Cudnn *cudnn, const CudnnProblem *problem, const CudnnOperands *on,
                              void *stream);

static inline bool cudnn_is_there() {
    return cudnn_create != NULL;
}

#endif
