// Additive attention of all heads (Wu et al., arXiv 2108.09084, made causal and windowed), forward and
// backward:
//
//   out = x + P * v,  P = dropout(pool(G * k, w_k)),  G = dropout(pool(q, w_q))
//   pool(x, w)_i = sum over the window of e_j x'_j / (sum of e_j + sink),  e_j = exp(s/D x'_j . w'), 0 at
//   padding
//
// where x' = (x - mean) / (deviation + 1e-5) over a head. The window of k rows that ends at i is summed
// without any subtraction (van Herk 1992; Gil and Werman 1993): the sequence is cut into blocks of k rows,
// and the sum is that of the rows of i's own block up to i, plus that of the block before from i-k+1 on. The
// backward pass sums over the i whose window holds j: the same sums in reversed time, so all positions count
// from the end there.
//
// Short windows: one kernel does both poolings. A block of threads takes a run of whole blocks of rows and
// the two blocks before, whose sums it computes again (the "halo"). Long windows and the global layer: blocks
// are cut into tiles that fit in shared memory. A window is then the rest of the tile k rows before, whole
// tiles between, and the start of the own tile; a first kernel leaves the sums of the whole tiles, two more
// do a pooling each. All sums are taken in an order that depends on the shapes and the kind of GPU alone.
//
// Rows are dealt to groups of lanes for what goes over a row (normalisation, scores: additive_rows.cuh), and
// columns to threads for what goes over time.
#ifndef CUDA_ADDITIVE_ATTENTION_CUH
#define CUDA_ADDITIVE_ATTENTION_CUH

#include "additive_rows.cuh"
#include "device.cuh"
#include "dropout.cuh"
#include "gemm.cuh"

typedef struct {
    size_t channels, heads, window; // C, H, k (0: global)
    float rescale, sink;            // s, c
    bool pool_raw;                  // pool x, not x'
    size_t batch, length;           // largest B and T of batches to come: they decide how the work is cut
} AdditiveAttention;

namespace additive {

// What all blocks of threads of a pass share. Arrays of one pass only are NULL in the other.
struct Pass {
    int length;                        // T
    int channels, heads, size, window; // C, H, D, k (the longest T: global)
    float scale, sink;                 // s/D, c
    bool raw, reversed;                // pool x; positions count from the end
    const float *qkv;                  // (B, T, 3C)
    const float *weights[2];           // (H, D) w_q, w_k
    const uint8_t *mask;               // (B, T) or NULL
    DropoutSite drop_query, drop_key;  // of G and P
    float *pooled_query, *r_query;     // (B, H, T, D) G before dropout, (B, H, T) 1 / (sum of e + c)
    float *pooled_key, *r_key;         // the same of P
    const float *x, *dout;             // (B, T, C)
    float *out;                        // (B, T, C)
    GemmInput dqkv;                    // (B, T, 3C)
    float *rows, *row_weights;         // (B, H, T, D), (B, H, T) what the second pooling sums
    float *first_sums, *second_sums;   // (B, H, tiles, D+1) of whole tiles, for each pooling
    float *dweights;                   // (2, H, D, B * tiles) sums of the gradients to w_q', w_k'
    int tiles;                         // blocks of threads a head
    int blocks;                        // short windows: blocks of k rows a tile
    int tile_rows, tiles_per_block;    // long windows
    bool global;                       // one block: there is none before
};

// ---- heads and scores -------------------------------------------------------------------------------------

// A block of threads works on one head of one sequence. Offsets of its first row are computed once, so that a
// row costs one multiplication of 32-bit numbers.
struct Head {
    unsigned b, h;
    int tile;
    size_t unit;                  // b H + h
    size_t qkv, channel, row, at; // in arrays (B, T, 3C), (B, T, C), (B, H, T), (B, T)
};

static __device__ __forceinline__ Head head_of_block(const Pass &p) {
    const unsigned unit = blockIdx.x / (unsigned)p.tiles, heads = (unsigned)p.heads;
    Head head;
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

// w_q' (which 0) or w_k' (1) of the head.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> normal_weight(const Pass &p, const Head &head, int which) {
    const Row<SIZE> w = row_load<SIZE>(p.weights[which] + head.h * (size_t)p.size, p.size, true);
    return normalise<SIZE>(w, p.size).normal;
}

// A row's x', deviation and e; e is 0 where the row does not count.
template <int SIZE>
static __device__ __forceinline__ Scored<SIZE> score(const Pass &p, const Row<SIZE> &x,
                                                     const Row<SIZE> &weight, bool counts) {
    Scored<SIZE> s = normalise<SIZE>(x, p.size);
    const float a = p.scale * row_dot<SIZE>(s.normal, weight);
    s.normal.weight = counts ? __expf(a) : 0; // |a| <= s: within s 2^-23 of it
    return s;
}

// e x' with weight e: what a pooling sums.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> weighted(const Pass &p, const Row<SIZE> &x,
                                                     const Scored<SIZE> &s) {
    Row<SIZE> row = row_scaled<SIZE>(row_choose<SIZE>(p.raw, x, s.normal), s.normal.weight);
    row.weight = s.normal.weight;
    return row;
}

// ---- places -------------------------------------------------------------------------------------------

// A row of the sequence: its time, and whether there is one.
struct Place {
    unsigned t;
    bool present;
};

static __device__ __forceinline__ Place place_of(const Pass &p, int position) {
    const bool present = position >= 0 && position < p.length;
    return {present ? (unsigned)(p.reversed ? p.length - 1 - position : position) : 0, present};
}

// Query (which 0), key (1) or value (2) of the head.
static __device__ __forceinline__ size_t qkv_place(const Pass &p, const Head &head, Place at, int which) {
    return head.qkv + (size_t)(which * p.channels) + (uint64_t)at.t * (unsigned)(3 * p.channels);
}

template <int SIZE>
static __device__ __forceinline__ Row<SIZE> qkv_row(const Pass &p, const Head &head, Place at, int which) {
    return row_load<SIZE>(p.qkv + qkv_place(p, head, at, which), p.size, at.present);
}

template <int SIZE>
static __device__ __forceinline__ void store_gradient(const Pass &p, const Head &head, Place at, int which,
                                                      const Row<SIZE> &row) {
    const size_t first = qkv_place(p, head, at, which);
    if (!at.present) return;
    if (p.dqkv.bf16)
        row_store<SIZE>((bf16 *)p.dqkv.data + first, row, p.size);
    else
        row_store<SIZE>((float *)p.dqkv.data + first, row, p.size);
}

// Of an array (B, T, C).
static __device__ __forceinline__ size_t channel_place(const Pass &p, const Head &head, Place at) {
    return head.channel + (uint64_t)at.t * (unsigned)p.channels;
}

// Of an array (B, H, T), and of one (B, H, T, D).
static __device__ __forceinline__ size_t row_place(const Head &head, Place at) {
    return head.row + at.t;
}
static __device__ __forceinline__ size_t pooled_place(const Pass &p, const Head &head, Place at) {
    return head.row * (size_t)p.size + (uint64_t)at.t * (unsigned)p.size;
}

static __device__ __forceinline__ bool counts(const Pass &p, const Head &head, Place at) {
    return at.present && (!p.mask || p.mask[head.at + at.t]);
}

// ---- dropout ------------------------------------------------------------------------------------------

// Which elements of a run of rows are kept. A call of the generator decides about 8 elements that stand 16
// apart in a block of 128 (dropout.h): their 8 bits are a byte here, 16 bytes a block.
struct Kept {
    const uint8_t *bytes; // in shared memory; NULL: all
    int first_time;
    unsigned first; // place of its first element in the first block of 128
    float scale;
};

static __host__ __device__ __forceinline__ size_t kept_bytes(size_t rows, size_t size) {
    return (rows * size / DROPOUT_BLOCK + 2) * 16;
}

// For the rows at positions start .. start+rows-1. A barrier must follow.
static __device__ __forceinline__ Kept keep_rows(const Pass &p, const Head &head, const DropoutSite &dropout,
                                                 uint8_t *bytes, int start, int rows) {
    Kept kept = {NULL, 0, 0, 1};
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
    const int count = last > first
                          ? (int)(kept.first + (unsigned)((last - first) * p.size) + DROPOUT_BLOCK - 1) /
                                (int)DROPOUT_BLOCK * 16
                          : 0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        bytes[i] = dropout_byte(dropout, element / DROPOUT_BLOCK * 16 + (uint64_t)i);
    return kept;
}

// The factors of a row.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> kept_factors(const Pass &p, const Kept &kept, Place at) {
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
            const uint32_t word = *(const uint32_t *)(kept.bytes + e / 128 * 16 + e % 16) >> (e / 16 % 8);
#pragma unroll
            for (int j = 0; j < 4; j++) row.at[i + j] = word >> (8 * j) & 1 ? kept.scale : 0;
        } else if (inside) {
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                const unsigned f = e + j;
                if (d + (int)j < p.size)
                    row.at[i + j] = kept.bytes[f / 128 * 16 + f % 16] >> (f / 16 % 8) & 1 ? kept.scale : 0;
            }
        }
    }
    return row;
}

// ---- sums over time -----------------------------------------------------------------------------------

static constexpr int SEGMENT = 16; // rows that a thread sums one after the other

static __device__ __forceinline__ void add_to(float4 &sum, const float4 &x) {
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
}

// Segments of `own` and `before` in window_sums().
static __host__ __device__ __forceinline__ int segments_of(int blocks, int span) {
    return blocks * ((span + SEGMENT - 1) / SEGMENT);
}

// What a thread sums in window_sums(): 4 columns (the last 4 hold the weight) of a segment of a block.
struct Share {
    int block, segment, column; // column in float4
};

template <int SIZE> static __device__ __forceinline__ Share share_of(int i, int segments) {
    constexpr int COLUMNS = SIZE / 4 + 1;
    const int piece = i / COLUMNS, block = segments == 1 ? piece : piece / segments;
    return {block, piece - block * segments, i % COLUMNS};
}

// `own` holds `blocks` blocks of `rows` rows, `before` the blocks of `span` rows that lie k rows before them
// (NULL: they are empty). Row r of an own block becomes carry + (rows 0 .. r of the block) + (rows r+1 .. of
// the block before). carry: a row, or NULL: 0. totals: memory for 2 segments_of(blocks, span) rows. Barriers
// around it are the caller's; `before` is used up.
//
// As with tiles, what lies between r and r+1 of the block before are the other segments, of which only the
// totals are needed.
template <int SIZE>
static __device__ __forceinline__ void window_sums(float *__restrict__ own, float *__restrict__ before,
                                                   float *__restrict__ totals, const float *carry, int blocks,
                                                   int rows, int span) {
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
            if (other != share.segment) add_to(sum, from[(2 * other + (other > share.segment)) * STRIDE]);
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

// carry, a row, = the sum of the `count` rows (D+1) that end before `end`. partial: shared memory for
// max(THREADS, D+1) numbers. A barrier must follow.
template <int SIZE>
static __device__ __forceinline__ void carry_sums(float *carry, float *partial, const float *end, int count,
                                                  int size) {
    const int columns = size + 1, parts = THREADS / columns;
    for (int i = (int)threadIdx.x; i < parts * columns; i += THREADS) {
        float sum = 0;
#pragma unroll 4
        for (int t = count - i / columns; t > 0; t -= parts) sum += end[i % columns - (int64_t)t * columns];
        partial[i] = sum;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < Row<SIZE>::STRIDE; c += THREADS) {
        const int column = c < size ? c : c == SIZE ? size : -1;
        float sum = 0;
        for (int part = 0; part < parts && column >= 0; part++) sum += partial[part * columns + column];
        carry[c] = sum;
    }
}

// out[d * stride] = the sum of all groups' rows for column d < columns (column D is the weight). `memory`
// (GROUPS, STRIDE) is shared memory that nobody reads any more.
template <int SIZE>
static __device__ __forceinline__ void block_row_sum(float *memory, const Row<SIZE> &row, float *out,
                                                     size_t stride, int size, int columns) {
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

// ---- shared memory and tiles --------------------------------------------------------------------------

struct Shared {
    float *own, *before, *totals, *carry, *partial;
    uint8_t *kept_query, *kept_key,
        *kept_before; // which elements dropout keeps: of G, of P, of P in `before`
};

// Numbers, for so many rows in `own` and `before` and so many segments.
static __host__ __device__ __forceinline__ int shared_numbers(int stride, int own, int before, int segments) {
    return (own + before + 2 * segments + 1) * stride + THREADS;
}

// Bytes.
static size_t shared_size(int stride, size_t size, int own, int before, int segments) {
    return (size_t)shared_numbers(stride, own, before, segments) * sizeof(float) +
           2 * kept_bytes((size_t)own, size) + kept_bytes((size_t)before, size);
}

template <int SIZE>
static __device__ __forceinline__ Shared carve_shared(const Pass &p, int own, int before, int segments) {
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
    int rows, span; // rows that it has; that the tile k rows before has
    bool before;    // there is one
    int between;    // whole tiles
};

static __device__ __forceinline__ Tile tile_of(const Pass &p, const Head &head) {
    const int block = head.tile / p.tiles_per_block, place = head.tile % p.tiles_per_block;
    Tile tile;
    tile.start = block * p.window + place * p.tile_rows;
    tile.span = min(p.tile_rows, p.window - place * p.tile_rows);
    tile.rows = min(tile.span, p.length - tile.start);
    tile.before = block > 0;
    tile.between = min(head.tile, p.tiles_per_block - 1);
    return tile;
}

// Where the sum of the block's tile is kept; those of the tiles before stand before it.
static __device__ __forceinline__ float *tile_sum_of(const Pass &p, const Head &head, float *sums) {
    return sums + (head.unit * (size_t)p.tiles + (size_t)head.tile) * (size_t)(p.size + 1);
}

template <int SIZE> static __device__ __forceinline__ Shared carve_tile(const Pass &p) {
    return carve_shared<SIZE>(p, p.tile_rows, p.global ? 0 : p.tile_rows, segments_of(1, p.tile_rows));
}

// Rows for a tile's window sums: row_at(position) of the own tile into s.own, of the one before into
// s.before; then the sums. Ends with a barrier.
template <int SIZE, typename RowAt>
static __device__ __forceinline__ void tile_sums(const Pass &p, const Head &head, const Tile &tile,
                                                 const Shared &s, float *sums, const RowAt &row_at) {
    const int all = tile.rows + (tile.before ? tile.span : 0);
    carry_sums<SIZE>(s.carry, s.partial, tile_sum_of(p, head, sums), tile.between, p.size);
    for (int first = 0; first < all; first += Row<SIZE>::GROUPS) {
        const int i = first + group_index<SIZE>(), r = i < tile.rows ? i : i - tile.rows;
        const bool own = i < tile.rows;
        const Row<SIZE> row = row_at(i < all ? tile.start + r - (own ? 0 : p.window) : -1, own && i < all);
        if (i < all) row_put<SIZE>(own ? s.own : s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own, tile.before ? s.before : NULL, s.totals, s.carry, 1, tile.rows, tile.span);
    __syncthreads();
}

// ---- forward ------------------------------------------------------------------------------------------

// e q' and e of a position.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> query_row(const Pass &p, const Head &head, int position,
                                                      const Row<SIZE> &weight) {
    const Place at = place_of(p, position);
    const Row<SIZE> q = qkv_row<SIZE>(p, head, at, 0);
    return weighted<SIZE>(p, q, score<SIZE>(p, q, weight, counts(p, head, at)));
}

// Sums over the window become the pooled row; its weight is then r. Nothing is pooled where c = 0 and all is
// padding.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> pooled_row(const Pass &p, const Row<SIZE> &sums) {
    const float denominator = sums.weight + p.sink, r = denominator > 0 ? __fdividef(1, denominator) : 0;
    Row<SIZE> row = row_scaled<SIZE>(sums, r);
    row.weight = r;
    return row;
}

template <int SIZE>
static __device__ __forceinline__ void store_pooled(const Pass &p, const Head &head, Place at, float *pooled,
                                                    float *r, const Row<SIZE> &row) {
    if (!at.present) return;
    row_store<SIZE>(pooled + pooled_place(p, head, at), row, p.size);
    if (threadIdx.x % Row<SIZE>::LANES == 0) r[row_place(head, at)] = row.weight;
}

// From a query's window sums G, which is kept if `own`, and what the second pooling sums there.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> pool_query(const Pass &p, const Head &head, int position,
                                                       const Row<SIZE> &sums, const Row<SIZE> &weight,
                                                       const Kept &kept, bool own) {
    const Place at = place_of(p, position);
    const Row<SIZE> pooled = pooled_row<SIZE>(p, sums);
    if (own) store_pooled<SIZE>(p, head, at, p.pooled_query, p.r_query, pooled);
    const Row<SIZE> dropped = row_times<SIZE>(pooled, kept_factors<SIZE>(p, kept, at));
    const Row<SIZE> product = row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 1));
    return weighted<SIZE>(p, product, score<SIZE>(p, product, weight, counts(p, head, at)));
}

// Asks for what the two functions above and below will read, so that it is under way while sums are computed.
template <int SIZE>
static __device__ __forceinline__ void prefetch_forward(const Pass &p, const Head &head, int start, int rows,
                                                        bool key, bool value) {
    for (int r = group_index<SIZE>(); r < rows; r += Row<SIZE>::GROUPS) {
        const Place at = place_of(p, start + r);
        if (key) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 1), p.size, at.present);
        if (value) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 2), p.size, at.present);
        if (value) row_prefetch<SIZE>(p.x + channel_place(p, head, at), p.size, at.present);
    }
}

// From a product's window sums P, which is kept, and the result.
template <int SIZE>
static __device__ __forceinline__ void pool_key(const Pass &p, const Head &head, int position,
                                                const Row<SIZE> &sums, const Kept &kept) {
    const Place at = place_of(p, position);
    const Row<SIZE> pooled = pooled_row<SIZE>(p, sums);
    store_pooled<SIZE>(p, head, at, p.pooled_key, p.r_key, pooled);
    const Row<SIZE> dropped = row_times<SIZE>(pooled, kept_factors<SIZE>(p, kept, at));
    Row<SIZE> out = row_load<SIZE>(p.x + channel_place(p, head, at), p.size, at.present);
    row_add<SIZE>(out, row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 2)), 1);
    if (at.present) row_store<SIZE>(p.out + channel_place(p, head, at), out, p.size);
}

// Short windows: everything, for `blocks` blocks of rows behind a halo of two.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) window_forward(const Pass p) {
    const Head head = head_of_block(p);
    const int k = p.window, all = (p.blocks + 2) * k, pass = Row<SIZE>::GROUPS;
    const int start = (head.tile * p.blocks - 2) * k;
    const Shared s = carve_shared<SIZE>(p, all, all, segments_of(p.blocks + 1, k));
    const Row<SIZE> query_weight = normal_weight<SIZE>(p, head, 0),
                    key_weight = normal_weight<SIZE>(p, head, 1);
    const Kept kept_query = keep_rows(p, head, p.drop_query, s.kept_query, start + k, all - k);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, start + 2 * k, all - 2 * k);

    prefetch_forward<SIZE>(p, head, start + k, k, true, false);
    prefetch_forward<SIZE>(p, head, start + 2 * k, all - 2 * k, true, true);
    for (int first = 0; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        const Row<SIZE> row = query_row<SIZE>(p, head, r < all ? start + r : -1, query_weight);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + k * Row<SIZE>::STRIDE, s.before, s.totals, NULL, p.blocks + 1, k, k);
    __syncthreads();
    for (int first = k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        const Row<SIZE> sums = row_get<SIZE>(s.own, r, r < all);
        const Row<SIZE> row =
            pool_query<SIZE>(p, head, r < all ? start + r : -1, sums, key_weight, kept_query, r >= 2 * k);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + 2 * k * Row<SIZE>::STRIDE, s.before + k * Row<SIZE>::STRIDE, s.totals, NULL,
                      p.blocks, k, k);
    __syncthreads();
    for (int first = 2 * k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        pool_key<SIZE>(p, head, r < all ? start + r : -1, row_get<SIZE>(s.own, r, r < all), kept_key);
    }
}

// Long windows, 1 of 3: the sum of each tile's queries.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_forward_sums(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 0);
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        row_add<SIZE>(sum, query_row<SIZE>(p, head, r < tile.rows ? tile.start + r : -1, weight), 1);
    }
    block_row_sum<SIZE>(shared_memory<float>(), sum, tile_sum_of(p, head, p.first_sums), 1, p.size,
                        p.size + 1);
}

// 2 of 3: G, what the second pooling sums, and its sum over each tile.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_forward_query(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> query_weight = normal_weight<SIZE>(p, head, 0),
                    key_weight = normal_weight<SIZE>(p, head, 1);
    const Kept kept = keep_rows(p, head, p.drop_query, s.kept_query, tile.start, tile.rows);
    prefetch_forward<SIZE>(p, head, tile.start, tile.rows, true, false);
    tile_sums<SIZE>(p, head, tile, s, p.first_sums,
                    [&](int position, bool) { return query_row<SIZE>(p, head, position, query_weight); });
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        const int position = r < tile.rows ? tile.start + r : -1;
        const Row<SIZE> row = pool_query<SIZE>(p, head, position, row_get<SIZE>(s.own, r, r < tile.rows),
                                               key_weight, kept, true);
        store_pooled<SIZE>(p, head, place_of(p, position), p.rows, p.row_weights, row);
        row_add<SIZE>(sum, row, 1);
    }
    block_row_sum<SIZE>(s.own, sum, tile_sum_of(p, head, p.second_sums), 1, p.size, p.size + 1);
}

// What the kernel before left for the second pooling.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> stored_row(const Pass &p, const Head &head, int position) {
    const Place at = place_of(p, position);
    Row<SIZE> row = row_load<SIZE>(p.rows + pooled_place(p, head, at), p.size, at.present);
    if (at.present) row.weight = p.row_weights[row_place(head, at)];
    return row;
}

// 3 of 3: P and the result.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_forward_key(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Kept kept = keep_rows(p, head, p.drop_key, s.kept_key, tile.start, tile.rows);
    prefetch_forward<SIZE>(p, head, tile.start, tile.rows, false, true);
    tile_sums<SIZE>(p, head, tile, s, p.second_sums,
                    [&](int position, bool) { return stored_row<SIZE>(p, head, position); });
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        pool_key<SIZE>(p, head, r < tile.rows ? tile.start + r : -1, row_get<SIZE>(s.own, r, r < tile.rows),
                       kept);
    }
}

// ---- backward -----------------------------------------------------------------------------------------
//
// Of a pooling, with d_i the gradient to the pooled row g_i:
//   u_j = sum of r_i d_i, t_j = sum of r_i (d_i . g_i) over the i whose window holds j,
//   dx'_j = e_j u_j + da_j w',  da_j = s/D e_j (x'_j . u_j - t_j),  dw' += da_j x'_j.

// r d with weight r (d . g): what the backward pass of a pooling sums.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> gradient_row(const Pass &p, const Head &head, Place at,
                                                         const Row<SIZE> &d, const float *pooled,
                                                         const float *r) {
    const Row<SIZE> g = row_load<SIZE>(pooled + pooled_place(p, head, at), p.size, at.present);
    const float scale = at.present ? r[row_place(head, at)] : 0;
    Row<SIZE> row = row_scaled<SIZE>(d, scale);
    row.weight = scale * row_dot<SIZE>(d, g);
    return row;
}

// From the gradient of the result, what the second pooling's backward pass sums; the gradient of values is
// stored if `own`.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> key_gradient_row(const Pass &p, const Head &head, int position,
                                                             const Kept &kept, bool own) {
    const Place at = place_of(p, position);
    const Row<SIZE> dout = row_load<SIZE>(p.dout + channel_place(p, head, at), p.size, at.present);
    const Row<SIZE> dropped = row_times<SIZE>(dout, kept_factors<SIZE>(p, kept, at));
    if (own) {
        const Row<SIZE> pooled = row_load<SIZE>(p.pooled_key + pooled_place(p, head, at), p.size, at.present);
        store_gradient<SIZE>(p, head, at, 2, row_times<SIZE>(dropped, pooled));
    }
    return gradient_row<SIZE>(p, head, at, row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 2)),
                              p.pooled_key, p.r_key);
}

// The gradient to x, from what is pooled there and the sums u and t (weight); dweight += that to w'.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE>
pool_backward(const Pass &p, const Row<SIZE> &x, const Row<SIZE> &weight, bool is_counted,
              const Row<SIZE> &sums, Row<SIZE> &dweight, bool own) {
    const Scored<SIZE> s = score<SIZE>(p, x, weight, is_counted);
    const float e = s.normal.weight;
    const float da = p.scale * e * (row_dot<SIZE>(row_choose<SIZE>(p.raw, x, s.normal), sums) - sums.weight);
    Row<SIZE> dnormal = row_scaled<SIZE>(weight, da);
    if (!p.raw) row_add<SIZE>(dnormal, sums, e);
    if (own) row_add<SIZE>(dweight, s.normal, da);
    Row<SIZE> dx = normalise_backward<SIZE>(dnormal, s, p.size);
    if (p.raw) row_add<SIZE>(dx, sums, e);
    return dx;
}

// From the second pooling's sums the gradient of keys, which is stored if `own`, and what the first pooling's
// backward pass sums.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE>
query_gradient_row(const Pass &p, const Head &head, int position, const Row<SIZE> &sums,
                   const Row<SIZE> &weight, const Kept &kept, Row<SIZE> &dweight, bool own) {
    const Place at = place_of(p, position);
    const Row<SIZE> factors = kept_factors<SIZE>(p, kept, at);
    const Row<SIZE> key = row_times<SIZE>(qkv_row<SIZE>(p, head, at, 1), factors);
    const Row<SIZE> pooled = row_load<SIZE>(p.pooled_query + pooled_place(p, head, at), p.size, at.present);
    const Row<SIZE> dproduct =
        pool_backward<SIZE>(p, row_times<SIZE>(pooled, key), weight, counts(p, head, at), sums, dweight, own);
    if (own)
        store_gradient<SIZE>(p, head, at, 1, row_times<SIZE>(row_times<SIZE>(dproduct, pooled), factors));
    return gradient_row<SIZE>(p, head, at, row_times<SIZE>(dproduct, key), p.pooled_query, p.r_query);
}

// From the first pooling's sums the gradient of queries.
template <int SIZE>
static __device__ __forceinline__ void query_gradient(const Pass &p, const Head &head, int position,
                                                      const Row<SIZE> &sums, const Row<SIZE> &weight,
                                                      Row<SIZE> &dweight) {
    const Place at = place_of(p, position);
    const Row<SIZE> q = qkv_row<SIZE>(p, head, at, 0);
    store_gradient<SIZE>(p, head, at, 0,
                         pool_backward<SIZE>(p, q, weight, counts(p, head, at), sums, dweight, true));
}

// Asks for what the functions above will read.
template <int SIZE>
static __device__ __forceinline__ void prefetch_backward(const Pass &p, const Head &head, int start, int rows,
                                                         bool key, bool query) {
    for (int r = group_index<SIZE>(); r < rows; r += Row<SIZE>::GROUPS) {
        const Place at = place_of(p, start + r);
        if (key) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 1), p.size, at.present);
        if (key) row_prefetch<SIZE>(p.pooled_query + pooled_place(p, head, at), p.size, at.present);
        if (query) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 0), p.size, at.present);
    }
}

// A block's gradient to w_q' (which 0) or w_k' (1).
template <int SIZE>
static __device__ __forceinline__ void store_dweight(const Pass &p, const Head &head, int which,
                                                     float *memory, const Row<SIZE> &dweight) {
    const size_t parts = gridDim.x / (unsigned)p.heads, part = head.b * (size_t)p.tiles + (size_t)head.tile;
    float *out = p.dweights + ((size_t)which * (size_t)p.heads + head.h) * (size_t)p.size * parts + part;
    block_row_sum<SIZE>(memory, dweight, out, parts, p.size, p.size);
}

// Short windows: everything, for `blocks` blocks of rows.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) window_backward(const Pass p) {
    const Head head = head_of_block(p);
    const int k = p.window, all = (p.blocks + 2) * k, pass = Row<SIZE>::GROUPS;
    const int start = (head.tile * p.blocks - 2) * k;
    const Shared s = carve_shared<SIZE>(p, all, all, segments_of(p.blocks + 1, k));
    const Row<SIZE> query_weight = normal_weight<SIZE>(p, head, 0),
                    key_weight = normal_weight<SIZE>(p, head, 1);
    Row<SIZE> dquery_weight = row_zero<SIZE>(), dkey_weight = row_zero<SIZE>();
    const Kept kept_query = keep_rows(p, head, p.drop_query, s.kept_query, start + k, all - k);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, start, all);
    prefetch_backward<SIZE>(p, head, start + k, k, true, false);
    prefetch_backward<SIZE>(p, head, start + 2 * k, all - 2 * k, true, true);
    __syncthreads();

    for (int first = 0; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        const Row<SIZE> row = key_gradient_row<SIZE>(p, head, r < all ? start + r : -1, kept_key, r >= 2 * k);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + k * Row<SIZE>::STRIDE, s.before, s.totals, NULL, p.blocks + 1, k, k);
    __syncthreads();
    for (int first = k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        const Row<SIZE> sums = row_get<SIZE>(s.own, r, r < all);
        const Row<SIZE> row = query_gradient_row<SIZE>(p, head, r < all ? start + r : -1, sums, key_weight,
                                                       kept_query, dkey_weight, r >= 2 * k);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + 2 * k * Row<SIZE>::STRIDE, s.before + k * Row<SIZE>::STRIDE, s.totals, NULL,
                      p.blocks, k, k);
    __syncthreads();
    for (int first = 2 * k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        query_gradient<SIZE>(p, head, r < all ? start + r : -1, row_get<SIZE>(s.own, r, r < all),
                             query_weight, dquery_weight);
    }
    store_dweight<SIZE>(p, head, 0, s.own, dquery_weight);
    store_dweight<SIZE>(p, head, 1, s.own, dkey_weight);
}

// Long windows, 1 of 3: the sum of each tile for the second pooling's backward pass.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_backward_sums(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Kept kept = keep_rows(p, head, p.drop_key, shared_memory<uint8_t>(), tile.start, tile.rows);
    __syncthreads();
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        row_add<SIZE>(sum, key_gradient_row<SIZE>(p, head, r < tile.rows ? tile.start + r : -1, kept, false),
                      1);
    }
    block_row_sum<SIZE>(shared_memory<float>(), sum, tile_sum_of(p, head, p.first_sums), 1, p.size,
                        p.size + 1);
}

// 2 of 3: the gradients of values and keys, what the first pooling's backward pass sums, and its sum over
// each tile.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_backward_key(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 1);
    const Kept kept_query = keep_rows(p, head, p.drop_query, s.kept_query, tile.start, tile.rows);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, tile.start, tile.rows);
    const Kept kept_before =
        keep_rows(p, head, p.drop_key, s.kept_before, tile.start - p.window, tile.before ? tile.span : 0);
    prefetch_backward<SIZE>(p, head, tile.start, tile.rows, true, false);
    tile_sums<SIZE>(p, head, tile, s, p.first_sums, [&](int position, bool own) {
        Kept kept = kept_key;
        if (!own) kept.bytes = kept_before.bytes;
        if (!own) kept.first_time = kept_before.first_time;
        if (!own) kept.first = kept_before.first;
        return key_gradient_row<SIZE>(p, head, position, kept, own);
    });
    Row<SIZE> sum = row_zero<SIZE>(), dweight = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        const int position = r < tile.rows ? tile.start + r : -1;
        const Row<SIZE> sums = row_get<SIZE>(s.own, r, r < tile.rows);
        const Row<SIZE> row =
            query_gradient_row<SIZE>(p, head, position, sums, weight, kept_query, dweight, true);
        store_pooled<SIZE>(p, head, place_of(p, position), p.rows, p.row_weights, row);
        row_add<SIZE>(sum, row, 1);
    }
    block_row_sum<SIZE>(s.own, sum, tile_sum_of(p, head, p.second_sums), 1, p.size, p.size + 1);
    store_dweight<SIZE>(p, head, 1, s.own, dweight);
}

// 3 of 3: the gradient of queries.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1) tile_backward_query(const Pass p) {
    const Head head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 0);
    Row<SIZE> dweight = row_zero<SIZE>();
    prefetch_backward<SIZE>(p, head, tile.start, tile.rows, false, true);
    tile_sums<SIZE>(p, head, tile, s, p.second_sums,
                    [&](int position, bool) { return stored_row<SIZE>(p, head, position); });
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        query_gradient<SIZE>(p, head, r < tile.rows ? tile.start + r : -1,
                             row_get<SIZE>(s.own, r, r < tile.rows), weight, dweight);
    }
    store_dweight<SIZE>(p, head, 0, s.own, dweight);
}

// dw_q and dw_k += from the sums of all blocks; a block of threads a head and weight.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    weight_backward(const Pass p, float *dquery_weight, float *dkey_weight, size_t parts) {
    const size_t h = blockIdx.x / 2, which = blockIdx.x % 2;
    float *sums = shared_memory<float>(); // (SIZE)
    for (int d = (int)threadIdx.x / WARP; d < p.size; d += THREADS / WARP) {
        const float *from = p.dweights + ((which * (size_t)p.heads + h) * (size_t)p.size + (size_t)d) * parts;
        float sum = 0;
        for (size_t i = lane_index(); i < parts; i += WARP) sum += from[i];
        sum = warp_sum(sum);
        if (lane_index() == 0) sums[d] = sum;
    }
    __syncthreads();
    const Row<SIZE> w = row_load<SIZE>(p.weights[which] + h * (size_t)p.size, p.size, true);
    Row<SIZE> dnormal = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) {
        const int d = column_of<SIZE>(i / 4 * 4) + i % 4;
        if (d < p.size) dnormal.at[i] = sums[d];
    }
    float *out = (which ? dkey_weight : dquery_weight) + h * (size_t)p.size;
    Row<SIZE> gradient = normalise_backward<SIZE>(dnormal, normalise<SIZE>(w, p.size), p.size);
    row_add<SIZE>(gradient, row_load<SIZE>(out, p.size, true), 1);
    if (group_index<SIZE>() == 0) row_store<SIZE>(out, gradient, p.size);
}

// ---- which kernels, with which tiles ------------------------------------------------------------------

// How a pass is cut, for a device and a length.
struct Plan {
    int stride;        // of a row in shared memory
    bool global, halo; // halo: short windows, one kernel
    int window, blocks, tile_rows, tiles_per_block, tiles;
    size_t shared; // bytes
};

static constexpr int LEAST_ROWS = 32; // of a tile: less is mostly halo and launch
static constexpr int MOST_ROWS = 256;

static int head_size_class(size_t size) {
    return size <= 16 ? 16 : size <= 32 ? 32 : size <= 64 ? 64 : size <= 128 ? 128 : 256;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

static Plan plan_create(const Device *device, const AdditiveAttention *a, size_t length) {
    const size_t size = a->channels / a->heads, longest = a->length;
    if (size < 2 || size > 256 || longest == 0 || longest > INT32_MAX / 2 ||
        a->batch * a->heads > INT32_MAX / longest)
        fail("additive attention: heads of %zu channels, %zu sequences of %zu: expected heads of 2..256 "
             "channels and fewer rows",
             size, a->batch, longest);
    Plan plan = {};
    plan.stride = head_size_class(size) + 4;
    plan.global = a->window == 0 || a->window >= longest;
    const int64_t k = (int64_t)(plan.global ? longest : a->window), T = (int64_t)length;
    plan.window = (int)k;
    // Two blocks of threads should fit in the shared memory of a multiprocessor. All the work should be
    // enough to give each multiprocessor two.
    const int64_t row = plan.stride * (int64_t)sizeof(float) * 9 / 8 + (int64_t)size / 4,
                  free = (int64_t)device->shared_limit / 2 - 8192;
    const int64_t single = clamp(free / row, 16, MOST_ROWS), pairs = clamp(free / row / 2, 16, 2 * MOST_ROWS);
    const int64_t share = (int64_t)(a->batch * a->heads * longest) / (2 * device->sms);
    const int64_t wanted = clamp((share + SEGMENT - 1) / SEGMENT * SEGMENT, LEAST_ROWS, MOST_ROWS);
    plan.halo = !plan.global && 3 * k <= pairs;
    if (plan.halo) {
        plan.blocks = (int)clamp((wanted + k - 1) / k, 1, pairs / k - 2);
        plan.tiles = (int)((T + plan.blocks * k - 1) / (plan.blocks * k));
        const int rows = (int)((plan.blocks + 2) * k);
        plan.shared = shared_size(plan.stride, size, rows, rows, segments_of(plan.blocks + 1, (int)k));
    } else {
        const int64_t most = clamp(wanted, 1, plan.global ? single : pairs);
        plan.tiles_per_block = (int)((k + most - 1) / most);
        plan.tile_rows = (int)((k + plan.tiles_per_block - 1) / plan.tiles_per_block);
        plan.tiles_per_block = (int)((k + plan.tile_rows - 1) / plan.tile_rows);
        plan.tiles = (int)(T / k * plan.tiles_per_block + (T % k + plan.tile_rows - 1) / plan.tile_rows);
        plan.shared = shared_size(plan.stride, size, plan.tile_rows, plan.global ? 0 : plan.tile_rows,
                                  segments_of(1, plan.tile_rows));
    }
    const size_t groups = (size_t)THREADS * 4 / (size_t)(plan.stride - 4 < 128 ? plan.stride - 4 : 128);
    const size_t least = groups * (size_t)plan.stride * sizeof(float); // what block_row_sum() takes
    if (plan.shared < least) plan.shared = least;
    return plan;
}

static float *take(float **memory, size_t count) {
    float *start = *memory;
    *memory += (count + 3) / 4 * 4; // rows are read 16 bytes at a time
    return start;
}

// Places the working memory of a pass over `batch` sequences; the backward pass needs more.
static void pass_workspace(Pass *p, const Plan *plan, size_t batch, float **memory, bool training) {
    const size_t units = batch * (size_t)p->heads, T = (size_t)p->length, tiles = units * (size_t)plan->tiles;
    const bool halo = plan->halo;
    p->rows = take(memory, halo ? 0 : units * T * (size_t)p->size);
    p->row_weights = take(memory, halo ? 0 : units * T);
    p->first_sums = take(memory, halo ? 0 : tiles * (size_t)(p->size + 1));
    p->second_sums = take(memory, halo ? 0 : tiles * (size_t)(p->size + 1));
    p->dweights = take(memory, training ? 2 * tiles * (size_t)p->size : 0);
}

static Pass pass_create(const Device *device, const AdditiveAttention *a, Plan *plan, size_t batch,
                        size_t length) {
    if (batch > a->batch || length > a->length)
        fail("additive attention: a batch of %zu x %zu is larger than its memory, %zu x %zu", batch, length,
             a->batch, a->length);
    *plan = plan_create(device, a, length);
    Pass p = {};
    p.length = (int)length;
    p.channels = (int)a->channels;
    p.heads = (int)a->heads;
    p.size = (int)(a->channels / a->heads);
    p.window = plan->window;
    p.global = plan->global;
    p.scale = a->rescale / (float)p.size;
    p.sink = a->sink;
    p.raw = a->pool_raw;
    p.tiles = plan->tiles;
    p.blocks = plan->blocks;
    p.tile_rows = plan->tile_rows;
    p.tiles_per_block = plan->tiles_per_block;
    return p;
}

template <int SIZE> static void run_forward(const Device *d, const Pass &p, const Plan &plan, dim3 grid) {
    if (plan.halo) {
        launch(d, window_forward<SIZE>, grid, THREADS, plan.shared, p);
        return;
    }
    // Tiles that are whole blocks have no whole tiles between.
    if (plan.tiles_per_block > 1) launch(d, tile_forward_sums<SIZE>, grid, THREADS, plan.shared, p);
    launch(d, tile_forward_query<SIZE>, grid, THREADS, plan.shared, p);
    launch(d, tile_forward_key<SIZE>, grid, THREADS, plan.shared, p);
}

template <int SIZE>
static void run_backward(const Device *d, const Pass &p, const Plan &plan, dim3 grid, float *dquery_weight,
                         float *dkey_weight) {
    if (plan.halo) {
        launch(d, window_backward<SIZE>, grid, THREADS, plan.shared, p);
    } else {
        if (plan.tiles_per_block > 1) launch(d, tile_backward_sums<SIZE>, grid, THREADS, plan.shared, p);
        launch(d, tile_backward_key<SIZE>, grid, THREADS, plan.shared, p);
        launch(d, tile_backward_query<SIZE>, grid, THREADS, plan.shared, p);
    }
    launch(d, weight_backward<SIZE>, dim3(2 * (unsigned)p.heads), THREADS, SIZE * sizeof(float), p,
           dquery_weight, dkey_weight, (size_t)grid.x / (size_t)p.heads);
}

} // namespace additive

// ---- what a model calls -------------------------------------------------------------------------------

// Runs f<SIZE>(...) with the smallest SIZE that holds a head.
#define WITH_ADDITIVE_SIZE(size, f, ...)                                                                     \
    do {                                                                                                     \
        switch (additive::head_size_class(size)) {                                                           \
        case 16:                                                                                             \
            f<16>(__VA_ARGS__);                                                                              \
            break;                                                                                           \
        case 32:                                                                                             \
            f<32>(__VA_ARGS__);                                                                              \
            break;                                                                                           \
        case 64:                                                                                             \
            f<64>(__VA_ARGS__);                                                                              \
            break;                                                                                           \
        case 128:                                                                                            \
            f<128>(__VA_ARGS__);                                                                             \
            break;                                                                                           \
        default:                                                                                             \
            f<256>(__VA_ARGS__);                                                                             \
            break;                                                                                           \
        }                                                                                                    \
    } while (0)

// Floats of working memory; layers can share it.
static inline size_t additive_attention_workspace(const Device *device, const AdditiveAttention *attention,
                                                  bool training) {
    additive::Plan plan;
    additive::Pass p = additive::pass_create(device, attention, &plan, attention->batch, attention->length);
    float *end = NULL;
    additive::pass_workspace(&p, &plan, attention->batch, &end, training);
    return (size_t)((uintptr_t)end / sizeof(float));
}

// out (B, T, C) = x + P * v; out may be x. For the backward pass: pooled_query and pooled_key (B, H, T, D)
// are G and P before dropout, r_query and r_key (B, H, T) 1 / (sum of e + c). qkv (B, T, 3C); query_weight
// and key_weight (H, D) are w_q and w_k as the optimiser knows them; mask (B, T) 1: token, 0: padding, or
// NULL. drop_query and drop_key drop elements of G and P, numbered as (B, H, T, D) from the update's first
// row on; NULL: none.
static inline void additive_attention_forward(const Device *device, const AdditiveAttention *attention,
                                              float *out, float *pooled_query, float *r_query,
                                              float *pooled_key, float *r_key, const float *x,
                                              const float *qkv, const float *query_weight,
                                              const float *key_weight, const uint8_t *mask,
                                              const DropoutSite *drop_query, const DropoutSite *drop_key,
                                              float *workspace, size_t batch, size_t length) {
    additive::Plan plan;
    additive::Pass p = additive::pass_create(device, attention, &plan, batch, length);
    additive::pass_workspace(&p, &plan, batch, &workspace, false);
    p.qkv = qkv;
    p.weights[0] = query_weight;
    p.weights[1] = key_weight;
    p.mask = mask;
    p.drop_query = drop_query ? *drop_query : dropout_none();
    p.drop_key = drop_key ? *drop_key : dropout_none();
    p.pooled_query = pooled_query;
    p.r_query = r_query;
    p.pooled_key = pooled_key;
    p.r_key = r_key;
    p.x = x;
    p.out = out;
    const dim3 grid(blocks_of(batch * attention->heads * (size_t)plan.tiles, 1));
    WITH_ADDITIVE_SIZE((size_t)p.size, additive::run_forward, device, p, plan, grid);
}

// dqkv (B, T, 3C) is set; dquery_weight and dkey_weight (H, D) += the gradients to w_q and w_k. dout (B, T,
// C) is the gradient to out, which is also the one to x. The rest as the forward pass left it.
static inline void
additive_attention_backward(const Device *device, const AdditiveAttention *attention, GemmInput dqkv,
                            float *dquery_weight, float *dkey_weight, const float *dout,
                            const float *pooled_query, const float *r_query, const float *pooled_key,
                            const float *r_key, const float *qkv, const float *query_weight,
                            const float *key_weight, const uint8_t *mask, const DropoutSite *drop_query,
                            const DropoutSite *drop_key, float *workspace, size_t batch, size_t length) {
    additive::Plan plan;
    additive::Pass p = additive::pass_create(device, attention, &plan, batch, length);
    additive::pass_workspace(&p, &plan, batch, &workspace, true);
    p.reversed = true;
    p.qkv = qkv;
    p.weights[0] = query_weight;
    p.weights[1] = key_weight;
    p.mask = mask;
    p.drop_query = drop_query ? *drop_query : dropout_none();
    p.drop_key = drop_key ? *drop_key : dropout_none();
    p.pooled_query = (float *)pooled_query; // read only, in this pass
    p.r_query = (float *)r_query;
    p.pooled_key = (float *)pooled_key;
    p.r_key = (float *)r_key;
    p.dout = dout;
    p.dqkv = dqkv;
    const dim3 grid(blocks_of(batch * attention->heads * (size_t)plan.tiles, 1));
    WITH_ADDITIVE_SIZE((size_t)p.size, additive::run_backward, device, p, plan, grid, dquery_weight,
                       dkey_weight);
}

#endif
