// The logits of training for sm_90 in bf16, by products of warp groups, which leave what the sums over a row
// are made of, so that no other kernel reads the logits for them: for each row and block of columns the
// largest logit and the sum of exponentials (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018; beside the product as in Wijmans et al., "Cut Your Losses in Large-Vocabulary Language
// Models", 2024). Part of classifier.cuh.
//
// A block of threads takes one block of logits after the other, neighbours in a column first, so that a block
// of the weight is read from L2 while it is there; copies run ahead over the ends of blocks. Each group has
// 64 rows and all columns of them. Logits are rounded as the library rounds them, behind the bias, and the
// sums are of rounded logits, whoever makes them.
#ifndef CUDA_LOGITS_PRODUCT_CUH
#define CUDA_LOGITS_PRODUCT_CUH

#include "gemm.cuh"
#include "warpgroup_ring.cuh"

static constexpr float LOG2_E = 1.44269504f, LOWEST_LOGIT = -1e30f;

// Some of a row's terms: the largest of their logits, and the sum of exp(logit - largest).
struct RowSum {
    float largest, sum;
};

// What a row's loss and gradients are made of: sums over its logits without the target's, in parts, and that.
struct LogitsSums {
    unsigned parts; // of a row
    RowSum *others; // (rows, parts)
    float *all;     // (rows, parts) sums of logits, or NULL
    float *target;  // (rows), not set where there is none
};

static __device__ __forceinline__ float exponential(float x, float shift) {
    return exp2_fast((x - shift) * LOG2_E);
}

// In shared memory: panels of 64 channels of a block's rows, and of its columns in two halves.
using LogitsPanel = GroupTile<BLOCK_ROWS, PANEL>;
using LogitsRing = Ring<LogitsPanel, 3, 3>;
static constexpr int HALVES = 2, HALF_COLUMNS = LogitsPanel::ROWS, BLOCK_COLUMNS = HALVES * HALF_COLUMNS;
static constexpr size_t LOGITS_PRODUCT_BYTES = LogitsRing::BYTES + 2 * LogitsRing::STAGES * sizeof(Barrier);

struct LogitsProduct {
    int rows, vocabulary, panels; // M, V, C / 64
    size_t stride;                // from one row of logits to the next, at least V rounded up to 8
    bf16 *logits;                 // (M, stride)
    const bf16 *bias;             // (V) or NULL
    const int32_t *targets;       // (M), -1: none
    LogitsSums sums;              // a part a block of columns
};

// The matrices that blocks copy from: h (M, C) and the weight (V, C), a panel a "head".
struct LogitsMaps {
    TensorMap h, weight;
};

// Where a block of logits begins.
struct LogitsBlock {
    int row, column;
};

static __device__ __forceinline__ int row_blocks(const LogitsProduct &p) {
    return (p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

static __device__ __forceinline__ LogitsBlock logits_block(const LogitsProduct &p, int block) {
    return {block % row_blocks(p) * BLOCK_ROWS, block / row_blocks(p) * BLOCK_COLUMNS};
}

// Word i of lane j of four that share a row becomes word j of lane i.
static __device__ __forceinline__ void quad_transpose(uint32_t w[4]) {
#pragma unroll
    for (int bit = 2; bit > 0; bit /= 2) {
        const bool upper = lane_index() & (unsigned)bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? w[i] : w[i + bit], bit);
            if (upper)
                w[i] = other;
            else
                w[i + bit] = other;
        }
    }
}

// The bias of a block's columns, spread over the lanes of a warp: of columns 8 n + 2 i and the next in word n
// / 8 of lane 4 (n % 8) + i.
struct BiasWords {
    uint32_t at[BLOCK_COLUMNS / 64];
};

static __device__ __forceinline__ BiasWords load_bias(const LogitsProduct &p, int column) {
    BiasWords words = {};
    if (!p.bias) return words;
#pragma unroll
    for (int i = 0; i < BLOCK_COLUMNS / 64; i++) {
        const float2 pair = load_pair(p.bias, column + 64 * i + 2 * (int)lane_index(), p.vocabulary);
        words.at[i] = pack_bf16(pair.x, pair.y);
    }
    return words;
}

// Adds the bias, rounds and stores logits of both halves; the sums become what was stored. row: of the lane's
// first one; column: the block's first.
static __device__ __forceinline__ void store_logits(const LogitsProduct &p,
                                                    Sums<1, HALF_COLUMNS> (&s)[HALVES], int row, int column) {
    const int place = (int)lane_index() % 4;
    const BiasWords bias = load_bias(p, column);
#pragma unroll
    for (int n = 0; n < BLOCK_COLUMNS / 8; n += 4) {
        uint32_t words[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float(&sums)[4] = s[n / (HALF_COLUMNS / 8)].at[0][n % (HALF_COLUMNS / 8) + i];
            const uint32_t pair = __shfl_sync(0xffffffff, bias.at[n / 8], (n + i) % 8 * 4 + place);
            const float2 add = unpack_bf16(pair);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                words[half][i] = pack_bf16(sums[2 * half] + add.x, sums[2 * half + 1] + add.y);
                const float2 rounded = unpack_bf16(words[half][i]);
                sums[2 * half] = rounded.x;
                sums[2 * half + 1] = rounded.y;
            }
        }
        const int at = column + 8 * (n + place);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t *const w = words[half];
            quad_transpose(w);
            if (row + 8 * half < p.rows && at < p.vocabulary)
                *(uint4 *)(p.logits + (size_t)(row + 8 * half) * p.stride + at) =
                    make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// f(x, column) for each number of a lane's row `half`, and its column in the block.
template <typename F>
static __device__ __forceinline__ void for_row(Sums<1, HALF_COLUMNS> (&s)[HALVES], int half, F f) {
    const int place = 2 * ((int)lane_index() % 4);
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int n = 0; n < HALF_COLUMNS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) f(s[h].at[0][n][2 * half + e], h * HALF_COLUMNS + 8 * n + place + e);
}

// The sums over a lane's row `half`, which is this one, with those of its three neighbours. column: the
// block's first.
static __device__ __forceinline__ void store_sums(const LogitsProduct &p, Sums<1, HALF_COLUMNS> (&s)[HALVES],
                                                  int half, int row, int column) {
    const int target = row < p.rows ? p.targets[row] - column : -1, present = p.vocabulary - column;
    if ((unsigned)target < BLOCK_COLUMNS || present < BLOCK_COLUMNS) {
        float logit = 0;
        for_row(s, half, [&](float &x, int at) {
            if (at == target) logit = x;
            if (at == target || at >= present) x = -INFINITY; // not one of the others
        });
        if ((unsigned)target < BLOCK_COLUMNS && target / 2 % 4 == (int)lane_index() % 4)
            p.sums.target[row] = logit;
    }
    float largest = LOWEST_LOGIT, sum = 0, all = 0;
    for_row(s, half, [&](float &x, int) { largest = fmaxf(largest, x); });
    largest = quad_max(largest);
    for_row(s, half, [&](float &x, int) { sum += exponential(x, largest); });
    sum = quad_sum(sum);
    if (p.sums.all) {
        for_row(s, half, [&](float &x, int) { all += x == -INFINITY ? 0 : x; });
        all = quad_sum(all);
    }
    if (lane_index() % 4 != 0 || row >= p.rows) return;
    const size_t at = (size_t)row * p.sums.parts + (unsigned)column / BLOCK_COLUMNS;
    p.sums.others[at] = {largest, sum};
    if (p.sums.all) p.sums.all[at] = all;
}

static __global__ void __launch_bounds__(GROUP_THREADS, 1)
    logits_product_kernel(const LogitsProduct p, const __grid_constant__ LogitsMaps maps) {
#if WARP_GROUP_CODE
    begin_kernel();
    LogitsRing ring;
    ring.tiles = shared_memory<bf16>();
    ring.full = (Barrier *)(ring.tiles + LogitsRing::BYTES / sizeof(bf16));
    ring.free = ring.full + LogitsRing::STAGES;
    if (threadIdx.x == 0) {
        ring_create(ring, 1);
        barriers_publish();
    }
    __syncthreads();
    const int blocks = row_blocks(p) * (int)p.sums.parts;
    int passed = 0; // panels
    if (copies_only()) {
        if (threadIdx.x != GROUPS * WARPGROUP) return;
        for (int b = (int)blockIdx.x; b < blocks; b += (int)gridDim.x) {
            const LogitsBlock block = logits_block(p, b);
            for (int panel = 0; panel < p.panels; panel++) {
                const Stage stage = stage_of<LogitsRing::STAGES>(passed++);
                Barrier *const full = ring.full + stage.place;
                ring_wait_free(ring, stage);
                barrier_expect(full, LogitsRing::TILES * LogitsPanel::BYTES);
                group_copy<LogitsPanel>(ring_tile(ring, stage, 0), &maps.h, full, panel, block.row, 0);
                for (int h = 0; h < HALVES; h++)
                    group_copy<LogitsPanel>(ring_tile(ring, stage, 1 + h), &maps.weight, full, panel,
                                            block.column + h * HALF_COLUMNS, 0);
            }
        }
        return;
    }
    const int row = (int)threadIdx.x / WARP * 16 + (int)lane_index() / 4,
              group_row = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    for (int b = (int)blockIdx.x; b < blocks; b += (int)gridDim.x) {
        Sums<1, HALF_COLUMNS> s[HALVES];
        for (int h = 0; h < HALVES; h++) sums_clear(s[h]);
        for (int panel = 0; panel < p.panels; panel++) {
            const Stage stage = stage_of<LogitsRing::STAGES>(passed++);
            ring_wait_full(ring, stage);
            wgmma_fence();
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                group_product_rows<LogitsPanel, LogitsPanel, true>(s[h], ring_tile(ring, stage, 0), group_row,
                                                                   ring_tile(ring, stage, 1 + h));
            wgmma_commit();
            if (panel == 0) continue;
            wgmma_wait<1>();
            ring_release(ring, stage_of<LogitsRing::STAGES>(passed - 2).place);
        }
        wgmma_wait<0>();
        for (int h = 0; h < HALVES; h++) sums_settle(s[h]);
        ring_release(ring, stage_of<LogitsRing::STAGES>(passed - 1).place);
        const LogitsBlock block = logits_block(p, b);
        store_logits(p, s, block.row + row, block.column);
#pragma unroll
        for (int half = 0; half < 2; half++) store_sums(p, s, half, block.row + row + 8 * half, block.column);
    }
#endif
}

// Parts of a row of V logits.
static inline unsigned logits_parts(size_t vocabulary) {
    return blocks_of(vocabulary, BLOCK_COLUMNS);
}

// Whether there is such a product of h (M, C) and the weight (V, C).
static inline bool logits_product_takes(const Device *d, GemmInput h, DeviceWeight w) {
    const uintptr_t together = (uintptr_t)h.data | (uintptr_t)w.rounded | (uintptr_t)w.bias_rounded;
    return HAVE_WARP_GROUPS && d->capability == 90 && h.bf16 && w.layout == WEIGHT_OUT_IN &&
           w.k % PANEL == 0 && h.columns % 8 == 0 && together % 16 == 0;
}

// (64, C / 64, rows)
static inline TensorMap panels_map(const bf16 *data, size_t stride, size_t rows, size_t channels) {
    const size_t sizes[4] = {PANEL, channels / PANEL, rows, 1},
                 strides[3] = {PANEL * sizeof(bf16), stride * sizeof(bf16), rows * stride * sizeof(bf16)};
    return tensor_map(data, sizes, strides);
}

// logits (M, V) = h w^T + bias, and what sums over their rows are made of, in logits_parts(V). targets (M).
static inline void logits_product(const Device *d, GemmInput logits, GemmInput h, DeviceWeight w, size_t m,
                                  const int32_t *targets, const LogitsSums &sums) {
    const LogitsMaps maps = {panels_map((const bf16 *)h.data, h.columns, m, w.k),
                             panels_map(w.rounded, w.k, w.n, w.k)};
    const LogitsProduct p = {
        (int)m,  (int)w.n, (int)(w.k / PANEL), logits.columns, (bf16 *)logits.data, w.bias_rounded,
        targets, sums};
    const unsigned blocks = blocks_of(m, BLOCK_ROWS) * sums.parts;
    launch_early(d, logits_product_kernel, blocks < (unsigned)d->sms ? blocks : (unsigned)d->sms,
                 GROUP_THREADS, LOGITS_PRODUCT_BYTES, p, maps);
}

#endif
