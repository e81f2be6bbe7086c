// The output layer in training, without logits in memory (sm_90, bf16, 64 or 128 channels): what
// classifier.cuh computes, by products of warp groups (warpgroup.cuh). With the notation there,
// among the tokens but the target
//
//     Z'_i = sum_j e_ij,  O_i = sum_j e_ij E_j / Z'_i,  1 - p_it = Z'_i / (Z'_i + e_it)
//     dh_i = scale (1 - p_it) (O_i - E_t),   dE_j = scale (sum_i p_ij h_i - sum_{t_i = j} h_i)
//
// so dh is attention whose keys and values are E: a block of threads has 128 rows and goes through
// all tokens, with a running maximum. Then another has 128 tokens and goes through all rows, with
// the logits computed again. So 8 M V C multiplications and additions, where classifier.cuh has 6,
// and no numbers of (M, V). The target is left out of the sums, so that its gradient keeps its
// digits where it is nearly certain.
//
// Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024 (arXiv 2411.09009);
// there one kernel makes both gradients, with locks.
#ifndef CUDA_FUSED_CLASSIFIER_CUH
#define CUDA_FUSED_CLASSIFIER_CUH

#include "classifier_rows.cuh"
#include "softmax_pass.cuh"
#include "warpgroup_ring.cuh"

namespace fused {

static constexpr int COLUMNS = 128, STAGES = 4; // of a tile that passes by; in shared memory

template <int SIZE> struct Shapes {
    using Rows = GroupTile<BLOCK_ROWS, SIZE>;
    using R = Ring<GroupTile<COLUMNS, SIZE>, 1, STAGES>;
};

struct Pass {
    int rows, tokens; // M, V
    const bf16 *weight;
    const float *bias;      // (V) or NULL
    const int32_t *targets; // (M), -1: none
    const StepParameters *step;
    RowResults to;
    float *log2_sums;            // (M) log2 of Z; +Inf where there is no target
    float *own;                  // (M) p - 1 of the target
    float *dh, *dweight, *dbias; // dbias (V) or NULL
    size_t dh_stride;
};

// h (M, C), E (V, C)
struct Maps {
    TensorMap rows, tokens;
};

template <typename Tile>
static __device__ __forceinline__ void copy_tile(bf16 *tile, const TensorMap &map, Barrier *full,
                                                 int row) {
    barrier_expect(full, Tile::BYTES);
    group_copy<Tile>(tile, &map, full, 0, row, 0);
}

// ---- losses and dh ----------------------------------------------------------

template <int SIZE> struct RowMemory {
    using S = Shapes<SIZE>;
    static constexpr size_t BYTES = S::Rows::BYTES + S::R::BYTES +
                                    STAGES * COLUMNS * sizeof(float) +
                                    (1 + 2 * STAGES) * sizeof(Barrier);
    bf16 *rows;
    typename S::R tokens;
    float *bias;   // (STAGES, COLUMNS) of the tokens; -Inf of what is none
    Barrier *full; // of the rows
};

template <int SIZE> static __device__ __forceinline__ RowMemory<SIZE> row_memory() {
    RowMemory<SIZE> m;
    m.rows = shared_memory<bf16>();
    m.tokens.tiles = m.rows + Shapes<SIZE>::Rows::NUMBERS;
    m.bias = (float *)(m.tokens.tiles + Shapes<SIZE>::R::BYTES / sizeof(bf16));
    m.full = (Barrier *)(m.bias + STAGES * COLUMNS);
    m.tokens.full = m.full + 1;
    m.tokens.free = m.tokens.full + STAGES;
    return m;
}

// Tokens from `token` on, and their bias: by the warp that copies.
template <int SIZE>
static __device__ __forceinline__ void copy_tokens(const RowMemory<SIZE> &m, const Pass &p,
                                                   const Maps &maps, const Stage &s, int token) {
    for (int i = (int)lane_index(); i < COLUMNS; i += WARP)
        m.bias[s.place * COLUMNS + i] = token + i >= p.tokens ? -INFINITY
                                        : p.bias              ? p.bias[token + i]
                                                              : 0;
    Barrier *full = m.tokens.full + s.place;
    if (lane_index() == 0)
        copy_tile<typename Shapes<SIZE>::R::Tile>(ring_tile(m.tokens, s, 0), maps.tokens, full,
                                                  token);
    else
        barrier_arrive(full);
}

// Products of tokens from `token` on become logits; that of the target is kept in `own`, and left
// out.
static __device__ __forceinline__ void leave_out(Sums<1, COLUMNS> &s, const float *bias,
                                                 const int targets[2], float own[2], int token) {
    const int place = (int)lane_index() % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        const float2 b = load_two(bias + 8 * n + place);
        s.at[0][n][0] += b.x;
        s.at[0][n][1] += b.y;
        s.at[0][n][2] += b.x;
        s.at[0][n][3] += b.y;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if ((unsigned)(targets[half] - token) >= (unsigned)COLUMNS) continue;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (token + place + 8 * n + e != targets[half]) continue;
                own[half] = s.at[0][n][2 * half + e];
                s.at[0][n][2 * half + e] = -INFINITY;
            }
    }
}

// Of a lane's rows: losses, what dE is made of, and dh from y, the sum of e_j E_j.
template <int SIZE>
static __device__ __forceinline__ void
row_results(const Pass &p, const softmax::SoftmaxRows<1> &rows, const Sums<1, SIZE> &y,
            const int targets[2], const float logits[2], int row) {
    const float scale = p.step->scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half, target = targets[half];
        const float sum = quad_sum(rows.sum[0][half]), top = rows.top[0][half],
                    own = quad_max(logits[half]), own2 = own * LOG2_E;
        if (i >= p.rows) continue;
        const bool counts = target >= 0;
        const float largest = fmaxf(top, own2), shrink = exp2_fast(top - largest),
                    rest = sum * shrink, all = rest + exp2_fast(own2 - largest);
        if (lane_index() % 4 == 0) {
            const RowTotal total = {{top * LN_2, sum}, 0, own, counts};
            store_losses(p.to, (size_t)i, total, (uint32_t)p.tokens, 0);
            p.log2_sums[i] = counts ? largest + log2f(all) : INFINITY;
            p.own[i] = counts ? -rest / all : 0;
        }
        const float of_sum = counts ? scale * shrink / all : 0,
                    of_target = counts ? -scale * rest / all : 0;
        const bf16 *weight = p.weight + (size_t)(counts ? target : 0) * SIZE;
        float *dh = p.dh + (size_t)i * p.dh_stride;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            const int d = 8 * n + (int)lane_index() % 4 * 2;
            const float2 w = load_two(weight + d);
            store_two(dh + d, of_sum * y.at[0][n][2 * half] + of_target * w.x,
                      of_sum * y.at[0][n][2 * half + 1] + of_target * w.y);
        }
    }
}

// The logits of the next tokens are computed concurrently with the sums of these.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    row_kernel(const Pass p, const __grid_constant__ Maps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using S = Shapes<SIZE>;
    using Tile = typename S::R::Tile;
    const RowMemory<SIZE> m = row_memory<SIZE>();
    const int first = (int)blockIdx.x * BLOCK_ROWS, tiles = (p.tokens + COLUMNS - 1) / COLUMNS;
    if (threadIdx.x == 0) {
        barrier_create(m.full, 1);
        ring_create(m.tokens, WARP);
        barriers_publish();
    }
    __syncthreads();
    if (copies_only()) {
        if (!is_copying_warp()) return;
        if (lane_index() == 0) copy_tile<typename S::Rows>(m.rows, maps.rows, m.full, first);
        for (int i = 0; i < tiles; i++) {
            const Stage s = stage_of<STAGES>(i);
            ring_wait_free(m.tokens, s);
            copy_tokens(m, p, maps, s, i * COLUMNS);
        }
        return;
    }
    const int group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS,
              row = first + (int)threadIdx.x / WARP * 16 + (int)lane_index() / 4;
    const int targets[2] = {row < p.rows ? p.targets[row] : -1,
                            row + 8 < p.rows ? p.targets[row + 8] : -1};
    float own[2] = {-INFINITY, -INFINITY}, shrink[1][2];
    softmax::SoftmaxRows<1> rows = softmax::rows_create<1>(0);
    Sums<1, SIZE> y;
    Sums<1, COLUMNS> s;
    sums_clear(y);
    const auto begin = [&](int i) {
        const Stage stage = stage_of<STAGES>(i);
        ring_wait_full(m.tokens, stage);
        wgmma_fence();
        group_product_rows<typename S::Rows, Tile>(s, m.rows, group_row,
                                                   ring_tile(m.tokens, stage, 0));
        wgmma_commit();
    };
    const auto weigh = [&](int i) {
        sums_settle(s);
        leave_out(s, m.bias + stage_of<STAGES>(i).place * COLUMNS, targets, own, i * COLUMNS);
        softmax::exponentiate(LOG2_E, s, rows, shrink);
    };
    const auto add = [&](int i, const GroupWeights<COLUMNS> &w) {
        wgmma_fence();
        group_product_sums<Tile>(y, w, ring_tile(m.tokens, stage_of<STAGES>(i), 0));
        wgmma_commit();
    };
    const auto settle = [&](int i) {
        wgmma_wait<0>();
        sums_settle(y);
        ring_release(m.tokens, stage_of<STAGES>(i).place);
    };
    barrier_wait(m.full, 0);
    begin(0);
    wgmma_wait<0>();
    weigh(0);
    GroupWeights<COLUMNS> w = group_weights(s);
    for (int i = 1; i < tiles; i++) {
        begin(i);
        add(i - 1, w);
        wgmma_wait<1>();
        weigh(i);
        settle(i - 1);
        softmax::shrink_rows(y, shrink);
        w = group_weights(s);
    }
    add(tiles - 1, w);
    settle(tiles - 1);
    row_results(p, rows, y, targets, own, row);
#endif
}

// ---- dE ---------------------------------------------------------------------

template <int SIZE> struct TokenMemory {
    using S = Shapes<SIZE>;
    static constexpr size_t BYTES =
        S::Rows::BYTES + S::R::BYTES +
        (size_t)STAGES * COLUMNS * (2 * sizeof(float) + sizeof(int32_t)) +
        (1 + 2 * STAGES) * sizeof(Barrier);
    bf16 *tokens;
    typename S::R rows;
    float *log2_sums, *own; // (STAGES, COLUMNS) of the rows
    int32_t *targets;
    Barrier *full; // of the tokens
};

template <int SIZE> static __device__ __forceinline__ TokenMemory<SIZE> token_memory() {
    TokenMemory<SIZE> m;
    m.tokens = shared_memory<bf16>();
    m.rows.tiles = m.tokens + Shapes<SIZE>::Rows::NUMBERS;
    m.log2_sums = (float *)(m.rows.tiles + Shapes<SIZE>::R::BYTES / sizeof(bf16));
    m.own = m.log2_sums + STAGES * COLUMNS;
    m.targets = (int32_t *)(m.own + STAGES * COLUMNS);
    m.full = (Barrier *)(m.targets + STAGES * COLUMNS);
    m.rows.full = m.full + 1;
    m.rows.free = m.rows.full + STAGES;
    return m;
}

// Rows from `row` on, and what belongs to each of them: by the warp that copies.
template <int SIZE>
static __device__ __forceinline__ void copy_rows(const TokenMemory<SIZE> &m, const Pass &p,
                                                 const Maps &maps, const Stage &s, int row) {
    using Tile = typename Shapes<SIZE>::R::Tile;
    for (int i = (int)lane_index(); i < COLUMNS; i += WARP) {
        const bool present = row + i < p.rows;
        const int at = s.place * COLUMNS + i;
        m.log2_sums[at] = present ? p.log2_sums[row + i] : INFINITY;
        m.own[at] = present ? p.own[row + i] : 0;
        m.targets[at] = present ? p.targets[row + i] : -1;
    }
    Barrier *full = m.rows.full + s.place;
    if (lane_index() == 0)
        copy_tile<Tile>(ring_tile(m.rows, s, 0), maps.rows, full, row);
    else
        barrier_arrive(full);
}

// Products (tokens, rows of a stage) become p, and p - 1 where the token is the row's target;
// `sums`
// += those of a lane's tokens. token: of element [0][0][0]; log2_bias: of its two tokens.
template <int SIZE>
static __device__ __forceinline__ void weigh_rows(const TokenMemory<SIZE> &m, Sums<1, COLUMNS> &s,
                                                  int stage, int token, const float log2_bias[2],
                                                  float sums[2]) {
    const int place = stage * COLUMNS + (int)lane_index() % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = place + 8 * n + e % 2;
            const float p = exp2_fast(
                            fmaf(s.at[0][n][e], LOG2_E, log2_bias[e / 2] - m.log2_sums[at])),
                        w = m.targets[at] == token + e / 2 * 8 ? m.own[at] : p;
            s.at[0][n][e] = w;
            sums[e / 2] += w;
        }
}

// The sums of a tile run concurrently with the logits of the next one.
template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    token_kernel(const Pass p, const __grid_constant__ Maps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    using S = Shapes<SIZE>;
    using Tile = typename S::R::Tile;
    const TokenMemory<SIZE> m = token_memory<SIZE>();
    const int first = (int)blockIdx.x * BLOCK_ROWS, tiles = (p.rows + COLUMNS - 1) / COLUMNS;
    if (threadIdx.x == 0) {
        barrier_create(m.full, 1);
        ring_create(m.rows, WARP);
        barriers_publish();
    }
    __syncthreads();
    if (copies_only()) {
        if (!is_copying_warp()) return;
        if (lane_index() == 0) copy_tile<typename S::Rows>(m.tokens, maps.tokens, m.full, first);
        for (int i = 0; i < tiles; i++) {
            const Stage s = stage_of<STAGES>(i);
            ring_wait_free(m.rows, s);
            copy_rows(m, p, maps, s, i * COLUMNS);
        }
        return;
    }
    const int group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS,
              token = first + (int)threadIdx.x / WARP * 16 + (int)lane_index() / 4;
    float log2_bias[2], sums[2] = {};
    for (int half = 0; half < 2; half++)
        log2_bias[half] =
            p.bias && token + 8 * half < p.tokens ? p.bias[token + 8 * half] * LOG2_E : 0;
    Sums<1, SIZE> dweight;
    Sums<1, COLUMNS> s;
    sums_clear(dweight);
    const auto begin = [&](int i) {
        const Stage stage = stage_of<STAGES>(i);
        ring_wait_full(m.rows, stage);
        wgmma_fence();
        group_product_rows<typename S::Rows, Tile>(s, m.tokens, group_row,
                                                   ring_tile(m.rows, stage, 0));
        wgmma_commit();
    };
    const auto weigh = [&](int i) {
        sums_settle(s);
        weigh_rows(m, s, stage_of<STAGES>(i).place, token, log2_bias, sums);
    };
    const auto add = [&](int i, const GroupWeights<COLUMNS> &w) {
        wgmma_fence();
        group_product_sums<Tile>(dweight, w, ring_tile(m.rows, stage_of<STAGES>(i), 0));
        wgmma_commit();
    };
    const auto settle = [&](int i) {
        wgmma_wait<0>();
        sums_settle(dweight);
        ring_release(m.rows, stage_of<STAGES>(i).place);
    };
    barrier_wait(m.full, 0);
    begin(0);
    wgmma_wait<0>();
    weigh(0);
    GroupWeights<COLUMNS> w = group_weights(s);
    for (int i = 1; i < tiles; i++) {
        begin(i);
        add(i - 1, w);
        wgmma_wait<1>();
        weigh(i);
        settle(i - 1);
        w = group_weights(s);
    }
    add(tiles - 1, w);
    settle(tiles - 1);
    const float scale = p.step->scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(sums[half]);
        if (token + 8 * half >= p.tokens) continue;
        if (p.dbias && lane_index() % 4 == 0) p.dbias[token + 8 * half] += scale * sum;
        float *to = p.dweight + (size_t)(token + 8 * half) * SIZE;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            const int d = 8 * n + (int)lane_index() % 4 * 2;
            const float2 before = load_two(to + d);
            store_two(to + d, before.x + scale * dweight.at[0][n][2 * half],
                      before.y + scale * dweight.at[0][n][2 * half + 1]);
        }
    }
#endif
}

// ---- launches ---------------------------------------------------------------
// (C, 1, rows, 1)
static inline TensorMap map_of(const bf16 *data, size_t channels, size_t rows) {
    const size_t row = channels * sizeof(bf16), sizes[4] = {channels, 1, rows, 1},
                 strides[3] = {row, row, rows * row};
    return tensor_map(data, sizes, strides);
}

template <int SIZE> static void train(const Device *d, const Pass &p, const bf16 *h) {
    const Maps maps = {map_of(h, SIZE, (size_t)p.rows), map_of(p.weight, SIZE, (size_t)p.tokens)};
    launch_early(d, row_kernel<SIZE>, blocks_of((size_t)p.rows, BLOCK_ROWS), GROUP_THREADS,
                 RowMemory<SIZE>::BYTES, p, maps);
    launch_early(d, token_kernel<SIZE>, blocks_of((size_t)p.tokens, BLOCK_ROWS), GROUP_THREADS,
                 TokenMemory<SIZE>::BYTES, p, maps);
}

} // namespace fused

#endif
