// Additive attention of all heads (Wu et al., arXiv 2108.09084, made causal and windowed), forward
// and backward:
//
//   out = x + P * v + gain * G,  P = dropout(pool(G * k, w_k)),  G = dropout(pool(q, w_q))
//   pool(x, w)_i = sum over the window of e_j x'_j / (sum of e_j + sink),
//   e_j = exp(s/D x'_j . w'), 0 at padding
//
// where x' = (x - mean) / (deviation + 1e-5) over a head. Windows are summed without any
// subtraction (van Herk 1992; Gil and Werman 1993): the sequence is cut into blocks of k rows. The
// sum over the k rows that end at i is the sum of the rows of i's own block up to i, plus the sum
// of the rows of the previous block from i-k+1 on. The backward pass sums over all i whose window
// contains j. These are the same sums in reversed time, so its positions count from the end.
//
// Short windows: one kernel computes both poolings. A thread block processes a run of whole blocks
// of rows and recomputes the sums of the two blocks before them (the "halo"). Long windows and the
// global layer: blocks are cut into tiles that fit in shared memory. A window then consists of the
// rest of the tile k rows before, whole tiles, and the start of its own tile. A first kernel
// computes the sums of whole tiles, and one more kernel per pooling follows. The order of all sums
// depends only on the shapes and the kind of GPU.
//
// With plain scores e_j = exp(x_j . w / sqrt(D)), and x itself is pooled: additive_plain.cuh.
//
// Operations along a row (normalisation, scores) assign rows to groups of lanes
// (additive_rows.cuh). Sums over time assign columns to threads.
#ifndef CUDA_ADDITIVE_ATTENTION_CUH
#define CUDA_ADDITIVE_ATTENTION_CUH

#include "additive_backward.cuh"
#include "additive_forward.cuh"
#include "additive_plain.cuh"

typedef struct {
    size_t channels, heads, window; // C, H, k (0: global)
    float rescale, sink;            // s, c
    bool pool_raw, plain;           // pool x, not x'; plain scores
    size_t batch, length; // largest B and T of all batches; they determine how the work is split
} AdditiveAttention;

namespace additive {

// ---- which kernels, with which tiles ----------------------------------------
// How the work of a pass is split, for a device and a length.
struct Plan {
    int stride;               // row stride in shared memory
    bool plain, global, halo; // plain scores; halo: short windows, one kernel
    int window, blocks, tile_rows, tiles_per_block, tiles;
    size_t shared; // bytes
};

static constexpr int LEAST_ROWS = 32; // per tile: smaller tiles are mostly halo and launch overhead
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
        fail("additive attention: heads of %zu channels, %zu sequences of %zu: expected heads of "
             "2..256 "
             "channels and fewer rows",
             size, a->batch, longest);
    Plan plan = {};
    plan.stride = head_size_class(size) + 4;
    plan.global = a->window == 0 || a->window >= longest;
    const int64_t k = (int64_t)(plan.global ? longest : a->window), T = (int64_t)length;
    plan.window = (int)k;
    // Two thread blocks should fit in the shared memory of a multiprocessor, and there should be
    // enough work for two per multiprocessor.
    const int64_t row = plan.stride * (int64_t)sizeof(float) * 9 / 8 + (int64_t)size / 4,
                  free = (int64_t)device->shared_limit / 2 - 8192;
    const int64_t single = clamp(free / row, 16, MOST_ROWS),
                  pairs = clamp(free / row / 2, 16, 2 * MOST_ROWS);
    const int64_t share = (int64_t)(a->batch * a->heads * longest) / (2 * device->sms);
    const int64_t wanted = clamp((share + SEGMENT - 1) / SEGMENT * SEGMENT, LEAST_ROWS, MOST_ROWS);
    plan.plain = a->plain;
    plan.halo = !a->plain && !plan.global && 3 * k <= pairs;
    if (a->plain) {
        plan.tile_rows = PLAIN_ROWS;
        plan.tiles = (int)blocks_of(length, PLAIN_ROWS);
        plan.shared = 2 * kept_bytes(PLAIN_ROWS, size);
    } else if (plan.halo) {
        plan.blocks = (int)clamp((wanted + k - 1) / k, 1, pairs / k - 2);
        plan.tiles = (int)((T + plan.blocks * k - 1) / (plan.blocks * k));
        const int rows = (int)((plan.blocks + 2) * k);
        plan.shared =
            shared_size(plan.stride, size, rows, rows, segments_of(plan.blocks + 1, (int)k));
    } else {
        const int64_t most = clamp(wanted, 1, plan.global ? single : pairs);
        plan.tiles_per_block = (int)((k + most - 1) / most);
        plan.tile_rows = (int)((k + plan.tiles_per_block - 1) / plan.tiles_per_block);
        plan.tiles_per_block = (int)((k + plan.tile_rows - 1) / plan.tile_rows);
        plan.tiles =
            (int)(T / k * plan.tiles_per_block + (T % k + plan.tile_rows - 1) / plan.tile_rows);
        plan.shared = shared_size(plan.stride, size, plan.tile_rows,
                                  plan.global ? 0 : plan.tile_rows, segments_of(1, plan.tile_rows));
    }
    const size_t groups =
        (size_t)THREADS * 4 / (size_t)(plan.stride - 4 < 128 ? plan.stride - 4 : 128);
    const size_t least = groups * (size_t)plan.stride * sizeof(float); // for block_row_sum()
    if (plan.shared < least) plan.shared = least;
    return plan;
}

static float *take(float **memory, size_t count) {
    float *start = *memory;
    *memory += (count + 3) / 4 * 4; // rows are read 16 bytes at a time
    return start;
}

// Sets the pointers to the working memory of a pass over `batch` sequences; training needs more.
static void pass_workspace(AdditivePass *p, const Plan *plan, size_t batch, float **memory,
                           bool training) {
    const size_t units = batch * (size_t)p->heads, T = (size_t)p->length,
                 tiles = units * (size_t)plan->tiles;
    const size_t summed = plan->halo ? 0 : units * T, plain = plan->plain ? units * T : 0,
                 tile_sums = plan->halo || plan->plain ? 0 : tiles * (size_t)(p->size + 1);
    p->summed.rows = take(memory, summed * (size_t)p->size);
    p->summed.weights = take(memory, summed);
    p->summed.tops = take(memory, plain);
    p->sums.rows = take(memory, plain * (size_t)p->size);
    p->sums.weights = take(memory, plain);
    p->sums.tops = take(memory, plain);
    p->first_sums = take(memory, tile_sums);
    p->second_sums = take(memory, tile_sums);
    p->dweights = take(memory, training ? 3 * tiles * (size_t)p->size : 0);
}

static AdditivePass pass_create(const Device *device, const AdditiveAttention *a, Plan *plan,
                                size_t batch, size_t length) {
    if (batch > a->batch || length > a->length)
        fail("additive attention: a batch of %zu x %zu is larger than its memory, %zu x %zu", batch,
             length, a->batch, a->length);
    *plan = plan_create(device, a, length);
    AdditivePass p = {};
    p.length = (int)length;
    p.channels = (int)a->channels;
    p.heads = (int)a->heads;
    p.size = (int)(a->channels / a->heads);
    p.window = plan->window;
    p.global = plan->global;
    p.scale = a->plain ? 1 / sqrtf((float)p.size) : a->rescale / (float)p.size;
    p.sink = a->sink;
    p.raw = a->pool_raw && !a->plain;
    p.tiles = plan->tiles;
    p.blocks = plan->blocks;
    p.tile_rows = plan->tile_rows;
    p.tiles_per_block = plan->tiles_per_block;
    return p;
}

template <int SIZE>
static void run_forward(const Device *d, const AdditivePass &p, const Plan &plan, dim3 grid) {
    if (plan.plain) {
        run_plain<SIZE>(d, p, plan.shared, grid, QUERIES);
        return;
    }
    if (plan.halo) {
        launch_early(d, window_forward<SIZE>, grid, THREADS, plan.shared, p);
        return;
    }
    // Tiles that are whole blocks have no whole tiles between them.
    if (plan.tiles_per_block > 1)
        launch_early(d, tile_forward_sums<SIZE>, grid, THREADS, plan.shared, p);
    launch_early(d, tile_forward_query<SIZE>, grid, THREADS, plan.shared, p);
    launch_early(d, tile_forward_key<SIZE>, grid, THREADS, plan.shared, p);
}

template <int SIZE>
static void run_backward(const Device *d, const AdditivePass &p, const Plan &plan, dim3 grid,
                         const AdditiveGradients &to) {
    if (plan.plain) {
        run_plain<SIZE>(d, p, plan.shared, grid, RESULT_GRADIENTS);
    } else if (plan.halo) {
        launch_early(d, window_backward<SIZE>, grid, THREADS, plan.shared, p);
    } else {
        if (plan.tiles_per_block > 1)
            launch_early(d, tile_backward_sums<SIZE>, grid, THREADS, plan.shared, p);
        launch_early(d, tile_backward_key<SIZE>, grid, THREADS, plan.shared, p);
        launch_early(d, tile_backward_query<SIZE>, grid, THREADS, plan.shared, p);
    }
    launch_early(d, plan.plain ? weight_backward<SIZE, true> : weight_backward<SIZE, false>,
                 dim3((p.gain ? 3 : 2) * (unsigned)p.heads), THREADS, SIZE * sizeof(float), p, to,
                 (size_t)grid.x / (size_t)p.heads);
}

} // namespace additive

// ---- what a model calls -----------------------------------------------------
// Runs f<SIZE>(...) with the smallest SIZE that fits a head.
#define WITH_ADDITIVE_SIZE(size, f, ...)                                                           \
    do {                                                                                           \
        switch (additive::head_size_class(size)) {                                                 \
        case 16:                                                                                   \
            f<16>(__VA_ARGS__);                                                                    \
            break;                                                                                 \
        case 32:                                                                                   \
            f<32>(__VA_ARGS__);                                                                    \
            break;                                                                                 \
        case 64:                                                                                   \
            f<64>(__VA_ARGS__);                                                                    \
            break;                                                                                 \
        case 128:                                                                                  \
            f<128>(__VA_ARGS__);                                                                   \
            break;                                                                                 \
        default:                                                                                   \
            f<256>(__VA_ARGS__);                                                                   \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

// Floats of working memory; layers can share it.
static inline size_t additive_attention_workspace(const Device *device,
                                                  const AdditiveAttention *attention,
                                                  bool training) {
    additive::Plan plan;
    additive::AdditivePass p =
        additive::pass_create(device, attention, &plan, attention->batch, attention->length);
    float *end = NULL;
    additive::pass_workspace(&p, &plan, attention->batch, &end, training);
    return (size_t)((uintptr_t)end / sizeof(float));
}

// The inputs and saved results of a layer's attention.
struct AdditiveInput {
    const float *qkv;                 // (B, T, 3C)
    const float *weights[2];          // (H, D) w_q and w_k, not normalised
    const float *gain;                // (C) of G in the result; NULL: 0
    const uint8_t *mask;              // (B, T) 1: token, 0: padding; or NULL
    DropoutSite drop_query, drop_key; // of G and P, elements numbered as (B, H, T, D) from the
                                      // update's first row on
    float *pooled_query, *pooled_key; // (B, H, T, D) G and P before dropout, for the backward pass
    float *r_query, *r_key;           // (B, H, T) 1 / (sum of e + c), for the backward pass
    float *workspace;                 // additive_attention_workspace() floats
    size_t batch, length;             // B, T
};

namespace additive {
static inline AdditivePass pass_of(const Device *device, const AdditiveAttention *attention,
                                   const AdditiveInput &in, Plan *plan, bool training) {
    AdditivePass p = pass_create(device, attention, plan, in.batch, in.length);
    float *workspace = in.workspace;
    pass_workspace(&p, plan, in.batch, &workspace, training);
    p.qkv = in.qkv;
    p.weights[0] = in.weights[0];
    p.weights[1] = in.weights[1];
    p.gain = in.gain;
    p.mask = in.mask;
    p.drop_query = in.drop_query;
    p.drop_key = in.drop_key;
    p.pooled_query = in.pooled_query;
    p.r_query = in.r_query;
    p.pooled_key = in.pooled_key;
    p.r_key = in.r_key;
    return p;
}

static inline dim3 grid_of(const AdditiveAttention *attention, const AdditiveInput &in,
                           const Plan &plan) {
    return dim3(blocks_of(in.batch * attention->heads * (size_t)plan.tiles, 1));
}
} // namespace additive

// out (B, T, C) = x + P * v + gain * G; out may alias x if it is float32. x: NULL for 0.
static inline void additive_attention_forward(const Device *device,
                                              const AdditiveAttention *attention, Matrix out,
                                              const float *x, const AdditiveInput &in) {
    additive::Plan plan;
    additive::AdditivePass p = additive::pass_of(device, attention, in, &plan, false);
    p.x = x;
    p.out = out;
    const dim3 grid = additive::grid_of(attention, in, plan);
    WITH_ADDITIVE_SIZE((size_t)p.size, additive::run_forward, device, p, plan, grid);
}

// Sets dqkv (B, T, 3C); adds the gradients to w_q, w_k and the gain. dout (B, T, C) is the gradient
// to out, which is also that to x. `in`: as after the forward pass.
static inline void additive_attention_backward(const Device *device,
                                               const AdditiveAttention *attention, Matrix dqkv,
                                               const additive::AdditiveGradients &to, Matrix dout,
                                               const AdditiveInput &in) {
    additive::Plan plan;
    additive::AdditivePass p = additive::pass_of(device, attention, in, &plan, true);
    p.reversed = true;
    p.dout = dout;
    p.dqkv = dqkv;
    const dim3 grid = additive::grid_of(attention, in, plan);
    WITH_ADDITIVE_SIZE((size_t)p.size, additive::run_backward, device, p, plan, grid, to);
}

#endif
