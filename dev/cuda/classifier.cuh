// The output layer and its loss on the GPU: logits = h E^T + bias, cross entropy, and all
// gradients. It processes a chunk of rows at a time, so that the B*T*V logits are never stored.
// With the logits l_ij of row i and token j, target t and the row's largest logit m_i,
//
//     e_ij = exp(l_ij - m_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + m_i - l_it
//     dl_ij = scale e_ij / Z_i,  dl_it = -scale (sum over j != t of e_ij) / Z_i
//     dh = dl E,  dE += dl^T h
//
// One product writes a chunk's logits, a kernel with one row per block replaces them with their
// gradients, and two more products read these; a bias gets the sums of their columns. A row stays
// in shared memory between its sums and its gradients if two rows fit. The target's gradient is
// computed from the other tokens' sum, so that it keeps its digits when nearly certain.
//
// Label smoothing by s adds scale s to dl_it and subtracts scale s / V from all dl_ij. It adds s
// (l_it - mean_j l_ij) to the loss. Only training smooths.
//
// When training in bf16 the logits are bf16. For evaluation and for returned logits they are
// float32.
#ifndef CUDA_CLASSIFIER_CUH
#define CUDA_CLASSIFIER_CUH

#include "classifier_rows.cuh"
#include "fused_classifier.cuh"
#include "gemm.cuh"
#include "partial_sums.cuh"
#include "sizes.h"

static constexpr int CLASSIFIER_THREADS = 512, SUM_THREADS = 1024;
static constexpr int LOGITS = 8;           // logits per thread and iteration
static constexpr unsigned BIAS_PARTS = 16; // parts of a chunk's rows, for sums of columns
static constexpr size_t STRIDE_STEP = 64;  // rows of logits start at multiples of this
static constexpr size_t FAST_STEP = 8;     // products are fast for multiples of this
static constexpr size_t CHUNK_STEP = 128;  // chunks are multiples of this: a tile of the products
// Rows of bf16. Chunks that fit in the L2 cache were slower on an H100 and an H200: their products
// are too small, and each chunk reads and writes all of dE.
static constexpr size_t CHUNK = 4096;
static constexpr float LOWEST_LOGIT = -1e30f;

// The results of a pass, on the device: the sum over targets of -log p, with and without smoothing,
// and, if no gradients are computed, the number of targets that were the most probable token.
struct ClassifierResult {
    double loss, unsmoothed, correct;
};

struct Classifier {
    size_t vocabulary, channels, stride; // V, C, row stride of logits
    size_t bytes;                        // size of a chunk
    void *logits; // (rows of a chunk, stride) bf16 or float, then their gradients
    float smoothing;
    float *losses, *unsmoothed,
        *correct;           // (M), the last is 1 if the target is the most probable token
    float *bias_sums;       // (BIAS_PARTS, V)
    bool fused;             // training stores no logits in memory
    float *log2_sums, *own; // (M) if fused: see struct Pass of fused_classifier.cuh
    float *weight_sums;     // (BIAS_PARTS, C)
};

// For weights (V, C) and at most `rows` rows. smoothing: 0 for none. fused: requires
// classifier_fuses().
static inline void classifier_carve(Classifier *c, DeviceArena *arena, size_t vocabulary,
                                    size_t channels, size_t rows, double smoothing, bool fused) {
    *c = Classifier();
    c->fused = fused;
    c->smoothing = (float)smoothing;
    c->vocabulary = vocabulary;
    c->channels = channels;
    c->stride = round_up(vocabulary, STRIDE_STEP);
    const size_t row = c->stride * sizeof(float), most = round_up(rows, CHUNK_STEP) * row;
    c->bytes = CHUNK * c->stride * sizeof(bf16);
    if (c->bytes > most) c->bytes = most;
    c->logits = arena_array<char>(arena, c->bytes, "a chunk of logits");
    c->losses = arena_array<float>(arena, rows, "a chunk of logits");
    c->unsmoothed = arena_array<float>(arena, rows, "a chunk of logits");
    c->correct = arena_array<float>(arena, rows, "a chunk of logits");
    c->bias_sums = arena_array<float>(arena, BIAS_PARTS * vocabulary, "a chunk of logits");
    if (!fused) return;
    c->log2_sums = arena_array<float>(arena, rows, "a chunk of logits");
    c->own = arena_array<float>(arena, rows, "a chunk of logits");
    c->weight_sums = arena_array<float>(arena, BIAS_PARTS * channels, "a chunk of logits");
}

// Returns whether training can work without logits in memory.
static inline bool classifier_fuses(const Device *d, size_t channels, bool in_bf16) {
    return HAVE_WARP_GROUPS && d->capability == 90 && channels % 8 == 0 &&
           channels <= fused::LARGEST && in_bf16;
}

// Rows per chunk, so that all chunks of m rows are about equally long. size: bytes per logit.
static inline size_t classifier_chunk(const Classifier *c, size_t size, size_t m) {
    const size_t most = c->bytes / (c->stride * size) / CHUNK_STEP * CHUNK_STEP,
                 chunks = (m + most - 1) / most;
    return round_up((m + chunks - 1) / chunks, CHUNK_STEP);
}

// Threads per row: no more warps than have work.
static inline unsigned classifier_threads(const Classifier *c) {
    const size_t threads = round_up(c->vocabulary, LOGITS * WARP) / LOGITS;
    return (unsigned)(threads < CLASSIFIER_THREADS ? threads : CLASSIFIER_THREADS);
}

// ---- loss and gradient of the logits ----------------------------------------
// The sum of eight logits, ignoring masked ones (-infinity).
static __device__ __forceinline__ float logits_sum(const float *x) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < LOGITS; k++) sum += x[k] == -INFINITY ? 0 : x[k];
    return sum;
}

// Adds eight more terms.
static __device__ __forceinline__ RowSum row_sum_add(RowSum s, const float *x) {
    float largest = s.largest;
#pragma unroll
    for (int k = 0; k < LOGITS; k++) largest = fmaxf(largest, x[k]);
    float sum = s.sum * exponential(s.largest, largest);
#pragma unroll
    for (int k = 0; k < LOGITS; k++) sum += exponential(x[k], largest);
    return {largest, sum};
}

static __device__ __forceinline__ RowSum row_sum_warp(RowSum s) {
    const float largest = warp_max(s.largest);
    return {largest, warp_sum(s.sum * exponential(s.largest, largest))};
}

// Merges the sums of all threads in a fixed order; every thread gets the result.
static __device__ __forceinline__ RowSum row_sum_block(RowSum s) {
    __shared__ RowSum warps[CLASSIFIER_THREADS / WARP]; // at most
    const unsigned lane = lane_index(), count = blockDim.x / WARP;
    s = row_sum_warp(s);
    if (lane == 0) warps[threadIdx.x / WARP] = s;
    __syncthreads();
    if (threadIdx.x < WARP) {
        s = row_sum_warp(lane < count ? warps[lane] : RowSum{LOWEST_LOGIT, 0});
        __syncwarp();
        if (lane == 0) warps[0] = s;
    }
    __syncthreads();
    return warps[0];
}

// Loads logits at .. at+7 of a row. Excludes the target's and those from V on, as -infinity.
template <typename T>
static __device__ __forceinline__ void load_logits(float *x, const T *row, uint32_t at,
                                                   uint32_t vocabulary, uint32_t target) {
    load_numbers<LOGITS>(x, row + at);
    if (target - at >= LOGITS && at + LOGITS <= vocabulary)
        return; // wraps around for a target before `at`
#pragma unroll
    for (int k = 0; k < LOGITS; k++)
        if (target == at + k || at + k >= vocabulary) x[k] = -INFINITY;
}

// Stores gradients in place of the logits at .. at+7. x holds the logits except the target's.
template <typename T>
static __device__ __forceinline__ void store_gradients(float *x, T *row, uint32_t at,
                                                       uint32_t target, const RowGradient &g) {
#pragma unroll
    for (int k = 0; k < LOGITS; k++)
        x[k] = target == at + k ? g.target : exponential(x[k], g.largest) * g.factor - g.spread;
    store_numbers<LOGITS>(row + at, x);
}

// Bytes of shared memory for sums over a row.
static constexpr size_t ROW_SUMS = WARP * sizeof(float);

// Computes the sums over a row in a block. kept (stride): shared memory for the row, or NULL.
template <typename T>
static __device__ __forceinline__ RowTotal row_total(const T *row, T *kept, uint32_t target,
                                                     uint32_t vocabulary, bool smooths) {
    RowTotal total = {{LOWEST_LOGIT, 0}, 0, 0, target < vocabulary};
    for (uint32_t at = LOGITS * threadIdx.x; at < vocabulary; at += LOGITS * blockDim.x) {
        float x[LOGITS];
        load_logits(x, row, at, vocabulary, target);
        if (kept) store_numbers<LOGITS>(kept + at, x);
        total.others = row_sum_add(total.others, x);
        if (smooths) total.all += logits_sum(x);
    }
    if (total.counts)
        total.target = (float)row[target]; // after the next barrier the row may change
    total.others = row_sum_block(total.others);
    if (smooths) total.all = block_sum(total.all, shared_memory<float>());
    return total;
}

// One row per block. Computes losses. Without `step`, also whether the target is the most probable
// token. With `step`, replaces the logits (rows, stride) with the gradients times its scale; the
// logits are kept in shared memory meanwhile if `keeps`. targets (rows), -1: none.
template <typename T>
static __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    cross_entropy_kernel(T *logits, const RowResults to, const int32_t *targets,
                         const StepParameters *step, uint32_t vocabulary, size_t stride,
                         float smoothing, bool keeps) {
    begin_kernel();
    T *const row = logits + blockIdx.x * stride, *const kept = keeps ? shared_memory<T>() +
                                                                           ROW_SUMS / sizeof(T)
                                                                     : NULL;
    const uint32_t target = (uint32_t)targets[blockIdx.x]; // out of range if there is no target
    const RowTotal total = row_total(row, kept, target, vocabulary, smoothing > 0);
    if (threadIdx.x == 0) {
        store_losses(to, blockIdx.x, total, vocabulary, smoothing);
        if (!step) to.correct[blockIdx.x] = total.counts && total.target >= total.others.largest;
    }
    if (!step) return;
    const RowGradient gradient = row_gradient(total, step->scale, vocabulary, smoothing);
    for (uint32_t at = LOGITS * threadIdx.x; at < vocabulary; at += LOGITS * blockDim.x) {
        float x[LOGITS];
        load_logits(x, kept ? kept : row, at, vocabulary, target);
        store_gradients(x, row, at, target, gradient);
    }
}

// The sums of losses (m), and of correct if not NULL, in double, in a fixed order.
static __global__ void __launch_bounds__(SUM_THREADS)
    loss_kernel(ClassifierResult *result, const RowResults of, size_t m) {
    begin_kernel();
    __shared__ double warps[WARP];
    double loss = 0, unsmoothed = 0, correct = 0;
    for (size_t i = threadIdx.x; i < m; i += SUM_THREADS) {
        loss += (double)of.losses[i];
        unsmoothed += (double)of.unsmoothed[i];
        if (of.correct) correct += (double)of.correct[i];
    }
    loss = block_sum(loss, warps);
    unsmoothed = block_sum(unsmoothed, warps);
    correct = block_sum(correct, warps);
    if (threadIdx.x == 0) *result = {loss, unsmoothed, correct};
}

// The results of rows from i on. Training does not compute `correct`.
static inline RowResults row_results(const Classifier *c, size_t i, bool training) {
    return {c->losses + i, c->unsmoothed + i, training ? NULL : c->correct + i};
}

// Launches cross_entropy_kernel() for a chunk; with `step` for gradients.
template <typename T>
static inline void cross_entropy(const Device *d, const Classifier *c, size_t i,
                                 const int32_t *targets, const StepParameters *step, size_t rows) {
    // A multiprocessor has 1 KiB more than the limit per block. Each block uses 1 KiB for the
    // system and 1 KiB for `warps`.
    const size_t half = (d->shared_limit + 1024) / 2 - 2048, row = c->stride * sizeof(T);
    const bool keeps = step && ROW_SUMS + row <= half;
    launch_early(d, cross_entropy_kernel<T>, blocks_of(rows, 1), classifier_threads(c),
                 ROW_SUMS + (keeps ? row : 0), (T *)c->logits, row_results(c, i, step != NULL),
                 targets + i, step, (uint32_t)c->vocabulary, c->stride, step ? c->smoothing : 0.0f,
                 keeps);
}

// ---- products ---------------------------------------------------------------
// Calls product(first, count) for token ranges first .. first+count-1 that cover all tokens. There
// are two ranges if V is not a multiple of FAST_STEP, for which the library has only slow products
// (GPT-2 124M, V 50,257, on an H200: a step takes 1.5x as long): first the last few tokens, then
// the others, at full speed.
template <typename Product>
static inline void for_tokens(const Classifier *c, const Product &product) {
    const size_t V = c->vocabulary, whole = V % FAST_STEP ? V / STRIDE_STEP * STRIDE_STEP : V;
    if (whole < V) product(whole, V - whole);
    if (whole > 0) product(0, whole);
}

// logits (rows, V) = h (rows, C) E^T + bias
static inline void classifier_product(Blas *blas, const Classifier *c, Matrix logits, Matrix h,
                                      DeviceWeight weight, size_t rows) {
    for_tokens(c, [&](size_t first, size_t count) {
        gemm_forward(blas, matrix_part(logits, first, 1), h, weight_rows(weight, first, count),
                     rows);
    });
}

// dh (rows, C) = dlogits (rows, V) E, dE += dlogits^T h
static inline void classifier_products_backward(Blas *blas, const Classifier *c, Matrix dh,
                                                float *dweight, Matrix dlogits, Matrix h,
                                                DeviceWeight weight, size_t rows) {
    bool add = false; // in this order dh is rounded once, except the part of the few tokens
    for_tokens(c, [&](size_t first, size_t count) {
        const Matrix part = matrix_part(dlogits, first, 1);
        const DeviceWeight w = weight_rows(weight, first, count);
        gemm_backward_input_of(blas, dh, part, w, rows, add);
        gemm_backward_weight(blas, dweight + first * c->channels, part, h, w, rows);
        add = true;
    });
}

// ---- the interface ----------------------------------------------------------
struct ClassifierInput {
    Matrix h;               // (M, C)
    DeviceWeight weight;    // E (V, C) with its bias
    const int32_t *targets; // (M), -1: not counted
    size_t m;               // M
};

struct ClassifierGradients {
    Matrix dh;      // (M, C), set
    float *dweight; // (V, C), added to
    float *dbias;   // (V), added to when the sums are finished; or NULL
};

// result (on the device): the sum over rows with target >= 0 of -log softmax(h E^T + bias)[target].
static inline void classifier_forward(const Device *d, Blas *blas, const Classifier *c,
                                      const ClassifierInput &in, ClassifierResult *result) {
    const size_t m = in.m, chunk = classifier_chunk(c, sizeof(float), m);
    const Matrix logits = {c->logits, c->stride, false};
    for (size_t i = 0; i < m; i += chunk) {
        const size_t rows = m - i < chunk ? m - i : chunk;
        classifier_product(blas, c, logits, gemm_input_rows(in.h, i), in.weight, rows);
        cross_entropy<float>(d, c, i, in.targets, NULL, rows);
    }
    launch_early(d, loss_kernel, 1, SUM_THREADS, 0, result, row_results(c, 0, false), m);
}

// classifier_train() without logits in memory.
static inline void classifier_train_fused(const Device *d, const Classifier *c,
                                          const ClassifierInput &in, const StepParameters *step,
                                          const ClassifierGradients &to) {
    const Matrix weight = {(void *)in.weight.rounded, c->channels, true};
    const bool smooths = c->smoothing > 0;
    if (smooths)
        column_sums_of(d, c->weight_sums, weight, c->vocabulary, c->channels, BIAS_PARTS, false);
    const fused::Pass p = {(int)in.m,
                           (int)c->vocabulary,
                           (int)c->channels,
                           in.weight.rounded,
                           in.weight.bias,
                           in.targets,
                           step,
                           row_results(c, 0, true),
                           c->log2_sums,
                           c->own,
                           (float *)to.dh.data,
                           to.dweight,
                           to.dbias,
                           to.dh.columns,
                           c->smoothing,
                           c->weight_sums,
                           smooths ? BIAS_PARTS : 0};
    fused::train(d, p, (const bf16 *)in.h.data);
}

// Like classifier_forward(), and also computes the gradients times the step's scale.
static inline void classifier_train(const Device *d, Blas *blas, PartialSums *sums,
                                    const Classifier *c, const ClassifierInput &in,
                                    const StepParameters *step, const ClassifierGradients &to,
                                    ClassifierResult *result) {
    const Matrix h = in.h;
    const size_t m = in.m, chunk = classifier_chunk(c, h.bf16 ? sizeof(bf16) : sizeof(float), m);
    const Matrix logits = {c->logits, c->stride, h.bf16};
    if (c->fused) classifier_train_fused(d, c, in, step, to);
    for (size_t i = 0; i < m && !c->fused; i += chunk) {
        const size_t rows = m - i < chunk ? m - i : chunk;
        classifier_product(blas, c, logits, gemm_input_rows(h, i), in.weight, rows);
        WITH_TYPE(logits, T, cross_entropy<T>(d, c, i, in.targets, step, rows));
        if (to.dbias)
            column_sums_of(d, c->bias_sums, logits, rows, c->vocabulary, BIAS_PARTS, i > 0);
        classifier_products_backward(blas, c, gemm_input_rows(to.dh, i), to.dweight, logits,
                                     gemm_input_rows(h, i), in.weight, rows);
    }
    if (to.dbias && !c->fused)
        partial_sums_join(sums, to.dbias, c->bias_sums, BIAS_PARTS, c->vocabulary);
    launch_early(d, loss_kernel, 1, SUM_THREADS, 0, result, row_results(c, 0, true), m);
}

// Computes logits (M, V) on the host.
static inline void classifier_logits(const Device *d, Blas *blas, const Classifier *c, Matrix h,
                                     DeviceWeight weight, size_t m, float *logits) {
    const size_t chunk = classifier_chunk(c, sizeof(float), m),
                 bytes = c->vocabulary * sizeof(float);
    const Matrix out = {c->logits, c->stride, false};
    for (size_t i = 0; i < m; i += chunk) {
        const size_t rows = m - i < chunk ? m - i : chunk;
        classifier_product(blas, c, out, gemm_input_rows(h, i), weight, rows);
        CUDA_CHECK(cudaMemcpy2DAsync(logits + i * c->vocabulary, bytes, c->logits,
                                     c->stride * sizeof(float), bytes, rows, cudaMemcpyDeviceToHost,
                                     d->stream));
    }
    device_synchronize(d);
}

#endif
