// Multi-head softmax attention, tile by tile with a running maximum (Milakov and Gimelshein 2018;
// Dao et al., "FlashAttention", 2022, and "FlashAttention-2", 2023), so that the T x T weights are
// never stored. dev/cpu/softmax_attention.h defines the result, with sink and dropout.
//
// A thread block processes a tile of queries, 16 or 32 rows per warp, and iterates over the keys:
// all keys of the sequence or, if attention is causal, those from the window of its first query to
// its last query. The backward pass recomputes the weights from the logarithm of their sum twice:
// with queries in the rows, for the gradient of queries, and with keys in the rows, for the
// gradients of keys and values. This takes two more products than additions across blocks in
// memory, but results are bit-identical from run to run. On sm_90, kernels of
// warpgroup_attention.cuh compute all gradients in one pass, and add in a fixed order.
#ifndef CUDA_SOFTMAX_ATTENTION_CUH
#define CUDA_SOFTMAX_ATTENTION_CUH

#include "warpgroup_attention.cuh"

namespace softmax {

// Tile shapes for heads of up to SIZE channels. Products have WARPS * 16 M rows and N columns; the
// backward pass of keys and values computes COLUMNS of their channels at a time. Sums fit in
// registers, and tiles in the 163 KB of shared memory of sm_80.
template <typename T, int SIZE> struct Shapes {
    static constexpr int PARTS = PartsOf<T>::PARTS;
    static constexpr int WARPS = PARTS == 3 && SIZE == 256 ? 2 : 4;
    static constexpr int FORWARD_N = PARTS == 1 ? (SIZE <= 128 ? 64 : 32) : (SIZE <= 64 ? 32 : 16);
    static constexpr int BACKWARD_N = PARTS == 1 ? (SIZE <= 64 ? 64 : 32) : (SIZE <= 64 ? 32 : 16);
    static constexpr int MOST_COLUMNS = PARTS == 1 ? 128 : 64,
                         COLUMNS = SIZE < MOST_COLUMNS ? SIZE : MOST_COLUMNS;
    static constexpr int STAGES = PARTS == 1 ? 2 : 1; // of tiles in the backward pass
    static constexpr int ROWS = 16 * WARPS;
};

template <typename Shape, typename T>
static __device__ __forceinline__ void load_part(bf16 *tile, const SoftmaxPass<T> &p,
                                                 const SoftmaxHead &head, int row,
                                                 AttentionPart part) {
    tile_load<Shape>(tile, p.rows[part] + part_place(p, head, row, part, p.strides[part]),
                     p.strides[part], min(length_of(p, part) - row, Shape::ROWS), p.size);
}

template <typename Shape, typename T>
static __device__ __forceinline__ void load_dy(bf16 *tile, const SoftmaxPass<T> &p,
                                               const SoftmaxHead &head, int row) {
    tile_load<Shape>(tile, p.dy + y_place(p, head, row), p.channels,
                     min(p.queries - row, Shape::ROWS), p.size);
}

// ---- forward ----------------------------------------------------------------
// Computes attention of a tile of queries to all keys. Values are loaded while scores are computed,
// and the next keys while values are summed.
template <typename T, int SIZE, int M>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS)
    forward_kernel(const SoftmaxPass<T> p) {
    begin_kernel();
    using S = Shapes<T, SIZE>;
    constexpr int N = S::FORWARD_N, ROWS = S::ROWS * M;
    using Queries = TileShape<ROWS, SIZE, S::PARTS>;
    using Keys = TileShape<N, SIZE, S::PARTS>;
    bf16 *queries = shared_memory<bf16>(), *keys = queries + Queries::BYTES / sizeof(bf16),
         *values = keys + Keys::BYTES / sizeof(bf16);
    uint8_t *kept = (uint8_t *)(values + Keys::BYTES / sizeof(bf16)); // (ROWS, 16)

    const SoftmaxHead head = head_of(p, blockIdx.x);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16 * M;
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * ROWS; // tiles with the most keys first
    const int row = first + warp_row + lane / 4, end = last_key(p, first + ROWS);
    const int start = first_keys<N>(p, first);
    // Keys opened .. visible-1 are visible to all rows of the warp.
    const int visible = last_key(p, first + warp_row + 1),
              opened = first_key(p, first + warp_row + 16 * M - 1);
    load_part<Queries>(queries, p, head, first, QUERY);
    load_part<Keys>(keys, p, head, start, KEY);
    cp_async_commit();
    SoftmaxRows<M> rows = rows_create<M>(p.sink);
    Sums<M, SIZE> y;
    sums_clear(y);
    for (int key = start; key < end; key += N) {
        cp_async_wait<0>();
        __syncthreads();
        load_part<Keys>(values, p, head, key, VALUE);
        cp_async_commit();
        Sums<M, N> s;
        sums_clear(s);
        product_rows<Queries, Keys>(s, queries, warp_row, keys);
        cp_async_wait<0>();
        __syncthreads();
        if (key + N < end) load_part<Keys>(keys, p, head, key + N, KEY);
        cp_async_commit();
        if (p.mask || key + N > visible || key < opened)
            hide_keys(p, head, s, row, key + lane % 4 * 2);
        float shrink[M][2];
        exponentiate(p.log2_scale, s, rows, shrink);
        shrink_rows(y, shrink);
        if (drops_out(p.dropout))
            drop_weights(p, head, s, kept + warp_row * 16, first + warp_row, key, start);
        product_sums<Keys>(y, s, values, 0);
    }
    finish(p, head, rows, y, row);
}

// ---- backward ---------------------------------------------------------------
// Tiles in shared memory: two that stay, and STAGES pairs that are streamed.
template <typename S, int SIZE> struct BackwardTiles {
    using Rows = TileShape<S::ROWS, SIZE, S::PARTS>;
    using Columns = TileShape<S::BACKWARD_N, SIZE, S::PARTS>;
    static constexpr int MOST = S::ROWS > S::BACKWARD_N ? S::ROWS : S::BACKWARD_N;
    static constexpr size_t BYTES = 2 * Rows::BYTES + 2 * S::STAGES * Columns::BYTES +
                                    (size_t)MOST * (2 * sizeof(float) * S::STAGES + 16);
    bf16 *first_row, *second_row, *columns; // columns: (STAGES, 2)
    float *logsumexp, *product;             // (STAGES, MOST)
    uint8_t *kept;                          // (MOST, 16)
};

template <typename S, int SIZE>
static __device__ __forceinline__ BackwardTiles<S, SIZE> backward_tiles() {
    using Tiles = BackwardTiles<S, SIZE>;
    Tiles t;
    t.first_row = shared_memory<bf16>();
    t.second_row = t.first_row + Tiles::Rows::BYTES / sizeof(bf16);
    t.columns = t.second_row + Tiles::Rows::BYTES / sizeof(bf16);
    t.logsumexp = (float *)(t.columns + 2 * S::STAGES * Tiles::Columns::BYTES / sizeof(bf16));
    t.product = t.logsumexp + Tiles::MOST * S::STAGES;
    t.kept = (uint8_t *)(t.product + Tiles::MOST * S::STAGES);
    return t;
}

// The first (which 0) or second streamed tile of a stage.
template <typename S, int SIZE>
static __device__ __forceinline__ bf16 *column_tile(const BackwardTiles<S, SIZE> &t, int stage,
                                                    int which) {
    return t.columns +
           (size_t)(2 * stage + which) * (BackwardTiles<S, SIZE>::Columns::BYTES / sizeof(bf16));
}

// Queries in the rows: computes their gradient, and dy . y for backward_keys_values().
template <typename T, int SIZE>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS)
    backward_queries(const SoftmaxPass<T> p) {
    begin_kernel();
    using S = Shapes<T, SIZE>;
    using Tiles = BackwardTiles<S, SIZE>;
    constexpr int N = S::BACKWARD_N;
    const Tiles t = backward_tiles<S, SIZE>();
    const SoftmaxHead head = head_of(p, blockIdx.x);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16;
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * S::ROWS;
    const int row = first + warp_row + lane / 4, end = last_key(p, first + S::ROWS);
    const int start = first_keys<N>(p, first);
    const int visible = last_key(p, first + warp_row + 1),
              opened = first_key(p, first + warp_row + 15); // as in forward_kernel()
    load_part<typename Tiles::Rows>(t.first_row, p, head, first, QUERY);
    load_dy<typename Tiles::Rows>(t.second_row, p, head, first);
    load_part<typename Tiles::Columns>(column_tile(t, 0, 0), p, head, start, KEY);
    load_part<typename Tiles::Columns>(column_tile(t, 0, 1), p, head, start, VALUE);
    cp_async_commit();
    const LaneRows rows = lane_rows(t.product + warp_row, p, head, first + warp_row);
    Sums<1, SIZE> dq;
    sums_clear(dq);
    int stage = 0;
    for (int key = start; key < end; key += N) {
        const int next = S::STAGES - 1 - stage;
        if (S::STAGES == 2 && key + N < end) {
            load_part<typename Tiles::Columns>(column_tile(t, next, 0), p, head, key + N, KEY);
            load_part<typename Tiles::Columns>(column_tile(t, next, 1), p, head, key + N, VALUE);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        Sums<1, N> s, dw;
        sums_clear(s);
        sums_clear(dw);
        product_rows<typename Tiles::Rows, typename Tiles::Columns>(s, t.first_row, warp_row,
                                                                    column_tile(t, stage, 0));
        product_rows<typename Tiles::Rows, typename Tiles::Columns>(dw, t.second_row, warp_row,
                                                                    column_tile(t, stage, 1));
        if (p.mask || key + N > visible || key < opened)
            hide_keys(p, head, s, row, key + lane % 4 * 2);
        const auto query = [&](int, int e) { return rows.at[e / 2]; };
        if (drops_out(p.dropout)) {
            if (key % KEPT_BLOCK == 0 || key == start)
                keep_rows(t.kept + warp_row * 16, p, head, first + warp_row, 16, key, lane, WARP);
            __syncwarp();
            const KeptBits bits = kept_bits(t.kept, warp_row + lane / 4, key);
            const auto factor = [&](int n, int e) {
                return is_kept(bits, n, e) ? p.dropout.scale : 0;
            };
            differentiate(s, dw, p.log2_scale, factor, query);
        } else {
            differentiate(s, dw, p.log2_scale, keep_all, query);
        }
        product_sums<typename Tiles::Columns>(dq, dw, column_tile(t, stage, 0), 0);
        __syncthreads();
        if (S::STAGES == 1 && key + N < end) {
            load_part<typename Tiles::Columns>(column_tile(t, 0, 0), p, head, key + N, KEY);
            load_part<typename Tiles::Columns>(column_tile(t, 0, 1), p, head, key + N, VALUE);
        }
        stage = next;
    }
    store_gradient(p, head, dq, p.scale, row, QUERY, 0);
}

// Loads queries from `row` on, with their rows of dy, logsumexp and dy . y.
template <typename S, int SIZE, typename T>
static __device__ __forceinline__ void load_queries(const BackwardTiles<S, SIZE> &t, int stage,
                                                    const SoftmaxPass<T> &p,
                                                    const SoftmaxHead &head, int row) {
    using Columns = typename BackwardTiles<S, SIZE>::Columns;
    load_part<Columns>(column_tile(t, stage, 0), p, head, row, QUERY);
    load_dy<Columns>(column_tile(t, stage, 1), p, head, row);
    for (int i = (int)threadIdx.x; i < S::BACKWARD_N; i += (int)blockDim.x) {
        const size_t at = head.unit * (size_t)p.queries + (size_t)(row + i);
        const bool present = row + i < p.queries;
        t.logsumexp[stage * S::BACKWARD_N + i] = present ? p.logsumexp[at] * 1.44269504f : INFINITY;
        t.product[stage * S::BACKWARD_N + i] = present ? p.product[at] : 0;
    }
}

// Keys in the rows: computes the gradients of keys and values, COLUMNS channels from blockIdx.z *
// COLUMNS on.
template <typename T, int SIZE>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS)
    backward_keys_values(const SoftmaxPass<T> p) {
    begin_kernel();
    using S = Shapes<T, SIZE>;
    using Tiles = BackwardTiles<S, SIZE>;
    constexpr int N = S::BACKWARD_N;
    const Tiles t = backward_tiles<S, SIZE>();
    const SoftmaxHead head = head_of(p, blockIdx.x);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              column = (int)blockIdx.z * S::COLUMNS;
    const int first = (int)blockIdx.y * S::ROWS, row = first + warp_row + lane / 4;
    const int first_seeing = p.causal ? first : 0,
              end = last_query(p, first + S::ROWS); // range of queries
    load_part<typename Tiles::Rows>(t.first_row, p, head, first, KEY);
    load_part<typename Tiles::Rows>(t.second_row, p, head, first, VALUE);
    load_queries(t, 0, p, head, first_seeing);
    cp_async_commit();
    Sums<1, S::COLUMNS> dk, dv;
    sums_clear(dk);
    sums_clear(dv);
    int stage = 0;
    for (int query = first_seeing; query < end; query += N) {
        const int next = S::STAGES - 1 - stage;
        if (S::STAGES == 2 && query + N < end) load_queries(t, next, p, head, query + N);
        cp_async_commit();
        cp_async_wait<1>();
        const bool drops = drops_out(p.dropout);
        if (drops) keep_rows(t.kept, p, head, query, N, first, (int)threadIdx.x, (int)blockDim.x);
        __syncthreads();
        Sums<1, N> s, dw;
        sums_clear(s);
        sums_clear(dw);
        product_rows<typename Tiles::Rows, typename Tiles::Columns>(s, t.first_row, warp_row,
                                                                    column_tile(t, stage, 0));
        product_rows<typename Tiles::Rows, typename Tiles::Columns>(dw, t.second_row, warp_row,
                                                                    column_tile(t, stage, 1));
        const int place = lane % 4 * 2; // of element [0][0][0] among the queries
        if (p.mask || (p.causal && query < first + warp_row + 15))
            hide_queries(p, head, s, row, query + place);
        if (first_key(p, query + N - 1) > first + warp_row)
            hide_late_queries(p, s, row, query + place);
        const auto of_query = [&](int n, int e) {
            const int i = stage * N + 8 * n + place + e % 2;
            return QueryRow{t.logsumexp[i], t.product[i]};
        };
        if (drops) {
            const auto factor = [&](int n, int e) {
                const int i = 8 * n + place + e % 2, j = row + e / 2 * 8;
                return t.kept[i * 16 + j % 16] >> (j / 16 % 8) & 1 ? p.dropout.scale : 0;
            };
            differentiate(s, dw, p.log2_scale, factor, of_query);
        } else {
            differentiate(s, dw, p.log2_scale, keep_all, of_query);
        }
        product_sums<typename Tiles::Columns>(dv, s, column_tile(t, stage, 1), column);
        product_sums<typename Tiles::Columns>(dk, dw, column_tile(t, stage, 0), column);
        __syncthreads();
        if (S::STAGES == 1 && query + N < end) load_queries(t, 0, p, head, query + N);
        stage = next;
    }
    store_gradient(p, head, dk, p.scale, row, KEY, column);
    store_gradient(p, head, dv, 1, row, VALUE, column);
}

// ---- launches ---------------------------------------------------------------

template <typename T>
static SoftmaxPass<T> pass_create(Matrix y, const float *logsumexp,
                                  const DeviceAttentionInput *in) {
    const size_t size = in->channels / in->heads;
    attention_check(in, y);
    if (in->queries > INT32_MAX / 2 || in->keys > INT32_MAX / 2)
        fail("softmax attention: %zu queries of %zu keys are too many", in->queries, in->keys);
    SoftmaxPass<T> p = {};
    p.queries = (int)in->queries;
    p.keys = (int)in->keys;
    p.padded = (p.keys + KEPT_BLOCK - 1) / KEPT_BLOCK * KEPT_BLOCK;
    p.heads = (int)in->heads;
    p.size = (int)size;
    p.channels = in->channels;
    p.causal = in->causal;
    p.window = in->window && in->window < in->keys ? (int)in->window : INT32_MAX;
    p.scale = (float)(1 / sqrt((double)size));
    p.log2_scale = (float)(1.4426950408889634 / sqrt((double)size));
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.rows[part] = (const T *)in->rows[part].data;
        p.strides[part] = in->rows[part].columns;
    }
    p.y = (T *)y.data;
    p.logsumexp = (float *)logsumexp; // written in the forward pass only
    p.mask = in->mask;
    p.dropout = in->dropout;
    return p;
}

template <typename T, int SIZE, int M>
static void forward_tiles(const Device *d, const SoftmaxPass<T> &p, size_t batch) {
    using S = Shapes<T, SIZE>;
    constexpr int ROWS = S::ROWS * M;
    const size_t shared = TileShape<ROWS, SIZE, S::PARTS>::BYTES +
                          2 * TileShape<S::FORWARD_N, SIZE, S::PARTS>::BYTES + (size_t)ROWS * 16;
    const dim3 grid((unsigned)(batch * (size_t)p.heads), blocks_of((size_t)p.queries, ROWS));
    launch_early(d, forward_kernel<T, SIZE, M>, grid, WARP * S::WARPS, shared, p);
}

// Whether warp group kernels are built for heads of SIZE channels.
template <typename T, int SIZE>
static constexpr bool WITH_WARP_GROUPS = HAVE_WARP_GROUPS &&Shapes<T, SIZE>::PARTS == 1 &&
                                         (SIZE == 64 || SIZE == 128);

// Two blocks of 16 rows per warp use each operand from shared memory twice. One block is used if
// two would leave multiprocessors idle.
template <typename T, int SIZE>
static void run_forward(const Device *d, const SoftmaxPass<T> &p, size_t batch) {
    if constexpr (WITH_WARP_GROUPS<T, SIZE>)
        if (group_takes(d, p)) {
            group_forward<SIZE>(d, p, batch);
            return;
        }
    if constexpr (Shapes<T, SIZE>::PARTS == 1 && SIZE <= 64) {
        const size_t blocks =
            batch * (size_t)p.heads * blocks_of((size_t)p.queries, 2 * Shapes<T, SIZE>::ROWS);
        if (blocks >= 2 * (size_t)d->sms) {
            forward_tiles<T, SIZE, 2>(d, p, batch);
            return;
        }
    }
    forward_tiles<T, SIZE, 1>(d, p, batch);
}

template <typename T, int SIZE>
static void run_backward(const Device *d, const SoftmaxPass<T> &p, size_t batch) {
    if constexpr (WITH_WARP_GROUPS<T, SIZE>)
        if (group_takes(d, p) && gathers((size_t)p.queries, SIZE)) {
            group_backward<SIZE>(d, p, batch);
            return;
        }
    using S = Shapes<T, SIZE>;
    const size_t shared = BackwardTiles<S, SIZE>::BYTES;
    const unsigned units = (unsigned)(batch * (size_t)p.heads),
                   query_tiles = blocks_of((size_t)p.queries, S::ROWS),
                   key_tiles = blocks_of((size_t)p.keys, S::ROWS);
    launch_early(d, backward_queries<T, SIZE>, dim3(units, query_tiles), WARP * S::WARPS, shared,
                 p);
    launch_early(d, backward_keys_values<T, SIZE>, dim3(units, key_tiles, SIZE / S::COLUMNS),
                 WARP * S::WARPS, shared, p);
}

// Runs f<T, SIZE>(device, pass, batch) with the smallest SIZE that holds a head.
#define WITH_SOFTMAX_SIZE(T, f, device, pass, batch)                                               \
    do {                                                                                           \
        if ((pass).size <= 16)                                                                     \
            f<T, 16>(device, pass, batch);                                                         \
        else if ((pass).size <= 32)                                                                \
            f<T, 32>(device, pass, batch);                                                         \
        else if ((pass).size <= 64)                                                                \
            f<T, 64>(device, pass, batch);                                                         \
        else if ((pass).size <= 128)                                                               \
            f<T, 128>(device, pass, batch);                                                        \
        else                                                                                       \
            f<T, 256>(device, pass, batch);                                                        \
    } while (0)

template <typename T>
static void forward(const Device *device, Matrix y, float *logsumexp,
                    const DeviceAttentionInput *in, double sink) {
    SoftmaxPass<T> p = pass_create<T>(y, logsumexp, in);
    p.sink = (float)sink;
    WITH_SOFTMAX_SIZE(T, run_forward, device, p, in->batch);
}

template <typename T>
static void backward(const Device *device, const DeviceAttentionGradients *gradients, Matrix dy,
                     Matrix y, const float *logsumexp, const DeviceAttentionInput *in,
                     float *workspace) {
    SoftmaxPass<T> p = pass_create<T>(y, logsumexp, in);
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.gradients[part] = (T *)gradients->parts[part].data;
        p.gradient_strides[part] = gradients->parts[part].columns;
    }
    p.dy = (const T *)dy.data;
    p.product = workspace;
    WITH_SOFTMAX_SIZE(T, run_backward, device, p, in->batch);
}

} // namespace softmax

// ---- interface --------------------------------------------------------------
// Computes y (B, Tq, C). y, queries, keys and values are all bf16, or all float32 and computed at
// that precision. logsumexp (B, H, Tq): for the backward pass, or NULL.
static inline void softmax_attention_forward(const Device *device, Matrix y, float *logsumexp,
                                             const DeviceAttentionInput *in, double sink) {
    (y.bf16 ? softmax::forward<bf16> : softmax::forward<float>)(device, y, logsumexp, in, sink);
}

// Returns the number of floats of working memory that the backward pass needs for this batch, or
// for any batch with as many tokens. The memory must be aligned to 16 bytes.
static inline size_t softmax_attention_workspace(const Device *device, size_t batch, size_t queries,
                                                 size_t channels, size_t heads, bool in_bf16) {
    const size_t units = batch * heads, size = channels / heads;
    if (!in_bf16 || !softmax::group_takes_heads(device, size)) return units * queries;
    return softmax::gathered_place(units, queries) +
           softmax::gathered_workspace(units, queries, size);
}

// Sets the gradients of queries, keys and values. dy (B, Tq, C); y and logsumexp are outputs of the
// forward pass. All matrices have one type.
static inline void softmax_attention_backward(const Device *device,
                                              const DeviceAttentionGradients *gradients, Matrix dy,
                                              Matrix y, const float *logsumexp,
                                              const DeviceAttentionInput *in, float *workspace) {
    (y.bf16 ? softmax::backward<bf16> : softmax::backward<float>)(device, gradients, dy, y,
                                                                  logsumexp, in, workspace);
}

#endif
