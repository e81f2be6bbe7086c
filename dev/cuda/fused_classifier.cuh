// The output layer in training, without logits in memory (sm_90, bf16, up to 256 channels).
// Computes the same as classifier.cuh, with warp group products (warpgroup.cuh). In its notation,
// over the tokens except the target,
//
//     Z'_i = sum_j e_ij,  O_i = sum_j e_ij E_j / Z'_i,  1 - p_it = Z'_i / (Z'_i + e_it)
//     dh_i = scale (1 - p_it) (O_i - E_t),   dE_j = scale (sum_i p_ij h_i - sum_{t_i = j} h_i)
//
// so dh is attention with E as keys and values: a thread block processes 128 rows and loops over
// all tokens, with a running maximum. A second kernel processes 128 tokens per block and loops over
// all rows, recomputing the logits. This takes 8 M V C multiplications and additions, instead of 6
// in classifier.cuh, but no array of (M, V). The target is left out of the sums, so that its
// gradient keeps its digits when it is nearly certain. Label smoothing works as in classifier.cuh;
// it adds the sum of all E_j to dh.
//
// The sums of 128 rows are kept in registers, which have room for 256 channels. With more channels,
// rows would have to be divided among blocks, and from about 700 channels on, recomputing the
// logits takes longer than writing and reading them.
//
// Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024 (arXiv 2411.09009);
// there one kernel computes both gradients, with locks.
#ifndef CUDA_FUSED_CLASSIFIER_CUH
#define CUDA_FUSED_CLASSIFIER_CUH

#include "classifier_rows.cuh"
#include "softmax_pass.cuh"
#include "warpgroup_ring.cuh"

namespace fused {

static constexpr int LARGEST = 256, STAGES = 4; // channels; tiles in shared memory

struct Pass {
    int rows, tokens, channels; // M, V, C: a multiple of 8
    const bf16 *weight;
    const float *bias;      // (V) or NULL
    const int32_t *targets; // (M), -1: none
    const StepParameters *step;
    RowResults to;
    float *log2_sums;            // (M) log2 of Z; +Inf if there is no target
    float *own;                  // (M) the gradient to the target's logit, divided by scale
    float *dh, *dweight, *dbias; // dbias (V) or NULL
    size_t dh_stride;
    float smoothing;          // label smoothing
    const float *weight_sums; // (sum_parts, C) partial sums of E's rows; sum_parts 0: none
    unsigned sum_parts;
};

// h (M, C), E (V, C)
struct Maps {
    TensorMap rows, tokens;
};

// Shared memory: 128 resident rows of one matrix, and streamed tiles of the other, with numbers for
// each of their rows. SIZE: channels, zero beyond C.
template <int SIZE> struct Memory {
    static constexpr int COLUMNS = SIZE <= 128 ? 128 : 64; // rows of a tile: registers hold no more
    using Rows = GroupTile<BLOCK_ROWS, SIZE>;
    using R = Ring<GroupTile<COLUMNS, SIZE>, 1, STAGES>;
    static constexpr size_t BYTES = Rows::BYTES + R::BYTES +
                                    STAGES * COLUMNS * (2 * sizeof(float) + sizeof(int32_t)) +
                                    (1 + 2 * STAGES) * sizeof(Barrier);
    bf16 *rows;
    R tiles;
    float *shift, *own; // (STAGES, COLUMNS) added to logits; Pass.own
    int32_t *targets;
    Barrier *full; // of the resident rows
};

template <int SIZE> static __device__ __forceinline__ Memory<SIZE> memory_of_block() {
    using M = Memory<SIZE>;
    M m;
    m.rows = shared_memory<bf16>();
    m.tiles.tiles = m.rows + M::Rows::NUMBERS;
    m.shift = (float *)(m.tiles.tiles + M::R::BYTES / sizeof(bf16));
    m.own = m.shift + STAGES * M::COLUMNS;
    m.targets = (int32_t *)(m.own + STAGES * M::COLUMNS);
    m.full = (Barrier *)(m.targets + STAGES * M::COLUMNS);
    m.tiles.full = m.full + 1;
    m.tiles.free = m.tiles.full + STAGES;
    return m;
}

template <typename Tile>
static __device__ __forceinline__ void copy_tile(bf16 *tile, const TensorMap &map, Barrier *full,
                                                 int row) {
    barrier_expect(full, Tile::BYTES);
    group_copy<Tile>(tile, &map, full, 0, row, 0);
}

// Called by all threads of a block. False for those that compute. The others have copied the
// resident rows from `first` on and all streamed tiles; numbers(at, row) sets the numbers of a row.
template <int SIZE, typename Numbers>
static __device__ __forceinline__ bool copies(const Memory<SIZE> &m, const TensorMap &staying,
                                              const TensorMap &passing, int first, int tiles,
                                              Numbers numbers) {
    using M = Memory<SIZE>;
    constexpr int COLUMNS = M::COLUMNS;
    if (threadIdx.x == 0) {
        barrier_create(m.full, 1);
        ring_create(m.tiles, WARP);
        barriers_publish();
    }
    __syncthreads();
    if (!copies_only()) return false;
    if (!is_copying_warp()) return true;
    if (lane_index() == 0) copy_tile<typename M::Rows>(m.rows, staying, m.full, first);
    for (int i = 0; i < tiles; i++) {
        const Stage s = stage_of<STAGES>(i);
        Barrier *full = m.tiles.full + s.place;
        ring_wait_free(m.tiles, s);
        for (int r = (int)lane_index(); r < COLUMNS; r += WARP)
            numbers(s.place * COLUMNS + r, i * COLUMNS + r);
        if (lane_index() == 0)
            copy_tile<typename M::R::Tile>(ring_tile(m.tiles, s, 0), passing, full, i * COLUMNS);
        else
            barrier_arrive(full);
    }
    return true;
}

// sums (128, C) = weights (128, all streamed rows) times those rows. weigh(s, at, row) turns
// products s with rows from `row` on, whose numbers start at `at`, into weights; shrink() rescales
// the sums before these are added. The next products run concurrently with the current sums.
template <int SIZE, typename Weigh, typename Shrink>
static __device__ __forceinline__ void sum_rows(const Memory<SIZE> &m, int tiles,
                                                Sums<1, SIZE> &sums, Weigh weigh, Shrink shrink) {
    using M = Memory<SIZE>;
    using Tile = typename M::R::Tile;
    constexpr int COLUMNS = M::COLUMNS;
    const int group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    Sums<1, COLUMNS> s;
    GroupWeights<COLUMNS> w;
    const auto begin = [&](int i) {
        const Stage stage = stage_of<STAGES>(i);
        ring_wait_full(m.tiles, stage);
        wgmma_fence();
        group_product_rows<typename M::Rows, Tile>(s, m.rows, group_row,
                                                   ring_tile(m.tiles, stage, 0));
        wgmma_commit();
    };
    const auto end = [&](int i) {
        sums_settle(s);
        weigh(s, stage_of<STAGES>(i).place * COLUMNS, i * COLUMNS);
    };
    const auto add = [&](int i) {
        wgmma_fence();
        group_product_sums<Tile>(sums, w, ring_tile(m.tiles, stage_of<STAGES>(i), 0));
        wgmma_commit();
    };
    const auto settle = [&](int i) {
        wgmma_wait<0>();
        sums_settle(sums);
        ring_release(m.tiles, stage_of<STAGES>(i).place);
    };
    sums_clear(sums);
    barrier_wait(m.full, 0);
    begin(0);
    wgmma_wait<0>();
    end(0);
    w = group_weights(s);
    for (int i = 1; i < tiles; i++) {
        begin(i);
        add(i - 1);
        wgmma_wait<1>();
        end(i);
        settle(i - 1);
        shrink();
        w = group_weights(s);
    }
    add(tiles - 1);
    settle(tiles - 1);
}

// ---- losses and dh ----------------------------------------------------------

// For a lane's two rows: the target's logit, if this lane has seen it, and the sum of the others.
struct LaneLogits {
    float own[2], others[2];
};

// Turns products of tokens from `token` on into logits; stores the target's logit and excludes it.
template <int COLUMNS>
static __device__ __forceinline__ void leave_out(Sums<1, COLUMNS> &s, const float *bias,
                                                 const int targets[2], LaneLogits &logits,
                                                 int token, bool smooths) {
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
                logits.own[half] = s.at[0][n][2 * half + e];
                s.at[0][n][2 * half + e] = -INFINITY;
            }
    }
    if (!smooths) return;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (s.at[0][n][e] != -INFINITY) logits.others[e / 2] += s.at[0][n][e];
}

// The sum of all E_j, if it is needed, at d and d+1.
static __device__ __forceinline__ float2 weight_sum(const Pass &p, int d) {
    float2 sum = make_float2(0, 0);
    for (unsigned part = 0; part < p.sum_parts; part++) {
        const float2 more = load_two(p.weight_sums + part * (unsigned)p.channels + d);
        sum.x += more.x;
        sum.y += more.y;
    }
    return sum;
}

// For a lane's rows: stores the losses, the inputs of dE, and dh from y, the sum of e_j E_j.
template <int SIZE>
static __device__ __forceinline__ void
row_results(const Pass &p, const softmax::SoftmaxRows<1> &rows, const Sums<1, SIZE> &y,
            const int targets[2], const LaneLogits &logits, int row) {
    const float scale = p.step->scale, spread = p.smoothing / (float)p.tokens;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half, target = targets[half];
        const float sum = quad_sum(rows.sum[0][half]), top = rows.top[0][half],
                    own = quad_max(logits.own[half]), own2 = own * LOG2_E,
                    others = quad_sum(logits.others[half]);
        if (i >= p.rows) continue;
        const bool counts = target >= 0;
        const float largest = fmaxf(top, own2), shrink = exp2_fast(top - largest),
                    rest = sum * shrink, all = rest + exp2_fast(own2 - largest);
        if (lane_index() % 4 == 0) {
            const RowTotal total = {{top * LN_2, sum}, others, own, counts};
            store_losses(p.to, (size_t)i, total, (uint32_t)p.tokens, p.smoothing);
            p.log2_sums[i] = counts ? largest + log2f(all) : INFINITY;
            p.own[i] = counts ? p.smoothing - spread - rest / all : 0;
        }
        const float of_sum = counts ? scale * shrink / all : 0,
                    of_target = counts ? scale * (p.smoothing - rest / all) : 0,
                    of_all = counts ? scale * spread : 0;
        const bf16 *weight = p.weight + (size_t)(counts ? target : 0) * (size_t)p.channels;
        float *dh = p.dh + (size_t)i * p.dh_stride;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            if (8 * n >= p.channels) break;
            const int d = 8 * n + (int)lane_index() % 4 * 2;
            const float2 w = load_two(weight + d), all_weights = weight_sum(p, d);
            store_two(dh + d,
                      of_sum * y.at[0][n][2 * half] + of_target * w.x - of_all * all_weights.x,
                      of_sum * y.at[0][n][2 * half + 1] + of_target * w.y - of_all * all_weights.y);
        }
    }
}

template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    row_kernel(const Pass p, const __grid_constant__ Maps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    constexpr int COLUMNS = Memory<SIZE>::COLUMNS;
    const Memory<SIZE> m = memory_of_block<SIZE>();
    const int first = (int)blockIdx.x * BLOCK_ROWS, tiles = (p.tokens + COLUMNS - 1) / COLUMNS;
    // The bias, or -Inf beyond the last token.
    const auto numbers = [&](int at, int token) {
        m.shift[at] = token >= p.tokens ? -INFINITY : p.bias ? p.bias[token] : 0;
    };
    if (copies(m, maps.rows, maps.tokens, first, tiles, numbers)) return;
    const int row = first + (int)threadIdx.x / WARP * 16 + (int)lane_index() / 4;
    const int targets[2] = {row < p.rows ? p.targets[row] : -1,
                            row + 8 < p.rows ? p.targets[row + 8] : -1};
    LaneLogits logits = {{-INFINITY, -INFINITY}, {0, 0}};
    float shrink[1][2];
    softmax::SoftmaxRows<1> rows = softmax::rows_create<1>(0);
    Sums<1, SIZE> y;
    const auto weigh = [&](Sums<1, COLUMNS> &s, int at, int token) {
        leave_out(s, m.shift + at, targets, logits, token, p.smoothing > 0);
        softmax::exponentiate(LOG2_E, s, rows, shrink);
    };
    sum_rows(m, tiles, y, weigh, [&] { softmax::shrink_rows(y, shrink); });
    row_results(p, rows, y, targets, logits, row);
#endif
}

// ---- dE ---------------------------------------------------------------------

template <int SIZE>
static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    token_kernel(const Pass p, const __grid_constant__ Maps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    constexpr int COLUMNS = Memory<SIZE>::COLUMNS;
    const Memory<SIZE> m = memory_of_block<SIZE>();
    const int first = (int)blockIdx.x * BLOCK_ROWS, tiles = (p.rows + COLUMNS - 1) / COLUMNS;
    const auto numbers = [&](int at, int row) {
        m.shift[at] = row < p.rows ? -p.log2_sums[row] : -INFINITY;
        m.own[at] = row < p.rows ? p.own[row] : 0;
        m.targets[at] = row < p.rows ? p.targets[row] : -1;
    };
    if (copies(m, maps.tokens, maps.rows, first, tiles, numbers)) return;
    const int token = first + (int)threadIdx.x / WARP * 16 + (int)lane_index() / 4,
              place = (int)lane_index() % 4 * 2;
    const float spread = p.smoothing / (float)p.tokens;
    float bias[2], sums[2] = {}; // in powers of 2; sums of the gradients of a lane's two tokens
    for (int half = 0; half < 2; half++)
        bias[half] = p.bias && token + 8 * half < p.tokens ? p.bias[token + 8 * half] * LOG2_E : 0;
    Sums<1, SIZE> dweight;
    const auto weigh = [&](Sums<1, COLUMNS> &s, int begin, int) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = begin + 8 * n + place + e % 2;
                const float of_row = m.shift[at] > -INFINITY ? spread : 0,
                            w = exp2_fast(fmaf(s.at[0][n][e], LOG2_E, bias[e / 2] + m.shift[at])) -
                                of_row;
                s.at[0][n][e] = m.targets[at] == token + e / 2 * 8 ? m.own[at] : w;
                sums[e / 2] += s.at[0][n][e];
            }
    };
    sum_rows(m, tiles, dweight, weigh, [] {});
    const float scale = p.step->scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(sums[half]);
        if (token + 8 * half >= p.tokens) continue;
        if (p.dbias && place == 0) p.dbias[token + 8 * half] += scale * sum;
        float *to = p.dweight + (size_t)(token + 8 * half) * (size_t)p.channels + place;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            if (8 * n >= p.channels) break;
            const float2 before = load_two(to + 8 * n);
            store_two(to + 8 * n, before.x + scale * dweight.at[0][n][2 * half],
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

template <int SIZE> static void launch_both(const Device *d, const Pass &p, const Maps &maps) {
    launch_early(d, row_kernel<SIZE>, blocks_of((size_t)p.rows, BLOCK_ROWS), GROUP_THREADS,
                 Memory<SIZE>::BYTES, p, maps);
    launch_early(d, token_kernel<SIZE>, blocks_of((size_t)p.tokens, BLOCK_ROWS), GROUP_THREADS,
                 Memory<SIZE>::BYTES, p, maps);
}

static inline void train(const Device *d, const Pass &p, const bf16 *h) {
    const size_t C = (size_t)p.channels;
    const Maps maps = {map_of(h, C, (size_t)p.rows), map_of(p.weight, C, (size_t)p.tokens)};
    static void (*const launches[])(const Device *, const Pass &, const Maps &) = {
        launch_both<64>, launch_both<128>, launch_both<192>, launch_both<LARGEST>};
    launches[(C - 1) / PANEL](d, p, maps);
}

} // namespace fused

#endif
