// Softmax attention for sm_90, bf16 and heads of 64 or 128 channels: computes the same as
// softmax_attention.cuh, with products of warp groups (warpgroup.cuh). Part of
// softmax_attention.cuh.
//
// A block's two warp groups compute 64 rows each; tiles of the other side arrive in a ring
// (warpgroup_ring.cuh). Sums of products have the register layout of mma_m16n8k16, so all
// operations between products are those of softmax_pass.cuh. A group processes its scores
// concurrently with the products of the other group and its own next ones.
#ifndef CUDA_WARPGROUP_ATTENTION_CUH
#define CUDA_WARPGROUP_ATTENTION_CUH

#include "softmax_pass.cuh"
#include "warpgroup_ring.cuh"
#include <type_traits>

namespace softmax {

// Tile shapes for heads of SIZE channels: N columns of scores at a time, in STAGES stages. Sums fit
// in the 240 registers of a thread, tiles in the 227 KB of shared memory of a block.
template <int SIZE> struct GroupShapes {
    using Rows = GroupTile<BLOCK_ROWS, SIZE>;
    static constexpr int FORWARD_N = 128, FORWARD_STAGES = 2;
    static constexpr int BACKWARD_N = 64, BACKWARD_STAGES = SIZE == 64 ? 3 : 2;
};

// The matrices that blocks copy from, (B, T, H, D): queries, keys and values, and dy.
struct GroupMaps {
    TensorMap parts[3], dy;
};

// Copies rows of a part, or of dy.
template <typename Tile>
static __device__ __forceinline__ void copy_rows(bf16 *tile, const TensorMap &map, Barrier *full,
                                                 const SoftmaxHead &head, int row) {
    group_copy<Tile>(tile, &map, full, (int)head.h, row, (int)head.b);
}

// ---- forward ----------------------------------------------------------------
// Shared memory of the forward pass: queries, and separate rings for keys and values.
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

// Copies all tiles. Called by one thread.
template <int SIZE>
static __device__ __forceinline__ void
group_forward_copies(const GroupForward<SIZE> &f, const GroupMaps &maps, const SoftmaxHead &head,
                     int first, int start, int end) {
    using F = GroupForward<SIZE>;
    using Tile = typename F::R::Tile;
    barrier_expect(f.full, F::S::Rows::BYTES);
    copy_rows<typename F::S::Rows>(f.queries, maps.parts[QUERY], f.full, head, first);
    for (int i = 0; start + i * Tile::ROWS < end; i++) {
        const Stage s = stage_of<F::R::STAGES>(i);
        ring_wait_free(f.keys, s);
        barrier_expect(f.keys.full + s.place, Tile::BYTES);
        copy_rows<Tile>(ring_tile(f.keys, s, 0), maps.parts[KEY], f.keys.full + s.place, head,
                        start + i * Tile::ROWS);
        ring_wait_free(f.values, s);
        barrier_expect(f.values.full + s.place, Tile::BYTES);
        copy_rows<Tile>(ring_tile(f.values, s, 0), maps.parts[VALUE], f.values.full + s.place, head,
                        start + i * Tile::ROWS);
    }
}

// Computes attention of a tile of queries to all keys. The scores of the next keys are computed
// concurrently with the sums of the current values.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_forward_kernel(const SoftmaxPass<bf16> p, const __grid_constant__ GroupMaps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using F = GroupForward<SIZE>;
    using R = typename F::R;
    using Tile = typename R::Tile;
    constexpr int N = Tile::ROWS;
    const F f = group_forward_memory<SIZE>();
    const SoftmaxHead head = head_of(p, blockIdx.x);
    const int first =
        (int)(gridDim.y - 1 - blockIdx.y) * BLOCK_ROWS; // tiles with the most keys first
    const int start = first_keys<N>(p, first), end = last_key(p, first + BLOCK_ROWS);
    if (threadIdx.x == 0) {
        barrier_create(f.full, 1);
        ring_create(f.keys, 1);
        ring_create(f.values, 1);
        barriers_publish();
    }
    __syncthreads();
    if (copies_only()) {
        if (threadIdx.x == GROUPS * WARPGROUP)
            group_forward_copies(f, maps, head, first, start, end);
        return;
    }
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    const int row = first + warp_row + lane / 4;
    const int visible = last_key(p, first + warp_row + 1),
              opened = first_key(p, first + warp_row + 15); // as in forward_kernel()
    SoftmaxRows<1> rows = rows_create<1>(p.sink);
    Sums<1, SIZE> y;
    Sums<1, N> s;
    GroupWeights<N> w;
    sums_clear(y);
    const auto weigh = [&](int key, float(*shrink)[2]) {
        if (p.mask || key + N > visible || key < opened)
            hide_keys(p, head, s, row, key + lane % 4 * 2);
        exponentiate(p.log2_scale, s, rows, shrink);
        if (drops_out(p.dropout))
            drop_weights(p, head, s, f.kept + warp_row * 16, first + warp_row, key, start);
    };
    Stage now = stage_of<R::STAGES>(0);
    float shrink[1][2];
    barrier_wait(f.full, 0);
    ring_wait_full(f.keys, now);
    wgmma_fence();
    group_product_rows<typename F::S::Rows, Tile>(s, f.queries, group_row,
                                                  ring_tile(f.keys, now, 0));
    wgmma_commit();
    wgmma_wait<0>();
    sums_settle(s);
    ring_release(f.keys, now.place);
    weigh(start, shrink);
    w = group_weights(s);
    for (int i = 1; start + i * N < end; i++) {
        const Stage before = now;
        now = stage_of<R::STAGES>(i);
        ring_wait_full(f.keys, now);
        wgmma_fence();
        group_product_rows<typename F::S::Rows, Tile>(s, f.queries, group_row,
                                                      ring_tile(f.keys, now, 0));
        wgmma_commit();
        ring_wait_full(f.values, before);
        wgmma_fence();
        group_product_sums<Tile>(y, w, ring_tile(f.values, before, 0));
        wgmma_commit();
        wgmma_wait<1>();
        sums_settle(s);
        ring_release(f.keys, now.place);
        weigh(start + i * N, shrink);
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

// ---- backward ---------------------------------------------------------------
//
// A thread block holds 128 keys and their values, and iterates over the queries that see them. Each
// tile takes five products: scores, gradients of weights and, from these, the gradients of values,
// keys and queries. The gradient of queries is a sum over blocks of keys, in global memory. Blocks
// add to it in a fixed order, from the last keys on, so results are bit-identical from run to run.
// A counter for each step of queries tells whose turn it is.
//
// A block waits only for blocks of later keys of its head. A counter assigns work, a head's last
// keys first, so those blocks have started before, and none can wait forever, in whichever order
// the GPU starts blocks. If attention is causal, the block of the previous keys reaches a step
// after this block has passed it, so it need not wait for its turn. An extra warp adds, while the
// groups continue.

// Sums for the gradients of queries. A step is the unit of addition, (GROUPS, 8, 128, 4): the four
// sums of a lane are consecutive; each group holds half of the queries or half of the channels.
struct Gathered {
    float *sums;      // (B H, steps, GROUPS PANEL PANEL)
    unsigned *turns;  // (B H, steps) number of blocks of keys that have added
    unsigned *ticket; // number of blocks that have work
    int steps;
};

static constexpr int STEP_NUMBERS = GROUPS * PANEL * PANEL;

// Shared memory of the backward pass: keys and values, which stay; tiles of queries and of dy,
// which are streamed; gradients of scores and sums of a step, for its last product.
template <int SIZE> struct GroupBackward {
    using S = GroupShapes<SIZE>;
    using Rows = typename S::Rows;
    static constexpr int N = S::BACKWARD_N, STAGES = S::BACKWARD_STAGES;
    static constexpr int STEP = STEP_NUMBERS / SIZE,
                         TILES = STEP / N; // queries per step, and tiles of them
    using R = Ring<GroupTile<N, SIZE>, 2, STAGES>;
    using Gradients = GroupTile<BLOCK_ROWS, STEP>; // keys in the rows, a panel per tile of queries
    static constexpr int BARRIERS = 4 + GROUPS + 2 * STAGES;
    static constexpr size_t BYTES = 2 * Rows::BYTES + R::BYTES + 2 * Gradients::BYTES +
                                    STEP_NUMBERS * sizeof(float) + (size_t)GROUPS * N * 16 +
                                    (size_t)2 * STAGES * N * sizeof(float) +
                                    BARRIERS * sizeof(Barrier) + sizeof(unsigned);
    bf16 *keys, *values;
    R pairs;
    bf16 *gradients;            // of two steps
    float *sums;                // (GROUPS, 8, 128, 4)
    uint8_t *kept;              // (GROUPS, N, 16)
    float *logsumexp, *product; // (STAGES, N) of queries: log2 of the sum; dy . y
    Barrier *full, *groups;     // of keys and values; (GROUPS)
    Barrier *scored;            // the gradients of a step's scores are ready
    Barrier *summed, *taken;    // the sums are ready; have been read
    unsigned *work;             // this block's work
};

template <int SIZE> static __device__ __forceinline__ GroupBackward<SIZE> group_backward_memory() {
    using G = GroupBackward<SIZE>;
    G g;
    g.keys = shared_memory<bf16>();
    g.values = g.keys + G::Rows::NUMBERS;
    g.pairs.tiles = g.values + G::Rows::NUMBERS;
    g.gradients = g.pairs.tiles + G::R::BYTES / sizeof(bf16);
    g.sums = (float *)(g.gradients + 2 * G::Gradients::NUMBERS);
    g.kept = (uint8_t *)(g.sums + STEP_NUMBERS);
    g.logsumexp = (float *)(g.kept + GROUPS * G::N * 16);
    g.product = g.logsumexp + G::STAGES * G::N;
    g.full = (Barrier *)(g.product + G::STAGES * G::N);
    g.groups = g.full + 1;
    g.scored = g.groups + GROUPS;
    g.summed = g.scored + 1;
    g.taken = g.summed + 1;
    g.pairs.full = g.taken + 1;
    g.pairs.free = g.pairs.full + G::STAGES;
    g.work = (unsigned *)(g.pairs.free + G::STAGES);
    return g;
}

// Work of a thread block: keys from `first` on of a head, and the steps of queries that see any of
// them.
struct GroupWork {
    SoftmaxHead head;
    int key_block, first, first_step, end_step;
};

// Returns the work that was taken: of each head, the last keys first.
template <int SIZE>
static __device__ __forceinline__ GroupWork group_work(const GroupBackward<SIZE> &g,
                                                       const SoftmaxPass<bf16> &p) {
    constexpr int STEP = GroupBackward<SIZE>::STEP;
    const unsigned work = *g.work;
    const int key_block = (int)(gridDim.y - 1 - work % gridDim.y), first = key_block * BLOCK_ROWS;
    return {head_of(p, work / gridDim.y), key_block, first, p.causal ? first / STEP : 0,
            (last_query(p, first + BLOCK_ROWS) + STEP - 1) / STEP};
}

// Creates barriers and takes work. Called by all threads.
template <int SIZE>
static __device__ __forceinline__ void group_backward_begin(const GroupBackward<SIZE> &g,
                                                            const Gathered &gathered) {
    if (threadIdx.x == 0) {
        barrier_create(g.full, 1);
        for (int i = 0; i < GROUPS; i++) barrier_create(g.groups + i, WARPGROUP);
        barrier_create(g.scored, GROUP_WARPS);
        barrier_create(g.summed, GROUP_WARPS);
        barrier_create(g.taken, 1);
        ring_create(g.pairs, WARP);
        barriers_publish();
        *g.work = atomicAdd(gathered.ticket, 1u);
    }
    __syncthreads();
}

// Copies queries from `row` on, with their rows of dy, logsumexp and dy . y. Called by the copying
// warp.
template <int SIZE>
static __device__ __forceinline__ void
copy_queries(const GroupBackward<SIZE> &g, const GroupMaps &maps, const SoftmaxPass<bf16> &p,
             const SoftmaxHead &head, int row, const Stage &s) {
    using G = GroupBackward<SIZE>;
    using Tile = typename G::R::Tile;
    for (int i = (int)lane_index(); i < G::N; i += WARP) {
        const size_t at = head.unit * (size_t)p.queries + (size_t)(row + i);
        const bool present = row + i < p.queries;
        g.logsumexp[s.place * G::N + i] = present ? p.logsumexp[at] * 1.44269504f : INFINITY;
        g.product[s.place * G::N + i] = present ? p.product[at] : 0;
    }
    Barrier *full = g.pairs.full + s.place;
    if (lane_index() == 0) {
        barrier_expect(full, 2 * Tile::BYTES);
        copy_rows<Tile>(ring_tile(g.pairs, s, 0), maps.parts[QUERY], full, head, row);
        copy_rows<Tile>(ring_tile(g.pairs, s, 1), maps.dy, full, head, row);
    } else {
        barrier_arrive(full);
    }
}

// Copies all tiles. Called by a warp.
template <int SIZE>
static __device__ __forceinline__ void
group_backward_copies(const GroupBackward<SIZE> &g, const GroupMaps &maps,
                      const SoftmaxPass<bf16> &p, const GroupWork &work, int tiles) {
    using G = GroupBackward<SIZE>;
    if (lane_index() == 0) {
        barrier_expect(g.full, 2 * G::Rows::BYTES);
        copy_rows<typename G::Rows>(g.keys, maps.parts[KEY], g.full, work.head, work.first);
        copy_rows<typename G::Rows>(g.values, maps.parts[VALUE], g.full, work.head, work.first);
    }
    for (int i = 0; i < tiles; i++) {
        const Stage s = stage_of<G::STAGES>(i);
        ring_wait_free(g.pairs, s);
        copy_queries(g, maps, p, work.head, work.first_step * G::STEP + i * G::N, s);
    }
}

// Adds the sums of each step to those in global memory when it is this block's turn; the first
// block stores them instead. Called by one thread.
template <int SIZE>
static __device__ __forceinline__ void
group_backward_adds(const GroupBackward<SIZE> &g, const SoftmaxPass<bf16> &p, const GroupWork &work,
                    const Gathered &gathered) {
    constexpr size_t BYTES = STEP_NUMBERS * sizeof(float);
    for (int step = work.first_step; step < work.end_step; step++) {
        const int last =
            p.causal ? step * GroupBackward<SIZE>::STEP / BLOCK_ROWS : (int)gridDim.y - 1;
        const unsigned turn =
            (unsigned)(last - work.key_block); // `last`: last block of keys that the step sees
        const size_t at = work.head.unit * (size_t)gathered.steps + (size_t)step;
        barrier_wait(g.summed, (uint32_t)(step - work.first_step) & 1);
        turn_wait(gathered.turns + at, turn);
        if (turn == 0)
            bulk_store(gathered.sums + at * STEP_NUMBERS, g.sums, BYTES);
        else
            bulk_add(gathered.sums + at * STEP_NUMBERS, g.sums, BYTES);
        bulk_wait_read();
        barrier_arrive(g.taken);
        bulk_wait();
        turn_pass(gathered.turns + at, turn + 1);
    }
}

// Keys in the rows. With heads of 64, a tile's products for dk and dv run concurrently with the
// next tile's products.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_backward_kernel(const SoftmaxPass<bf16> p, const __grid_constant__ GroupMaps maps,
                          const Gathered gathered) {
#if WARP_GROUP_CODE
    begin_kernel();
    using G = GroupBackward<SIZE>;
    using Tile = typename G::R::Tile;
    constexpr int N = G::N, STAGES = G::STAGES, TILES = G::TILES;
    constexpr bool BESIDE = SIZE == 64; // if registers hold both scores and operands of products
    const G g = group_backward_memory<SIZE>();
    group_backward_begin(g, gathered);
    const GroupWork work = group_work(g, p);
    const SoftmaxHead head = work.head;
    const int first = work.first, first_query = work.first_step * G::STEP,
              steps = work.end_step - work.first_step;
    if (copies_only()) {
        if (is_copying_warp())
            group_backward_copies(g, maps, p, work, steps * TILES);
        else if (threadIdx.x == GROUPS * WARPGROUP + WARP)
            group_backward_adds(g, p, work, gathered);
        return;
    }
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16,
              group = (int)threadIdx.x / WARPGROUP, group_row = group * GROUP_ROWS;
    const int row = first + warp_row + lane / 4,
              place = lane % 4 * 2; // of element [0][0][0], among queries
    const bool hidden = p.mask || first + warp_row + 16 > p.keys; // some keys, from all queries
    uint8_t *kept = g.kept + group * N * 16;
    Sums<1, SIZE> dk, dv;
    Sums<1, PANEL> dq;
    Sums<1, N> s, dw;
    GroupWeights<N> weights, gradients;
    sums_clear(dk);
    sums_clear(dv);
    uint32_t turn = 0; // parity of the group's barrier
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
    const auto to_scores = [&](int query, int stage) {
        if (hidden || (p.causal && query < first + warp_row + 15))
            hide_queries(p, head, s, row, query + place);
        if (first_key(p, query + N - 1) > first + warp_row)
            hide_late_queries(p, s, row, query + place);
        const auto of_query = [&](int n, int e) {
            const int at = stage * N + 8 * n + place + e % 2;
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
    // Starts the first products of tile i: s = keys by queries, dw = values by dy.
    const auto begin = [&](int i) {
        const Stage stage = stage_of<STAGES>(i);
        ring_wait_full(g.pairs, stage);
        wgmma_fence();
        group_product_rows<typename G::Rows, Tile>(s, g.keys, group_row,
                                                   ring_tile(g.pairs, stage, 0));
        group_product_rows<typename G::Rows, Tile>(dw, g.values, group_row,
                                                   ring_tile(g.pairs, stage, 1));
        wgmma_commit();
    };
    // Computes weights and gradients of scores from them, when they are ready.
    const auto end = [&](int i) {
        sums_settle(s);
        sums_settle(dw);
        to_scores(first_query + i * N, stage_of<STAGES>(i).place);
    };
    // Packs tile i, the latest one, for its next products and for the product of its step.
    const auto pack = [&](int i) {
        weights = group_weights(s);
        gradients = group_weights(dw);
        group_put<typename G::Gradients>(g.gradients + i / TILES % 2 * G::Gradients::NUMBERS,
                                         i % TILES, group_row, gradients);
        if (i % TILES < TILES - 1) return;
        async_publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(g.scored);
    };
    const auto products = [&](int i) {
        const Stage stage = stage_of<STAGES>(i);
        group_product_sums<Tile>(dv, weights, ring_tile(g.pairs, stage, 1));
        group_product_sums<Tile>(dk, gradients, ring_tile(g.pairs, stage, 0));
        wgmma_commit();
    };
    const auto settle = [&](int i) {
        wgmma_wait<0>();
        sums_settle(dk);
        sums_settle(dv);
        ring_release(g.pairs, stage_of<STAGES>(i).place);
    };
    // Starts the product for dq of a step, for which both groups have stored their gradients. Each
    // group computes a tile of queries, or half of the channels.
    const auto gather = [&](int step) {
        barrier_wait(g.scored, (uint32_t)step & 1);
        wgmma_fence();
        group_product_columns<typename G::Gradients, typename G::Rows>(
            dq, g.gradients + step % 2 * G::Gradients::NUMBERS, group % TILES, g.keys,
            group / TILES);
        wgmma_commit();
    };
    const auto hand_over = [&](int step) {
        sums_settle(dq);
        barrier_wait(g.taken, ((uint32_t)step & 1) ^ 1);
        float *to = g.sums + group * PANEL * PANEL + (int)threadIdx.x % WARPGROUP * 4;
#pragma unroll
        for (int n = 0; n < PANEL / 8; n++)
            *(float4 *)(to + n * WARPGROUP * 4) =
                make_float4(dq.at[0][n][0], dq.at[0][n][1], dq.at[0][n][2], dq.at[0][n][3]);
        async_publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(g.summed);
    };
    // Processes tile i, with the dk and dv products of the previous tile and, if tile i begins a
    // step, the dq product of the previous step.
    const auto next = [&](int i, auto begins) {
        constexpr bool GATHERS = decltype(begins)::value;
        if constexpr (BESIDE) {
            begin(i);
            products(i - 1);
            if constexpr (GATHERS) gather(i / TILES - 1);
            keep(first_query + i * N);
            wgmma_wait<1 + GATHERS>();
            end(i);
            settle(i - 1);
            if constexpr (GATHERS) hand_over(i / TILES - 1);
        } else {
            wgmma_fence();
            products(i - 1);
            if constexpr (GATHERS) gather(i / TILES - 1);
            settle(i - 1);
            if constexpr (GATHERS) hand_over(i / TILES - 1);
            begin(i);
            keep(first_query + i * N);
            wgmma_wait<0>();
            end(i);
        }
        pack(i);
    };
    barrier_wait(g.full, 0);
    begin(0);
    keep(first_query);
    wgmma_wait<0>();
    end(0);
    pack(0);
    for (int step = 0;;) {
#pragma unroll
        for (int i = 1; i < TILES; i++) next(step * TILES + i, std::false_type());
        if (++step == steps) break;
        next(step * TILES, std::true_type());
    }
    wgmma_fence();
    products(steps * TILES - 1);
    gather(steps - 1);
    settle(steps * TILES - 1);
    hand_over(steps - 1);
    const GroupWork again = group_work(g, p); // computed again, to save registers
    const int key = again.first + warp_row + lane / 4;
    store_gradient(p, again.head, dk, p.scale, key, KEY, 0);
    store_gradient(p, again.head, dv, 1, key, VALUE, 0);
#endif
}

// Runs before group_backward_kernel(): computes dy . y of each query, and clears counters.
template <int SIZE>
static __global__ void __launch_bounds__(2 * BLOCK_ROWS)
    group_begin_kernel(const SoftmaxPass<bf16> p, const Gathered gathered) {
    begin_kernel();
    constexpr int LANES = SIZE / 8; // lanes per row, 8 elements each
    const SoftmaxHead head = head_of(p, blockIdx.x);
    const size_t at = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < (size_t)gridDim.x * (size_t)gathered.steps) gathered.turns[at] = 0;
    if (at == 0) *gathered.ticket = 0;
    const int end = min(p.queries, ((int)blockIdx.y + 1) * BLOCK_ROWS),
              place = (int)threadIdx.x % LANES * 8;
    for (int first = (int)blockIdx.y * BLOCK_ROWS; first < end; first += (int)blockDim.x / LANES) {
        const int row = first + (int)threadIdx.x / LANES;
        float sum = 0;
        if (row < end) {
            float y[8], dy[8];
            load_numbers<8>(y, p.y + y_place(p, head, row) + place);
            load_numbers<8>(dy, p.dy + y_place(p, head, row) + place);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += y[i] * dy[i];
        }
#pragma unroll
        for (int bits = LANES / 2; bits > 0; bits /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, bits);
        if (row < end && place == 0) p.product[head.unit * (size_t)p.queries + (size_t)row] = sum;
    }
}

// Runs after group_backward_kernel(): stores the gradient of a step of queries, from its sums.
template <int SIZE>
static __global__ void __launch_bounds__(GROUPS *WARPGROUP)
    group_end_kernel(const SoftmaxPass<bf16> p, const Gathered gathered) {
    begin_kernel();
    using G = GroupBackward<SIZE>;
    const SoftmaxHead head = head_of(p, blockIdx.x);
    const int step = (int)blockIdx.y, group = (int)threadIdx.x / WARPGROUP,
              in_group = (int)threadIdx.x % WARPGROUP;
    const float *from = gathered.sums +
                        (head.unit * (size_t)gathered.steps + (size_t)step) * STEP_NUMBERS +
                        group * PANEL * PANEL + in_group * 4;
    Sums<1, PANEL> dq;
#pragma unroll
    for (int n = 0; n < PANEL / 8; n++) load_numbers<4>(dq.at[0][n], from + n * WARPGROUP * 4);
    const int row =
        step * G::STEP + group % G::TILES * G::N + in_group / WARP * 16 + (int)lane_index() / 4;
    store_gradient(p, head, dq, p.scale, row, QUERY, group / G::TILES * PANEL);
}

// ---- launches ---------------------------------------------------------------
// Whether these kernels exist for bf16 heads of `size` channels on this device.
static inline bool group_takes_heads(const Device *d, size_t size) {
    return HAVE_WARP_GROUPS && d->capability == 90 && (size == 64 || size == 128);
}

// Whether copies can read a bf16 matrix with this distance between tokens.
static inline bool group_reads(const void *data, size_t stride) {
    return (uintptr_t)data % 16 == 0 && stride % 8 == 0;
}

// Whether these kernels can compute the pass.
static inline bool group_takes(const Device *d, const SoftmaxPass<bf16> &p) {
    bool reads = group_reads(p.y, p.channels) && group_reads(p.dy, p.channels);
    for (size_t part = QUERY; part <= VALUE; part++)
        reads = reads && group_reads(p.rows[part], p.strides[part]);
    return group_takes_heads(d, (size_t)p.size) && reads;
}

// Map of a matrix (D, H, T, B).
static inline TensorMap group_map(const SoftmaxPass<bf16> &p, const bf16 *data, size_t stride,
                                  size_t length, size_t batch) {
    const size_t sizes[4] = {(size_t)p.size, (size_t)p.heads, length, batch},
                 strides[3] = {(size_t)p.size * sizeof(bf16), stride * sizeof(bf16),
                               length * stride * sizeof(bf16)};
    return tensor_map(data, sizes, strides);
}

static inline GroupMaps group_maps(const SoftmaxPass<bf16> &p, size_t batch) {
    GroupMaps maps = {};
    for (size_t part = QUERY; part <= VALUE; part++)
        maps.parts[part] = group_map(p, p.rows[part], p.strides[part],
                                     (size_t)(part == QUERY ? p.queries : p.keys), batch);
    if (p.dy) maps.dy = group_map(p, p.dy, p.channels, (size_t)p.queries, batch);
    return maps;
}

template <int SIZE>
static void group_forward(const Device *d, const SoftmaxPass<bf16> &p, size_t batch) {
    const dim3 grid((unsigned)(batch * (size_t)p.heads), blocks_of((size_t)p.queries, BLOCK_ROWS));
    launch_early(d, group_forward_kernel<SIZE>, grid, GROUP_THREADS, GroupForward<SIZE>::BYTES, p,
                 group_maps(p, batch));
}

// Number of steps for the gradients of the queries of a head.
static inline size_t gathered_steps(size_t queries, size_t size) {
    return (queries * size + STEP_NUMBERS - 1) / STEP_NUMBERS;
}

// Whether steps are at least half full. With fewer queries, most of a step would be empty.
static inline bool gathers(size_t queries, size_t size) {
    return 2 * queries * size >= STEP_NUMBERS;
}

// Floats of working memory after dy . y (B, H, Tq), which start at a multiple of 4. Batches have
// many lengths: this is enough for any batch with as many tokens, because those that gathers()
// accepts fill at least half of their steps.
static inline size_t gathered_workspace(size_t units, size_t queries, size_t size) {
    const size_t exact = units * gathered_steps(queries, size) * (STEP_NUMBERS + 1) + 1,
                 twice = 2 * units * queries * size, any = twice + twice / STEP_NUMBERS + 2;
    return exact < any ? exact : any;
}

static inline size_t gathered_place(size_t units, size_t queries) {
    return (units * queries + 3) / 4 * 4;
}

template <int SIZE>
static void group_backward(const Device *d, const SoftmaxPass<bf16> &p, size_t batch) {
    const size_t units = batch * (size_t)p.heads, queries = (size_t)p.queries,
                 steps = gathered_steps(queries, SIZE);
    float *sums = p.product + gathered_place(units, queries);
    unsigned *turns = (unsigned *)(sums + units * steps * STEP_NUMBERS);
    const Gathered gathered = {sums, turns, turns + units * steps, (int)steps};
    const unsigned blocks = (unsigned)units;
    launch_early(d, group_begin_kernel<SIZE>, dim3(blocks, blocks_of(queries, BLOCK_ROWS)),
                 2 * BLOCK_ROWS, 0, p, gathered);
    launch_together(d, group_backward_kernel<SIZE>,
                    dim3(blocks, blocks_of((size_t)p.keys, BLOCK_ROWS)), GROUP_THREADS,
                    GroupBackward<SIZE>::BYTES, p, group_maps(p, batch), gathered);
    launch_early(d, group_end_kernel<SIZE>, dim3(blocks, (unsigned)steps), GROUPS * WARPGROUP, 0, p,
                 gathered);
}

} // namespace softmax

#endif
