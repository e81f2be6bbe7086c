// Bidirectional additive attention over a whole sequence (dev/cpu/additive_global.h). Part of
// attention.cu.
//
// A sequence is cut into tiles of tokens. A thread block processes a tile of one head: each warp
// takes one token at a time, each lane every 32nd of its channels. The sums of a tile are stored in
// memory, and one block per head adds them in tile order, so that the bits are the same in each
// run. The forward pass reads queries, keys and values once, the backward pass once more.
#ifndef CUDA_ADDITIVE_GLOBAL_CUH
#define CUDA_ADDITIVE_GLOBAL_CUH

#include "attention_input.cuh"

namespace pooling {

static constexpr int WARPS = 8, THREADS = WARPS * WARP, TILE = 128;

// T: the type of queries, keys, values and results.
template <typename T> struct AdditiveGlobalPass {
    const T *rows[3], *dy; // (B, T, C); the gradient to y
    T *gradients[3], *y;
    size_t strides[3], gradient_strides[3]; // from one token to the next
    const uint8_t *mask;                    // (B, T) or NULL
    const float *weights;                   // (2, H, D) w_q, w_k
    float *kept;                            // (B H, KEPT)
    float *sums;                            // (B H, tiles, SUMS) per tile
    float *total;                           // (B H, D+1) the sums over all tiles
    size_t length, channels;                // T, C
    int heads, size, tiles;                 // H, D
};

// The floats that a head keeps for the backward pass: g; the weighted mean of the keys, which times
// g is pool(p); and for both poolings the largest score, in powers of 2, and 1 / (sum of weights).
static __host__ __device__ __forceinline__ size_t kept_numbers(int size) {
    return 2 * (size_t)size + 4;
}

// The floats of a tile: two about its weights, and two sums over its tokens.
static __host__ __device__ __forceinline__ size_t sum_numbers(int size) {
    return 2 * (size_t)size + 2;
}

// ---- a tile and its tokens --------------------------------------------------
// A sequence, one of its heads, and a range of its tokens.
struct AdditiveGlobalPlace {
    size_t unit, b, h, first, end;
    float *sums; // (SUMS)
};

template <typename T>
static __device__ __forceinline__ AdditiveGlobalPlace place_of(const AdditiveGlobalPass<T> &p) {
    const size_t tile = blockIdx.x % (unsigned)p.tiles, unit = blockIdx.x / (unsigned)p.tiles,
                 first = tile * TILE;
    return {unit,  unit / (size_t)p.heads,      unit % (size_t)p.heads,
            first, min(p.length, first + TILE), p.sums + blockIdx.x * sum_numbers(p.size)};
}

template <typename T>
static __device__ __forceinline__ bool is_token(const AdditiveGlobalPass<T> &p,
                                                const AdditiveGlobalPlace &at, size_t j) {
    return !p.mask || p.mask[at.b * p.length + j];
}

template <typename T>
static __device__ __forceinline__ const float *kept_of(const AdditiveGlobalPass<T> &p,
                                                       size_t unit) {
    return p.kept + unit * kept_numbers(p.size);
}

// The head's elements in row j of a matrix of tokens.
template <typename N, typename T>
static __device__ __forceinline__ N *row_of(const AdditiveGlobalPass<T> &p, N *x, size_t stride,
                                            const AdditiveGlobalPlace &at, size_t j) {
    return x + (at.b * p.length + j) * stride + at.h * (size_t)p.size;
}

// Loads a lane's channels out of `size`; 0 beyond the last one.
template <int ITEMS, typename N>
static __device__ __forceinline__ void load_channels(float (&x)[ITEMS], const N *from, int size) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int c = i * WARP + (int)lane_index();
        x[i] = c < size ? (float)from[c] : 0;
    }
}

template <int ITEMS, typename N>
static __device__ __forceinline__ void store_channels(N *to, const float (&x)[ITEMS], int size) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int c = i * WARP + (int)lane_index();
        if (c < size) to[c] = (N)x[i];
    }
}

template <int ITEMS>
static __device__ __forceinline__ float dot(const float (&x)[ITEMS], const float (&y)[ITEMS]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) sum += x[i] * y[i];
    return warp_sum(sum);
}

// Loads the factor of x in a pooling: g for keys, 1 for queries.
template <int ITEMS, typename T>
static __device__ __forceinline__ void
load_factor(float (&factor)[ITEMS], const AdditiveGlobalPass<T> &p, const AdditiveGlobalPlace &at,
            AttentionPart part) {
    if (part == KEY) {
        load_channels(factor, kept_of(p, at.unit), p.size);
    } else {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) factor[i] = 1;
    }
}

template <int ITEMS, typename T>
static __device__ __forceinline__ void
load_weights(float (&w)[ITEMS], const AdditiveGlobalPass<T> &p, const AdditiveGlobalPlace &at,
             AttentionPart part) {
    load_channels(w, p.weights + (size_t)part * p.channels + at.h * (size_t)p.size, p.size);
}

// Computes the vector whose dot product with x is the score, in powers of 2.
template <int ITEMS>
static __device__ __forceinline__ void score_weights(float (&to)[ITEMS], const float (&w)[ITEMS],
                                                     const float (&factor)[ITEMS], int size) {
    const float scale = 1.44269504f / sqrtf((float)size);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) to[i] = scale * w[i] * factor[i];
}

// to (size) = the sum over warps of x, held by each warp's lanes. shared (WARPS, size).
template <int ITEMS>
static __device__ __forceinline__ void add_warps(float *to, const float (&x)[ITEMS], int size,
                                                 float *shared) {
    __syncthreads(); // shared may still be read
    store_channels(shared + (int)threadIdx.x / WARP * size, x, size);
    __syncthreads();
    for (int c = (int)threadIdx.x; c < size; c += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += shared[w * size + c];
        to[c] = sum;
    }
}

// ---- pooling ----------------------------------------------------------------
// For a tile: the largest score, the sum of weights relative to it, and the weighted sum of x_j.
template <typename T, int ITEMS>
static __global__ void __launch_bounds__(THREADS)
    pool_kernel(const AdditiveGlobalPass<T> p, AttentionPart part) {
    begin_kernel();
    const AdditiveGlobalPlace at = place_of(p);
    float factor[ITEMS], w[ITEMS], u[ITEMS], sum[ITEMS] = {};
    load_factor(factor, p, at, part);
    load_weights(w, p, at, part);
    score_weights(u, w, factor, p.size);
    float largest = -INFINITY, total = 0;
    for (size_t j = at.first + threadIdx.x / WARP; j < at.end; j += WARPS) {
        if (!is_token(p, at, j)) continue;
        float x[ITEMS];
        load_channels(x, row_of(p, p.rows[part], p.strides[part], at, j), p.size);
        const float score = dot(x, u), now = fmaxf(largest, score),
                    shrink = exp2_fast(largest - now), e = exp2_fast(score - now);
        largest = now;
        total = total * shrink + e;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) sum[i] = sum[i] * shrink + e * x[i];
    }
    float *const shared = shared_memory<float>(), *const warps =
                                                      shared + WARPS * p.size; // (2, WARPS)
    if (lane_index() == 0) {
        warps[threadIdx.x / WARP] = largest;
        warps[WARPS + threadIdx.x / WARP] = total;
    }
    __syncthreads();
    float most = warps[0], all = 0;
    for (int i = 1; i < WARPS; i++) most = fmaxf(most, warps[i]);
    const float shrink = largest == -INFINITY ? 0 : exp2_fast(largest - most);
    for (int i = 0; i < WARPS; i++)
        if (warps[i] != -INFINITY) all += warps[WARPS + i] * exp2_fast(warps[i] - most);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) sum[i] *= shrink;
    add_warps(at.sums + 2, sum, p.size, shared);
    if (threadIdx.x > 0) return;
    at.sums[0] = most;
    at.sums[1] = all;
}

// Combines the poolings of a head's tiles: one block per head, one thread per channel.
template <typename T>
static __global__ void pooled_kernel(const AdditiveGlobalPass<T> p, AttentionPart part) {
    begin_kernel();
    const size_t step = sum_numbers(p.size), tiles = (size_t)p.tiles;
    const float *const sums = p.sums + blockIdx.x * tiles * step;
    float *const kept = p.kept + blockIdx.x * kept_numbers(p.size), *const scalars = kept +
                                                                                     2 * p.size +
                                                                                     2 * part;
    const int c = (int)threadIdx.x;
    float most = -INFINITY, total = 0, sum = 0;
    for (size_t i = 0; i < tiles; i++) most = fmaxf(most, sums[i * step]);
    for (size_t i = 0; i < tiles; i++) {
        if (sums[i * step] == -INFINITY) continue; // only padding
        const float shrink = exp2_fast(sums[i * step] - most);
        total += shrink * sums[i * step + 1];
        if (c < p.size) sum += shrink * sums[i * step + 2 + (size_t)c];
    }
    const float inverse = total > 0 ? 1 / total : 0;
    if (c < p.size) kept[(part == KEY ? p.size : 0) + c] = sum * inverse;
    if (c > 0) return;
    scalars[0] = most;
    scalars[1] = inverse;
}

// y_i = pool(p, w_k) * v_i
template <typename T, int ITEMS>
static __global__ void __launch_bounds__(THREADS) output_kernel(const AdditiveGlobalPass<T> p) {
    begin_kernel();
    const AdditiveGlobalPlace at = place_of(p);
    float g[ITEMS], key[ITEMS];
    load_channels(g, kept_of(p, at.unit), p.size);
    load_channels(key, kept_of(p, at.unit) + p.size, p.size);
    for (size_t i = at.first + threadIdx.x / WARP; i < at.end; i += WARPS) {
        float x[ITEMS];
        load_channels(x, row_of(p, p.rows[VALUE], p.strides[VALUE], at, i), p.size);
#pragma unroll
        for (int k = 0; k < ITEMS; k++) x[k] *= g[k] * key[k];
        store_channels(row_of(p, p.y, p.channels, at, i), x, p.size);
    }
}

// ---- backward ---------------------------------------------------------------
// The gradients to values, and for each tile the gradient to pool(p).
template <typename T, int ITEMS>
static __global__ void __launch_bounds__(THREADS)
    values_backward_kernel(const AdditiveGlobalPass<T> p) {
    begin_kernel();
    const AdditiveGlobalPlace at = place_of(p);
    float g[ITEMS], key[ITEMS], dpooled[ITEMS] = {};
    load_channels(g, kept_of(p, at.unit), p.size);
    load_channels(key, kept_of(p, at.unit) + p.size, p.size);
    for (size_t i = at.first + threadIdx.x / WARP; i < at.end; i += WARPS) {
        float v[ITEMS], dy[ITEMS];
        load_channels(v, row_of(p, p.rows[VALUE], p.strides[VALUE], at, i), p.size);
        load_channels(dy, row_of(p, p.dy, p.channels, at, i), p.size);
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            dpooled[k] += dy[k] * v[k];
            dy[k] *= g[k] * key[k];
        }
        store_channels(row_of(p, p.gradients[VALUE], p.gradient_strides[VALUE], at, i), dy, p.size);
    }
    add_warps(at.sums + 2, dpooled, p.size, shared_memory<float>());
}

// Sums over the tiles of a head: the gradient to a pooling's output, and its dot product with the
// output. One block per head, one thread per channel.
template <typename T>
static __global__ void gather_kernel(const AdditiveGlobalPass<T> p, AttentionPart part) {
    begin_kernel();
    const size_t step = sum_numbers(p.size), tiles = (size_t)p.tiles;
    const float *const sums = p.sums + blockIdx.x * tiles * step, *const kept =
                                                                      kept_of(p, blockIdx.x);
    float *const total = p.total + blockIdx.x * (size_t)(p.size + 1);
    const int c = (int)threadIdx.x;
    float sum = 0, along = 0;
    for (size_t i = 0; c < p.size && i < tiles; i++) sum += sums[i * step + 2 + (size_t)c];
    if (c < p.size) {
        total[c] = sum;
        along = sum * kept[c] * (part == KEY ? kept[p.size + c] : 1);
    }
    along = block_sum(along, shared_memory<float>());
    if (c == 0) total[p.size] = along;
}

// The gradients to queries or keys, and for each tile those to the factor and to w.
template <typename T, int ITEMS>
static __global__ void __launch_bounds__(THREADS)
    pool_backward_kernel(const AdditiveGlobalPass<T> p, AttentionPart part) {
    begin_kernel();
    const AdditiveGlobalPlace at = place_of(p);
    const float *const total = p.total + at.unit * (size_t)(p.size + 1), *const scalars =
                                                                             kept_of(p, at.unit) +
                                                                             2 * p.size + 2 * part;
    const float largest = scalars[0], inverse = scalars[1], along = total[p.size],
                scale = 1 / sqrtf((float)p.size);
    float factor[ITEMS], w[ITEMS], u[ITEMS], dpooled[ITEMS], a[ITEMS], dw[ITEMS] = {},
                                                                       dfactor[ITEMS] = {};
    load_factor(factor, p, at, part);
    load_weights(w, p, at, part);
    score_weights(u, w, factor, p.size);
    load_channels(dpooled, total, p.size);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) a[i] = dpooled[i] * factor[i];
    for (size_t j = at.first + threadIdx.x / WARP; j < at.end; j += WARPS) {
        float x[ITEMS];
        load_channels(x, row_of(p, p.rows[part], p.strides[part], at, j), p.size);
        const float weight = is_token(p, at, j) ? exp2_fast(dot(x, u) - largest) * inverse : 0,
                    dscore = scale * weight * (dot(x, a) - along);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const float gradient = weight * dpooled[i] + dscore * w[i];
            dw[i] += dscore * factor[i] * x[i];
            dfactor[i] += gradient * x[i];
            x[i] = factor[i] * gradient;
        }
        store_channels(row_of(p, p.gradients[part], p.gradient_strides[part], at, j), x, p.size);
    }
    add_warps(at.sums + 2, dfactor, p.size, shared_memory<float>());
    add_warps(at.sums + 2 + p.size, dw, p.size, shared_memory<float>());
}

// dweights (H, D) += the sum over the tiles of all sequences. Block (x, h): 32 channels; warp w
// takes tiles w, w + 8, ...
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    weights_kernel(const AdditiveGlobalPass<T> p, float *dweights, size_t batch) {
    begin_kernel();
    __shared__ float rows[WARPS][WARP];
    const size_t step = sum_numbers(p.size), tiles = (size_t)p.tiles, heads = (size_t)p.heads,
                 h = blockIdx.y;
    const unsigned lane = lane_index(), warp = threadIdx.x / WARP, c = blockIdx.x * WARP + lane;
    float sum = 0;
    for (size_t i = warp; c < (unsigned)p.size && i < batch * tiles; i += WARPS) {
        const size_t unit = i / tiles * heads + h;
        sum += p.sums[(unit * tiles + i % tiles) * step + 2 + (size_t)p.size + c];
    }
    rows[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= (unsigned)p.size) return;
    float all = 0;
    for (int w = 0; w < WARPS; w++) all += rows[w][lane];
    dweights[h * (size_t)p.size + c] += all;
}

// ---- launches ---------------------------------------------------------------

static inline size_t tiles_of(size_t length) {
    return (length + TILE - 1) / TILE;
}

template <typename T>
static AdditiveGlobalPass<T> pass_create(Matrix y, float *kept, const float *weights,
                                         const DeviceAttentionInput *in, float *workspace) {
    attention_check(in, y);
    if (in->causal || in->queries != in->keys)
        fail("additive attention: a sequence to itself in both directions is all that it takes");
    AdditiveGlobalPass<T> p = {};
    p.length = in->keys;
    p.channels = in->channels;
    p.heads = (int)in->heads;
    p.size = (int)(in->channels / in->heads);
    p.tiles = (int)tiles_of(in->keys);
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.rows[part] = (const T *)in->rows[part].data;
        p.strides[part] = in->rows[part].columns;
    }
    p.mask = in->mask;
    p.weights = weights;
    p.kept = kept;
    p.sums = workspace;
    p.total = workspace + in->batch * in->heads * (size_t)p.tiles * sum_numbers(p.size);
    return p;
}

// Launch shapes of kernels over tiles and over heads.
struct Shape {
    unsigned tiles, heads, channels; // blocks; threads
    size_t shared;
};

template <typename T> static Shape shape_of(const AdditiveGlobalPass<T> &p, size_t batch) {
    const size_t units = batch * (size_t)p.heads, D = (size_t)p.size;
    return {blocks_of(units * (size_t)p.tiles, 1), blocks_of(units, 1), blocks_of(D, WARP) * WARP,
            WARPS * (D + 2) * sizeof(float)};
}

template <typename T, int ITEMS>
static void run_forward(const Device *d, const AdditiveGlobalPass<T> &p, size_t batch) {
    const Shape s = shape_of(p, batch);
    for (AttentionPart part : {QUERY, KEY}) {
        launch_early(d, pool_kernel<T, ITEMS>, s.tiles, THREADS, s.shared, p, part);
        launch_early(d, pooled_kernel<T>, s.heads, s.channels, 0, p, part);
    }
    launch_early(d, output_kernel<T, ITEMS>, s.tiles, THREADS, 0, p);
}

template <typename T, int ITEMS>
static void run_backward(const Device *d, const AdditiveGlobalPass<T> &p, size_t batch,
                         float *dweights) {
    const Shape s = shape_of(p, batch);
    const dim3 of_weights(blocks_of((size_t)p.size, WARP), (unsigned)p.heads);
    launch_early(d, values_backward_kernel<T, ITEMS>, s.tiles, THREADS, s.shared, p);
    for (AttentionPart part : {KEY, QUERY}) {
        launch_early(d, gather_kernel<T>, s.heads, s.channels, WARP * sizeof(float), p, part);
        launch_early(d, pool_backward_kernel<T, ITEMS>, s.tiles, THREADS, s.shared, p, part);
        launch_early(d, weights_kernel<T>, of_weights, THREADS, 0, p,
                     dweights + (size_t)part * p.channels, batch);
    }
}

// Chooses the channels per lane for the head size.
template <typename T>
static void run_forward_size(const Device *d, const AdditiveGlobalPass<T> &p, size_t batch) {
    (p.size <= 32    ? run_forward<T, 1>
     : p.size <= 64  ? run_forward<T, 2>
     : p.size <= 128 ? run_forward<T, 4>
                     : run_forward<T, 8>)(d, p, batch);
}

template <typename T>
static void run_backward_size(const Device *d, const AdditiveGlobalPass<T> &p, size_t batch,
                              float *dweights) {
    (p.size <= 32    ? run_backward<T, 1>
     : p.size <= 64  ? run_backward<T, 2>
     : p.size <= 128 ? run_backward<T, 4>
                     : run_backward<T, 8>)(d, p, batch, dweights);
}

template <typename T>
static void forward(const Device *d, Matrix y, float *kept, const float *weights,
                    const DeviceAttentionInput *in, float *workspace) {
    AdditiveGlobalPass<T> p = pass_create<T>(y, kept, weights, in, workspace);
    p.y = (T *)y.data;
    run_forward_size(d, p, in->batch);
}

template <typename T>
static void backward(const Device *d, const DeviceAttentionGradients *gradients, float *dweights,
                     Matrix dy, const float *kept, const float *weights,
                     const DeviceAttentionInput *in, float *workspace) {
    AdditiveGlobalPass<T> p = pass_create<T>(dy, (float *)kept, weights, in, workspace);
    p.dy = (const T *)dy.data;
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.gradients[part] = (T *)gradients->parts[part].data;
        p.gradient_strides[part] = gradients->parts[part].columns;
    }
    run_backward_size(d, p, in->batch, dweights);
}

} // namespace pooling

// ---- what a model calls -----------------------------------------------------
// Floats of working memory for both passes, for batches up to (batch, length).
static inline size_t additive_global_workspace(size_t batch, size_t length, size_t channels,
                                               size_t heads) {
    const int size = (int)(channels / heads);
    return batch * heads *
           (pooling::tiles_of(length) * pooling::sum_numbers(size) + (size_t)size + 1);
}

// Floats that the forward pass keeps for the backward pass.
static inline size_t additive_global_kept(size_t batch, size_t channels, size_t heads) {
    return batch * heads * pooling::kept_numbers((int)(channels / heads));
}

// y (B, T, C), of the type of queries, keys and values. weights (2, H, D): w_q, w_k.
static inline void additive_global_forward(const Device *d, Matrix y, float *kept,
                                           const float *weights, const DeviceAttentionInput *in,
                                           float *workspace) {
    (y.bf16 ? pooling::forward<bf16> : pooling::forward<float>)(d, y, kept, weights, in, workspace);
}

// Sets the gradients to queries, keys and values; dweights (2, H, D) += its gradient. dy (B, T, C).
// All have the same type.
static inline void additive_global_backward(const Device *d,
                                            const DeviceAttentionGradients *gradients,
                                            float *dweights, Matrix dy, const float *kept,
                                            const float *weights, const DeviceAttentionInput *in,
                                            float *workspace) {
    (dy.bf16 ? pooling::backward<bf16> : pooling::backward<float>)(d, gradients, dweights, dy, kept,
                                                                   weights, in, workspace);
}

#endif
