// Token embedding plus positions and a type, with the LayerNorm after it.
//
// Backward: many rows of a batch may hold the same token, and float sums must keep their order. The
// host sorts the rows by token while the GPU is busy. Warps sum pieces of at most 32 rows, and one
// warp adds the pieces of the same token.
#ifndef CUDA_EMBEDDING_CUH
#define CUDA_EMBEDDING_CUH

#include "layernorm.cuh"

// x (B, T, C) = dropout(scale token[input] + position[t] + type), and its LayerNorm.
static inline void embedding_layernorm_forward(const Device *d, float *x, LayerNormOutput to,
                                               EmbeddingRows rows, LayerNormWeights w,
                                               DropoutSite site, size_t batch, size_t channels) {
    layernorm_forward_from(d, x, to, rows, site, w, batch * rows.length, rows.length, channels);
}

// ---- positions --------------------------------------------------------------
// `share` warps process a position, each every share-th sequence; the first one adds their sums.
// Shared memory: (LAYERNORM_WARPS, channels), if rows stay in registers. Otherwise share is 1.
template <int VEC, int ITEMS>
static __global__ void __launch_bounds__(LAYERNORM_WARPS *WARP)
    position_backward_kernel(float *dposition, float *dx, DropoutSite site, unsigned batch,
                             unsigned length, unsigned channels, unsigned share) {
    begin_kernel();
    const unsigned warp = threadIdx.x / WARP, t = (blockIdx.x * LAYERNORM_WARPS + warp) / share;
    float *const row_sums = dposition + (size_t)t * channels, *const sums = shared_memory<float>();
    float sum[ITEMS > 0 ? ITEMS : 1][VEC] = {};
    for (unsigned b = warp % share; t < length && b < batch; b += share) {
        const size_t row = (size_t)b * length + t;
        const RowDropout<VEC, ITEMS> dropout = row_dropout<VEC, ITEMS>(site, row, length, channels);
        for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
            float v[VEC];
            load_row<VEC>(v, dx + row * channels + c);
            if (drops_out(site)) {
                drop_row(v, dropout, site, i, c);
                store_row<VEC>(dx + row * channels + c, v);
            }
            if (ITEMS == 0) load_row<VEC>(sum[i], row_sums + c);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[i][j] += v[j];
            if (ITEMS == 0) store_row<VEC>(row_sums + c, sum[i]);
        });
    }
    if constexpr (ITEMS > 0) {
        for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
            store_row<VEC>(sums + warp * channels + c, sum[i]);
        });
        __syncthreads();
        if (warp % share != 0 || t >= length) return;
        for_row<VEC, ITEMS>(channels, [&](unsigned i, unsigned c) {
            load_row<VEC>(sum[i], row_sums + c);
            for (unsigned w = warp; w < warp + share; w++)
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[i][j] += sums[w * channels + c + j];
            store_row<VEC>(row_sums + c, sum[i]);
        });
    }
}

// Number of warps that share a position: a power of two, so that a block has whole positions.
static inline unsigned position_share(size_t batch) {
    unsigned share = 1;
    while (2 * share <= batch && 2 * share <= (unsigned)LAYERNORM_WARPS) share *= 2;
    return share;
}

// dposition (positions, C) += the sum over the batch of dx (B, T, C), after applying dropout to dx
// in place.
static inline void position_backward(const Device *d, float *dposition, float *dx, DropoutSite site,
                                     size_t batch, size_t length, size_t channels) {
    WITH_ROW_SHAPE(channels, VEC, ITEMS, {
        const unsigned share = ITEMS > 0 ? position_share(batch) : 1;
        const size_t shared = ITEMS > 0 ? LAYERNORM_WARPS * channels * sizeof(float) : 0;
        launch_early(d, position_backward_kernel<VEC, ITEMS>,
                     dim3(blocks_of(length * share, LAYERNORM_WARPS)), dim3(LAYERNORM_WARPS * WARP),
                     shared, dposition, dx, site, (unsigned)batch, (unsigned)length,
                     (unsigned)channels, share);
    });
}

// ---- tokens -----------------------------------------------------------------

static constexpr int32_t EMBEDDING_PIECE = 32; // rows

// Rows order[begin .. begin + count - 1] hold this token. Their sum is stored in row `slot` of the
// partial sums, or with slot -1 added to the gradient.
struct EmbeddingPiece {
    int32_t token, begin, count, slot;
};

// The rows of a batch sorted by token.
struct EmbeddingOrder {
    size_t rows, vocabulary; // maximum M; V
    int32_t *counts;         // (V + 1) on the host
    char *on_host; // pinned: order (M), pieces (M), and tokens with several pieces (M / 32 + 1)
    char *on_device;
    float *partial; // (slots, C) on the device
};

static inline size_t embedding_slots(size_t rows) {
    return rows / EMBEDDING_PIECE * 2 + 1;
}

static inline size_t embedding_order_bytes(size_t rows) {
    return rows * (sizeof(int32_t) + sizeof(EmbeddingPiece)) +
           (rows / EMBEDDING_PIECE + 1) * sizeof(EmbeddingPiece);
}

static inline void embedding_order_carve(EmbeddingOrder *o, DeviceArena *a, size_t rows,
                                         size_t vocabulary, size_t channels) {
    o->rows = rows;
    o->vocabulary = vocabulary;
    o->on_device = arena_array<char>(a, embedding_order_bytes(rows), "embedding");
    o->partial = arena_array<float>(a, embedding_slots(rows) * channels, "embedding");
    if (!a->memory) return;
    o->counts = (int32_t *)allocate(vocabulary + 1, sizeof(int32_t), "embedding");
    CUDA_CHECK(cudaMallocHost((void **)&o->on_host, embedding_order_bytes(rows)));
}

static inline void embedding_order_free(EmbeddingOrder *o) {
    free(o->counts);
    if (o->on_host) CUDA_CHECK(cudaFreeHost(o->on_host));
}

// A warp sums the rows of a piece. pieces (count) index the rows of `order`. With dx = the partial
// sums and order NULL it adds the pieces of a token.
static __global__ void token_backward_kernel(float *dtoken, float *partial, const float *dx,
                                             const EmbeddingPiece *pieces, const int32_t *order,
                                             float scale, unsigned count, unsigned channels) {
    begin_kernel();
    const unsigned index = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (index >= count) return;
    const EmbeddingPiece p = pieces[index];
    for (unsigned c = lane_index(); c < channels; c += WARP) {
        float sum = 0;
#pragma unroll 8
        for (int32_t i = p.begin; i < p.begin + p.count; i++)
            sum += dx[(size_t)(order ? order[i] : i) * channels + c];
        if (p.slot < 0)
            dtoken[(size_t)p.token * channels + c] += scale * sum;
        else
            partial[(size_t)p.slot * channels + c] = sum;
    }
}

// order (m) = the rows sorted by token, stable, without those of `padding`; counts[v] = the end of
// the rows of token v. Returns the number of rows in order.
static inline int32_t embedding_sort(EmbeddingOrder *o, int32_t *order, const int32_t *inputs,
                                     int32_t padding, size_t m) {
    int32_t *start = o->counts, total = 0;
    memset(start, 0, (o->vocabulary + 1) * sizeof(int32_t));
    for (size_t i = 0; i < m; i++) start[inputs[i]]++;
    if (padding >= 0 && (size_t)padding < o->vocabulary) start[padding] = 0;
    for (size_t v = 0; v < o->vocabulary; v++) {
        const int32_t count = start[v];
        start[v] = total;
        total += count;
    }
    for (size_t i = 0; i < m; i++)
        if (inputs[i] != padding) order[start[inputs[i]]++] = (int32_t)i;
    return total;
}

// dtoken (V, C) += scale times the rows of dx (m, C) of each token except `padding` (-1: none).
// inputs (m) on the host, in [0, V). Must not be captured: the work depends on the tokens. The
// previous call's copies must have completed.
static inline void token_backward(const Device *d, EmbeddingOrder *o, float *dtoken,
                                  const float *dx, const int32_t *inputs, double scale,
                                  int32_t padding, size_t m, size_t channels) {
    if (m > o->rows) fail("embedding: %zu rows, planned for %zu", m, o->rows);
    int32_t *order = (int32_t *)o->on_host;
    EmbeddingPiece *pieces =
        (EmbeddingPiece *)(order + m); // followed by the tokens with several pieces
    const int32_t total = embedding_sort(o, order, inputs, padding, m);
    unsigned count = 0, several = 0;
    int32_t slots = 0;
    EmbeddingPiece *const tokens = pieces + m;
    for (int32_t begin = 0; begin < total;) {
        const int32_t token = inputs[order[begin]], end = o->counts[token], first_slot = slots;
        const bool split = end - begin > EMBEDDING_PIECE;
        for (; begin < end; begin += EMBEDDING_PIECE) {
            const int32_t left = end - begin;
            pieces[count++] = {token, begin, left < EMBEDDING_PIECE ? left : EMBEDDING_PIECE,
                               split ? slots++ : -1};
        }
        begin = end;
        if (split) tokens[several++] = {token, first_slot, slots - first_slot, -1};
    }
    memmove(pieces + count, tokens, several * sizeof(EmbeddingPiece));
    const size_t bytes = m * sizeof(int32_t) + (count + several) * sizeof(EmbeddingPiece);
    CUDA_CHECK(cudaMemcpyAsync(o->on_device, o->on_host, bytes, cudaMemcpyHostToDevice, d->stream));
    const int32_t *rows = (const int32_t *)o->on_device;
    const EmbeddingPiece *work = (const EmbeddingPiece *)(rows + m);
    if (count)
        launch_early(d, token_backward_kernel, dim3(blocks_of(count, 8)), dim3(8 * WARP), 0, dtoken,
                     o->partial, dx, work, rows, (float)scale, count, (unsigned)channels);
    if (several)
        launch_early(d, token_backward_kernel, dim3(blocks_of(several, 8)), dim3(8 * WARP), 0,
                     dtoken, o->partial, o->partial, work + count, (const int32_t *)NULL,
                     (float)scale, several, (unsigned)channels);
}

#endif
