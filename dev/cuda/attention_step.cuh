// Decoding: attention of one token per stream to the tokens before it. Each kind has its own memory
// of those. The results are those of the same kind over whole sequences, and of decoding in
// dev/cpu.
//
// S streams, C channels, H heads, D = C/H; a unit is a head of a stream.
#ifndef CUDA_ATTENTION_STEP_CUH
#define CUDA_ATTENTION_STEP_CUH

#include "attention.cuh"

namespace attention_step {

static constexpr int PER_LANE = 8; // elements per lane of a head of up to 256
static constexpr int WARPS = 8;    // share the keys of a unit
static_assert(PER_LANE * WARP == LARGEST_HEAD, "");

// A head's row: lane l holds elements l, l + 32, ...
struct HeadRow {
    float at[PER_LANE];
};

// Calls f(i, d) for this lane's elements.
template <typename F> static __device__ __forceinline__ void for_lane(int size, F f) {
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const int d = (int)lane_index() + i * WARP;
        if (d < size) f(i, d);
    }
}

static __device__ __forceinline__ HeadRow row_load(const float *from, int size) {
    HeadRow x = {};
    for_lane(size, [&](int i, int d) { x.at[i] = from[d]; });
    return x;
}

static __device__ __forceinline__ void row_store(float *to, const HeadRow &x, int size) {
    for_lane(size, [&](int i, int d) { to[d] = x.at[i]; });
}

static __device__ __forceinline__ float row_dot(const HeadRow &a, const HeadRow &b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum += a.at[i] * b.at[i];
    return warp_sum(sum);
}

// A sum of rows weighted by exp(l), stored as exp(top) times a row and a weight. top is the largest
// l, so that no exponential overflows (dev/cpu/exp_window.h).
struct ExpSum {
    float top, weight;
    HeadRow row;
};

static __device__ __forceinline__ ExpSum exp_sum_empty() {
    ExpSum sum = {};
    sum.top = -INFINITY;
    return sum;
}

static __device__ __forceinline__ void exp_sum_add(ExpSum &to, const ExpSum &other) {
    if (other.top == -INFINITY) return;
    const float top = fmaxf(to.top, other.top), keep = expf(to.top - top),
                take = expf(other.top - top);
    to.top = top;
    to.weight = keep * to.weight + take * other.weight;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) to.row.at[i] = keep * to.row.at[i] + take * other.row.at[i];
}

// Adds exp(log) to the weight only; nothing if log is -infinity.
static __device__ __forceinline__ void exp_sum_sink(ExpSum &to, float log) {
    ExpSum sink = exp_sum_empty();
    sink.top = log;
    sink.weight = 1;
    exp_sum_add(to, sink);
}

// ---- softmax and cosine: keys and values so far -----------------------------
// Token t is in row t % room of the memory (room, 2, S, C), keys first. Growing the room does not
// move rows.

struct KeyValues {
    const float *rows[3];  // (S, 3C) queries, keys, values; row stride `stride`
    const float *exponent; // (H) of cosine attention, or NULL
    float *memory, *y;     // y (S, C), row stride y_stride
    const uint64_t *count; // tokens before this one
    size_t stride, y_stride, streams, channels, room;
    int size; // D
    bool cosine;
    float scale, log_sink, power; // softmax: of scores, of its sink; cosine
};

// x / |x|, or 0 if the vector is too short to have a direction.
static __device__ __forceinline__ void row_normalise(HeadRow &x) {
    const float square = row_dot(x, x), inverse = square > 0 ? rsqrtf(square) : 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) x.at[i] *= inverse;
}

// One unit per block. Stores the token's key and value, then each warp sums over every WARPS-th
// key, and the first warp adds these sums.
static __global__ void __launch_bounds__(WARPS *WARP) key_value_kernel(const KeyValues p) {
    begin_kernel();
    __shared__ float parts[WARPS][PER_LANE * WARP + 2];
    const int warp = (int)threadIdx.x / WARP;
    const size_t heads = p.channels / (size_t)p.size, stream = blockIdx.x / heads,
                 head = blockIdx.x % heads, at = head * (size_t)p.size,
                 token = 2 * p.streams * p.channels, value = p.streams * p.channels;
    const uint64_t count = *p.count;
    const size_t seen = count < p.room ? (size_t)count + 1 : p.room;
    float *const memory = p.memory + stream * p.channels + at;
    HeadRow q = row_load(p.rows[QUERY] + stream * p.stride + at, p.size);
    if (p.cosine) row_normalise(q);
    if (warp == 0) {
        float *const own = memory + count % p.room * token;
        HeadRow k = row_load(p.rows[KEY] + stream * p.stride + at, p.size);
        if (p.cosine) row_normalise(k);
        row_store(own, k, p.size);
        row_store(own + value, row_load(p.rows[VALUE] + stream * p.stride + at, p.size), p.size);
    }
    __syncthreads();
    ExpSum sum = exp_sum_empty();
    if (p.cosine) sum.top = 0;
    for (size_t j = (size_t)warp; j < seen; j += WARPS) {
        const float score = row_dot(q, row_load(memory + j * token, p.size));
        ExpSum one = {score * p.scale, 1, row_load(memory + j * token + value, p.size)};
        if (!p.cosine) {
            exp_sum_add(sum, one);
            continue;
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) sum.row.at[i] += score * one.row.at[i];
    }
    row_store(parts[warp] + 2, sum.row, p.size);
    if (lane_index() == 0) {
        parts[warp][0] = sum.top;
        parts[warp][1] = sum.weight;
    }
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < WARPS; other++) {
        const ExpSum part = {parts[other][0], parts[other][1], row_load(parts[other] + 2, p.size)};
        exp_sum_add(sum, part);
    }
    float factor;
    if (p.cosine) {
        const float power = p.exponent ? 1 / (1 + expf(-p.exponent[head])) : p.power;
        factor = expf(-power * logf((float)seen));
    } else {
        exp_sum_sink(sum, p.log_sink);
        factor = 1 / sum.weight;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum.row.at[i] *= factor;
    row_store(p.y + stream * p.y_stride + at, sum.row, p.size);
}

// ---- additive: a window's sums ----------------------------------------------
// The memory holds rows of exponential sums (1 + k, 2 S H, D + 2), top and weight first, or (2,
// ...) if all tokens are pooled. Row 0 is the sum of the current block of k tokens, or of 64. Row 1
// + r is token r of the current block once it has arrived, and until then the sum of tokens r and
// later of the previous block. If all tokens are pooled, row 1 is the sum of all previous blocks.
// So nothing is subtracted (dev/cpu/additive_attention.c).

static constexpr size_t GLOBAL_BLOCK = 64;

struct Additive {
    const float *qkv;        // (S, 3C), row stride `stride`
    const float *learned[2]; // (H, D) w_q, w_k
    const float *gain;       // (C) of the pooled queries in the result; NULL: 0
    float *memory, *y;       // y (S, C) = x + the result, or the result if x is NULL
    const float *x;
    const uint64_t *count;
    size_t stride, y_stride, streams, channels, window;
    int size; // D
    bool plain, raw;
    float scale, log_sink; // of scores
};

// (x - mean) / (deviation + 1e-5)
static __device__ __forceinline__ HeadRow row_standard(const HeadRow &x, int size) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum += x.at[i];
    const float mean = warp_sum(sum) / (float)size;
    HeadRow y = {};
    for_lane(size, [&](int i, int) { y.at[i] = x.at[i] - mean; });
    const float inverse = 1 / (sqrtf(row_dot(y, y) / (float)(size - 1)) + 1e-5f);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) y.at[i] *= inverse;
    return y;
}

// The sums of one pooling of a unit.
struct Slots {
    float *memory;
    size_t step; // distance between rows of the memory
    int size;
};

static __device__ __forceinline__ ExpSum slot_load(const Slots &s, size_t row) {
    const float *from = s.memory + row * s.step;
    return {from[0], from[1], row_load(from + 2, s.size)};
}

static __device__ __forceinline__ void slot_store(const Slots &s, size_t row, const ExpSum &sum) {
    float *to = s.memory + row * s.step;
    __syncwarp(); // other lanes may still load the old sum
    if (lane_index() == 0) {
        to[0] = sum.top;
        to[1] = sum.weight;
    }
    row_store(to + 2, sum.row, s.size);
    __syncwarp();
}

// After a block's last token: computes its suffix sums, or adds it to the sum of all blocks.
static __device__ __forceinline__ void block_end(const Slots &s, const ExpSum &block, size_t window,
                                                 bool first) {
    ExpSum sum =
        window == 0 && first ? exp_sum_empty() : slot_load(s, 1 + (window ? window - 1 : 0));
    if (window == 0) {
        exp_sum_add(sum, block);
        slot_store(s, 1, sum);
        return;
    }
    for (size_t r = window - 1; r-- > 1;) {
        ExpSum with = slot_load(s, 1 + r);
        exp_sum_add(with, sum);
        slot_store(s, 1 + r, with);
        sum = with;
    }
}

// Returns the pooled row of x, the latest of its input rows.
static __device__ __forceinline__ HeadRow pool(const Additive &p, const Slots &s, const HeadRow &x,
                                               const float *learned) {
    const size_t count = (size_t)*p.count, block = p.window ? p.window : GLOBAL_BLOCK,
                 place = count % block;
    const HeadRow w = row_load(learned, p.size), standard = p.plain ? x : row_standard(x, p.size);
    ExpSum token = {p.scale * row_dot(standard, p.plain ? w : row_standard(w, p.size)), 1,
                    p.raw ? x : standard};
    ExpSum prefix = place == 0 ? exp_sum_empty() : slot_load(s, 0);
    exp_sum_add(prefix, token);
    ExpSum sum = prefix;
    if (count >= block && (p.window == 0 || place + 1 < block))
        exp_sum_add(sum, slot_load(s, p.window ? place + 2 : 1));
    exp_sum_sink(sum, p.log_sink);
    slot_store(s, 0, prefix);
    if (p.window) slot_store(s, 1 + place, token);
    if (place + 1 == block) block_end(s, prefix, p.window, count < block);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum.row.at[i] /= sum.weight;
    return sum.row;
}

// One unit per block.
static __global__ void __launch_bounds__(WARP) additive_kernel(const Additive p) {
    begin_kernel();
    const size_t D = (size_t)p.size, heads = p.channels / D, unit = blockIdx.x,
                 stream = unit / heads, at = unit % heads * D;
    const float *q = p.qkv + stream * p.stride + at;
    Slots query = {p.memory + 2 * unit * (D + 2), 2 * p.streams * heads * (D + 2), p.size},
          key = query;
    key.memory += D + 2;
    HeadRow x = pool(p, query, row_load(q, p.size), p.learned[0] + at);
    HeadRow before = p.x ? row_load(p.x + stream * p.y_stride + at, p.size) : HeadRow{};
    if (p.gain) {
        const HeadRow gain = row_load(p.gain + at, p.size);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) before.at[i] += gain.at[i] * x.at[i];
    }
    const HeadRow k = row_load(q + p.channels, p.size), v = row_load(q + 2 * p.channels, p.size);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) x.at[i] *= k.at[i];
    x = pool(p, key, x, p.learned[1] + at);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) x.at[i] = before.at[i] + x.at[i] * v.at[i];
    row_store(p.y + stream * p.y_stride + at, x, p.size);
}

} // namespace attention_step

#endif
