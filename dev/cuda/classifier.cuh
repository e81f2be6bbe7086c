// The output layer and its loss on the GPU: logits = h E^T + bias, cross entropy, and all gradients, a chunk
// of rows at a time, so that B*T*V numbers are never held. With the logits l_ij of row i and token j, target
// t and the row's largest logit m_i,
//
//     e_ij = exp(l_ij - m_i),  Z_i = sum_j e_ij,  loss_i = log Z_i + m_i - l_it
//     dl_ij = scale e_ij / Z_i,  dl_it = -scale (sum over j != t of e_ij) / Z_i,  dh = dl E,  dE += dl^T h
//
// A chunk's logits stay in the L2 cache; where dE does not, of which each chunk reads and writes all, chunks
// are longer instead. They are gone over as seldom as can be, for the largest logit and the sum of a row, and
// once more for the gradients, in the place of the logits, with the sums of their columns. Without the
// gradient of a bias, and where two rows fit into shared memory, one kernel does both, which keeps a row
// meanwhile. Else the product leaves the sums (logits_product.cuh), or where there is no such product a
// kernel that reads the logits once more, and another one makes the gradients. The target's own gradient is
// made of the other tokens' sum, so that it keeps its digits where the target is nearly certain.
//
// Label smoothing by s adds scale s to dl_it and takes scale s / V from all dl_ij; its loss is s (l_it -
// mean_j l_ij) more. Only training smooths.
//
// While training in bf16 the logits are bf16; for the loss alone, and for the logits themselves, they are
// float32.
#ifndef CUDA_CLASSIFIER_CUH
#define CUDA_CLASSIFIER_CUH

#include "logits_product.cuh"
#include "partial_sums.cuh"

static constexpr int CLASSIFIER_THREADS = 512, GRADIENT_THREADS = 256, SUM_THREADS = 1024;
static constexpr int LOGITS = 8;                                 // that a thread takes at a time
static constexpr uint32_t GRADIENT_ROWS = 16, ROWS_TOGETHER = 4; // merged, and loaded, at a time
static constexpr unsigned GRADIENT_BLOCKS = 256, LEAST_PARTS = 8;
static constexpr size_t STRIDE_STEP = 64;  // rows of logits start at multiples of this
static constexpr size_t CHUNK_STEP = 128;  // chunks are multiples of this: a tile of the products
static constexpr size_t LONG_CHUNK = 4096; // rows of bf16 where dE leaves the cache

// What the gradients of a row of logits are made of: its largest logit m, the factor of exp(l - m), what
// smoothing takes from each, and the target's own gradient.
struct RowGradient {
    float largest, factor, spread, target;
};

// What a pass gives, on the device: the sum over targets of -log p, smoothed, and without smoothing; and,
// without gradients, how many targets were the most probable token.
struct ClassifierResult {
    double loss, unsmoothed, correct;
};

struct Classifier {
    size_t vocabulary, channels, stride; // V, C, logits from one row to the next
    size_t bytes;                        // of a chunk
    void *logits;                        // (rows of a chunk, stride) bf16 or float, then their gradients
    float smoothing;
    float *losses, *unsmoothed, *correct; // (M), the last 1 where the target is the most probable token
    LogitsSums sums;                      // of a chunk of bf16, in as many parts as the product leaves
    unsigned gradient_parts;              // of a chunk's rows
    float *bias_sums;                     // (gradient_parts, V)
};

static inline size_t classifier_round_up(size_t value, size_t step) {
    return (value + step - 1) / step * step;
}

// Bytes of a chunk of at most `rows` rows of logits. An H100's L2 cache has two halves, and what lies in the
// other one is far: two fifths fit in one.
static inline size_t classifier_bytes(const Classifier *c, const Device *d, size_t rows) {
    const size_t row = c->stride * sizeof(float), dweight = sizeof(float) * c->vocabulary * c->channels;
    const size_t least = CHUNK_STEP * row, most = classifier_round_up(rows, CHUNK_STEP) * row;
    const size_t wanted = dweight > d->l2 / 2 ? LONG_CHUNK * c->stride * sizeof(bf16) : d->l2 / 5 * 2;
    return wanted < least ? least : wanted > most ? most : wanted;
}

// Parts of a chunk's rows, with a block of threads for some columns of each: so many that there is work for a
// whole GPU with any vocabulary.
static inline unsigned gradient_parts(size_t vocabulary) {
    const unsigned parts = GRADIENT_BLOCKS / blocks_of(vocabulary, LOGITS * GRADIENT_THREADS);
    return parts < LEAST_PARTS ? LEAST_PARTS : parts;
}

// For weights (V, C) and at most `rows` rows. smoothing: 0 none.
static inline void classifier_carve(Classifier *c, Arena *arena, const Device *d, size_t vocabulary,
                                    size_t channels, size_t rows, double smoothing) {
    *c = Classifier();
    c->smoothing = (float)smoothing;
    c->vocabulary = vocabulary;
    c->channels = channels;
    c->stride = classifier_round_up(vocabulary, STRIDE_STEP);
    c->bytes = classifier_bytes(c, d, rows);
    c->logits = arena_array<char>(arena, c->bytes, "a chunk of logits");
    c->losses = arena_array<float>(arena, rows, "a chunk of logits");
    c->unsmoothed = arena_array<float>(arena, rows, "a chunk of logits");
    c->correct = arena_array<float>(arena, rows, "a chunk of logits");
    const size_t chunk = c->bytes / (c->stride * sizeof(bf16));
    c->sums.parts = logits_parts(vocabulary);
    c->sums.others = arena_array<RowSum>(arena, chunk * c->sums.parts, "a chunk of logits");
    if (smoothing > 0) c->sums.all = arena_array<float>(arena, chunk * c->sums.parts, "a chunk of logits");
    c->sums.target = arena_array<float>(arena, chunk, "a chunk of logits");
    c->gradient_parts = gradient_parts(vocabulary);
    c->bias_sums = arena_array<float>(arena, c->gradient_parts * vocabulary, "a chunk of logits");
}

// Rows of a chunk, such that all chunks of m rows are about equally long. size: of a logit, bytes.
static inline size_t classifier_chunk(const Classifier *c, size_t size, size_t m) {
    const size_t most = c->bytes / (c->stride * size) / CHUNK_STEP * CHUNK_STEP,
                 chunks = (m + most - 1) / most;
    return classifier_round_up((m + chunks - 1) / chunks, CHUNK_STEP);
}

// Threads for a row, `most` at most: no more warps than it gives work to.
static inline unsigned classifier_threads(const Classifier *c, size_t most) {
    const size_t threads = classifier_round_up(c->vocabulary, LOGITS * WARP) / LOGITS;
    return (unsigned)(threads < most ? threads : most);
}

// ---- loss and gradient of the logits ---------------------------------------------------------------------

// The sum of eight logits, without those that are not there.
static __device__ __forceinline__ float logits_sum(const float *x) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < LOGITS; k++) sum += x[k] == -INFINITY ? 0 : x[k];
    return sum;
}

// Takes eight more terms in.
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

// Merges what all threads have, in a fixed order; the result is every thread's.
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

// Logits at .. at+7 of a row; V and more, and the target's: -infinity, as if they were not there.
template <typename T>
static __device__ __forceinline__ void load_logits(float *x, const T *row, uint32_t at, uint32_t vocabulary,
                                                   uint32_t target) {
    load_numbers<LOGITS>(x, row + at);
    if (target - at >= LOGITS && at + LOGITS <= vocabulary) return; // wraps around for a target before `at`
#pragma unroll
    for (int k = 0; k < LOGITS; k++)
        if (target == at + k || at + k >= vocabulary) x[k] = -INFINITY;
}

// Gradients in the place of logits at .. at+7, of which x holds others than the target's.
template <typename T>
static __device__ __forceinline__ void store_gradients(float *x, T *row, uint32_t at, uint32_t target,
                                                       const RowGradient &g) {
#pragma unroll
    for (int k = 0; k < LOGITS; k++)
        x[k] = target == at + k ? g.target : exponential(x[k], g.largest) * g.factor - g.spread;
    store_numbers<LOGITS>(row + at, x);
}

// Where the rows of a chunk begin in the arrays of (M).
struct RowResults {
    float *losses, *unsmoothed, *correct;
};

// What all sums over a row come to: of the others' logits, of all logits (where it is smoothed), and the
// target's logit, where there is a target.
struct RowTotal {
    RowSum others;
    float all, target;
    bool counts;
};

// Losses and those without smoothing, 0 where there is no target.
static __device__ __forceinline__ void store_losses(const RowResults &to, size_t i, const RowTotal &row,
                                                    uint32_t vocabulary, float smoothing) {
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

// Bytes of shared memory that sums over a row take.
static constexpr size_t ROW_SUMS = WARP * sizeof(float);

// The sums over a row, by a block. kept (stride): shared memory that the row goes to, or NULL.
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
    if (total.counts) total.target = (float)row[target]; // behind the next barrier the row may change
    total.others = row_sum_block(total.others);
    if (smooths) total.all = block_sum(total.all, shared_memory<float>());
    return total;
}

// A row a block: losses; and without `step` whether the target is the most probable token, with it the
// gradients, times its scale, in the place of the logits (rows, stride). targets (rows), -1: none.
template <typename T>
static __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    cross_entropy_kernel(T *logits, const RowResults to, const int32_t *targets, const StepParameters *step,
                         uint32_t vocabulary, size_t stride, float smoothing) {
    begin_kernel();
    T *const row = logits + blockIdx.x * stride, *const kept = shared_memory<T>() + ROW_SUMS / sizeof(T);
    const uint32_t target = (uint32_t)targets[blockIdx.x]; // of no token where there is none
    const RowTotal total = row_total(row, step ? kept : NULL, target, vocabulary, smoothing > 0);
    if (threadIdx.x == 0) {
        store_losses(to, blockIdx.x, total, vocabulary, smoothing);
        if (!step) to.correct[blockIdx.x] = total.counts && total.target >= total.others.largest;
    }
    if (!step) return;
    const RowGradient gradient = row_gradient(total, step->scale, vocabulary, smoothing);
    for (uint32_t at = LOGITS * threadIdx.x; at < vocabulary; at += LOGITS * blockDim.x) {
        float x[LOGITS];
        load_logits(x, kept, at, vocabulary, target);
        store_gradients(x, row, at, target, gradient);
    }
}

// A row a block: what logits_product() leaves, in one part.
template <typename T>
static __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    row_sums_kernel(const LogitsSums to, const T *logits, const int32_t *targets, uint32_t vocabulary,
                    size_t stride) {
    begin_kernel();
    const RowTotal total = row_total(logits + blockIdx.x * stride, (T *)NULL, (uint32_t)targets[blockIdx.x],
                                     vocabulary, to.all != NULL);
    if (threadIdx.x != 0) return;
    to.others[blockIdx.x] = total.others;
    if (to.all) to.all[blockIdx.x] = total.all;
    to.target[blockIdx.x] = total.target;
}

// The sums of losses (m), and of correct where it has data, in double, in a fixed order.
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

// A row's parts together, by a warp.
static __device__ __forceinline__ RowTotal merge_parts(const LogitsSums &sums, size_t row, bool counts) {
    RowTotal total = {{LOWEST_LOGIT, 0}, 0, counts ? sums.target[row] : 0, counts};
    for (unsigned i = lane_index(); i < sums.parts; i += WARP) {
        const RowSum part = sums.others[row * sums.parts + i];
        const float largest = fmaxf(total.others.largest, part.largest);
        total.others = {largest, total.others.sum * exponential(total.others.largest, largest) +
                                     part.sum * exponential(part.largest, largest)};
        if (sums.all) total.all += sums.all[row * sums.parts + i];
    }
    total.others = row_sum_warp(total.others);
    if (sums.all) total.all = warp_sum(total.all);
    return total;
}

// Block (x, part): eight columns a thread of its share of the rows. Gradients, times the step's scale, in the
// place of logits (rows, stride), losses, and bias_sums (gridDim.y, V), or NULL, += the sums of the
// gradients' columns (set in the first chunk), row after row.
template <typename T>
static __global__ void __launch_bounds__(GRADIENT_THREADS)
    logits_gradient_kernel(T *logits, float *bias_sums, const RowResults to, const LogitsSums sums,
                           const int32_t *targets, const StepParameters *step, uint32_t rows,
                           uint32_t vocabulary, size_t stride, float smoothing, bool first_chunk) {
    begin_kernel();
    __shared__ RowGradient gradients[GRADIENT_ROWS];
    const uint32_t at = LOGITS * (blockIdx.x * blockDim.x + threadIdx.x);
    const uint32_t begin = (uint32_t)((uint64_t)rows * blockIdx.y / gridDim.y),
                   end = (uint32_t)((uint64_t)rows * (blockIdx.y + 1) / gridDim.y);
    float sum[LOGITS] = {};
    for (uint32_t first = begin; first < end; first += GRADIENT_ROWS) {
        const uint32_t count = min(end - first, GRADIENT_ROWS);
        __syncthreads(); // the gradients before these are read
        for (uint32_t i = threadIdx.x / WARP; i < count; i += blockDim.x / WARP) {
            const RowTotal total = merge_parts(sums, first + i, (uint32_t)targets[first + i] < vocabulary);
            if (lane_index() != 0) continue;
            gradients[i] = row_gradient(total, step->scale, vocabulary, smoothing);
            if (blockIdx.x == 0) store_losses(to, first + i, total, vocabulary, smoothing);
        }
        __syncthreads();
        if (at >= vocabulary) continue;
        for (uint32_t i = 0; i < count; i += ROWS_TOGETHER) {
            float x[ROWS_TOGETHER][LOGITS];
#pragma unroll
            for (uint32_t r = 0; r < ROWS_TOGETHER; r++)
                if (i + r < count)
                    load_logits(x[r], logits + (first + i + r) * stride, at, vocabulary,
                                (uint32_t)targets[first + i + r]);
#pragma unroll
            for (uint32_t r = 0; r < ROWS_TOGETHER; r++) {
                if (i + r >= count) continue;
                store_gradients(x[r], logits + (first + i + r) * stride, at, (uint32_t)targets[first + i + r],
                                gradients[i + r]);
#pragma unroll
                for (int k = 0; k < LOGITS; k++) sum[k] += x[r][k];
            }
        }
    }
    if (!bias_sums) return;
#pragma unroll
    for (int k = 0; k < LOGITS; k++) {
        float *const column = bias_sums + (size_t)blockIdx.y * vocabulary + at + k;
        if (at + k < vocabulary) *column = (first_chunk ? 0 : *column) + sum[k];
    }
}

// Of rows from i on. Training leaves no `correct`.
static inline RowResults row_results(const Classifier *c, size_t i, bool training) {
    return {c->losses + i, c->unsmoothed + i, training ? NULL : c->correct + i};
}

// Starts cross_entropy_kernel() for a chunk; with `step` for gradients, which takes shared memory for a row.
template <typename T>
static inline void cross_entropy(const Device *d, const Classifier *c, size_t i, const int32_t *targets,
                                 const StepParameters *step, size_t rows) {
    launch_early(d, cross_entropy_kernel<T>, blocks_of(rows, 1), classifier_threads(c, CLASSIFIER_THREADS),
                 ROW_SUMS + (step ? c->stride * sizeof(T) : 0), (T *)c->logits,
                 row_results(c, i, step != NULL), targets + i, step, (uint32_t)c->vocabulary, c->stride,
                 step ? c->smoothing : 0.0f);
}

// Starts logits_gradient_kernel() for a chunk.
template <typename T>
static inline void logits_gradient(const Device *d, const Classifier *c, const LogitsSums &sums, size_t i,
                                   const int32_t *targets, const StepParameters *step, size_t rows,
                                   bool bias) {
    const unsigned threads = classifier_threads(c, GRADIENT_THREADS);
    const dim3 grid(blocks_of(c->vocabulary, LOGITS * threads), c->gradient_parts);
    launch_early(d, logits_gradient_kernel<T>, grid, threads, 0, (T *)c->logits, bias ? c->bias_sums : NULL,
                 row_results(c, i, true), sums, targets + i, step, (uint32_t)rows, (uint32_t)c->vocabulary,
                 c->stride, c->smoothing, i == 0);
}

// Gradients in the place of a chunk's logits, which are computed before. i: its first row.
template <typename T>
static inline void chunk_gradients(const Device *d, Blas *blas, const Classifier *c, GemmInput h,
                                   DeviceWeight weight, size_t i, const int32_t *targets,
                                   const StepParameters *step, size_t rows, bool bias) {
    const GemmInput logits = {c->logits, c->stride, h.bf16}, chunk = gemm_input_rows(h, i);
    // A multiprocessor has 1 KiB more than a block may take, and each block takes 1 KiB for the system, 1 for
    // `warps`.
    const size_t half = (d->shared_limit + 1024) / 2 - 2048;
    if (!bias && ROW_SUMS + c->stride * sizeof(T) <= half) {
        gemm_forward(blas, logits, chunk, weight, rows);
        cross_entropy<T>(d, c, i, targets, step, rows);
        return;
    }
    LogitsSums sums = c->sums;
    if (logits_product_takes(d, chunk, weight)) {
        logits_product(d, logits, chunk, weight, rows, targets + i, sums);
    } else {
        sums.parts = 1;
        gemm_forward(blas, logits, chunk, weight, rows);
        launch_early(d, row_sums_kernel<T>, blocks_of(rows, 1), classifier_threads(c, CLASSIFIER_THREADS),
                     ROW_SUMS, sums, (const T *)c->logits, targets + i, (uint32_t)c->vocabulary, c->stride);
    }
    logits_gradient<T>(d, c, sums, i, targets, step, rows, bias);
}

// ---- the interface ---------------------------------------------------------------------------------------

// result (on the device): the sum over rows with target >= 0 of -log softmax(h E^T + bias)[target]. h (M, C),
// weight E (V, C) with its bias, targets (M), -1 = not counted.
static inline void classifier_forward(const Device *d, Blas *blas, const Classifier *c, GemmInput h,
                                      DeviceWeight weight, const int32_t *targets, size_t m,
                                      ClassifierResult *result) {
    const size_t chunk = classifier_chunk(c, sizeof(float), m);
    const GemmInput logits = {c->logits, c->stride, false};
    for (size_t i = 0; i < m; i += chunk) {
        const size_t rows = m - i < chunk ? m - i : chunk;
        gemm_forward(blas, logits, gemm_input_rows(h, i), weight, rows);
        cross_entropy<float>(d, c, i, targets, NULL, rows);
    }
    launch_early(d, loss_kernel, 1, SUM_THREADS, 0, result, row_results(c, 0, false), m);
}

// The same and, times the step's scale: dh (M, C) set, dweight (V, C) added to, and dbias (V, or NULL) when
// `sums` are finished.
static inline void classifier_train(const Device *d, Blas *blas, PartialSums *sums, const Classifier *c,
                                    GemmInput h, DeviceWeight weight, const int32_t *targets, size_t m,
                                    const StepParameters *step, GemmInput dh, float *dweight, float *dbias,
                                    ClassifierResult *result) {
    const size_t chunk = classifier_chunk(c, h.bf16 ? sizeof(bf16) : sizeof(float), m);
    const GemmInput logits = {c->logits, c->stride, h.bf16};
    for (size_t i = 0; i < m; i += chunk) {
        const size_t rows = m - i < chunk ? m - i : chunk;
        WITH_TYPE(logits, T,
                  chunk_gradients<T>(d, blas, c, h, weight, i, targets, step, rows, dbias != NULL));
        gemm_backward_input(blas, gemm_input_rows(dh, i), logits, weight, rows);
        gemm_backward_weight(blas, dweight, logits, gemm_input_rows(h, i), weight, rows);
    }
    if (dbias) partial_sums_join(sums, dbias, c->bias_sums, c->gradient_parts, c->vocabulary);
    launch_early(d, loss_kernel, 1, SUM_THREADS, 0, result, row_results(c, 0, true), m);
}

// logits (M, V) on the host, all of them: tests and small models.
static inline void classifier_logits(const Device *d, Blas *blas, const Classifier *c, GemmInput h,
                                     DeviceWeight weight, size_t m, float *logits) {
    const size_t chunk = classifier_chunk(c, sizeof(float), m), bytes = c->vocabulary * sizeof(float);
    const GemmInput out = {c->logits, c->stride, false};
    for (size_t i = 0; i < m; i++) {
        if (i % chunk == 0)
            gemm_forward(blas, out, gemm_input_rows(h, i), weight, m - i < chunk ? m - i : chunk);
        CUDA_CHECK(cudaMemcpyAsync(logits + i * c->vocabulary, (float *)c->logits + i % chunk * c->stride,
                                   bytes, cudaMemcpyDeviceToHost, d->stream));
    }
    device_synchronize(d);
}

#endif
