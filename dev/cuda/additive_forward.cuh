// The forward kernels of additive attention. One kernel does both poolings for short windows; long
// windows are processed tile by tile.
#ifndef CUDA_ADDITIVE_FORWARD_CUH
#define CUDA_ADDITIVE_FORWARD_CUH

#include "additive_pass.cuh"

namespace additive {

// Returns e q' and e of a position.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
query_row(const AdditivePass &p, const AdditiveHead &head, int position, const Row<SIZE> &weight) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> q = qkv_row<SIZE>(p, head, at, 0);
    return weighted<SIZE, PLAIN>(p, q, score<SIZE, PLAIN>(p, q, weight, counts(p, head, at)));
}

// Turns window sums into the pooled row, with weight r. The row is 0 if c = 0 and the window holds
// only padding. With plain scores the sink is one more row, of zeros.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE> pooled_row(const AdditivePass &p,
                                                       const Row<SIZE> &sums) {
    if constexpr (PLAIN) {
        Row<SIZE> all = sums, sink = row_zero<SIZE>();
        sink.weight = 1;
        sink.top = logf(p.sink);
        row_add_exp<SIZE>(all, sink);
        Row<SIZE> row = row_scaled<SIZE>(all, all.weight > 0 ? 1 / all.weight : 0);
        row.weight = all.weight > 0 ? -all.top - logf(all.weight) : -INFINITY;
        return row;
    }
    const float denominator = sums.weight + p.sink,
                r = denominator > 0 ? __fdividef(1, denominator) : 0;
    Row<SIZE> row = row_scaled<SIZE>(sums, r);
    row.weight = r;
    return row;
}

// From a query's window sums, computes G, stored if `own`. Returns the second pooling's input row.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ Row<SIZE>
pool_query(const AdditivePass &p, const AdditiveHead &head, int position, const Row<SIZE> &sums,
           const Row<SIZE> &weight, const Kept &kept, bool own) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> pooled = pooled_row<SIZE, PLAIN>(p, sums);
    if (own) store_pooled<SIZE>(p, head, at, p.pooled_query, p.r_query, pooled);
    const Row<SIZE> dropped = row_times<SIZE>(pooled, kept_factors<SIZE>(p, kept, at));
    const Row<SIZE> product = row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 1));
    return weighted<SIZE, PLAIN>(p, product,
                                 score<SIZE, PLAIN>(p, product, weight, counts(p, head, at)));
}

// Prefetches the inputs of the functions above and below, so that the loads overlap with the sums.
template <int SIZE>
static __device__ __forceinline__ void prefetch_forward(const AdditivePass &p,
                                                        const AdditiveHead &head, int start,
                                                        int rows, bool key, bool value) {
    for (int r = group_index<SIZE>(); r < rows; r += Row<SIZE>::GROUPS) {
        const AdditivePlace at = place_of(p, start + r);
        if (key) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 1), p.size, at.present);
        if (value) row_prefetch<SIZE>(p.qkv + qkv_place(p, head, at, 2), p.size, at.present);
        if (value && p.x) row_prefetch<SIZE>(p.x + channel_place(p, head, at), p.size, at.present);
    }
}

// Computes P from a product's window sums and stores P and the result. G was stored before.
template <int SIZE, bool PLAIN = false>
static __device__ __forceinline__ void pool_key(const AdditivePass &p, const AdditiveHead &head,
                                                int position, const Row<SIZE> &sums,
                                                const Kept &kept_query, const Kept &kept_key) {
    const AdditivePlace at = place_of(p, position);
    const Row<SIZE> pooled = pooled_row<SIZE, PLAIN>(p, sums);
    store_pooled<SIZE>(p, head, at, p.pooled_key, p.r_key, pooled);
    const Row<SIZE> dropped = row_times<SIZE>(pooled, kept_factors<SIZE>(p, kept_key, at));
    const size_t place = channel_place(p, head, at);
    Row<SIZE> out = row_load<SIZE>(p.x + place, p.size, at.present && p.x);
    row_add<SIZE>(out, row_times<SIZE>(dropped, qkv_row<SIZE>(p, head, at, 2)), 1);
    if (p.gain) {
        const Row<SIZE> G =
            row_load<SIZE>(p.pooled_query + pooled_place(p, head, at), p.size, at.present);
        const Row<SIZE> passed = row_times<SIZE>(G, kept_factors<SIZE>(p, kept_query, at));
        row_add<SIZE>(out, row_times<SIZE>(passed, gain_row<SIZE>(p, head)), 1);
    }
    matrix_store<SIZE>(p, p.out, place, at, out);
}

// Short windows: the whole forward pass, for `blocks` blocks of rows after a halo of two.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    window_forward(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
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
        const Row<SIZE> row = pool_query<SIZE>(p, head, r < all ? start + r : -1, sums, key_weight,
                                               kept_query, r >= 2 * k);
        if (r < all) row_put<SIZE>(s.own, r, row);
        if (r < all) row_put<SIZE>(s.before, r, row);
    }
    __syncthreads();
    window_sums<SIZE>(s.own + 2 * k * Row<SIZE>::STRIDE, s.before + k * Row<SIZE>::STRIDE, s.totals,
                      NULL, p.blocks, k, k);
    __syncthreads();
    for (int first = 2 * k; first < all; first += pass) {
        const int r = first + group_index<SIZE>();
        pool_key<SIZE>(p, head, r < all ? start + r : -1, row_get<SIZE>(s.own, r, r < all),
                       kept_query, kept_key);
    }
}

// Long windows, 1 of 3: the sum of each tile's queries.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_forward_sums(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Row<SIZE> weight = normal_weight<SIZE>(p, head, 0);
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        row_add<SIZE>(sum, query_row<SIZE>(p, head, r < tile.rows ? tile.start + r : -1, weight),
                      1);
    }
    block_row_sum<SIZE>(shared_memory<float>(), sum, tile_sum_of(p, head, p.first_sums), 1, p.size,
                        p.size + 1);
}

// 2 of 3: G, and the rows that the second pooling sums, with their sum over each tile.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_forward_query(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    const Row<SIZE> query_weight = normal_weight<SIZE>(p, head, 0),
                    key_weight = normal_weight<SIZE>(p, head, 1);
    const Kept kept = keep_rows(p, head, p.drop_query, s.kept_query, tile.start, tile.rows);
    prefetch_forward<SIZE>(p, head, tile.start, tile.rows, true, false);
    tile_sums<SIZE>(p, head, tile, s, p.first_sums, [&](int position, bool) {
        return query_row<SIZE>(p, head, position, query_weight);
    });
    Row<SIZE> sum = row_zero<SIZE>();
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        const int position = r < tile.rows ? tile.start + r : -1;
        const Row<SIZE> row = pool_query<SIZE>(
            p, head, position, row_get<SIZE>(s.own, r, r < tile.rows), key_weight, kept, true);
        store_row<SIZE>(p, head, p.summed, position, row);
        row_add<SIZE>(sum, row, 1);
    }
    block_row_sum<SIZE>(s.own, sum, tile_sum_of(p, head, p.second_sums), 1, p.size, p.size + 1);
}

// 3 of 3: P and the result.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS, SIZE <= 128 ? 2 : 1)
    tile_forward_key(const AdditivePass p) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const Tile tile = tile_of(p, head);
    const Shared s = carve_tile<SIZE>(p);
    Kept kept_query = keeps_all();
    if (p.gain) kept_query = keep_rows(p, head, p.drop_query, s.kept_query, tile.start, tile.rows);
    const Kept kept_key = keep_rows(p, head, p.drop_key, s.kept_key, tile.start, tile.rows);
    prefetch_forward<SIZE>(p, head, tile.start, tile.rows, false, true);
    tile_sums<SIZE>(p, head, tile, s, p.second_sums, [&](int position, bool) {
        return stored_row<SIZE>(p, head, p.summed, position);
    });
    for (int first = 0; first < tile.rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>();
        pool_key<SIZE>(p, head, r < tile.rows ? tile.start + r : -1,
                       row_get<SIZE>(s.own, r, r < tile.rows), kept_query, kept_key);
    }
}

} // namespace additive

#endif
