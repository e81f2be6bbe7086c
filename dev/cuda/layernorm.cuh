// Layer normalisation over channels (Ba et al. 2016), y = gain * (x - mean) * rstd + bias, fused
// with its neighbours. The forward kernel computes x itself (a residual sum with dropout, an
// embedding) and rounds y to the type of the next product. The backward kernel also recomputes y,
// so that it need not be kept, and computes the gradient of the sublayer below through its dropout.
// So the residual stream is read and written once.
//
// RMSNorm (Zhang and Sennrich 2019), y = gain * x * rstd, is the same with a mean of 0 and no bias.
//
// A warp processes a row. Rows of up to 1024 channels, in multiples of 4, stay in registers; others
// are read again.
#ifndef CUDA_LAYERNORM_CUH
#define CUDA_LAYERNORM_CUH

#include "dropout.cuh"
#include "partial_sums.cuh"
#include "parts.cuh"

static constexpr int LAYERNORM_WARPS = 8; // per block

// How a kernel traverses a row: VEC channels per lane and access, ITEMS accesses kept in registers
// (0: any number, none kept).
#define WITH_ROW_SHAPE(channels, VEC, ITEMS, ...)                                                  \
    do {                                                                                           \
        const size_t row_items = (channels) % 4 ? 0 : ((channels) + 127) / 128;                    \
        if (row_items == 1) {                                                                      \
            constexpr int VEC = 4, ITEMS = 1;                                                      \
            __VA_ARGS__;                                                                           \
        } else if (row_items == 2) {                                                               \
            constexpr int VEC = 4, ITEMS = 2;                                                      \
            __VA_ARGS__;                                                                           \
        } else if (row_items > 2 && row_items <= 4) {                                              \
            constexpr int VEC = 4, ITEMS = 4;                                                      \
            __VA_ARGS__;                                                                           \
        } else if (row_items > 4 && row_items <= 6) {                                              \
            constexpr int VEC = 4, ITEMS = 6;                                                      \
            __VA_ARGS__;                                                                           \
        } else if (row_items > 6 && row_items <= 8) {                                              \
            constexpr int VEC = 4, ITEMS = 8;                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int VEC = 1, ITEMS = 0;                                                      \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

template <int VEC, typename T>
static __device__ __forceinline__ void load_row(float v[VEC], const T *p) {
    if constexpr (VEC == 4)
        load_numbers<4>(v, p);
    else
        v[0] = (float)p[0];
}

template <int VEC, typename T>
static __device__ __forceinline__ void store_row(T *p, const float v[VEC]) {
    if constexpr (VEC == 4)
        store_numbers<4>(p, v);
    else
        p[0] = (T)v[0];
}

// Calls f(item, channel) for this lane's channels.
template <int VEC, int ITEMS, typename F>
static __device__ __forceinline__ void for_row(unsigned channels, F f) {
    if constexpr (ITEMS > 0) {
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++) {
            const unsigned c = (i * WARP + lane_index()) * VEC;
            if (c < channels) f(i, c);
        }
    } else {
        for (unsigned c = lane_index() * VEC; c < channels; c += WARP * VEC) f(0u, c);
    }
}

// Dropout along a row. If rows are whole blocks of the generator, a warp shares its calls.
template <int VEC, int ITEMS> struct RowDropout {
    uint32_t kept[ITEMS > 0 ? (ITEMS + 1) / 2 : 1]; // eight bits for two items
    uint64_t first;                                 // element of channel 0
    bool shared;
};

// For row `row` of the batch, by a whole warp. `length`: T.
template <int VEC, int ITEMS>
static __device__ __forceinline__ RowDropout<VEC, ITEMS>
row_dropout(const DropoutSite &s, size_t row, unsigned length, unsigned channels) {
    RowDropout<VEC, ITEMS> d;
    d.shared = false;
    if (!drops_out(s)) return d;
    d.first = (s.step->first_row * length + row) * channels;
    if constexpr (ITEMS > 0) {
        d.shared = channels % DROPOUT_BLOCK == 0;
        if (d.shared) {
#pragma unroll
            for (int i = 0; i < (ITEMS + 1) / 2; i++)
                d.kept[i] = dropout_warp(s, d.first / DROPOUT_BLOCK + 2 * i);
        }
    }
    return d;
}

template <int VEC, int ITEMS>
static __device__ __forceinline__ void drop_row(float v[VEC], const RowDropout<VEC, ITEMS> &d,
                                                const DropoutSite &s, unsigned item,
                                                unsigned channel) {
    if (!drops_out(s)) return;
    if constexpr (VEC == 4) {
        if (d.shared) {
            drop_out_by(v, d.kept[item / 2] >> 4 * (item % 2), s.scale);
            return;
        }
    }
    drop_out<VEC>(v, s, d.first + channel);
}

// ---- forward ----------------------------------------------------------------
// Sources of x. load() gives VEC channels of a row; `out` (M, C) receives x, NULL: it is already
// stored.
struct PlainRows {
    const float *x; // (M, C)
    template <int VEC>
    __device__ __forceinline__ void load(float v[VEC], size_t row, unsigned c,
                                         unsigned channels) const {
        load_row<VEC>(v, x + row * channels + c);
    }
    template <int VEC>
    __device__ __forceinline__ void add(float *, size_t, unsigned, unsigned) const {}
};

// x = base + dropout(y). load() returns y, the caller applies dropout, and add() adds base.
struct ResidualRows {
    const float *x, *y; // (M, C)
    template <int VEC>
    __device__ __forceinline__ void load(float v[VEC], size_t row, unsigned c,
                                         unsigned channels) const {
        load_row<VEC>(v, y + row * channels + c);
    }
    template <int VEC>
    __device__ __forceinline__ void add(float v[VEC], size_t row, unsigned c,
                                        unsigned channels) const {
        float base[VEC];
        load_row<VEC>(base, x + row * channels + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] += base[i];
    }
};

// x = dropout(scale token[input] + position[t] + type)
struct EmbeddingRows {
    const float *token;    // (V, C)
    const float *position; // (positions, C); NULL: none
    const float *type;     // (C) common to all tokens; NULL: none
    const int32_t *inputs; // (M)
    unsigned length;       // T
    float scale;
    const uint64_t *first; // the position of each sequence's first token; NULL: 0
    template <int VEC>
    __device__ __forceinline__ void load(float v[VEC], size_t row, unsigned c,
                                         unsigned channels) const {
        float place[VEC] = {};
        load_row<VEC>(v, token + (size_t)inputs[row] * channels + c);
        if (position)
            load_row<VEC>(place, position + (row % length + (first ? *first : 0)) * channels + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = scale * v[i] + place[i];
        if (!type) return;
        load_row<VEC>(place, type + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] += place[i];
    }
    template <int VEC>
    __device__ __forceinline__ void add(float *, size_t, unsigned, unsigned) const {}
};

struct LayerNormWeights {
    const float *gain; // (C); NULL: no normalisation, the output is x
    const float *bias; // (C); NULL: RMSNorm
    double epsilon;
};

// The outputs of the forward pass.
struct LayerNormOutput {
    Matrix norm;   // (M, C) the next product's input; or (M, 3C): its parts (parts.cuh)
    float *stream; // (M, C) the same in float32, if it is the residual stream (post-norm); else
                   // NULL
    float *mean, *rstd; // (M) for the backward pass; NULL: not needed
};

// Inputs and outputs of the forward kernel. T: type of the next product's input.
template <typename T, typename Source> struct LayerNormForward {
    T *y;                     // (M, C), or parts (M, 3C)
    float *stream;            // (M, C) or NULL; may alias the array that the source adds
    float *mean, *rstd;       // (M) or NULL
    float *out;               // (M, C) rows = dropout(source) plus what the source adds; or NULL
    Source source;            // of the rows to normalise
    DropoutSite site;         // of that dropout
    const float *gain, *bias; // (C) or NULL
    float epsilon;
    unsigned length, channels;
    bool in_parts;
};

// One row, by a whole warp.
template <typename T, typename Source, int VEC, int ITEMS>
static __device__ __forceinline__ void layernorm_forward_row(const LayerNormForward<T, Source> &p,
                                                             size_t row) {
    float x[ITEMS > 0 ? ITEMS : 1][VEC];
    const unsigned channels = p.channels;
    const RowDropout<VEC, ITEMS> dropout = row_dropout<VEC, ITEMS>(p.site, row, p.length, channels);
    const auto fetch = [&](unsigned i, unsigned c) { // x at this position
        p.source.template load<VEC>(x[i], row, c, channels);
        drop_row(x[i], dropout, p.site, i, c);
        p.source.template add<VEC>(x[i], row, c, channels);
    };
    float sum = 0, squares = 0;
    for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
        fetch(i, c);
#pragma unroll
        for (int v = 0; v < VEC; v++) sum += x[i][v];
    });
    const float mean = p.bias ? warp_sum(sum) / (float)channels : 0;
    // All loads precede all stores, as the compiler cannot know that they do not alias.
    for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
        if (ITEMS == 0) fetch(i, c);
        if (p.out) store_row<VEC>(p.out + row * channels + c, x[i]);
#pragma unroll
        for (int v = 0; v < VEC; v++) squares += (x[i][v] - mean) * (x[i][v] - mean);
    });
    const float rstd = rsqrtf(warp_sum(squares) / (float)channels + p.epsilon);
    for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
        float result[VEC], g[VEC], b[VEC] = {};
        if (ITEMS == 0) fetch(i, c);
        if (p.gain) load_row<VEC>(g, p.gain + c);
        if (p.bias) load_row<VEC>(b, p.bias + c);
#pragma unroll
        for (int v = 0; v < VEC; v++)
            result[v] = p.gain ? g[v] * ((x[i][v] - mean) * rstd) + b[v] : x[i][v];
        T *const y = p.y + row * (p.in_parts ? PARTS_COLUMNS : 1) * channels + c;
        store_row<VEC>(y, result);
        if (p.in_parts) {
            store_row<VEC>(y + 2 * channels, result);
            float rest[VEC];
#pragma unroll
            for (int v = 0; v < VEC; v++) rest[v] = rounding_rest(result[v]);
            store_row<VEC>(y + channels, rest);
        }
        if (p.stream) store_row<VEC>(p.stream + row * channels + c, result);
    });
    if (p.mean && lane_index() == 0) {
        p.mean[row] = mean;
        p.rstd[row] = rstd;
    }
}

template <typename T, typename Source, int VEC, int ITEMS>
static __global__ void __launch_bounds__(LAYERNORM_WARPS *WARP)
    layernorm_forward_kernel(const LayerNormForward<T, Source> p, size_t m) {
    begin_kernel();
    const size_t row = (size_t)blockIdx.x * LAYERNORM_WARPS + threadIdx.x / WARP;
    if (row < m) layernorm_forward_row<T, Source, VEC, ITEMS>(p, row);
}

template <typename T, typename Source>
static inline LayerNormForward<T, Source>
layernorm_forward_pass(float *out, LayerNormOutput to, Source source, DropoutSite site,
                       LayerNormWeights w, size_t length, size_t channels) {
    return {(T *)to.norm.data,
            to.stream,
            to.mean,
            to.rstd,
            out,
            source,
            site,
            w.gain,
            w.bias,
            (float)w.epsilon,
            (unsigned)length,
            (unsigned)channels,
            to.norm.columns == PARTS_COLUMNS * channels};
}

template <typename Source>
static inline void layernorm_forward_from(const Device *d, float *out, LayerNormOutput to,
                                          Source source, DropoutSite site, LayerNormWeights w,
                                          size_t m, size_t length, size_t channels) {
    const dim3 grid(blocks_of(m, LAYERNORM_WARPS)), block(LAYERNORM_WARPS * WARP);
    WITH_TYPE(to.norm, T,
              WITH_ROW_SHAPE(
                  channels, VEC, ITEMS,
                  launch_early(
                      d, layernorm_forward_kernel<T, Source, VEC, ITEMS>, grid, block, 0,
                      layernorm_forward_pass<T>(out, to, source, site, w, length, channels), m)));
}

// LayerNorm or RMSNorm of x (M, C).
static inline void layernorm_forward(const Device *d, LayerNormOutput to, const float *x,
                                     LayerNormWeights w, size_t m, size_t channels) {
    layernorm_forward_from(d, NULL, to, PlainRows{x}, dropout_none(), w, m, 1, channels);
}

// ---- backward ---------------------------------------------------------------
// Additional outputs of the backward pass, if their data is set; both of one type.
struct LayerNormTail {
    Matrix norm;   // (M, C) y recomputed, for the weight gradient of the product that read it
    Matrix dbelow; // (M, C) dropout'(dx), the gradient to the sublayer output that was added to x
    DropoutSite site; // of that dropout
    size_t length;    // T
};

// Inputs and outputs of the backward kernel. T: type of the products' inputs.
template <typename T> struct LayerNormBackward {
    float *dx;                // (M, C) += the gradient to x, or = it
    float *dgains, *dbiases;  // (parts, C) sums over a part of the rows; dbiases may be NULL
    const float *dy, *x;      // (M, C)
    const float *gain, *bias; // (C); bias may be NULL
    const float *mean, *rstd; // (M)
    T *norm, *dbelow;         // (M, C) or NULL
    DropoutSite site;
    size_t m;
    unsigned length, channels;
    bool first; // dx is set, not added to
};

// One row: with x^ = (x - mean) rstd and n = dy gain, dx = rstd (n - mean(n) - x^ mean(n x^));
// RMSNorm: without mean(n). Adds to the lane's sums for gain and bias if they are kept in
// registers.
template <typename T, int VEC, int ITEMS>
static __device__ __forceinline__ void layernorm_backward_row(const LayerNormBackward<T> &p,
                                                              size_t row, float (*dgain)[VEC],
                                                              float (*dbias)[VEC]) {
    float normal[ITEMS > 0 ? ITEMS : 1][VEC], dy[ITEMS > 0 ? ITEMS : 1][VEC],
        before[ITEMS > 0 ? ITEMS : 1][VEC];
    const float mean = p.mean[row], rstd = p.rstd[row];
    const size_t start = row * p.channels;
    // All of a row is read before any of it is stored: the compiler cannot know what may overlap.
    const auto fetch = [&](unsigned i, unsigned c) {
        float x[VEC];
        load_row<VEC>(x, p.x + start + c);
        load_row<VEC>(dy[i], p.dy + start + c);
        if (!p.first) load_row<VEC>(before[i], p.dx + start + c);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            normal[i][v] = (x[v] - mean) * rstd;
            if (p.first) before[i][v] = 0;
        }
    };
    float sum = 0, product = 0;
    for_row<VEC, ITEMS>(p.channels, [&](unsigned i, unsigned c) {
        fetch(i, c);
        float gain[VEC];
        load_row<VEC>(gain, p.gain + c);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            if (ITEMS > 0) {
                dgain[i][v] += dy[i][v] * normal[i][v];
                dbias[i][v] += dy[i][v];
            }
            const float n = dy[i][v] * gain[v];
            sum += n;
            product += n * normal[i][v];
        }
    });
    const float mean_n = p.bias ? warp_sum(sum) / (float)p.channels : 0,
                mean_product = warp_sum(product) / (float)p.channels;
    const RowDropout<VEC, ITEMS> dropout =
        row_dropout<VEC, ITEMS>(p.site, row, p.length, p.channels);
    for_row<VEC, ITEMS>(p.channels, [&](unsigned i, unsigned c) {
        float dx[VEC], gain[VEC];
        if (ITEMS == 0) fetch(i, c);
        load_row<VEC>(gain, p.gain + c);
#pragma unroll
        for (int v = 0; v < VEC; v++)
            dx[v] =
                before[i][v] + rstd * (dy[i][v] * gain[v] - mean_n - normal[i][v] * mean_product);
        store_row<VEC>(p.dx + start + c, dx);
        if (p.norm) {
            float norm[VEC], bias[VEC] = {};
            if (p.bias) load_row<VEC>(bias, p.bias + c);
#pragma unroll
            for (int v = 0; v < VEC; v++) norm[v] = gain[v] * normal[i][v] + bias[v];
            store_row<VEC>(p.norm + start + c, norm);
        }
        if (p.dbelow) {
            drop_row(dx, dropout, p.site, i, c);
            store_row<VEC>(p.dbelow + start + c, dx);
        }
    });
}

// A block processes a part of the rows. Shared memory: (LAYERNORM_WARPS, C) floats, if sums are in
// registers.
template <typename T, int VEC, int ITEMS>
static __global__ void __launch_bounds__(LAYERNORM_WARPS *WARP)
    layernorm_backward_kernel(const LayerNormBackward<T> p) {
    begin_kernel();
    const unsigned warp = threadIdx.x / WARP;
    const size_t begin = p.m * blockIdx.x / gridDim.x, end = p.m * (blockIdx.x + 1) / gridDim.x;
    float dgain[ITEMS > 0 ? ITEMS : 1][VEC] = {}, dbias[ITEMS > 0 ? ITEMS : 1][VEC] = {};
    for (size_t row = begin + warp; row < end; row += LAYERNORM_WARPS)
        layernorm_backward_row<T, VEC, ITEMS>(p, row, dgain, dbias);
    if constexpr (ITEMS > 0) {
        float *sums = shared_memory<float>();
#pragma unroll
        for (int part = 0; part < 2; part++) {
            if (part == 1 && !p.dbiases) break;
            __syncthreads();
            for_row<VEC, ITEMS>(p.channels, [&](unsigned i, unsigned c) {
                store_row<VEC>(sums + warp * p.channels + c, part == 0 ? dgain[i] : dbias[i]);
            });
            __syncthreads();
            float *to = (part == 0 ? p.dgains : p.dbiases) + (size_t)blockIdx.x * p.channels;
            for (unsigned c = threadIdx.x; c < p.channels; c += LAYERNORM_WARPS * WARP) {
                float total = 0;
                for (int w = 0; w < LAYERNORM_WARPS; w++) total += sums[w * p.channels + c];
                to[c] = total;
            }
        }
    }
}

// The sums for gain and bias, for rows that do not stay in registers. Block (x, part): 32 columns.
template <typename T> static __global__ void layernorm_sums_kernel(const LayerNormBackward<T> p) {
    begin_kernel();
    __shared__ float rows[2][LAYERNORM_WARPS][WARP + 1];
    const unsigned lane = lane_index(), warp = threadIdx.x / WARP,
                   column = blockIdx.x * WARP + lane;
    const size_t begin = p.m * blockIdx.y / gridDim.y, end = p.m * (blockIdx.y + 1) / gridDim.y;
    float dgain = 0, dbias = 0;
    if (column < p.channels)
        for (size_t row = begin + warp; row < end; row += LAYERNORM_WARPS) {
            const size_t at = row * p.channels + column;
            const float dy = p.dy[at];
            dgain += dy * (p.x[at] - p.mean[row]) * p.rstd[row];
            dbias += dy;
        }
    rows[0][warp][lane] = dgain;
    rows[1][warp][lane] = dbias;
    __syncthreads();
    if (warp > 1 || column >= p.channels || (warp == 1 && !p.dbiases)) return;
    float total = 0;
    for (int w = 0; w < LAYERNORM_WARPS; w++) total += rows[warp][w][lane];
    (warp == 0 ? p.dgains : p.dbiases)[(size_t)blockIdx.y * p.channels + column] = total;
}

template <typename T, int VEC, int ITEMS>
static inline void layernorm_backward_launch(const Device *d, const LayerNormBackward<T> &p,
                                             unsigned parts) {
    const dim3 block(LAYERNORM_WARPS * WARP);
    if constexpr (ITEMS == 0)
        launch_early(d, layernorm_sums_kernel<T>, dim3(blocks_of(p.channels, WARP), parts), block,
                     0, p);
    const size_t shared = ITEMS > 0 ? LAYERNORM_WARPS * p.channels * sizeof(float) : 0;
    launch_early(d, layernorm_backward_kernel<T, VEC, ITEMS>, dim3(parts), block, shared, p);
}

// The input of the forward pass, and the statistics it computed.
struct LayerNormInput {
    const float *x; // (M, C)
    LayerNormWeights weights;
    const float *mean, *rstd; // (M)
};

struct LayerNormGradients {
    float *dx;            // (M, C) += the gradient to x, or = it if `first`
    float *dgain, *dbias; // (C) +=, with partial_sums_finish(); dbias: NULL for RMSNorm
    bool first;           // then dx may be dy
};

// dy (M, C).
static inline void layernorm_backward(const Device *d, PartialSums *sums,
                                      const LayerNormGradients &to, const float *dy,
                                      const LayerNormInput &in, LayerNormTail tail, size_t m,
                                      size_t channels) {
    const unsigned parts = sum_parts(m, LAYERNORM_WARPS);
    float *dgains = partial_sums_add(sums, to.dgain, parts, channels);
    float *dbiases = in.weights.bias ? partial_sums_add(sums, to.dbias, parts, channels) : NULL;
    const Matrix type = tail.norm.data ? tail.norm : tail.dbelow;
    if (tail.norm.data && tail.dbelow.data && tail.norm.bf16 != tail.dbelow.bf16)
        fail("layernorm_backward: types differ");
    WITH_TYPE(type, T, WITH_ROW_SHAPE(channels, VEC, ITEMS, {
                  const LayerNormBackward<T> p = {to.dx,
                                                  dgains,
                                                  dbiases,
                                                  dy,
                                                  in.x,
                                                  in.weights.gain,
                                                  in.weights.bias,
                                                  in.mean,
                                                  in.rstd,
                                                  (T *)tail.norm.data,
                                                  (T *)tail.dbelow.data,
                                                  tail.site,
                                                  m,
                                                  (unsigned)tail.length,
                                                  (unsigned)channels,
                                                  to.first};
                  layernorm_backward_launch<T, VEC, ITEMS>(d, p, parts);
              }));
}

static inline LayerNormTail layernorm_no_tail() {
    LayerNormTail tail = {};
    tail.site = dropout_none();
    tail.length = 1;
    return tail;
}

#endif
