// Prepares queries, keys and values between their product and any kind of attention, as
// dev/cpu/query_key.h does: normalises and rotates heads, and copies the keys and values of a group
// to each of its heads. The product has already added the bias.
//
// A warp processes one head of a row. A lane holds pairs of elements that are rotated together, d
// and d + D/2.
#ifndef CUDA_QUERY_KEY_CUH
#define CUDA_QUERY_KEY_CUH

#include "attention_input.cuh"
#include "partial_sums.cuh"
extern "C" {
#include "query_key.h"
}

namespace query_key {

static constexpr int WARPS = 8, PAIRS = 4; // per block; per lane, for heads of up to 256

template <typename T> struct Pass {
    T *to;                       // y (M, 3HD); backward dx (M, (H + 2H') D)
    const T *x, *dy;             // (M, (H + 2H') D); backward (M, 3HD)
    const float *gains, *angles; // (2, D) or NULL; (positions, D) or NULL
    float *dgains;               // (parts, 2, D) or NULL
    int heads, groups, size;     // H, H', D
    ScoresKind scores;
    float query_scale, epsilon;
    unsigned length;       // T
    const uint64_t *first; // the position of each sequence's first row; NULL: 0
    size_t m;
};

// Elements d and D/2 + d of a head, for this lane's d.
struct Pairs {
    float at[2][PAIRS];
};

// A head of a row: its part, its offset in (M, (H + 2H') D), and the offset of its first copy in
// (M, 3HD).
struct Head {
    AttentionPart part;
    int copies;
    size_t joined, apart;
};

template <typename T>
static __device__ __forceinline__ Head head_of(const Pass<T> &p, size_t row, int unit) {
    Head head;
    head.part = unit < p.heads ? QUERY : unit < p.heads + p.groups ? KEY : VALUE;
    const int index =
        unit - (head.part == QUERY ? 0 : p.heads) - (head.part == VALUE ? p.groups : 0);
    head.copies = head.part == QUERY ? 1 : p.heads / p.groups;
    head.joined = (row * (size_t)(p.heads + 2 * p.groups) + (size_t)unit) * (size_t)p.size;
    head.apart =
        (row * (size_t)(3 * p.heads) + (size_t)(head.part * p.heads + index * head.copies)) *
        (size_t)p.size;
    return head;
}

// Calls f(i, half, d) for this lane's elements.
template <typename F> static __device__ __forceinline__ void for_pairs(int size, F f) {
    const int half = (size + 1) / 2;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int d = (int)lane_index() + i * WARP;
        if (d < half) f(i, 0, d);
        if (d < half && half + d < size) f(i, 1, half + d);
    }
}

template <typename T> static __device__ __forceinline__ Pairs pairs_load(const T *from, int size) {
    Pairs x = {};
    for_pairs(size, [&](int i, int half, int d) { x.at[half][i] = (float)from[d]; });
    return x;
}

static __device__ __forceinline__ float pairs_dot(const Pairs &a, const Pairs &b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) sum += a.at[0][i] * b.at[0][i] + a.at[1][i] * b.at[1][i];
    return warp_sum(sum);
}

static __device__ __forceinline__ float pairs_mean(const Pairs &x, int size) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) sum += x.at[0][i] + x.at[1][i];
    return warp_sum(sum) / (float)size;
}

// Rotates by the angles of a position (sign 1), or back (-1).
static __device__ __forceinline__ void rotate(Pairs &x, const float *angles, int size, float sign) {
    for_pairs(size, [&](int i, int half, int d) {
        if (half) return;
        const float cosine = angles[d], sine = sign * angles[size / 2 + d], first = x.at[0][i],
                    second = x.at[1][i];
        x.at[0][i] = first * cosine - second * sine;
        x.at[1][i] = second * cosine + first * sine;
    });
}

// 1 / (std + epsilon) or 1 / root mean square; std; factor of the result.
struct HeadNorm {
    float inverse, deviation, scale;
};

template <typename T>
static __device__ __forceinline__ HeadNorm head_norm(const Pass<T> &p, Pairs &x, AttentionPart part,
                                                     const float *gain) {
    HeadNorm n = {0, 0, part == QUERY ? p.query_scale : 1};
    if (p.scores == SCORES_QKNORM) {
        n.inverse = rsqrtf(pairs_dot(x, x) / (float)p.size + p.epsilon);
        for_pairs(p.size, [&](int i, int half, int d) { x.at[half][i] *= gain[d] * n.inverse; });
        return n;
    }
    const float mean = pairs_mean(x, p.size);
    for_pairs(p.size, [&](int i, int half, int) { x.at[half][i] -= mean; });
    n.deviation = sqrtf(pairs_dot(x, x) / (float)(p.size - 1));
    n.inverse = 1 / (n.deviation + 1e-5f);
    for_pairs(p.size, [&](int i, int half, int) { x.at[half][i] *= n.inverse * n.scale; });
    return n;
}

// Replaces g, the gradient of the result, by that of x. Overwrites x; dgain +=.
template <typename T>
static __device__ __forceinline__ void head_norm_backward(const Pass<T> &p, Pairs &g, Pairs &x,
                                                          AttentionPart part, const float *gain,
                                                          Pairs &dgain) {
    if (p.scores == SCORES_QKNORM) {
        const float inverse = rsqrtf(pairs_dot(x, x) / (float)p.size + p.epsilon);
        for_pairs(p.size, [&](int i, int half, int d) {
            x.at[half][i] *= inverse;
            dgain.at[half][i] += g.at[half][i] * x.at[half][i];
            g.at[half][i] *= gain[d];
        });
        const float along = pairs_dot(g, x) / (float)p.size;
        for_pairs(p.size, [&](int i, int half, int) {
            g.at[half][i] = inverse * (g.at[half][i] - x.at[half][i] * along);
        });
        return;
    }
    const HeadNorm n = head_norm(p, x, part, gain); // x is now normal(x) times the scale
    const float product = pairs_dot(g, x);
    const float divisor = n.scale * (float)(p.size - 1) * n.deviation; // also 0 with --rescale 0
    const float along = divisor > 0 ? product / divisor : 0;
    for_pairs(p.size, [&](int i, int half, int) {
        g.at[half][i] = n.inverse * n.scale * g.at[half][i] - x.at[half][i] * along;
    });
    const float mean = pairs_mean(g, p.size);
    for_pairs(p.size, [&](int i, int half, int) { g.at[half][i] -= mean; });
}

template <typename T>
static __device__ __forceinline__ const float *gain_of(const Pass<T> &p, AttentionPart part) {
    return p.gains ? p.gains + (part == KEY ? p.size : 0) : NULL;
}

template <typename T>
static __device__ __forceinline__ const float *angles_of(const Pass<T> &p, size_t row) {
    return p.angles + (row % p.length + (p.first ? *p.first : 0)) * (size_t)p.size;
}

template <typename T>
static __global__ void __launch_bounds__(WARPS *WARP) forward_kernel(const Pass<T> p) {
    begin_kernel();
    const size_t row = blockIdx.x;
    const int units = p.heads + 2 * p.groups;
    for (int unit = (int)threadIdx.x / WARP; unit < units; unit += WARPS) {
        const Head head = head_of(p, row, unit);
        Pairs x = pairs_load(p.x + head.joined, p.size);
        if (head.part != VALUE && p.scores != SCORES_PLAIN)
            head_norm(p, x, head.part, gain_of(p, head.part));
        if (head.part != VALUE && p.angles) rotate(x, angles_of(p, row), p.size, 1);
        for (int copy = 0; copy < head.copies; copy++)
            for_pairs(p.size, [&](int i, int half, int d) {
                p.to[head.apart + (size_t)(copy * p.size + d)] = (T)x.at[half][i];
            });
    }
}

// Each block processes a part of the rows. Shared memory: (WARPS, 2, D) floats if gains exist.
template <typename T>
static __global__ void __launch_bounds__(WARPS *WARP) backward_kernel(const Pass<T> p) {
    begin_kernel();
    const size_t begin = p.m * blockIdx.x / gridDim.x, end = p.m * (blockIdx.x + 1) / gridDim.x;
    const int units = p.heads + 2 * p.groups, warp = (int)threadIdx.x / WARP;
    Pairs dgain[2] = {};
    for (size_t row = begin; row < end; row++)
        for (int unit = warp; unit < units; unit += WARPS) {
            const Head head = head_of(p, row, unit);
            Pairs g = {};
            for (int copy = 0; copy < head.copies; copy++)
                for_pairs(p.size, [&](int i, int half, int d) {
                    g.at[half][i] += (float)p.dy[head.apart + (size_t)(copy * p.size + d)];
                });
            if (head.part != VALUE && p.angles) rotate(g, angles_of(p, row), p.size, -1);
            if (head.part != VALUE && p.scores != SCORES_PLAIN) {
                Pairs x = pairs_load(p.x + head.joined, p.size);
                head_norm_backward(p, g, x, head.part, gain_of(p, head.part),
                                   dgain[head.part == KEY]);
            }
            for_pairs(p.size, [&](int i, int half, int d) {
                p.to[head.joined + (size_t)d] = (T)g.at[half][i];
            });
        }
    if (!p.dgains) return;
    float *sums = shared_memory<float>();
    for (int part = 0; part < 2; part++)
        for_pairs(p.size, [&](int i, int half, int d) {
            sums[(2 * warp + part) * p.size + d] = dgain[part].at[half][i];
        });
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * p.size; i += WARPS * WARP) {
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += sums[2 * w * p.size + i];
        p.dgains[(size_t)blockIdx.x * (size_t)(2 * p.size) + (size_t)i] = total;
    }
}

// `to` and x have type T. Exits with an error if the shape of heads is not supported.
template <typename T>
static Pass<T> pass_create(Matrix to, Matrix x, const float *gains, const QueryKeyShape *s,
                           size_t length, size_t m) {
    if (s->size > 2 * PAIRS * WARP || s->groups == 0 || s->heads % s->groups != 0)
        fail("queries and keys: %zu heads of %zu channels in %zu groups: expected heads of at most "
             "%d channels, in whole groups",
             s->heads, s->size, s->groups, 2 * PAIRS * WARP);
    Pass<T> p = {};
    p.to = (T *)to.data;
    p.x = (const T *)x.data;
    p.gains = gains;
    p.angles = s->angles;
    p.heads = (int)s->heads;
    p.groups = (int)s->groups;
    p.size = (int)s->size;
    p.scores = s->scores;
    p.query_scale = (float)(s->rescale / sqrt((double)s->size));
    p.epsilon = (float)s->epsilon;
    p.length = (unsigned)length;
    p.m = m;
    return p;
}

} // namespace query_key

// Computes y (M, 3HD) from x (M, (H + 2H') D), of one type. gains (2, D): for qknorm.
// shape->angles: on the device. first: the position of each sequence's first row, on the device;
// NULL: 0.
static inline void query_key_forward(const Device *d, Matrix y, Matrix x, const float *gains,
                                     const QueryKeyShape *shape, size_t length,
                                     const uint64_t *first, size_t m) {
    WITH_TYPE(y, T, {
        query_key::Pass<T> p = query_key::pass_create<T>(y, x, gains, shape, length, m);
        p.first = first;
        launch_early(d, query_key::forward_kernel<T>, dim3((unsigned)m),
                     dim3(query_key::WARPS * WARP), 0, p);
    });
}

// Computes dx (M, (H + 2H') D) from dy (M, 3HD), of one type. If gains exist, dgains += when
// partial_sums_finish() runs.
static inline void query_key_backward(const Device *d, PartialSums *sums, Matrix dx, float *dgains,
                                      Matrix dy, Matrix x, const float *gains,
                                      const QueryKeyShape *shape, size_t length, size_t m) {
    const unsigned parts = sum_parts(m, 4);
    const size_t shared = gains ? (size_t)(2 * query_key::WARPS) * shape->size * sizeof(float) : 0;
    float *partial = gains ? partial_sums_add(sums, dgains, parts, 2 * shape->size) : NULL;
    WITH_TYPE(dx, T, {
        query_key::Pass<T> p = query_key::pass_create<T>(dx, x, gains, shape, length, m);
        p.dy = (const T *)dy.data;
        p.dgains = partial;
        launch_early(d, query_key::backward_kernel<T>, dim3(parts), dim3(query_key::WARPS * WARP),
                     shared, p);
    });
}

#endif
