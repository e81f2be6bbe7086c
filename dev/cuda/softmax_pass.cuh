// Code shared by the softmax attention kernels: offsets of heads, dropout, and operations on a
// warp's scores and gradients between products. Part of softmax_attention.cuh.
#ifndef CUDA_SOFTMAX_PASS_CUH
#define CUDA_SOFTMAX_PASS_CUH

#include "attention_input.cuh"
#include "tile.cuh"

namespace softmax {

static constexpr int KEPT_BLOCK = 128; // keys whose dropout is decided together

// Arguments of a pass, the same for all thread blocks. Arrays of the backward pass are NULL in the
// forward pass.
template <typename T> struct SoftmaxPass {
    int queries, keys;       // Tq, Tk
    int padded;              // Tk rounded up to whole blocks of dropout
    int heads, size;         // H, D
    size_t channels;         // C
    bool causal;             // a query sees keys up to its own; else all keys
    int window;              // causal: most keys that a query sees, ending with its own
    float scale, log2_scale; // 1 / sqrt(D), the same times log2(e)
    float sink;
    const T *rows[3];    // queries (B, Tq), keys, values (B, Tk): first of a token's C elements
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

// Head h of sequence b.
struct SoftmaxHead {
    size_t b, h, unit; // unit = b H + h
};

template <typename T>
static __device__ __forceinline__ SoftmaxHead head_of(const SoftmaxPass<T> &p, unsigned unit) {
    return {unit / (unsigned)p.heads, unit % (unsigned)p.heads, unit};
}

// Number of queries, or of keys and values.
template <typename T>
static __device__ __forceinline__ int length_of(const SoftmaxPass<T> &p, AttentionPart part) {
    return part == QUERY ? p.queries : p.keys;
}

// Offset of a row of a head, in a part or in its gradient.
template <typename T>
static __device__ __forceinline__ size_t part_place(const SoftmaxPass<T> &p,
                                                    const SoftmaxHead &head, int row,
                                                    AttentionPart part, size_t stride) {
    return (head.b * (size_t)length_of(p, part) + (size_t)row) * stride + head.h * (size_t)p.size;
}

// Offset of a row of a head, in y or dy.
template <typename T>
static __device__ __forceinline__ size_t y_place(const SoftmaxPass<T> &p, const SoftmaxHead &head,
                                                 int row) {
    return part_place(p, head, row, QUERY, p.channels);
}

// ---- dropout ----------------------------------------------------------------
// Writes 16 bytes per row to shared memory, for a block of 128 keys that starts at a multiple of
// 128. Bit j / 16 % 8 of byte j % 16 is set if weight (row, j) is kept. A call of the generator
// decides 8 of them.
template <typename T>
static __device__ __forceinline__ void keep_rows(uint8_t *kept, const SoftmaxPass<T> &p,
                                                 const SoftmaxHead &head, int row, int rows,
                                                 int key, int thread, int threads) {
    const uint64_t unit = (p.dropout.step->first_row + head.b) * (uint64_t)p.heads + head.h;
    const uint64_t blocks = (uint64_t)(p.padded / KEPT_BLOCK); // of a row
    const uint64_t first =
        (unit * (uint64_t)p.queries + (uint64_t)row) * blocks + (uint64_t)(key / KEPT_BLOCK);
    for (int i = thread; i < rows * 16; i += threads)
        kept[i] = dropout_byte(p.dropout,
                               (first + (uint64_t)(i / 16) * blocks) * 16 + (uint64_t)(i % 16));
}

// Dropout bits of a lane's elements, with queries in the rows and keys in the columns, by half and
// parity of n.
struct KeptBits {
    uint32_t word[2][2];
};

// row: of the lane's first element, relative to keep_rows()'s first row; key: of the tile's first
// column.
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

// ---- forward ----------------------------------------------------------------
// Running softmax of a lane's rows, in powers of 2: the largest score so far (the sink counts as
// one), and the part of the sum of 2^(score - top) that this lane has seen.
template <int M> struct SoftmaxRows { float top[M][2], sum[M][2]; };

template <int M> static __device__ __forceinline__ SoftmaxRows<M> rows_create(float sink) {
    SoftmaxRows<M> rows;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // A low number, but not -Inf: 2^(-Inf - top) is 0 also in a row that sees no key.
            rows.top[m][half] = sink > 0 ? log2f(sink) : -1e30f;
            rows.sum[m][half] = sink > 0 && lane_index() % 4 == 0 ? 1 : 0;
        }
    return rows;
}

// Whether a key exists and is not masked.
template <typename T>
static __device__ __forceinline__ bool counts(const SoftmaxPass<T> &p, const SoftmaxHead &head,
                                              int key) {
    return key < p.keys && (!p.mask || p.mask[head.b * (size_t)p.keys + (size_t)key]);
}

// Returns the first query that sees a key; INT32_MAX if none does.
template <typename T>
static __device__ __forceinline__ int first_query(const SoftmaxPass<T> &p, const SoftmaxHead &head,
                                                  int key) {
    return !counts(p, head, key) ? INT32_MAX : p.causal ? key : 0;
}

// Whether a query sees a key whose first_query() is `least`.
template <typename T>
static __device__ __forceinline__ bool sees(const SoftmaxPass<T> &p, int query, int least) {
    return (unsigned)(query - least) < (unsigned)p.window;
}

// Returns the end of the keys that queries before `end` see.
template <typename T>
static __device__ __forceinline__ int last_key(const SoftmaxPass<T> &p, int end) {
    return p.causal ? min(p.keys, end) : p.keys;
}

// Returns the first key of a query's window; negative if the window starts before all keys.
template <typename T>
static __device__ __forceinline__ int first_key(const SoftmaxPass<T> &p, int query) {
    return query - p.window + 1;
}

// Returns the start of the first tile of N keys for queries from `query` on.
template <int N, typename T>
static __device__ __forceinline__ int first_keys(const SoftmaxPass<T> &p, int query) {
    return max(first_key(p, query), 0) / N * N;
}

// Returns the end of the queries that see keys before `end`.
template <typename T>
static __device__ __forceinline__ int last_query(const SoftmaxPass<T> &p, int end) {
    return p.window < p.queries ? min(p.queries, end + p.window - 1) : p.queries;
}

// Sets the scores of keys that a query does not see to -Inf. row, key: of element [0][0][0].
template <typename T, int M, int N>
static __device__ __forceinline__ void hide_keys(const SoftmaxPass<T> &p, const SoftmaxHead &head,
                                                 Sums<M, N> &s, int row, int key) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int least = first_query(p, head, key + 8 * n + e);
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (!sees(p, row + 16 * m, least)) s.at[m][n][e] = -INFINITY;
                if (!sees(p, row + 16 * m + 8, least)) s.at[m][n][e + 2] = -INFINITY;
            }
        }
}

// Replaces scores by 2^(score - top), and rescales the sums so far to the new top. Sets `shrink` to
// the factors. log2_scale: scale of the scores, times log2(e).
template <int M, int N>
static __device__ __forceinline__ void exponentiate(float log2_scale, Sums<M, N> &s,
                                                    SoftmaxRows<M> &rows, float shrink[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, sum = 0;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                top = fmaxf(top, fmaxf(s.at[m][n][2 * half], s.at[m][n][2 * half + 1]));
            top = fmaxf(rows.top[m][half], quad_max(top) * log2_scale);
            shrink[m][half] = exp2_fast(rows.top[m][half] - top);
            rows.top[m][half] = top;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    sum += s.at[m][n][e] = exp2_fast(fmaf(s.at[m][n][e], log2_scale, -top));
            rows.sum[m][half] = rows.sum[m][half] * shrink[m][half] + sum;
        }
}

// Rescales the output by the same factors.
template <int M, int SIZE>
static __device__ __forceinline__ void shrink_rows(Sums<M, SIZE> &y, const float shrink[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) y.at[m][n][e] *= shrink[m][e / 2];
}

// Sets dropped weights to 0. kept (16 M, 16): bits of the warp's rows; row: the warp's first; key:
// of the first column; start: first key of the row's loop.
template <typename T, int M, int N>
static __device__ __forceinline__ void drop_weights(const SoftmaxPass<T> &p,
                                                    const SoftmaxHead &head, Sums<M, N> &s,
                                                    uint8_t *kept, int row, int key, int start) {
    const int lane = (int)lane_index();
    if (key % KEPT_BLOCK == 0 || key == start)
        keep_rows(kept, p, head, row, 16 * M, key, lane, WARP);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
        const KeptBits bits = kept_bits(kept, 16 * m + lane / 4, key);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!is_kept(bits, n, e)) s.at[m][n][e] = 0;
    }
    __syncwarp();
}

// Stores y and logsumexp of a lane's rows. row: of element [0][0][0].
template <typename T, int M, int SIZE>
static __device__ __forceinline__ void finish(const SoftmaxPass<T> &p, const SoftmaxHead &head,
                                              const SoftmaxRows<M> &rows, const Sums<M, SIZE> &y,
                                              int row) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 16 * m + 8 * half;
            const float sum = quad_sum(rows.sum[m][half]),
                        scale = sum == 0 ? 0 : p.dropout.scale / sum;
            if (i >= p.queries) continue;
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
                store_pair(p.y + y_place(p, head, i), 8 * n + (int)lane_index() % 4 * 2, p.size,
                           y.at[m][n][2 * half] * scale, y.at[m][n][2 * half + 1] * scale);
            // +Inf if the row sees no key: exp(s - Inf) is 0.
            if (p.logsumexp && lane_index() % 4 == 0)
                p.logsumexp[head.unit * (size_t)p.queries + (size_t)i] =
                    sum == 0 ? INFINITY : rows.top[m][half] * 0.69314718f + logf(sum);
        }
}

// ---- backward ---------------------------------------------------------------
// A query's log2 of the sum of its exponentials, and dy . y.
struct QueryRow {
    float log2_sum, product;
};

// Replaces scores s by the weights w f that multiply the values, where f is the dropout factor, and
// the gradients dw of these weights by those of the scores, w (f dw - dy . y). factor(n, e),
// query(n, e): of element [0][n][e].
template <int N, typename Factor, typename Query>
static __device__ __forceinline__ void differentiate(Sums<1, N> &s, Sums<1, N> &dw,
                                                     float log2_scale, Factor factor, Query query) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const QueryRow q = query(n, e);
            const float f = factor(n, e),
                        w = exp2_fast(fmaf(s.at[0][n][e], log2_scale, -q.log2_sum));
            dw.at[0][n][e] = w * (f * dw.at[0][n][e] - q.product);
            s.at[0][n][e] = w * f;
        }
}

static __device__ __forceinline__ float keep_all(int, int) {
    return 1;
}

// Like hide_keys(), with keys in the rows. row, query: of element [0][0][0].
template <typename T, int N>
static __device__ __forceinline__ void
hide_queries(const SoftmaxPass<T> &p, const SoftmaxHead &head, Sums<1, N> &s, int row, int query) {
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

// The same for queries whose window starts after the key. A separate function saves registers.
template <typename T, int N>
static __device__ __forceinline__ void hide_late_queries(const SoftmaxPass<T> &p, Sums<1, N> &s,
                                                         int row, int query) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (query - row + 8 * n + e % 2 - e / 2 * 8 >= p.window) s.at[0][n][e] = -INFINITY;
}

// Stores the gradient of rows of queries, keys or values. row: of element [0][0][0].
template <typename T, int N>
static __device__ __forceinline__ void
store_gradient(const SoftmaxPass<T> &p, const SoftmaxHead &head, const Sums<1, N> &sums,
               float scale, int row, AttentionPart part, int column) {
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

// Computes dy . y of 16 rows. Called by a warp.
template <typename T>
static __device__ __forceinline__ void row_products(float *out, const SoftmaxPass<T> &p,
                                                    const SoftmaxHead &head, int row) {
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

// The two rows that a lane holds, of a warp's 16 queries from `first` on: element e of its
// fragments is in row e / 2. products (16): memory for dy . y of all 16 rows.
struct LaneRows {
    QueryRow at[2];
};

template <typename T>
static __device__ __forceinline__ LaneRows lane_rows(float *products, const SoftmaxPass<T> &p,
                                                     const SoftmaxHead &head, int first) {
    row_products(products, p, head, first);
    __syncwarp();
    LaneRows rows;
    for (int half = 0; half < 2; half++) {
        const int in_warp = (int)lane_index() / 4 + 8 * half, i = first + in_warp;
        const float logsumexp =
            i < p.queries ? p.logsumexp[head.unit * (size_t)p.queries + (size_t)i] : INFINITY;
        rows.at[half] = {logsumexp * 1.44269504f, products[in_warp]};
    }
    return rows;
}

} // namespace softmax

#endif
