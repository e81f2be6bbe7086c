// Shared by all kernels of additive attention (described in additive_attention.cuh): the inputs and
// outputs of a pass, heads and scores, array offsets, dropout, sums over time, shared memory.
#ifndef CUDA_ADDITIVE_PASS_CUH
#define CUDA_ADDITIVE_PASS_CUH

#include "additive_rows.cuh"
#include "device.cuh"
#include "dropout.cuh"
#include "gemm.cuh"

namespace additive {

// Rows in memory.
struct StoredRows {
    float *rows, *weights, *tops; // (B, H, T, D), (B, H, T), with plain scores (B, H, T)
};

// Common to all thread blocks of a pass. Arrays that only one pass uses are NULL in the other.
struct AdditivePass {
    int length;                        // T
    int channels, heads, size, window; // C, H, D, k (the longest T: global)
    float scale, sink;                 // s/D (plain scores: 1/sqrt(D)), c
    bool raw, reversed;                // pool x; positions count from the end
    const float *qkv;                  // (B, T, 3C)
    const float *weights[2];           // (H, D) w_q, w_k
    const float *gain;                 // (C) of G in the result; NULL: 0
    const uint8_t *mask;               // (B, T) or NULL
    DropoutSite drop_query, drop_key;  // of G and P
    float *pooled_query, *r_query;   // (B, H, T, D) G before dropout, (B, H, T) 1 / (sum of e + c);
    float *pooled_key, *r_key;       // the same for P; with plain scores r is its logarithm
    const float *x;                  // (B, T, C) or NULL: 0
    Matrix out, dout;                // (B, T, C)
    Matrix dqkv;                     // (B, T, 3C)
    StoredRows summed;               // rows that the second pooling sums; plain scores: each one,
    StoredRows sums;                 // and their window sums
    float *first_sums, *second_sums; // (B, H, tiles, D+1) of whole tiles, for each pooling
    float *dweights; // (3, H, D, B * tiles) sums of the gradients to w_q', w_k' and the gain
    int tiles;       // blocks of threads per head
    int blocks;      // short windows: blocks of k rows per tile
    int tile_rows, tiles_per_block; // long windows; plain scores have tiles of rows as well
    bool global;                    // one block, without a previous one
};

// ---- heads and scores -------------------------------------------------------
// A thread block works on one head of one sequence. The offsets of its first row are computed once,
// so that each row costs one multiplication of 32-bit integers.
struct AdditiveHead {
    unsigned b, h;
    int tile;
    size_t unit;                  // b H + h
    size_t qkv, channel, row, at; // in arrays (B, T, 3C), (B, T, C), (B, H, T), (B, T)
};

static __device__ __forceinline__ AdditiveHead head_of_block(const AdditivePass &p) {
    const unsigned unit = blockIdx.x / (unsigned)p.tiles, heads = (unsigned)p.heads;
    AdditiveHead head;
    head.b = unit / heads;
    head.h = unit % heads;
    head.tile = (int)(blockIdx.x % (unsigned)p.tiles);
    head.unit = unit;
    head.at = head.b * (size_t)p.length;
    head.row = unit * (size_t)p.length;
    head.channel = head.at * (size_t)p.channels + head.h * (size_t)p.size;
    head.qkv = 3 * head.at * (size_t)p.channels + head.h * (size_t)p.size;
    return head;
}

// Functions shared by plain and bounded scores have a parameter PLAIN.

// w_q' (which 0) or w_k' (1) of the head; with plain scores w_q or w_k.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE> normal_weight(const AdditivePass &p,
                                                          const AdditiveHead &head, int which) {
    const Row<SIZE> w = row_load<SIZE>(p.weights[which] + head.h * (size_t)p.size, p.size, true);
    return PLAIN ? w : normalise<SIZE>(w, p.size).normal;
}

// Returns a row's x', deviation and e; e is 0 if the row does not count. With plain scores: x with
// its score as top.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Scored<SIZE> score(const AdditivePass &p, const Row<SIZE> &x,
                                                     const Row<SIZE> &weight, bool counts) {
    if constexpr (PLAIN) {
        Scored<SIZE> s = {x, 0};
        const float a = p.scale * row_dot<SIZE>(x, weight);
        s.normal.weight = 1;
        s.normal.top = counts ? a : -INFINITY;
        return s;
    }
    Scored<SIZE> s = normalise<SIZE>(x, p.size);
    const float a = p.scale * row_dot<SIZE>(s.normal, weight);
    s.normal.weight = counts ? __expf(a) : 0; // |a| <= s: within s 2^-23 of it
    return s;
}

// A pooling's input row: e x' with weight e. With plain scores: x with weight 1 and top log e.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE> weighted(const AdditivePass &p, const Row<SIZE> &x,
                                                     const Scored<SIZE> &s) {
    if constexpr (PLAIN) return s.normal;
    Row<SIZE> row = row_scaled<SIZE>(row_choose<SIZE>(p.raw, x, s.normal), s.normal.weight);
    row.weight = s.normal.weight;
    return row;
}

// ---- places -----------------------------------------------------------------
// A row of the sequence: its time, and whether it exists.
struct AdditivePlace {
    unsigned t;
    bool present;
};

static __device__ __forceinline__ AdditivePlace place_of(const AdditivePass &p, int position) {
    const bool present = position >= 0 && position < p.length;
    return {present ? (unsigned)(p.reversed ? p.length - 1 - position : position) : 0, present};
}

// Offset of a query (which 0), key (1) or value (2) of the head.
static __device__ __forceinline__ size_t qkv_place(const AdditivePass &p, const AdditiveHead &head,
                                                   AdditivePlace at, int which) {
    return head.qkv + (size_t)(which * p.channels) + (uint64_t)at.t * (unsigned)(3 * p.channels);
}

template <int SIZE>
static __device__ __forceinline__ Row<SIZE> qkv_row(const AdditivePass &p, const AdditiveHead &head,
                                                    AdditivePlace at, int which) {
    return row_load<SIZE>(p.qkv + qkv_place(p, head, at, which), p.size, at.present);
}

// Stores a row of a matrix from element `first` on.
template <int SIZE>
static __device__ __forceinline__ void matrix_store(const AdditivePass &p, Matrix to, size_t first,
                                                    AdditivePlace at, const Row<SIZE> &row) {
    if (!at.present) return;
    if (to.bf16)
        row_store<SIZE>((bf16 *)to.data + first, row, p.size);
    else
        row_store<SIZE>((float *)to.data + first, row, p.size);
}

template <int SIZE>
static __device__ __forceinline__ void store_gradient(const AdditivePass &p,
                                                      const AdditiveHead &head, AdditivePlace at,
                                                      int which, const Row<SIZE> &row) {
    matrix_store<SIZE>(p, p.dqkv, qkv_place(p, head, at, which), at, row);
}

// Offset in an array (B, T, C).
static __device__ __forceinline__ size_t channel_place(const AdditivePass &p,
                                                       const AdditiveHead &head, AdditivePlace at) {
    return head.channel + (uint64_t)at.t * (unsigned)p.channels;
}

// Offsets in an array (B, H, T), and in one (B, H, T, D).
static __device__ __forceinline__ size_t row_place(const AdditiveHead &head, AdditivePlace at) {
    return head.row + at.t;
}
static __device__ __forceinline__ size_t pooled_place(const AdditivePass &p,
                                                      const AdditiveHead &head, AdditivePlace at) {
    return head.row * (size_t)p.size + (uint64_t)at.t * (unsigned)p.size;
}

static __device__ __forceinline__ bool counts(const AdditivePass &p, const AdditiveHead &head,
                                              AdditivePlace at) {
    return at.present && (!p.mask || p.mask[head.at + at.t]);
}

// ---- dropout ----------------------------------------------------------------
// The elements of a run of rows that dropout keeps. One generator call decides about 8 elements
// that are 16 apart in a block of 128 (dropout.h). Their bits are a byte; a block has 16.
struct Kept {
    const uint8_t *bytes; // in shared memory; NULL: keeps all
    int first_time;
    unsigned first; // index of its first element in the first block of 128
    float scale;
};

static __host__ __device__ __forceinline__ size_t kept_bytes(size_t rows, size_t size) {
    return (rows * size / DROPOUT_BLOCK + 2) * 16;
}

static __device__ __forceinline__ Kept keeps_all() {
    return {NULL, 0, 0, 1};
}

// Fills in rows start .. start+rows-1. A barrier must follow.
static __device__ __forceinline__ Kept keep_rows(const AdditivePass &p, const AdditiveHead &head,
                                                 const DropoutSite &dropout, uint8_t *bytes,
                                                 int start, int rows) {
    Kept kept = keeps_all();
    if (!drops_out(dropout)) return kept;
    int first = max(start, 0), last = min(start + rows, p.length);
    if (p.reversed) {
        const int end = p.length - first;
        first = p.length - last;
        last = end;
    }
    const uint64_t unit = (dropout.step->first_row + head.b) * (uint64_t)p.heads + head.h;
    const uint64_t element = (unit * (uint64_t)p.length + (uint64_t)first) * (uint64_t)p.size;
    kept.bytes = bytes;
    kept.scale = dropout.scale;
    kept.first_time = first;
    kept.first = (unsigned)(element % DROPOUT_BLOCK);
    const int count =
        last > first ? (int)(kept.first + (unsigned)((last - first) * p.size) + DROPOUT_BLOCK - 1) /
                           (int)DROPOUT_BLOCK * 16
                     : 0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        bytes[i] = dropout_byte(dropout, element / DROPOUT_BLOCK * 16 + (uint64_t)i);
    return kept;
}

// Returns the dropout factors of a row.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> kept_factors(const AdditivePass &p, const Kept &kept,
                                                         AdditivePlace at) {
    Row<SIZE> row = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i += 4) {
        const int d = column_of<SIZE>(i);
        const unsigned e = kept.first + (unsigned)(((int)at.t - kept.first_time) * p.size + d);
        const bool inside = at.present && d < p.size;
        if (!kept.bytes) {
#pragma unroll
            for (int j = 0; j < 4; j++) row.at[i + j] = 1;
        } else if (inside && p.size % 4 == 0) {
            const uint32_t word =
                *(const uint32_t *)(kept.bytes + e / 128 * 16 + e % 16) >> (e / 16 % 8);
#pragma unroll
            for (int j = 0; j < 4; j++) row.at[i + j] = word >> (8 * j) & 1 ? kept.scale : 0;
        } else if (inside) {
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                const unsigned f = e + j;
                if (d + (int)j < p.size)
                    row.at[i + j] =
                        kept.bytes[f / 128 * 16 + f % 16] >> (f / 16 % 8) & 1 ? kept.scale : 0;
            }
        }
    }
    return row;
}

// ---- sums over time ---------------------------------------------------------

static constexpr int SEGMENT = 16; // rows that a thread sums sequentially

static __device__ __forceinline__ void add_to(float4 &sum, const float4 &x) {
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
}

// Number of segments of `own` and `before` in window_sums().
static __host__ __device__ __forceinline__ int segments_of(int blocks, int span) {
    return blocks * ((span + SEGMENT - 1) / SEGMENT);
}

// The work item of a thread in window_sums(): 4 columns (the last 4 hold the weight) of a segment
// of a block.
struct Share {
    int block, segment, column; // column in float4
};

template <int SIZE> static __device__ __forceinline__ Share share_of(int i, int segments) {
    constexpr int COLUMNS = SIZE / 4 + 1;
    const int piece = i / COLUMNS, block = segments == 1 ? piece : piece / segments;
    return {block, piece - block * segments, i % COLUMNS};
}

// `own` holds `blocks` blocks of `rows` rows, `before` the blocks of `span` rows that start k rows
// earlier (NULL: they are empty). Row r of an own block becomes carry + (rows 0 .. r of the block)
// + (rows r+1 .. of the block before). carry: a row, or NULL for 0. totals: memory for 2
// segments_of(blocks, span) rows. The caller adds barriers around it. Overwrites `before`.
//
// As with tiles, between r and r+1 of the block before there are only whole segments, of which just
// the totals are needed.
template <int SIZE>
static __device__ __forceinline__ void window_sums(float *own, float *before, float *totals,
                                                   const float *carry, int blocks, int rows,
                                                   int span) {
    constexpr int STRIDE = Row<SIZE>::STRIDE / 4; // in float4
    float4 *own4 = (float4 *)own, *before4 = (float4 *)before, *totals4 = (float4 *)totals;
    const int segments = segments_of(1, span), work = blocks * segments * (SIZE / 4 + 1);
    for (int i = (int)threadIdx.x; i < work; i += THREADS) {
        const Share share = share_of<SIZE>(i, segments);
        const int first = share.segment * SEGMENT, last = min(first + SEGMENT, span);
        float4 suffix = make_float4(0, 0, 0, 0), total = make_float4(0, 0, 0, 0);
        if (before) {
            float4 *b = before4 + share.block * span * STRIDE + share.column;
#pragma unroll 4
            for (int r = last - 1; r >= first; r--) {
                add_to(suffix, b[r * STRIDE]);
                b[r * STRIDE] = suffix;
            }
        }
        if (segments == 1) continue;
        const float4 *a = own4 + share.block * rows * STRIDE + share.column;
#pragma unroll 4
        for (int r = first; r < min(last, rows); r++) add_to(total, a[r * STRIDE]);
        float4 *to = totals4 + 2 * (share.block * segments + share.segment) * STRIDE + share.column;
        to[0] = total;
        to[STRIDE] = suffix;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < work; i += THREADS) {
        const Share share = share_of<SIZE>(i, segments);
        const int first = share.segment * SEGMENT, last = min(first + SEGMENT, rows);
        const int last_before = before ? min(first + SEGMENT, span) : 0;
        const float4 *from = totals4 + 2 * share.block * segments * STRIDE + share.column;
        float4 sum = carry ? ((const float4 *)carry)[share.column] : make_float4(0, 0, 0, 0);
        for (int other = 0; other < segments; other++)
            if (other != share.segment)
                add_to(sum, from[(2 * other + (other > share.segment)) * STRIDE]);
        float4 *a = own4 + share.block * rows * STRIDE + share.column;
        const float4 *b = before4 + share.block * span * STRIDE + share.column;
#pragma unroll 4
        for (int r = first; r < last; r++) {
            add_to(sum, a[r * STRIDE]);
            float4 all = sum;
            if (r + 1 < last_before) add_to(all, b[(r + 1) * STRIDE]);
            a[r * STRIDE] = all;
        }
    }
}

// carry, a row, = the sum of the `count` rows (D+1) that end before `end`. partial: shared memory
// for max(THREADS, D+1) floats. A barrier must follow.
template <int SIZE>
static __device__ __forceinline__ void carry_sums(float *carry, float *partial, const float *end,
                                                  int count, int size) {
    const int columns = size + 1, parts = THREADS / columns;
    for (int i = (int)threadIdx.x; i < parts * columns; i += THREADS) {
        float sum = 0;
#pragma unroll 4
        for (int t = count - i / columns; t > 0; t -= parts)
            sum += end[i % columns - (int64_t)t * columns];
        partial[i] = sum;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < Row<SIZE>::STRIDE; c += THREADS) {
        const int column = c < size ? c : c == SIZE ? size : -1;
        float sum = 0;
        for (int part = 0; part < parts && column >= 0; part++)
            sum += partial[part * columns + column];
        carry[c] = sum;
    }
}

// out[d * stride] = the sum of all groups' rows for column d < columns (column D is the weight).
// `memory` (GROUPS, STRIDE) is shared memory that is no longer read.
template <int SIZE>
static __device__ __forceinline__ void block_row_sum(float *memory, const Row<SIZE> &row,
                                                     float *out, size_t stride, int size,
                                                     int columns) {
    __syncthreads();
    row_put<SIZE>(memory, group_index<SIZE>(), row);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < columns; d += THREADS) {
        float sum = 0;
        for (int g = 0; g < Row<SIZE>::GROUPS; g++)
            sum += memory[g * Row<SIZE>::STRIDE + (d < size ? d : SIZE)];
        out[(size_t)d * stride] = sum;
    }
}

// ---- pooled rows ------------------------------------------------------------

template <int SIZE>
static __device__ __forceinline__ void store_pooled(const AdditivePass &p, const AdditiveHead &head,
                                                    AdditivePlace at, float *pooled, float *r,
                                                    const Row<SIZE> &row) {
    if (!at.present) return;
    row_store<SIZE>(pooled + pooled_place(p, head, at), row, p.size);
    if (threadIdx.x % Row<SIZE>::LANES == 0) r[row_place(head, at)] = row.weight;
}

// Loads a row that an earlier kernel stored.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
stored_row(const AdditivePass &p, const AdditiveHead &head, const StoredRows &from, int position) {
    const AdditivePlace at = place_of(p, position);
    Row<SIZE> row = row_load<SIZE>(from.rows + pooled_place(p, head, at), p.size, at.present);
    if (at.present) row.weight = from.weights[row_place(head, at)];
    if constexpr (PLAIN) row.top = at.present ? from.tops[row_place(head, at)] : -INFINITY;
    return row;
}

template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ void store_row(const AdditivePass &p, const AdditiveHead &head,
                                                 const StoredRows &to, int position,
                                                 const Row<SIZE> &row) {
    const AdditivePlace at = place_of(p, position);
    store_pooled<SIZE>(p, head, at, to.rows, to.weights, row);
    if (PLAIN && at.present && threadIdx.x % Row<SIZE>::LANES == 0)
        to.tops[row_place(head, at)] = row.top;
}

// Returns the head's gain of pooled queries.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> gain_row(const AdditivePass &p,
                                                     const AdditiveHead &head) {
    return row_load<SIZE>(p.gain + head.h * (size_t)p.size, p.size, true);
}

// ---- shared memory and tiles ------------------------------------------------

struct Shared {
    float *own, *before, *totals, *carry, *partial;
    uint8_t *kept_query, *kept_key,
        *kept_before; // elements that dropout keeps: of G, of P, of P in `before`
};

// Floats of shared memory for the given numbers of rows in `own` and `before` and of segments.
static __host__ __device__ __forceinline__ int shared_numbers(int stride, int own, int before,
                                                              int segments) {
    return (own + before + 2 * segments + 1) * stride + THREADS;
}

// The same in bytes, with the dropout bits.
static size_t shared_size(int stride, size_t size, int own, int before, int segments) {
    return (size_t)shared_numbers(stride, own, before, segments) * sizeof(float) +
           2 * kept_bytes((size_t)own, size) + kept_bytes((size_t)before, size);
}

template <int SIZE>
static __device__ __forceinline__ Shared carve_shared(const AdditivePass &p, int own, int before,
                                                      int segments) {
    constexpr int STRIDE = Row<SIZE>::STRIDE;
    Shared s;
    s.own = shared_memory<float>();
    s.before = s.own + own * STRIDE;
    s.totals = s.before + before * STRIDE;
    s.carry = s.totals + 2 * segments * STRIDE;
    s.partial = s.carry + STRIDE;
    s.kept_query = (uint8_t *)(s.own + shared_numbers(STRIDE, own, before, segments));
    s.kept_key = s.kept_query + kept_bytes((size_t)own, (size_t)p.size);
    s.kept_before = s.kept_key + kept_bytes((size_t)own, (size_t)p.size);
    return s;
}

// A tile of a long window.
struct Tile {
    int start;      // position of its first row
    int rows, span; // its rows; those of the tile k rows before
    bool before;    // whether that tile exists
    int between;    // whole tiles of the window before its own
};

static __device__ __forceinline__ Tile tile_of(const AdditivePass &p, const AdditiveHead &head) {
    const int block = head.tile / p.tiles_per_block, place = head.tile % p.tiles_per_block;
    Tile tile;
    tile.start = block * p.window + place * p.tile_rows;
    tile.span = min(p.tile_rows, p.window - place * p.tile_rows);
    tile.rows = min(tile.span, p.length - tile.start);
    tile.before = block > 0;
    tile.between = min(head.tile, p.tiles_per_block - 1);
    return tile;
}

// Returns the address of the sum of the thread block's tile; the sums of earlier tiles precede it.
static __device__ __forceinline__ float *tile_sum_of(const AdditivePass &p,
                                                     const AdditiveHead &head, float *sums) {
    return sums + (head.unit * (size_t)p.tiles + (size_t)head.tile) * (size_t)(p.size + 1);
}

template <int SIZE> static __device__ __forceinline__ Shared carve_tile(const AdditivePass &p) {
    return carve_shared<SIZE>(p, p.tile_rows, p.global ? 0 : p.tile_rows,
                              segments_of(1, p.tile_rows));
}

// Computes a tile's window sums: stores row_at(position) of its own tile in s.own and of the tile
// before in s.before, then sums. Ends with a barrier.
template <int SIZE, typename RowAt>
static __device__ __forceinline__ void tile_sums(const AdditivePass &p, const AdditiveHead &head,
                                                 const Tile &tile, const Shared &s, float *sums,
                                                 const RowAt &row_at) {
    const int all = tile.rows + (tile.before ? tile.span : 0);
    carry_sums<SIZE>(s.carry, s.partial, tile_sum_of(p, head, sums), tile.between, p.size);
    for (int first = 0; first < all; first += Row<SIZE>::GROUPS) {
        const int i = first + group_index<SIZE>(), r = i < tile.rows ? i : i - tile.rows;
        const bool own = i < tile.rows;
        const Row<SIZE> row =
            row_at(i < all ? tile.start + r - (own ? 0 : p.window) : -1, own && i < all);
        if (i < all) row_put<SIZE>(own ? s.own : s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own, tile.before ? s.before : NULL, s.totals, s.carry, 1, tile.rows,
                      tile.span);
    __syncthreads();
}

} // namespace additive

#endif
