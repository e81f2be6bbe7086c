// Multi-head softmax attention, tile by tile with a running maximum (Milakov and Gimelshein 2018; Dao
// et al., "FlashAttention", 2022, and "FlashAttention-2", 2023), so that T x T weights are never held. What
// it computes, with which sink and dropout: dev/cpu/softmax_attention.h.
//
// A block of threads takes a tile of queries, 16 or 32 rows a warp, and goes through the keys: all of its
// sequence, or, where attention is causal, those up to its last query. The backward
// pass computes the weights again from the logarithm of their sum, once with queries in the rows, for their
// gradient, and once with keys in the rows, for the gradients of keys and values: two more products than with
// atomic additions, and the same bits from run to run.
#ifndef CUDA_SOFTMAX_ATTENTION_CUH
#define CUDA_SOFTMAX_ATTENTION_CUH

#include "attention_input.cuh"
#include "tile.cuh"

namespace softmax {

// Tiles of a head of up to SIZE channels. Products sum over WARPS * 16 M rows and N columns at a time; the
// backward pass of keys and values takes COLUMNS of them at a time. They are chosen so that sums fit in
// registers, and tiles in the 163 KB of shared memory that sm_80 has.
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

static constexpr int KEPT_BLOCK = 128; // keys whose dropout is decided together

// What all blocks of threads of a pass share. Arrays of the backward pass are NULL in the forward pass.
template <typename T> struct Pass {
    int queries, keys;       // Tq, Tk
    int padded;              // Tk rounded up to whole blocks of dropout
    int heads, size;         // H, D
    size_t channels;         // C
    bool causal;             // a query sees the keys up to its own, else all
    float scale, log2_scale; // 1 / sqrt(D), the same times log2(e)
    float sink;
    const T *rows[3];    // queries (B, Tq), keys, values (B, Tk): the first of the C numbers of a token
    size_t strides[3];   // from one token to the next
    T *y;                // (B, Tq, C)
    float *logsumexp;    // (B, H, Tq) or NULL
    const uint8_t *mask; // (B, Tk) or NULL
    DropoutSite dropout;
    const T *dy;                // (B, Tq, C)
    T *gradients[3];            // as `rows`
    size_t gradient_strides[3]; // as `strides`
    float *product;             // (B, H, Tq) dy_i . y_i
};

// The head of a block of threads.
struct Head {
    size_t b, h, unit; // unit = b H + h
};

template <typename T> static __device__ __forceinline__ Head head_of_block(const Pass<T> &p) {
    return {blockIdx.x / (unsigned)p.heads, blockIdx.x % (unsigned)p.heads, blockIdx.x};
}

// Of queries, or of keys and values.
template <typename T> static __device__ __forceinline__ int length_of(const Pass<T> &p, AttentionPart part) {
    return part == QUERY ? p.queries : p.keys;
}

// Of a row of a part, or of its gradient.
template <typename T>
static __device__ __forceinline__ size_t part_place(const Pass<T> &p, const Head &head, int row,
                                                    AttentionPart part, size_t stride) {
    return (head.b * (size_t)length_of(p, part) + (size_t)row) * stride + head.h * (size_t)p.size;
}

// Of y and its gradient.
template <typename T>
static __device__ __forceinline__ size_t y_place(const Pass<T> &p, const Head &head, int row) {
    return part_place(p, head, row, QUERY, p.channels);
}

template <typename Shape, typename T>
static __device__ __forceinline__ void load_part(bf16 *tile, const Pass<T> &p, const Head &head, int row,
                                                 AttentionPart part) {
    tile_load<Shape>(tile, p.rows[part] + part_place(p, head, row, part, p.strides[part]), p.strides[part],
                     min(length_of(p, part) - row, Shape::ROWS), p.size);
}

template <typename Shape, typename T>
static __device__ __forceinline__ void load_dy(bf16 *tile, const Pass<T> &p, const Head &head, int row) {
    tile_load<Shape>(tile, p.dy + y_place(p, head, row), p.channels, min(p.queries - row, Shape::ROWS),
                     p.size);
}

// ---- dropout ------------------------------------------------------------------------------------------

// 16 bytes a row, in shared memory: bit j / 16 % 8 of byte j % 16 says whether weight (row, j) is kept, for
// the 128 keys from a multiple of 128 on. A call of the generator decides about 8 of them.
template <typename T>
static __device__ __forceinline__ void keep_rows(uint8_t *kept, const Pass<T> &p, const Head &head, int row,
                                                 int rows, int key, int thread, int threads) {
    const uint64_t unit = (p.dropout.step->first_row + head.b) * (uint64_t)p.heads + head.h;
    const uint64_t blocks = (uint64_t)(p.padded / KEPT_BLOCK); // of a row
    const uint64_t first =
        (unit * (uint64_t)p.queries + (uint64_t)row) * blocks + (uint64_t)(key / KEPT_BLOCK);
    for (int i = thread; i < rows * 16; i += threads)
        kept[i] = dropout_byte(p.dropout, (first + (uint64_t)(i / 16) * blocks) * 16 + (uint64_t)(i % 16));
}

// The bits of a lane's elements of sums over queries (rows) and keys, by half and parity of n.
struct KeptBits {
    uint32_t word[2][2];
};

// row: of the lane's first element, among those of keep_rows(); key: of the tile's first column.
static __device__ __forceinline__ KeptBits kept_bits(const uint8_t *kept, int row, int key) {
    KeptBits bits;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int parity = 0; parity < 2; parity++)
            bits.word[half][parity] =
                (uint32_t) * (const uint16_t *)(kept + (row + 8 * half) * 16 + 8 * parity +
                                                (int)lane_index() % 4 * 2) >>
                (key / 16 % 8);
    return bits;
}

static __device__ __forceinline__ bool is_kept(const KeptBits &bits, int n, int e) {
    return bits.word[e / 2][n % 2] >> (8 * (e % 2) + n / 2) & 1;
}

// ---- forward ------------------------------------------------------------------------------------------

// The softmax of a lane's rows so far, in powers of 2: the largest score (the sink counts as one), and the
// part of the sum of 2^(score - top) that this lane has seen.
template <int M> struct Rows { float top[M][2], sum[M][2]; };

template <int M> static __device__ __forceinline__ Rows<M> rows_create(float sink) {
    Rows<M> rows;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // A lowest number that is not -Inf: 2^(-Inf - top) is 0, also in a row that sees nothing.
            rows.top[m][half] = sink > 0 ? log2f(sink) : -1e30f;
            rows.sum[m][half] = sink > 0 && lane_index() % 4 == 0 ? 1 : 0;
        }
    return rows;
}

// Whether there is a key that queries may see.
template <typename T>
static __device__ __forceinline__ bool counts(const Pass<T> &p, const Head &head, int key) {
    return key < p.keys && (!p.mask || p.mask[head.b * (size_t)p.keys + (size_t)key]);
}

// The first query that sees a key; beyond all of them where none does.
template <typename T>
static __device__ __forceinline__ int first_query(const Pass<T> &p, const Head &head, int key) {
    return !counts(p, head, key) ? INT32_MAX : p.causal ? key : 0;
}

// Where the keys that queries before `end` see end.
template <typename T> static __device__ __forceinline__ int last_key(const Pass<T> &p, int end) {
    return p.causal ? min(p.keys, end) : p.keys;
}

// Scores of keys that a query does not see become -Inf. row, key: of element [0][0][0].
template <typename T, int M, int N>
static __device__ __forceinline__ void hide_keys(const Pass<T> &p, const Head &head, Sums<M, N> &s, int row,
                                                 int key) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int least = first_query(p, head, key + 8 * n + e);
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (row + 16 * m < least) s.at[m][n][e] = -INFINITY;
                if (row + 16 * m + 8 < least) s.at[m][n][e + 2] = -INFINITY;
            }
        }
}

// Scores become 2^(score - top), the sums and the output so far shrink to the new top.
template <typename T, int M, int N, int SIZE>
static __device__ __forceinline__ void exponentiate(const Pass<T> &p, Sums<M, N> &s, Rows<M> &rows,
                                                    Sums<M, SIZE> &y) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, sum = 0;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                top = fmaxf(top, fmaxf(s.at[m][n][2 * half], s.at[m][n][2 * half + 1]));
            top = fmaxf(rows.top[m][half], quad_max(top) * p.log2_scale);
            const float shrink = exp2_fast(rows.top[m][half] - top);
            rows.top[m][half] = top;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    sum += s.at[m][n][e] = exp2_fast(fmaf(s.at[m][n][e], p.log2_scale, -top));
            rows.sum[m][half] = rows.sum[m][half] * shrink + sum;
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) y.at[m][n][e] *= shrink;
        }
}

// y and logsumexp of a lane's rows. row: of element [0][0][0].
template <typename T, int M, int SIZE>
static __device__ __forceinline__ void finish(const Pass<T> &p, const Head &head, const Rows<M> &rows,
                                              const Sums<M, SIZE> &y, int row) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 16 * m + 8 * half;
            const float sum = quad_sum(rows.sum[m][half]), scale = sum == 0 ? 0 : p.dropout.scale / sum;
            if (i >= p.queries) continue;
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
                store_pair(p.y + y_place(p, head, i), 8 * n + (int)lane_index() % 4 * 2, p.size,
                           y.at[m][n][2 * half] * scale, y.at[m][n][2 * half + 1] * scale);
            // +Inf where nothing is seen: exp(s - Inf) is 0.
            if (p.logsumexp && lane_index() % 4 == 0)
                p.logsumexp[head.unit * (size_t)p.queries + (size_t)i] =
                    sum == 0 ? INFINITY : rows.top[m][half] * 0.69314718f + logf(sum);
        }
}

// A tile of queries with all keys. While scores are computed values arrive, and the next keys while values
// are summed.
template <typename T, int SIZE, int M>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS) forward_kernel(const Pass<T> p) {
    using S = Shapes<T, SIZE>;
    constexpr int N = S::FORWARD_N, ROWS = S::ROWS * M;
    using Queries = TileShape<ROWS, SIZE, S::PARTS>;
    using Keys = TileShape<N, SIZE, S::PARTS>;
    bf16 *queries = shared_memory<bf16>(), *keys = queries + Queries::BYTES / sizeof(bf16),
         *values = keys + Keys::BYTES / sizeof(bf16);
    uint8_t *kept = (uint8_t *)(values + Keys::BYTES / sizeof(bf16)); // (ROWS, 16)

    const Head head = head_of_block(p);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16 * M;
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * ROWS; // those that see the most go first
    const int row = first + warp_row + lane / 4, end = last_key(p, first + ROWS);
    const int visible = last_key(p, first + warp_row + 1); // to the warp's first row
    load_part<Queries>(queries, p, head, first, QUERY);
    load_part<Keys>(keys, p, head, 0, KEY);
    cp_async_commit();
    Rows<M> rows = rows_create<M>(p.sink);
    Sums<M, SIZE> y;
    sums_clear(y);
    for (int key = 0; key < end; key += N) {
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
        if (p.mask || key + N > visible) hide_keys(p, head, s, row, key + lane % 4 * 2);
        exponentiate(p, s, rows, y);
        if (drops_out(p.dropout)) {
            if (key % KEPT_BLOCK == 0)
                keep_rows(kept + warp_row * 16, p, head, first + warp_row, 16 * M, key, lane, WARP);
            __syncwarp();
#pragma unroll
            for (int m = 0; m < M; m++) {
                const KeptBits bits = kept_bits(kept, warp_row + 16 * m + lane / 4, key);
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!is_kept(bits, n, e)) s.at[m][n][e] = 0;
            }
            __syncwarp();
        }
        product_sums<Keys>(y, s, values, 0);
    }
    finish(p, head, rows, y, row);
}

// ---- backward -----------------------------------------------------------------------------------------

// Of a query's row: log2 of the sum of its exponentials, and dy . y.
struct QueryRow {
    float log2_sum, product;
};

// Scores s and gradients dw to the weights become w f, which was multiplied with values, and the gradients to
// the scores, w (f dw - dy . y), where f is the factor of dropout. factor(n, e), query(n, e): of element
// [0][n][e].
template <int N, typename Factor, typename Query>
static __device__ __forceinline__ void differentiate(Sums<1, N> &s, Sums<1, N> &dw, float log2_scale,
                                                     Factor factor, Query query) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const QueryRow q = query(n, e);
            const float f = factor(n, e), w = exp2_fast(fmaf(s.at[0][n][e], log2_scale, -q.log2_sum));
            dw.at[0][n][e] = w * (f * dw.at[0][n][e] - q.product);
            s.at[0][n][e] = w * f;
        }
}

static __device__ __forceinline__ float keep_all(int, int) {
    return 1;
}

// hide_keys() with keys in the rows. row, query: of element [0][0][0].
template <typename T, int N>
static __device__ __forceinline__ void hide_queries(const Pass<T> &p, const Head &head, Sums<1, N> &s,
                                                    int row, int query) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int least = first_query(p, head, row + 8 * half);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (query + 8 * n + e < least) s.at[0][n][2 * half + e] = -INFINITY;
    }
}

// The gradient of rows of queries, keys or values. row: of element [0][0][0].
template <typename T, int N>
static __device__ __forceinline__ void store_gradient(const Pass<T> &p, const Head &head,
                                                      const Sums<1, N> &sums, float scale, int row,
                                                      AttentionPart part, int column) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half;
        if (i >= length_of(p, part)) continue;
        T *to = p.gradients[part] + part_place(p, head, i, part, p.gradient_strides[part]);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            store_pair(to, column + 8 * n + (int)lane_index() % 4 * 2, p.size,
                       sums.at[0][n][2 * half] * scale, sums.at[0][n][2 * half + 1] * scale);
    }
}

// dy . y of 16 rows, by a warp.
template <typename T>
static __device__ __forceinline__ void row_products(float *out, const Pass<T> &p, const Head &head, int row) {
    for (int r = 0; r < 16; r++) {
        float sum = 0;
        if (row + r < p.queries) {
            const size_t at = y_place(p, head, row + r);
            for (int d = (int)lane_index(); d < p.size; d += WARP)
                sum += (float)p.dy[at + (size_t)d] * (float)p.y[at + (size_t)d];
        }
        sum = warp_sum(sum);
        if (lane_index() == 0) out[r] = sum;
        if (lane_index() == 0 && row + r < p.queries)
            p.product[head.unit * (size_t)p.queries + (size_t)(row + r)] = sum;
    }
}

// Tiles in shared memory: two that stay, and STAGES pairs that pass by.
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

template <typename S, int SIZE> static __device__ __forceinline__ BackwardTiles<S, SIZE> backward_tiles() {
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

// The first (which 0) or second tile that passes by.
template <typename S, int SIZE>
static __device__ __forceinline__ bf16 *column_tile(const BackwardTiles<S, SIZE> &t, int stage, int which) {
    return t.columns + (size_t)(2 * stage + which) * (BackwardTiles<S, SIZE>::Columns::BYTES / sizeof(bf16));
}

// Queries in the rows: their gradient, and dy . y, which the other kernel reads.
template <typename T, int SIZE>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS) backward_queries(const Pass<T> p) {
    using S = Shapes<T, SIZE>;
    using Tiles = BackwardTiles<S, SIZE>;
    constexpr int N = S::BACKWARD_N;
    const Tiles t = backward_tiles<S, SIZE>();
    const Head head = head_of_block(p);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16;
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * S::ROWS;
    const int row = first + warp_row + lane / 4, end = last_key(p, first + S::ROWS);
    const int visible = last_key(p, first + warp_row + 1); // to the warp's first row
    load_part<typename Tiles::Rows>(t.first_row, p, head, first, QUERY);
    load_dy<typename Tiles::Rows>(t.second_row, p, head, first);
    load_part<typename Tiles::Columns>(column_tile(t, 0, 0), p, head, 0, KEY);
    load_part<typename Tiles::Columns>(column_tile(t, 0, 1), p, head, 0, VALUE);
    cp_async_commit();
    row_products(t.product + warp_row, p, head, first + warp_row);
    __syncwarp();
    float log2_sum[2], product[2];
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half;
        log2_sum[half] =
            i < p.queries ? p.logsumexp[head.unit * (size_t)p.queries + (size_t)i] * 1.44269504f : INFINITY;
        product[half] = t.product[warp_row + lane / 4 + 8 * half];
    }
    Sums<1, SIZE> dq;
    sums_clear(dq);
    int stage = 0;
    for (int key = 0; key < end; key += N) {
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
        if (p.mask || key + N > visible) hide_keys(p, head, s, row, key + lane % 4 * 2);
        const auto query = [&](int, int e) { return QueryRow{log2_sum[e / 2], product[e / 2]}; };
        if (drops_out(p.dropout)) {
            if (key % KEPT_BLOCK == 0)
                keep_rows(t.kept + warp_row * 16, p, head, first + warp_row, 16, key, lane, WARP);
            __syncwarp();
            const KeptBits bits = kept_bits(t.kept, warp_row + lane / 4, key);
            const auto factor = [&](int n, int e) { return is_kept(bits, n, e) ? p.dropout.scale : 0; };
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

// Queries from `row` on, their gradients, and what belongs to each row of them.
template <typename S, int SIZE, typename T>
static __device__ __forceinline__ void load_queries(const BackwardTiles<S, SIZE> &t, int stage,
                                                    const Pass<T> &p, const Head &head, int row) {
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

// Keys in the rows: the gradients of keys and values, COLUMNS of them from blockIdx.z * COLUMNS on.
template <typename T, int SIZE>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS) backward_keys_values(const Pass<T> p) {
    using S = Shapes<T, SIZE>;
    using Tiles = BackwardTiles<S, SIZE>;
    constexpr int N = S::BACKWARD_N;
    const Tiles t = backward_tiles<S, SIZE>();
    const Head head = head_of_block(p);
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              column = (int)blockIdx.z * S::COLUMNS;
    const int first = (int)blockIdx.y * S::ROWS, row = first + warp_row + lane / 4;
    const int first_seeing = p.causal ? first : 0; // query
    load_part<typename Tiles::Rows>(t.first_row, p, head, first, KEY);
    load_part<typename Tiles::Rows>(t.second_row, p, head, first, VALUE);
    load_queries(t, 0, p, head, first_seeing);
    cp_async_commit();
    Sums<1, S::COLUMNS> dk, dv;
    sums_clear(dk);
    sums_clear(dv);
    int stage = 0;
    for (int query = first_seeing; query < p.queries; query += N) {
        const int next = S::STAGES - 1 - stage;
        if (S::STAGES == 2 && query + N < p.queries) load_queries(t, next, p, head, query + N);
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
        if (S::STAGES == 1 && query + N < p.queries) load_queries(t, 0, p, head, query + N);
        stage = next;
    }
    store_gradient(p, head, dk, p.scale, row, KEY, column);
    store_gradient(p, head, dv, 1, row, VALUE, column);
}

// ---- launches -----------------------------------------------------------------------------------------

template <typename T>
static Pass<T> pass_create(GemmInput y, const float *logsumexp, const DeviceAttentionInput *in) {
    const size_t size = in->channels / in->heads;
    attention_check(in, y);
    if (in->queries > INT32_MAX / 2 || in->keys > INT32_MAX / 2)
        fail("softmax attention: %zu queries of %zu keys are too many", in->queries, in->keys);
    Pass<T> p = {};
    p.queries = (int)in->queries;
    p.keys = (int)in->keys;
    p.padded = (p.keys + KEPT_BLOCK - 1) / KEPT_BLOCK * KEPT_BLOCK;
    p.heads = (int)in->heads;
    p.size = (int)size;
    p.channels = in->channels;
    p.causal = in->causal;
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
static void forward_tiles(const Device *d, const Pass<T> &p, size_t batch) {
    using S = Shapes<T, SIZE>;
    constexpr int ROWS = S::ROWS * M;
    const size_t shared = TileShape<ROWS, SIZE, S::PARTS>::BYTES +
                          2 * TileShape<S::FORWARD_N, SIZE, S::PARTS>::BYTES + (size_t)ROWS * 16;
    const dim3 grid((unsigned)(batch * (size_t)p.heads), blocks_of((size_t)p.queries, ROWS));
    launch(d, forward_kernel<T, SIZE, M>, grid, WARP * S::WARPS, shared, p);
}

// With two blocks of 16 rows a warp each operand from shared memory serves twice; where that would leave
// multiprocessors without work, one.
template <typename T, int SIZE> static void run_forward(const Device *d, const Pass<T> &p, size_t batch) {
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

template <typename T, int SIZE> static void run_backward(const Device *d, const Pass<T> &p, size_t batch) {
    using S = Shapes<T, SIZE>;
    const size_t shared = BackwardTiles<S, SIZE>::BYTES;
    const unsigned units = (unsigned)(batch * (size_t)p.heads),
                   query_tiles = blocks_of((size_t)p.queries, S::ROWS),
                   key_tiles = blocks_of((size_t)p.keys, S::ROWS);
    launch(d, backward_queries<T, SIZE>, dim3(units, query_tiles), WARP * S::WARPS, shared, p);
    launch(d, backward_keys_values<T, SIZE>, dim3(units, key_tiles, SIZE / S::COLUMNS), WARP * S::WARPS,
           shared, p);
}

// Runs f<T, SIZE>(device, pass, batch) with the smallest SIZE that holds a head.
#define WITH_SOFTMAX_SIZE(T, f, device, pass, batch)                                                         \
    do {                                                                                                     \
        if ((pass).size <= 16)                                                                               \
            f<T, 16>(device, pass, batch);                                                                   \
        else if ((pass).size <= 32)                                                                          \
            f<T, 32>(device, pass, batch);                                                                   \
        else if ((pass).size <= 64)                                                                          \
            f<T, 64>(device, pass, batch);                                                                   \
        else if ((pass).size <= 128)                                                                         \
            f<T, 128>(device, pass, batch);                                                                  \
        else                                                                                                 \
            f<T, 256>(device, pass, batch);                                                                  \
    } while (0)

template <typename T>
static void forward(const Device *device, GemmInput y, float *logsumexp, const DeviceAttentionInput *in,
                    double sink) {
    Pass<T> p = pass_create<T>(y, logsumexp, in);
    p.sink = (float)sink;
    WITH_SOFTMAX_SIZE(T, run_forward, device, p, in->batch);
}

template <typename T>
static void backward(const Device *device, const DeviceAttentionGradients *gradients, GemmInput dy,
                     GemmInput y, const float *logsumexp, const DeviceAttentionInput *in, float *workspace) {
    Pass<T> p = pass_create<T>(y, logsumexp, in);
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.gradients[part] = (T *)gradients->parts[part].data;
        p.gradient_strides[part] = gradients->parts[part].columns;
    }
    p.dy = (const T *)dy.data;
    p.product = workspace;
    WITH_SOFTMAX_SIZE(T, run_backward, device, p, in->batch);
}

} // namespace softmax

// ---- what a model calls -------------------------------------------------------------------------------

// y (B, Tq, C), of the type of queries, keys and values: all bf16, or all float32 and computed as such.
// logsumexp (B, H, Tq): for the backward pass, or NULL.
static inline void softmax_attention_forward(const Device *device, GemmInput y, float *logsumexp,
                                             const DeviceAttentionInput *in, double sink) {
    (y.bf16 ? softmax::forward<bf16> : softmax::forward<float>)(device, y, logsumexp, in, sink);
}

// Floats of working memory of the backward pass, for so many queries.
static inline size_t softmax_attention_workspace(size_t batch, size_t queries, size_t heads) {
    return batch * queries * heads;
}

// The gradients to queries, keys and values are set; dy (B, Tq, C); y and logsumexp as the forward pass left
// them. All of one type.
static inline void softmax_attention_backward(const Device *device, const DeviceAttentionGradients *gradients,
                                              GemmInput dy, GemmInput y, const float *logsumexp,
                                              const DeviceAttentionInput *in, float *workspace) {
    (y.bf16 ? softmax::backward<bf16> : softmax::backward<float>)(device, gradients, dy, y, logsumexp, in,
                                                                  workspace);
}

#endif
