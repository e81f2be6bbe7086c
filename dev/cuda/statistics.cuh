// Measurements of --stats (statistics.h) on numbers in device memory: moments of rows, and of the
// attention weights made of rows of scores. A warp takes rows at a fixed stride and writes two
// measurements. The host adds these up in the order of the warps, so results are bit-identical from
// run to run.
#ifndef CUDA_STATISTICS_CUH
#define CUDA_STATISTICS_CUH

#include "attention_input.cuh"
extern "C" {
#include "statistics.h"
}

// Measurements of a pass, and the memory for them.
struct DeviceStatistics {
    Statistics *to;     // NULL: nothing is measured
    Measurement *parts; // (MEASURED_PARTS) on the device
    float *scores;      // (M, C) of attention: keys, or scores of poolings
};

static constexpr unsigned MEASURING_WARPS = 8, MEASURING_BLOCKS = 512; // per block; maximum
static constexpr size_t MEASURED_PARTS = 2 * MEASURING_WARPS * MEASURING_BLOCKS;

// Weights made of a row of scores x: none; exp(slope x) over their sum plus the sink; or x /
// n^power, where n scores are visible.
enum RowWeights { NO_WEIGHTS, EXPONENTIALS, QUOTIENTS };

// Rows (B, H, Tq) of Tk numbers to measure, and their meaning.
struct MeasuredRows {
    DeviceAttentionInput in; // only for which keys queries see; queries and keys are not read
    const uint8_t *tokens;   // (B, Tq) 0: skip the row; NULL: skip none
    bool bounded;            // the numbers are scores divided by their bound
    RowWeights weights;
    float slope, log_sink;
    const float *exponent; // (H) its sigmoid is the power; NULL: use `power`
    float power;
};

// Rows of the heads of sequences, from x on. Distances are in elements.
template <typename T> struct HeadRows {
    const T *x;
    size_t batch, head, row;
    __device__ __forceinline__ const T *at(size_t b, size_t h, size_t i) const {
        return x + b * batch + h * head + i * row;
    }
};

// Numbers in memory, multiplied by `factor` unless factor.x is NULL, plus `added` times `gain`
// unless added.x is NULL.
template <typename T> struct Values {
    HeadRows<T> rows;
    HeadRows<float> factor = {}, added = {}, gain = {};
    __device__ __forceinline__ float operator()(size_t b, size_t h, size_t i, size_t j) const {
        return (float)rows.at(b, h, i)[j] * (factor.x ? factor.at(b, h, i)[j] : 1) +
               (added.x ? added.at(b, h, i)[j] * gain.at(b, h, i)[j] : 0);
    }
};

namespace measuring {

// Adds x to a lane's moments about a known mean.
static __device__ __forceinline__ void moments_put(Moments &m, double x) {
    const double d = x - m.mean, square = d * d;
    m.m2 += square;
    m.m3 += square * d;
    m.m4 += square * square;
    m.largest = larger_or_nan(m.largest, fabs(x));
}

// to += the moments of all lanes, which have the same count and mean.
static __device__ __forceinline__ void moments_take(Moments &to, Moments m) {
    m.m2 = warp_sum(m.m2);
    m.m3 = warp_sum(m.m3);
    m.m4 = warp_sum(m.m4);
#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2)
        m.largest = larger_or_nan(m.largest, __shfl_xor_sync(0xffffffff, m.largest, bits));
    moments_merge(&to, &m);
}

// Adds a row whose element j is value(b, h, i, j), like measurement_add_scores() and, with weights,
// like measurement_add_weights() or measurement_add_quotients(). A lane takes every 32nd element.
template <typename Value>
static __device__ __forceinline__ void measure_row(const MeasuredRows &p, const Value &value,
                                                   size_t row, Measurement &scores,
                                                   Measurement &weights) {
    const DeviceAttentionInput &in = p.in;
    const size_t i = row % in.queries, h = row / in.queries % in.heads,
                 b = row / in.queries / in.heads,
                 begin = in.window > 0 && i >= in.window ? i + 1 - in.window : 0,
                 end = in.causal ? i + 1 : in.keys;
    if (p.tokens && !p.tokens[b * in.queries + i]) return;
    const auto each = [&](auto add) {
        for (size_t j = begin + lane_index(); j < end; j += WARP)
            if (!in.mask || in.mask[b * in.keys + j]) add(value(b, h, i, j));
    };
    int count = 0, saturated = 0;
    float top = p.log_sink;                    // the largest exponent
    double sum = 0, total = 0, logarithms = 0; // of x; of exponentials or |x|; of |w| log |w|
    each([&](float x) {
        top = fmaxf(top, p.slope * x);
        sum += (double)x;
        count++;
    });
    top = warp_max(top);
    sum = warp_sum(sum);
    count = warp_sum(count);
    if (count == 0) return;
    const bool exponentials = p.weights == EXPONENTIALS;
    Moments m = {count, sum / count, 0, 0, 0, 0};
    each([&](float x) {
        moments_put(m, (double)x);
        saturated += fabsf(x) > 0.9f;
        total += (double)(exponentials ? expf(p.slope * x - top) : fabsf(x));
    });
    moments_take(scores.values, m);
    total = warp_sum(total);
    saturated = warp_sum(saturated);
    if (p.bounded) {
        scores.scores += count;
        scores.saturated += saturated;
    }
    if (p.weights == NO_WEIGHTS || (exponentials && total == 0)) return;
    const float power = p.exponent ? 1 / (1 + expf(-p.exponent[h])) : p.power;
    const double sink = exp((double)(p.log_sink - top)),
                 divisor = exponentials ? total + sink : pow((double)count, (double)power);
    m = {count, (exponentials ? total : sum) / count / divisor, 0, 0, 0, 0};
    each([&](float x) {
        const double w = (double)(exponentials ? expf(p.slope * x - top) : x) / divisor;
        moments_put(m, w);
        if (w != 0) logarithms += fabs(w) * (double)logf(fabsf((float)w));
    });
    moments_take(weights.values, m);
    if (exponentials) {
        weights.queries++;
        weights.sink_share += sink / divisor;
    }
    logarithms = warp_sum(logarithms);
    total /= divisor;
    if (total == 0) return;
    weights.rows++;
    weights.entropy += log(total) - logarithms / total;
}

// parts (warps, 2): the measurements of scores and of weights.
template <typename Value>
static __global__ void __launch_bounds__(MEASURING_WARPS *WARP)
    measure_kernel(const MeasuredRows p, const Value value, Measurement *parts) {
    begin_kernel();
    const size_t warps = (size_t)gridDim.x * MEASURING_WARPS,
                 warp = (size_t)blockIdx.x * MEASURING_WARPS + threadIdx.x / WARP,
                 rows = p.in.batch * p.in.heads * p.in.queries;
    Measurement scores = {}, weights = {};
    for (size_t row = warp; row < rows; row += warps) measure_row(p, value, row, scores, weights);
    if (lane_index() > 0) return;
    parts[2 * warp] = scores;
    parts[2 * warp + 1] = weights;
}

} // namespace measuring

// Adds rows to the measurements of their numbers and of the weights made of them. Either may be
// NULL.
template <typename Value>
static inline void statistics_rows(const Device *d, const DeviceStatistics *s,
                                   const MeasuredRows &rows, const Value &value,
                                   Measurement *scores, Measurement *weights) {
    const size_t needed =
        (rows.in.batch * rows.in.heads * rows.in.queries + MEASURING_WARPS - 1) / MEASURING_WARPS;
    const unsigned blocks = needed < MEASURING_BLOCKS ? (unsigned)needed : MEASURING_BLOCKS;
    const size_t count = 2 * (size_t)blocks * MEASURING_WARPS;
    Measurement *parts = (Measurement *)allocate(count, sizeof(Measurement), "statistics");
    launch_early(d, measuring::measure_kernel<Value>, dim3(blocks), dim3(MEASURING_WARPS * WARP), 0,
                 rows, value, s->parts);
    CUDA_CHECK(cudaMemcpyAsync(parts, s->parts, count * sizeof(Measurement), cudaMemcpyDeviceToHost,
                               d->stream));
    device_synchronize(d);
    for (size_t i = 0; i < count; i += 2) {
        if (scores) measurement_merge(scores, &parts[i]);
        if (weights) measurement_merge(weights, &parts[i + 1]);
    }
    free(parts);
}

// statistics_add() for x (tokens, columns) in device memory.
static inline void statistics_values(const Device *d, const DeviceStatistics *s, size_t layer,
                                     const char *place, const float *x, const uint8_t *mask,
                                     size_t tokens, size_t columns) {
    MeasuredRows rows = {};
    if (!s->to) return;
    rows.in.batch = rows.in.heads = 1;
    rows.in.queries = tokens;
    rows.in.keys = columns;
    rows.tokens = mask;
    statistics_rows(d, s, rows, Values<float>{{x, 0, 0, columns}, {}},
                    statistics_find(s->to, layer, place), NULL);
}

#endif
