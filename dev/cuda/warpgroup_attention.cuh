// Softmax attention for sm_90, bf16 and heads of 64 or 128 channels: what softmax_attention.cuh computes,
// with the products of warp groups (warpgroup.cuh). Part of softmax_attention.cuh.
//
// A block's two warp groups compute 64 rows each; tiles of the other side come in a ring
// (warpgroup_ring.cuh). The sums of a product lie in registers as mma_m16n8k16 has them, so all between the
// products is that of softmax_pass.cuh. What a group does with its scores runs beside the products of the
// other group and its own next ones.
#ifndef CUDA_WARPGROUP_ATTENTION_CUH
#define CUDA_WARPGROUP_ATTENTION_CUH

#include "softmax_pass.cuh"
#include "warpgroup_ring.cuh"

namespace softmax {

// Tiles of heads of SIZE channels: N columns of scores at a time, in STAGES stages. Sums fit in the 224
// registers that a thread can have, tiles in the 163 KB of shared memory that sm_80 has, which the emulator
// allows.
template <int SIZE> struct GroupShapes {
    using Rows = GroupTile<BLOCK_ROWS, SIZE>;
    static constexpr int FORWARD_N = 128, FORWARD_STAGES = 2;
    static constexpr int QUERIES_N = 64, QUERIES_STAGES = 3;
    static constexpr int KEYS_N = 64, KEYS_STAGES = SIZE == 64 ? 3 : 2;
};

// The matrices that blocks copy from: (B, T, H, D), and gradients to y.
struct GroupMaps {
    TensorMap parts[3], dy;
};

// Rows of a part that stay, or of gradients to y.
template <typename Tile>
static __device__ __forceinline__ void copy_rows(bf16 *tile, const TensorMap &map, Barrier *full,
                                                 const Head &head, int row) {
    group_copy<Tile>(tile, &map, full, (int)head.h, row, (int)head.b);
}

// ---- forward ------------------------------------------------------------------------------------------

// In shared memory: queries, keys and values, which come and go apart.
template <int SIZE> struct GroupForward {
    using S = GroupShapes<SIZE>;
    using R = Ring<GroupTile<S::FORWARD_N, SIZE>, 1, S::FORWARD_STAGES>;
    static constexpr int BARRIERS = 1 + 4 * S::FORWARD_STAGES;
    static constexpr size_t BYTES =
        S::Rows::BYTES + 2 * R::BYTES + (size_t)BLOCK_ROWS * 16 + BARRIERS * sizeof(Barrier);
    bf16 *queries;
    R keys, values;
    uint8_t *kept; // (BLOCK_ROWS, 16)
    Barrier *full; // of the queries
};

template <int SIZE> static __device__ __forceinline__ GroupForward<SIZE> group_forward_memory() {
    using F = GroupForward<SIZE>;
    F f;
    constexpr int STAGES = F::R::STAGES;
    f.queries = shared_memory<bf16>();
    f.keys.tiles = f.queries + F::S::Rows::NUMBERS;
    f.values.tiles = f.keys.tiles + F::R::BYTES / sizeof(bf16);
    f.kept = (uint8_t *)(f.values.tiles + F::R::BYTES / sizeof(bf16));
    f.full = (Barrier *)(f.kept + BLOCK_ROWS * 16);
    f.keys.full = f.full + 1;
    f.keys.free = f.keys.full + STAGES;
    f.values.full = f.keys.free + STAGES;
    f.values.free = f.values.full + STAGES;
    return f;
}

// One thread copies.
template <int SIZE>
static __device__ __forceinline__ void group_forward_copies(const GroupForward<SIZE> &f,
                                                            const GroupMaps &maps, const Head &head,
                                                            int first, int end) {
    using F = GroupForward<SIZE>;
    using Tile = typename F::R::Tile;
    barrier_expect(f.full, F::S::Rows::BYTES);
    copy_rows<typename F::S::Rows>(f.queries, maps.parts[QUERY], f.full, head, first);
    for (int i = 0; i * Tile::ROWS < end; i++) {
        const Stage s = stage_of<F::R::STAGES>(i);
        ring_wait_free(f.keys, s);
        barrier_expect(f.keys.full + s.place, Tile::BYTES);
        copy_rows<Tile>(ring_tile(f.keys, s, 0), maps.parts[KEY], f.keys.full + s.place, head,
                        i * Tile::ROWS);
        ring_wait_free(f.values, s);
        barrier_expect(f.values.full + s.place, Tile::BYTES);
        copy_rows<Tile>(ring_tile(f.values, s, 0), maps.parts[VALUE], f.values.full + s.place, head,
                        i * Tile::ROWS);
    }
}

// A tile of queries with all keys. The scores of the next keys are computed beside the sums of these values.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_forward_kernel(const Pass<bf16> p, const __grid_constant__ GroupMaps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using F = GroupForward<SIZE>;
    using R = typename F::R;
    using Tile = typename R::Tile;
    constexpr int N = Tile::ROWS;
    const F f = group_forward_memory<SIZE>();
    const Head head = head_of_block(p);
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * BLOCK_ROWS; // those that see the most go first
    const int end = last_key(p, first + BLOCK_ROWS);
    if (threadIdx.x == 0) {
        barrier_create(f.full, 1);
        ring_create(f.keys, 1);
        ring_create(f.values, 1);
        barriers_publish();
    }
    __syncthreads();
    if (copies_only()) {
        if (threadIdx.x == GROUPS * WARPGROUP) group_forward_copies(f, maps, head, first, end);
        return;
    }
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    const int row = first + warp_row + lane / 4;
    const int visible = last_key(p, first + warp_row + 1); // to the warp's first row
    Rows<1> rows = rows_create<1>(p.sink);
    Sums<1, SIZE> y;
    Sums<1, N> s;
    GroupWeights<N> w;
    sums_clear(y);
    const auto weigh = [&](int key, float(*shrink)[2]) {
        if (p.mask || key + N > visible) hide_keys(p, head, s, row, key + lane % 4 * 2);
        exponentiate(p, s, rows, shrink);
        if (drops_out(p.dropout)) drop_weights(p, head, s, f.kept + warp_row * 16, first + warp_row, key);
    };
    Stage now = stage_of<R::STAGES>(0);
    float shrink[1][2];
    barrier_wait(f.full, 0);
    ring_wait_full(f.keys, now);
    wgmma_fence();
    group_product_rows<typename F::S::Rows, Tile>(s, f.queries, group_row, ring_tile(f.keys, now, 0));
    wgmma_commit();
    wgmma_wait<0>();
    sums_settle(s);
    ring_release(f.keys, now.place);
    weigh(0, shrink);
    w = group_weights(s);
    for (int i = 1; i * N < end; i++) {
        const Stage before = now;
        now = stage_of<R::STAGES>(i);
        ring_wait_full(f.keys, now);
        wgmma_fence();
        group_product_rows<typename F::S::Rows, Tile>(s, f.queries, group_row, ring_tile(f.keys, now, 0));
        wgmma_commit();
        ring_wait_full(f.values, before);
        wgmma_fence();
        group_product_sums<Tile>(y, w, ring_tile(f.values, before, 0));
        wgmma_commit();
        wgmma_wait<1>();
        sums_settle(s);
        ring_release(f.keys, now.place);
        weigh(i * N, shrink);
        wgmma_wait<0>();
        sums_settle(y);
        ring_release(f.values, before.place);
        shrink_rows(y, shrink);
        w = group_weights(s);
    }
    ring_wait_full(f.values, now);
    wgmma_fence();
    group_product_sums<Tile>(y, w, ring_tile(f.values, now, 0));
    wgmma_commit();
    wgmma_wait<0>();
    sums_settle(y);
    finish(p, head, rows, y, row);
#endif
}

// ---- backward -----------------------------------------------------------------------------------------

// In shared memory: two tiles that stay, pairs that pass by, and numbers of queries: LOGS logarithms and
// PRODUCTS of dy and y.
template <int SIZE, int N_, int STAGES, int LOGS_, int PRODUCTS_> struct GroupBackward {
    static constexpr int N = N_, LOGS = LOGS_, PRODUCTS = PRODUCTS_, BARRIERS = 1 + GROUPS + 2 * STAGES;
    using Rows = typename GroupShapes<SIZE>::Rows;
    using R = Ring<GroupTile<N, SIZE>, 2, STAGES>;
    static constexpr size_t BYTES = 2 * Rows::BYTES + R::BYTES + (size_t)BLOCK_ROWS * 16 +
                                    (LOGS + PRODUCTS) * sizeof(float) + BARRIERS * sizeof(Barrier);
    static_assert(GROUPS * N <= BLOCK_ROWS, "dropout's bits of a group");
    bf16 *first_row, *second_row;
    R pairs;
    uint8_t *kept;              // (BLOCK_ROWS, 16); keys: (GROUPS, N, 16)
    float *logsumexp, *product; // (LOGS), (PRODUCTS); keys: (STAGES, N)
    Barrier *full, *groups;     // of the tiles that stay; (GROUPS)
};

// Queries stay, or keys and values.
template <int SIZE, typename S = GroupShapes<SIZE>>
using GroupQueries = GroupBackward<SIZE, S::QUERIES_N, S::QUERIES_STAGES, 0, BLOCK_ROWS>;
template <int SIZE, typename S = GroupShapes<SIZE>>
using GroupKeys =
    GroupBackward<SIZE, S::KEYS_N, S::KEYS_STAGES, S::KEYS_STAGES * S::KEYS_N, S::KEYS_STAGES * S::KEYS_N>;

template <typename G> static __device__ __forceinline__ G group_backward_memory() {
    G g;
    g.first_row = shared_memory<bf16>();
    g.second_row = g.first_row + G::Rows::NUMBERS;
    g.pairs.tiles = g.second_row + G::Rows::NUMBERS;
    g.kept = (uint8_t *)(g.pairs.tiles + G::R::BYTES / sizeof(bf16));
    g.logsumexp = (float *)(g.kept + BLOCK_ROWS * 16);
    g.product = g.logsumexp + G::LOGS;
    g.full = (Barrier *)(g.product + G::PRODUCTS);
    g.groups = g.full + 1;
    g.pairs.full = g.groups + GROUPS;
    g.pairs.free = g.pairs.full + G::R::STAGES;
    return g;
}

// By all threads. `threads`: that fill a stage.
template <typename G> static __device__ __forceinline__ void group_backward_create(const G &g, int threads) {
    if (threadIdx.x == 0) {
        barrier_create(g.full, 1);
        for (int i = 0; i < GROUPS; i++) barrier_create(g.groups + i, WARPGROUP);
        ring_create(g.pairs, threads);
        barriers_publish();
    }
    __syncthreads();
}

// The tiles that stay, by one thread.
template <typename G>
static __device__ __forceinline__ void copy_stays(const G &g, const TensorMap &one, const TensorMap &other,
                                                  const Head &head, int row) {
    barrier_expect(g.full, 2 * G::Rows::BYTES);
    copy_rows<typename G::Rows>(g.first_row, one, g.full, head, row);
    copy_rows<typename G::Rows>(g.second_row, other, g.full, head, row);
}

// A pair that passes by, by one thread.
template <typename G>
static __device__ __forceinline__ void copy_pair(const G &g, const TensorMap &one, const TensorMap &other,
                                                 const Head &head, int row, const Stage &s) {
    using Tile = typename G::R::Tile;
    barrier_expect(g.pairs.full + s.place, 2 * Tile::BYTES);
    copy_rows<Tile>(ring_tile(g.pairs, s, 0), one, g.pairs.full + s.place, head, row);
    copy_rows<Tile>(ring_tile(g.pairs, s, 1), other, g.pairs.full + s.place, head, row);
}

// s = first rows by the first tile of a pair, dw = second rows by the second.
template <typename G, int N>
static __device__ __forceinline__ void group_scores(const G &g, Sums<1, N> &s, Sums<1, N> &dw, int group_row,
                                                    const Stage &stage) {
    wgmma_fence();
    group_product_rows<typename G::Rows, typename G::R::Tile>(s, g.first_row, group_row,
                                                              ring_tile(g.pairs, stage, 0));
    group_product_rows<typename G::Rows, typename G::R::Tile>(dw, g.second_row, group_row,
                                                              ring_tile(g.pairs, stage, 1));
    wgmma_commit();
}

// Queries in the rows: their gradient, and dy . y, which the other kernel reads. The next scores are computed
// behind the gradient's product, without a break between them.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_backward_queries(const Pass<bf16> p, const __grid_constant__ GroupMaps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using G = GroupQueries<SIZE>;
    constexpr int N = G::N, STAGES = G::R::STAGES;
    const G g = group_backward_memory<G>();
    const Head head = head_of_block(p);
    const int first = (int)(gridDim.y - 1 - blockIdx.y) * BLOCK_ROWS;
    group_backward_create(g, 1);
    if (copies_only()) {
        if (threadIdx.x != GROUPS * WARPGROUP) return;
        const int end = last_key(p, first + BLOCK_ROWS);
        copy_stays(g, maps.parts[QUERY], maps.dy, head, first);
        for (int i = 0; i * N < end; i++) {
            const Stage s = stage_of<STAGES>(i);
            ring_wait_free(g.pairs, s);
            copy_pair(g, maps.parts[KEY], maps.parts[VALUE], head, i * N, s);
        }
        return;
    }
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    // The first group may end a tile before the second; nobody waits for it then.
    const int row = first + warp_row + lane / 4, end = last_key(p, first + group_row + GROUP_ROWS);
    const int visible = last_key(p, first + warp_row + 1); // to the warp's first row
    const LaneRows rows = lane_rows(g.product + warp_row, p, head, first + warp_row);
    const auto query = [&](int, int e) { return rows.at[e / 2]; };
    Sums<1, SIZE> dq;
    Sums<1, N> s, dw;
    GroupWeights<N> gradients;
    sums_clear(dq);
    const auto to_scores = [&](int key) {
        if (p.mask || key + N > visible) hide_keys(p, head, s, row, key + lane % 4 * 2);
        if (drops_out(p.dropout)) {
            if (key % KEPT_BLOCK == 0)
                keep_rows(g.kept + warp_row * 16, p, head, first + warp_row, 16, key, lane, WARP);
            __syncwarp();
            const KeptBits bits = kept_bits(g.kept, warp_row + lane / 4, key);
            const auto factor = [&](int n, int e) { return is_kept(bits, n, e) ? p.dropout.scale : 0; };
            differentiate(s, dw, p.log2_scale, factor, query);
            __syncwarp();
        } else {
            differentiate(s, dw, p.log2_scale, keep_all, query);
        }
    };
    Stage now = stage_of<STAGES>(0);
    barrier_wait(g.full, 0);
    ring_wait_full(g.pairs, now);
    group_scores(g, s, dw, group_row, now);
    wgmma_wait<0>();
    sums_settle(s);
    sums_settle(dw);
    to_scores(0);
    gradients = group_weights(dw);
    for (int i = 1; i * N < end; i++) {
        const Stage before = now;
        now = stage_of<STAGES>(i);
        ring_wait_full(g.pairs, now);
        group_scores(g, s, dw, group_row, now);
        group_product_sums<typename G::R::Tile>(dq, gradients, ring_tile(g.pairs, before, 0));
        wgmma_commit();
        wgmma_wait<1>();
        sums_settle(s);
        sums_settle(dw);
        to_scores(i * N);
        wgmma_wait<0>();
        sums_settle(dq);
        ring_release(g.pairs, before.place);
        gradients = group_weights(dw);
    }
    wgmma_fence();
    group_product_sums<typename G::R::Tile>(dq, gradients, ring_tile(g.pairs, now, 0));
    wgmma_commit();
    wgmma_wait<0>();
    sums_settle(dq);
    store_gradient(p, head, dq, p.scale, row, QUERY, 0);
#endif
}

// Queries from `row` on, their gradients, and what belongs to each row of them: by the warp that copies.
template <typename G>
static __device__ __forceinline__ void copy_queries(const G &g, const GroupMaps &maps, const Pass<bf16> &p,
                                                    const Head &head, int row, const Stage &s) {
    for (int i = (int)lane_index(); i < G::N; i += WARP) {
        const size_t at = head.unit * (size_t)p.queries + (size_t)(row + i);
        const bool present = row + i < p.queries;
        g.logsumexp[s.place * G::N + i] = present ? p.logsumexp[at] * 1.44269504f : INFINITY;
        g.product[s.place * G::N + i] = present ? p.product[at] : 0;
    }
    if (lane_index() == 0)
        copy_pair(g, maps.parts[QUERY], maps.dy, head, row, s);
    else
        barrier_arrive(g.pairs.full + s.place);
}

// Keys in the rows: the gradients of keys and values, whose products are a tile later, too, with heads of 64.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_backward_keys(const Pass<bf16> p, const __grid_constant__ GroupMaps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using G = GroupKeys<SIZE>;
    constexpr int N = G::N, STAGES = G::R::STAGES;
    constexpr bool BESIDE = SIZE == 64; // where registers hold scores and what products read
    const G g = group_backward_memory<G>();
    const Head head = head_of_block(p);
    const int first = (int)blockIdx.y * BLOCK_ROWS, first_seeing = p.causal ? first : 0; // key, query
    group_backward_create(g, WARP);
    if (copies_only()) {
        if (!is_copying_warp()) return;
        if (lane_index() == 0) copy_stays(g, maps.parts[KEY], maps.parts[VALUE], head, first);
        for (int i = 0; first_seeing + i * N < p.queries; i++) {
            const Stage s = stage_of<STAGES>(i);
            ring_wait_free(g.pairs, s);
            copy_queries(g, maps, p, head, first_seeing + i * N, s);
        }
        return;
    }
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              group = (int)threadIdx.x / WARPGROUP, group_row = group * GROUP_ROWS;
    const int row = first + warp_row + lane / 4, place = lane % 4 * 2; // of element [0][0][0], among queries
    uint8_t *kept = g.kept + group * N * 16;
    Sums<1, SIZE> dk, dv;
    Sums<1, N> s, dw;
    GroupWeights<N> weights, gradients;
    sums_clear(dk);
    sums_clear(dv);
    uint32_t turn = 0; // of the group's barrier
    const auto meet = [&] {
        barrier_arrive(g.groups + group);
        barrier_wait(g.groups + group, turn);
        turn ^= 1;
    };
    const auto keep = [&](int query) {
        if (!drops_out(p.dropout)) return;
        keep_rows(kept, p, head, query, N, first, (int)threadIdx.x % WARPGROUP, WARPGROUP);
        meet();
    };
    const auto to_scores = [&](int query, const Stage &stage) {
        if (p.mask || (p.causal && query < first + warp_row + 15))
            hide_queries(p, head, s, row, query + place);
        const auto of_query = [&](int n, int e) {
            const int at = stage.place * N + 8 * n + place + e % 2;
            return QueryRow{g.logsumexp[at], g.product[at]};
        };
        if (drops_out(p.dropout)) {
            const auto factor = [&](int n, int e) {
                const int at = 8 * n + place + e % 2, j = row + e / 2 * 8;
                return kept[at * 16 + j % 16] >> (j / 16 % 8) & 1 ? p.dropout.scale : 0;
            };
            differentiate(s, dw, p.log2_scale, factor, of_query);
            meet();
        } else {
            differentiate(s, dw, p.log2_scale, keep_all, of_query);
        }
    };
    const auto products = [&](const Stage &stage) {
        group_product_sums<typename G::R::Tile>(dv, weights, ring_tile(g.pairs, stage, 1));
        group_product_sums<typename G::R::Tile>(dk, gradients, ring_tile(g.pairs, stage, 0));
        wgmma_commit();
    };
    const int tiles = (p.queries - first_seeing + N - 1) / N,
              unseen = p.causal ? min(tiles, group_row / N) : 0; // the first see no key of the group
    barrier_wait(g.full, 0);
    for (int i = 0; i < unseen; i++) {
        ring_wait_full(g.pairs, stage_of<STAGES>(i));
        ring_release(g.pairs, stage_of<STAGES>(i).place);
    }
    Stage now = stage_of<STAGES>(unseen);
    const auto begin = [&](int i) {
        now = stage_of<STAGES>(i);
        ring_wait_full(g.pairs, now);
        group_scores(g, s, dw, group_row, now);
    };
    const auto end = [&](int i) {
        sums_settle(s);
        sums_settle(dw);
        to_scores(first_seeing + i * N, now);
    };
    const auto pack = [&] {
        weights = group_weights(s);
        gradients = group_weights(dw);
    };
    const auto settle = [&] {
        wgmma_wait<0>();
        sums_settle(dk);
        sums_settle(dv);
    };
    if (unseen < tiles) {
        begin(unseen);
        keep(first_seeing + unseen * N);
        wgmma_wait<0>();
        end(unseen);
        pack();
        for (int i = unseen + 1; i < tiles; i++) {
            const Stage before = now;
            if constexpr (BESIDE) {
                begin(i);
                products(before);
                keep(first_seeing + i * N);
                wgmma_wait<1>();
                end(i);
                settle();
                ring_release(g.pairs, before.place);
            } else {
                wgmma_fence();
                products(before);
                settle();
                ring_release(g.pairs, before.place);
                begin(i);
                keep(first_seeing + i * N);
                wgmma_wait<0>();
                end(i);
            }
            pack();
        }
        wgmma_fence();
        products(now);
        settle();
    }
    store_gradient(p, head, dk, p.scale, row, KEY, 0);
    store_gradient(p, head, dv, 1, row, VALUE, 0);
#endif
}

// ---- launches -----------------------------------------------------------------------------------------

// Whether copies can read a matrix of bf16 with so many numbers from token to token.
static inline bool group_reads(const void *data, size_t stride) {
    return (uintptr_t)data % 16 == 0 && stride % 8 == 0;
}

// Whether these kernels do it.
static inline bool group_takes(const Device *d, const Pass<bf16> &p) {
    bool reads = p.dy == NULL || group_reads(p.dy, p.channels);
    for (size_t part = QUERY; part <= VALUE; part++)
        reads = reads && group_reads(p.rows[part], p.strides[part]);
    return d->capability == 90 && (p.size == 64 || p.size == 128) && reads;
}

// (D, H, T, B)
static inline TensorMap group_map(const Pass<bf16> &p, const bf16 *data, size_t stride, size_t length,
                                  size_t batch) {
    const size_t sizes[4] = {(size_t)p.size, (size_t)p.heads, length, batch},
                 strides[3] = {(size_t)p.size * sizeof(bf16), stride * sizeof(bf16),
                               length * stride * sizeof(bf16)};
    return tensor_map(data, sizes, strides);
}

static inline GroupMaps group_maps(const Pass<bf16> &p, size_t batch) {
    GroupMaps maps = {};
    for (size_t part = QUERY; part <= VALUE; part++)
        maps.parts[part] =
            group_map(p, p.rows[part], p.strides[part], (size_t)(part == QUERY ? p.queries : p.keys), batch);
    if (p.dy) maps.dy = group_map(p, p.dy, p.channels, (size_t)p.queries, batch);
    return maps;
}

template <int SIZE> static void group_forward(const Device *d, const Pass<bf16> &p, size_t batch) {
    const dim3 grid((unsigned)(batch * (size_t)p.heads), blocks_of((size_t)p.queries, BLOCK_ROWS));
    launch_early(d, group_forward_kernel<SIZE>, grid, GROUP_THREADS, GroupForward<SIZE>::BYTES, p,
                 group_maps(p, batch));
}

template <int SIZE> static void group_backward(const Device *d, const Pass<bf16> &p, size_t batch) {
    const GroupMaps maps = group_maps(p, batch);
    const unsigned units = (unsigned)(batch * (size_t)p.heads);
    launch_early(d, group_backward_queries<SIZE>, dim3(units, blocks_of((size_t)p.queries, BLOCK_ROWS)),
                 GROUP_THREADS, GroupQueries<SIZE>::BYTES, p, maps);
    launch_early(d, group_backward_keys<SIZE>, dim3(units, blocks_of((size_t)p.keys, BLOCK_ROWS)),
                 GROUP_THREADS, GroupKeys<SIZE>::BYTES, p, maps);
}

} // namespace softmax

#endif
