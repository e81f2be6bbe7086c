// The backward kernels of additive attention, in reversed time, and the gradients to w_q, w_k and
// the gain of pooled queries.
#ifndef CUDA_ADDITIVE_BACKWARD_CUH
#define CUDA_ADDITIVE_BACKWARD_CUH

#include "additive_pass.cuh"

namespace additive {

// The backward pass of a pooling, with d_i the gradient to the pooled row g_i:
//   u_j = sum of r_i d_i, t_j = sum of r_i (d_i . g_i) over the i whose window holds j,
//   dx'_j = e_j u_j + da_j w',  da_j = s/D e_j (x'_j . u_j - t_j),  dw' += da_j x'_j.

// Returns the row that a pooling's backward pass sums: r d with weight r (d . g). With plain
// scores: d with weight d . g and top log r.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
gradient_row(const AdditivePass &p, const AdditiveHead &head, AdditivePlace at, const Row<SIZE> &d,
             const float *pooled, const float *r) {
    const Row<SIZE> g = row_load<SIZE>(pooled + pooled_place(p, head, at), p.size, at.present);
    if constexpr (PLAIN) {
        Row<SIZE> row = d;
        row.weight = row_dot<SIZE>(d, g);
        row.top = at.present ? r[row_place(head, at)] : -INFINITY;
        return row;
    }
    const float scale = at.present ? r[row_place(head, at)] : 0;
    Row<SIZE> row = row_scaled<SIZE>(d, scale);
    row.weight = scale * row_dot<SIZE>(d, g);
    return row;
}

// Returns the gradient to the result.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE>
result_gradient(const AdditivePass &p, const AdditiveHead &head, AdditivePlace at) {
    const size_t place = channel_place(p, head, at);
    return p.dout.bf16 ? row_load<SIZE>((const bf16 *)p.dout.data + place, p.size, at.present)
                       : row_load<SIZE>((const float *)p.dout.data + place, p.size, at.present);
}

// Returns the row that the second pooling's backward pass sums, from the gradient of the result.
// Stores the gradient of values if `own`.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE> key_gradient_row(const AdditivePass &p,
                                                             const AdditiveHead &head, int position,
                                                             const Kept &kept, bool own) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> dropped =
        row_times<SIZE>(result_gradient<SIZE>(p, head, at), kept_factors<SIZE>(p, kept, at));
    if (own) {
        const Row<SIZE> pooled =
            row_load<SIZE>(p.pooled_key + pooled_place(p, head, at), p.size, at.present);
        store_gradient<SIZE>(p, head, at, 2, row_times<SIZE>(dropped, pooled));
    }
    return gradient_row<SIZE, PLAIN>(p, head, at,
                                     row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 2)),
                                     p.pooled_key, p.r_key);
}

// Returns the gradient to the pooling's input x from the sums u and t (weight); dweight += that to
// w'. With plain scores e exp(top) <= 1: top is log r of a row whose window contains this one.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
pool_backward(const AdditivePass &p, const Row<SIZE> &x, const Row<SIZE> &weight, bool is_counted,
              const Row<SIZE> &sums, Row<SIZE> &dweight, bool own) {
    const Scored<SIZE> s = score<SIZE, PLAIN>(p, x, weight, is_counted);
    const float e = PLAIN ? expf(s.normal.top + sums.top) : s.normal.weight;
    const float da =
        p.scale * e * (row_dot<SIZE>(row_choose<SIZE>(p.raw, x, s.normal), sums) - sums.weight);
    Row<SIZE> dnormal = row_scaled<SIZE>(weight, da);
    if (!p.raw) row_add<SIZE>(dnormal, sums, e);
    if (own) row_add<SIZE>(dweight, s.normal, da);
    if constexpr (PLAIN) return dnormal;
    Row<SIZE> dx = normalise_backward<SIZE>(dnormal, s, p.size);
    if (p.raw) row_add<SIZE>(dx, sums, e);
    return dx;
}

// Returns the row that the first pooling's backward pass sums, from the second pooling's sums.
// If `own`, stores the gradient of keys, and adds to those of w_k' and the gain.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
query_gradient_row(const AdditivePass &p, const AdditiveHead &head, int position,
                   const Row<SIZE> &sums, const Row<SIZE> &weight, const Kept &kept,
                   Row<SIZE> &dweight, Row<SIZE> &dgain, bool own) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> factors = kept_factors<SIZE>(p, kept, at);
    const Row<SIZE> key = row_times<SIZE>(qkv_row<SIZE>(p, head, at, 1), factors);
    const Row<SIZE> pooled =
        row_load<SIZE>(p.pooled_query + pooled_place(p, head, at), p.size, at.present);
    const Row<SIZE> dproduct = pool_backward<SIZE, PLAIN>(p, row_times<SIZE>(pooled, key), weight,
                                                          counts(p, head, at), sums, dweight, own);
    if (own)
        store_gradient<SIZE>(p, head, at, 1,
                             row_times<SIZE>(row_times<SIZE>(dproduct, pooled), factors));
    Row<SIZE> dpooled = row_times<SIZE>(dproduct, key);
    if (p.gain) {
        const Row<SIZE> dpassed = row_times<SIZE>(result_gradient<SIZE>(p, head, at), factors);
        row_add<SIZE>(dpooled, row_times<SIZE>(dpassed, gain_row<SIZE>(p, head)), 1);
        if (own) row_add<SIZE>(dgain, row_times<SIZE>(dpassed, pooled), 1);
    }
    return gradient_row<SIZE, PLAIN>(p, head, at, dpooled, p.pooled_query, p.r_query);
}

// Stores the gradient of queries, from the first pooling's sums.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ void
query_gradient(const AdditivePass &p, const AdditiveHead &head, int position, const Row<SIZE> &sums,
               const Row<SIZE> &weight, Row<SIZE> &dweight) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> q = qkv_row<SIZE>(p, head, at, 0);
    store_gradient<SIZE>(
        p, head, at, 0,
        pool_backward<SIZE, PLAIN>(p, q, weight, counts(p, head, at), sums, dweight, true));
}

// Prefetches the inputs of the functions above.
template <int SIZE>
static __device__ __forceinline__ void prefetch_backward(const AdditivePass &p,
                                                         const AdditiveHead &head, int start,
                                                         int rows, bool key, bool query) {
    for (int r = group_index<SIZE>(); r < rows; r += Row<SIZE>::GROUPS) {
        const AdditivePlace at = place_of(p, start + r);
        if (key) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 1), p.size, at.present);
        if (key) row_prefetch<SIZE>(p.pooled_query + pooled_place(p, head, at), p.size, at.present);
        if (query) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 0), p.size, at.present);
    }
}

// Stores a thread block's gradient to w_q' (which 0), w_k' (1) or the gain (2).
template <int SIZE>
static __device__ __forceinline__ void store_dweight(const AdditivePass &p,
                                                     const AdditiveHead &head, int which,
                                                     float *memory, const Row<SIZE> &dweight) {
    const size_t parts = gridDim.x / (unsigned)p.heads,
                 part = head.b * (size_t)p.tiles + (size_t)head.tile;
    float *out =
        p.dweights + ((size_t)which * (size_t)p.heads + head.h) * (size_t)p.size * parts + part;
    block_row_sum<SIZE>(memory, dweight, out, parts, p.size, p.size);
}

// Short windows: the whole backward pass, for `blocks` blocks of rows.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    window_backward(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const int k = p.window, all = (p.blocks + 2) * k, pass = Row<SIZE>::GROUPS;
    const int start = (head.tile * p.blocks - 2) * k;
    const Shared s = carve_shared<SIZE>(p, all, all, segments_of(p.blocks + 1, k));
    const Row<SIZE> query_weight = normal_weight<SIZE>(p, head, 0),
                    key_weight = normal_weight<SIZE>(p, head, 1);
    Row<SIZE> dquery_weight = row_zero<SIZE>(), dkey_weight = row_zero<SIZE>(),
              dgain = row_zero<SIZE>();
    const Kept kept_query = keep_rows(p, head, p.drop_query, s.kept_query, start + k, all - k);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, start, all);
    prefetch_backward<SIZE>(p, head, start + k, k, true, false);
    prefetch_backward<SIZE>(p, head, start + 2 * k, all - 2 * k, true, true);
    __syncthreads();

    for (int first = 0; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        const Row<SIZE> row =
            key_gradient_row<SIZE>(p, head, r < all ? start + r : -1, kept_key, r >= 2 * k);
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
            query_gradient_row<SIZE>(p, head, r < all ? start + r : -1, sums, key_weight,
                                     kept_query, dkey_weight, dgain, r >= 2 * k);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + 2 * k * Row<SIZE>::STRIDE, s.before + k * Row<SIZE>::STRIDE, s.totals,
                      NULL, p.blocks, k, k);
    __syncthreads();
    for (int first = 2 * k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        query_gradient<SIZE>(p, head, r < all ? start + r : -1, row_get<SIZE>(s.own, r, r < all),
                             query_weight, dquery_weight);
    }
    store_dweight<SIZE>(p, head, 0, s.own, dquery_weight);
    store_dweight<SIZE>(p, head, 1, s.own, dkey_weight);
    if (p.gain) store_dweight<SIZE>(p, head, 2, s.own, dgain);
}

// Long windows, 1 of 3: the sum of each tile for the second pooling's backward pass.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_backward_sums(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Kept kept =
        keep_rows(p, head, p.drop_key, shared_memory<uint8_t>(), tile.start, tile.rows);
    __syncthreads();
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        row_add<SIZE>(
            sum, key_gradient_row<SIZE>(p, head, r < tile.rows ? tile.start + r : -1, kept, false),
            1);
    }
    block_row_sum<SIZE>(shared_memory<float>(), sum, tile_sum_of(p, head, p.first_sums), 1, p.size,
                        p.size + 1);
}

// 2 of 3: the gradients of values and keys, and the rows that the first pooling's backward pass
// sums, with their sum over each tile.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_backward_key(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 1);
    const Kept kept_query = keep_rows(p, head, p.drop_query, s.kept_query, tile.start, tile.rows);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, tile.start, tile.rows);
    const Kept kept_before = keep_rows(p, head, p.drop_key, s.kept_before, tile.start - p.window,
                                       tile.before ? tile.span : 0);
    prefetch_backward<SIZE>(p, head, tile.start, tile.rows, true, false);
    tile_sums<SIZE>(p, head, tile, s, p.first_sums, [&](int position, bool own) {
        Kept kept = kept_key;
        if (!own) kept.bytes = kept_before.bytes;
        if (!own) kept.first_time = kept_before.first_time;
        if (!own) kept.first = kept_before.first;
        return key_gradient_row<SIZE>(p, head, position, kept, own);
    });
    Row<SIZE> sum = row_zero<SIZE>(), dweight = row_zero<SIZE>(), dgain = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        const int position = r < tile.rows ? tile.start + r : -1;
        const Row<SIZE> sums = row_get<SIZE>(s.own, r, r < tile.rows);
        const Row<SIZE> row = query_gradient_row<SIZE>(p, head, position, sums, weight, kept_query,
                                                       dweight, dgain, true);
        store_row<SIZE>(p, head, p.summed, position, row);
        row_add<SIZE>(sum, row, 1);
    }
    block_row_sum<SIZE>(s.own, sum, tile_sum_of(p, head, p.second_sums), 1, p.size, p.size + 1);
    store_dweight<SIZE>(p, head, 1, s.own, dweight);
    if (p.gain) store_dweight<SIZE>(p, head, 2, s.own, dgain);
}

// 3 of 3: the gradient of queries.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_backward_query(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 0);
    Row<SIZE> dweight = row_zero<SIZE>();
    prefetch_backward<SIZE>(p, head, tile.start, tile.rows, false, true);
    tile_sums<SIZE>(p, head, tile, s, p.second_sums, [&](int position, bool) {
        return stored_row<SIZE>(p, head, p.summed, position);
    });
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        query_gradient<SIZE>(p, head, r < tile.rows ? tile.start + r : -1,
                             row_get<SIZE>(s.own, r, r < tile.rows), weight, dweight);
    }
    store_dweight<SIZE>(p, head, 0, s.own, dweight);
}

// Where the gradients of w_q, w_k (H, D) and the gain (C) go.
struct AdditiveGradients {
    float *weights[3];
};

// dw_q, dw_k and dgain += the sums of all thread blocks. One thread block per head and weight.
template <int SIZE, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    weight_backward(const AdditivePass p, AdditiveGradients to, size_t parts) {
    begin_kernel();
    const size_t h = blockIdx.x % (unsigned)p.heads, which = blockIdx.x / (unsigned)p.heads;
    float *sums = shared_memory<float>(); // (SIZE)
    for (int d = (int)threadIdx.x / WARP; d < p.size; d += THREADS / WARP) {
        const float *from =
            p.dweights + ((which * (size_t)p.heads + h) * (size_t)p.size + (size_t)d) * parts;
        float sum = 0;
        for (size_t i = lane_index(); i < parts; i += WARP) sum += from[i];
        sum = warp_sum(sum);
        if (lane_index() == 0) sums[d] = sum;
    }
    __syncthreads();
    Row<SIZE> dnormal = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) {
        const int d = column_of<SIZE>(i / 4 * 4) + i % 4;
        if (d < p.size) dnormal.at[i] = sums[d];
    }
    float *out = to.weights[which] + h * (size_t)p.size;
    Row<SIZE> gradient = dnormal;
    if (!PLAIN && which < 2) {
        const Row<SIZE> w = row_load<SIZE>(p.weights[which] + h * (size_t)p.size, p.size, true);
        gradient = normalise_backward<SIZE>(dnormal, normalise<SIZE>(w, p.size), p.size);
    }
    row_add<SIZE>(gradient, row_load<SIZE>(out, p.size, true), 1);
    if (group_index<SIZE>() == 0) row_store<SIZE>(out, gradient, p.size);
}

} // namespace additive

#endif
