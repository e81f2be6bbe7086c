// Causal, windowed additive attention (Wu et al., "Fastformer: Additive Attention Can Be All You
// Need", 2021, made causal and windowed). Its cost is linear in the sequence length. Per head, with
// rows (T, D):
//
//   y = dropout(pool(dropout(pool(q, w_q)) * k, w_k)) * v                  * is elementwise
//   pool(x, w)_i = sum over j in W(i) of e_j x'_j / (sum of e_j + sink)
//     W(i) = {max(0, i-window+1) .. i}
//     e_j = exp(rescale/D x'_j . w'), 0 where j is padding
//     x' = (x - mean) / (deviation + 1e-5), w' likewise
//
// With --query-gain the pooled queries are added to y, times a gain per channel (C), so that what a
// window holds also passes without being multiplied by the token's own keys and values. (The paper
// adds the queries themselves.)
//
// With plain scores e_j = exp(x_j . w / sqrt(D)), and x itself is pooled. These scores are
// unbounded, so their sums keep a running maximum (exp_window.h).
//
// The result is projected, or added to the residual stream: out = x + y.

#include "attention.h"
#include "exp_window.h"
#include "memory.h"
#include "rows.h"
#include "threads.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

// Inlined with a constant head size, so that loops over a head become straight-line vector code.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// Calls f(..., D) with common head sizes as constants, so that the compiler unrolls loops over D.
#define WITH_HEAD_SIZE(D, f, ...)                                                                  \
    ((D) == 16    ? f(__VA_ARGS__, 16)                                                             \
     : (D) == 32  ? f(__VA_ARGS__, 32)                                                             \
     : (D) == 64  ? f(__VA_ARGS__, 64)                                                             \
     : (D) == 128 ? f(__VA_ARGS__, 128)                                                            \
                  : f(__VA_ARGS__, (D)))

// -----------------------------------------------------------------------------
// The windowed sum, exactly
//
// cumsum(i) - cumsum(i-k) cancels in float32. Instead the sequence is cut into blocks of k rows:
// the window that ends at row r of a block is the suffix r+1 .. k-1 of the previous block plus the
// prefix 0 .. r of the current one (van Herk 1992; Gil and Werman 1993). Nothing is ever
// subtracted. Rows are added one by one and the whole state is in WindowSum, so the same code
// processes a sequence forwards, backwards, or one token at a time.

enum {
    GLOBAL_BLOCK = 64
}; // a global sum adds whole blocks, which keeps its rounding error small for any T

typedef struct {
    size_t window; // k; 0: global
    size_t place;  // rows of the current block so far
    // Slot r holds row r of the current block once it was added, and before that the sum of rows r
    // .. k-1 of the previous block; slot k stays 0.
    real *rows, *weights; // (k+1, D), (k+1)
    real *prefix;         // (D) sum of the current block's rows
    real *carry;          // (D) global: sum of all previous blocks
    real prefix_weight, carry_weight;
} WindowSum;

static WindowSum window_sum_carve(Arena *arena, size_t largest_window, size_t D, const char *what) {
    return (WindowSum){.rows = arena_reals(arena, largest_window + 1, D, what),
                       .weights = arena_reals(arena, largest_window + 1, 1, what),
                       .prefix = arena_reals(arena, 1, D, what),
                       .carry = arena_reals(arena, 1, D, what)};
}

// Starts a sequence.
static void window_sum_reset(WindowSum *w, size_t window, size_t D) {
    w->window = window;
    w->place = 0;
    w->prefix_weight = w->carry_weight = 0;
    memset(w->rows, 0, (window + 1) * D * sizeof(real));
    memset(w->weights, 0, (window + 1) * sizeof(real));
    memset(w->prefix, 0, D * sizeof(real));
    memset(w->carry, 0, D * sizeof(real));
}

static size_t window_sum_block(const WindowSum *w) {
    return w->window ? w->window : GLOBAL_BLOCK;
}

// total (n) = the sums of weights e (n) over their windows, for n rows. window_sum_rows() then adds
// the rows. `step` is 1, or -1 to start with the last row.
static ALWAYS_INLINE void window_sum_weights(WindowSum *w, ptrdiff_t step, const real *restrict e,
                                             real *restrict total, size_t n) {
    const size_t block = window_sum_block(w);
    real *weights = w->weights, prefix = w->prefix_weight;
    for (size_t i = 0, place = w->place; i < n; i++) {
        const size_t at = step > 0 ? i : n - 1 - i;
        prefix += e[at];
        total[at] = prefix + (w->window ? weights[place + 1] : w->carry_weight);
        if (w->window) weights[place] = e[at];
        if (++place < block) continue;
        if (!w->window) w->carry_weight += prefix;
        for (size_t r = w->window; r-- > 1;) weights[r - 1] += weights[r];
        prefix = 0;
        place = 0;
    }
    w->prefix_weight = prefix;
}

// Ends the current block: its rows become suffix sums, or are added to the carry.
static ALWAYS_INLINE void window_sum_end_block(WindowSum *w, size_t D) {
    for (size_t d = 0; d < D; d += TILE_LANES) {
        if (!w->window) {
            row_put(w->carry, d, D, row_get(w->carry, d, D) + row_get(w->prefix, d, D));
        } else {
            TileVector suffix = {0};
            for (size_t r = w->window; r-- > 0;) {
                suffix += row_get(w->rows + r * D, d, D);
                row_put(w->rows + r * D, d, D, suffix);
            }
        }
        row_put(w->prefix, d, D, (TileVector){0});
    }
    w->place = 0;
}

// Adds n rows, factor (n) times x (n, D), where rows of x are `stride` apart: sum (n, D) = scale
// (n) times the sums over their windows.
static ALWAYS_INLINE void window_sum_rows(WindowSum *w, ptrdiff_t step, real *restrict sum,
                                          const real *restrict scale, const real *restrict x,
                                          size_t stride, const real *restrict factor, size_t n,
                                          size_t D) {
    const size_t block = window_sum_block(w), rest_stride = w->window ? D : 0;
    for (size_t i = 0; i < n;) {
        const size_t left = block - w->place, rows = n - i < left ? n - i : left;
        real *block_rows = w->rows + w->place * D;
        const real *rest = w->window ? block_rows + D : w->carry;
        for (size_t d = 0; d < D; d += TILE_LANES) {
            TileVector prefix = row_get(w->prefix, d, D);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = step > 0 ? i + r : n - 1 - i - r;
                const TileVector row = factor[at] * row_get(x + at * stride, d, D);
                prefix += row;
                row_put(sum + at * D, d, D,
                        scale[at] * (prefix + row_get(rest + r * rest_stride, d, D)));
                if (w->window) row_put(block_rows + r * D, d, D, row);
            }
            row_put(w->prefix, d, D, prefix);
        }
        i += rows;
        w->place += rows;
        if (w->place == block) window_sum_end_block(w, D);
    }
}

// -----------------------------------------------------------------------------
// Normalisation over a head: x' = (x - mean) / (deviation + 1e-5), with D-1 in the denominator of
// the deviation

static const real NORMAL_EPSILON = (real)1e-5;

// centred (n, D) = x - mean, and deviation (n), of x (n, D), whose rows are `stride` apart.
static ALWAYS_INLINE void centre(real *restrict centred, real *restrict deviation,
                                 const real *restrict x, size_t stride, size_t n, size_t D) {
    rows_sum(deviation, x, stride, n, D);
    for (size_t i = 0; i < n; i++) {
        const real mean = deviation[i] / (real)D;
        for (size_t d = 0; d < D; d += TILE_LANES)
            row_put(centred + i * D, d, D, row_get(x + i * stride, d, D) - mean);
    }
    rows_dot(deviation, centred, D, centred, D, n, D);
    for (size_t i = 0; i < n; i++) deviation[i] = sqrt(deviation[i] / (real)(D - 1));
}

// normal (n, D), deviation (n) from x (n, D).
static void normalise(real *restrict normal, real *restrict deviation, const real *restrict x,
                      size_t n, size_t D) {
    centre(normal, deviation, x, D, n, D);
    for (size_t i = 0; i < n; i++)
        row_scale(normal + i * D, 1 / (deviation[i] + NORMAL_EPSILON), normal + i * D, D);
}

// One row: dx (D) from dnormal (D). A row with deviation 0 gets only the gradient of the mean.
static void normalise_backward(real *restrict dx, const real *restrict dnormal,
                               const real *restrict normal, real deviation, size_t D) {
    const real along = row_dot(dnormal, normal, D);
    const real inverse = 1 / (deviation + NORMAL_EPSILON);
    const real slope = deviation > 0 ? along / ((real)(D - 1) * deviation) : 0;
    for (size_t d = 0; d < D; d += TILE_LANES)
        row_put(dx, d, D, inverse * row_get(dnormal, d, D) - slope * row_get(normal, d, D));
    const real mean = row_sum(dx, D) / (real)D;
    for (size_t d = 0; d < D; d += TILE_LANES) row_put(dx, d, D, row_get(dx, d, D) - mean);
}

// -----------------------------------------------------------------------------
// pool(x, w): g_i = sum over the window of e_j x'_j / (sum of e_j + c), e_j = exp(s/D x'_j . w'), 0
// where j is padding

enum {
    TILE = 32,    // tokens per tile, so that their rows stay in L1
    TILE_GAP = 80 // numbers between two tiles: 4 KiB apart, a load of one would wait for a store to
                  // the other
};

typedef struct {
    const real *weight; // (D) w', or w with plain scores
    real scale, sink;   // s/D, or 1/sqrt(D); c
    bool raw;           // pool x, not x'
    bool plain;         // plain scores
    WindowSum sum;
    ExpWindow plain_sum; // replaces `sum` with plain scores; rows (D+1)
} Pooling;

// The input of a pooling: n rows of x (n, D), `stride` apart. The mask (n) hides some; NULL: none.
typedef struct {
    const real *x;
    size_t stride;
    const uint8_t *mask;
    size_t n;
} PoolRows;

// Per-thread buffers for a tile.
typedef struct AdditiveScratch {
    real *centred, *sums;                                  // (TILE, D) inside a pooling
    real *product, *dproduct, *dpooled, *dquery, *factors; // (TILE, D) around it
    real *ones;                                            // (TILE, D) factors without dropout
    real *row;                                             // (D+1)
    // (TILE), per row: deviation of x, 1 / (deviation + 1e-5), x' . w', exp of the score, and the
    // sum of e over the window, or in the backward pass of r (d . g)
    real *deviation, *inverse, *along, *e, *total;
    real *share, *dot, *sum; // r (d . g), (pooled value) . u, sum of u
    real *value_factor, *score_factor, *mean_factor,
        *row_factor; // coefficients in dx, see pool_backward_size()
    Pooling query, key;
} Scratch;

// Computes x - mean (n, D), and the fields of s from `deviation` to `e`. x' is never stored: it
// equals inverse (x - mean).
static ALWAYS_INLINE void pool_scores_size(const Pooling *p, Scratch *s, PoolRows in, size_t D) {
    centre(s->centred, s->deviation, in.x, in.stride, in.n, D);
    rows_dot(s->along, s->centred, D, p->weight, 0, in.n, D);
#pragma omp simd
    for (size_t i = 0; i < in.n; i++) {
        s->inverse[i] = 1 / (s->deviation[i] + NORMAL_EPSILON);
        s->along[i] *= s->inverse[i];
        s->e[i] = vector_exp(p->scale * s->along[i]);
    }
    if (in.mask)
        for (size_t i = 0; i < in.n; i++) s->e[i] = in.mask[i] ? s->e[i] : 0;
}

// Not inlined: both passes share one copy per size, which halves the compile time.
static __attribute__((noinline)) void pool_scores(const Pooling *p, Scratch *s, PoolRows in,
                                                  size_t D) {
    WITH_HEAD_SIZE(D, pool_scores_size, p, s, in);
}

static ALWAYS_INLINE void pool_forward_size(Pooling *p, Scratch *s, real *restrict pooled,
                                            real *restrict r, PoolRows in, size_t D) {
    pool_scores(p, s, in, D);
    window_sum_weights(&p->sum, 1, s->e, s->total, in.n);
#pragma omp simd
    for (size_t i = 0; i < in.n; i++) {
        const real denominator = s->total[i] + p->sink;
        r[i] = denominator > 0 ? 1 / denominator
                               : 0; // c = 0 and the window holds only padding: the result is 0
        s->value_factor[i] = p->raw ? s->e[i] : s->e[i] * s->inverse[i];
    }
    window_sum_rows(&p->sum, 1, pooled, r, p->raw ? in.x : s->centred, p->raw ? in.stride : D,
                    s->value_factor, in.n, D);
}

// Returns plain score i.
static real plain_score(const Pooling *p, const PoolRows *in, size_t i, size_t D) {
    return p->scale * row_dot(p->weight, in->x + i * in->stride, D);
}

// Each row is x followed by 1, so that the last number of a sum is the sum of weights. The sink is
// a separate row: zeros, then 1. r (n) = log(sum of e + c), or -INFINITY if the window is empty.
static void pool_plain_forward(Pooling *p, Scratch *s, real *pooled, real *r, PoolRows in,
                               size_t D) {
    ExpSum *sum = &p->plain_sum.sum;
    for (size_t i = 0; i < in.n; i++) {
        memcpy(s->row, in.x + i * in.stride, D * sizeof(real));
        s->row[D] = 1;
        exp_window_add(&p->plain_sum,
                       in.mask && !in.mask[i] ? -(real)INFINITY : plain_score(p, &in, i, D),
                       s->row);
        exp_sum_add(sum, log(p->sink), NULL, D + 1);
        r[i] = sum->top + log(sum->row[D]);
        row_scale(pooled + i * D, sum->row[D] > 0 ? 1 / sum->row[D] : 0, sum->row, D);
    }
}

// pooled g (n, D) and r (n) = 1 / (sum of e + c); with plain scores r = log(sum of e + c).
static void pool_forward(Pooling *p, Scratch *s, real *pooled, real *r, PoolRows in, size_t D) {
    if (p->plain)
        pool_plain_forward(p, s, pooled, r, in, D);
    else
        WITH_HEAD_SIZE(D, pool_forward_size, p, s, pooled, r, in);
}

static ALWAYS_INLINE void pool_backward_size(Pooling *p, Scratch *s, real *restrict dx,
                                             real *restrict dweight, const real *restrict dpooled,
                                             const real *restrict pooled, const real *restrict r,
                                             PoolRows in, size_t D) {
    const real *value = p->raw ? in.x : s->centred;
    const size_t n = in.n;
    pool_scores(p, s, in, D);
    rows_dot(s->share, dpooled, D, pooled, D, n, D);
#pragma omp simd
    for (size_t i = 0; i < n; i++) s->share[i] *= r[i];
    window_sum_weights(&p->sum, -1, s->share, s->total, n);
    window_sum_rows(&p->sum, -1, s->sums, s->ones, dpooled, D, r, n, D);
    rows_dot(s->dot, value, p->raw ? in.stride : D, s->sums, D, n, D);
    rows_sum(s->sum, s->sums, D, n, D);
    // dx = value_factor u + score_factor w' - mean_factor - row_factor (x - mean of x)
#pragma omp simd
    for (size_t j = 0; j < n; j++) {
        const real inverse = s->inverse[j], deviation = s->deviation[j],
                   path = p->raw ? 0 : s->e[j];
        const real along_u = p->raw ? s->dot[j] : s->dot[j] * inverse;
        const real da = s->e[j] * (along_u - s->total[j]) * p->scale;
        const real slope = deviation > 0 ? (path * along_u + da * s->along[j]) / deviation : 0;
        s->value_factor[j] = p->raw ? s->e[j] : s->e[j] * inverse;
        s->score_factor[j] = da * inverse;
        s->mean_factor[j] = s->sum[j] * (path * inverse / (real)D);
        s->row_factor[j] = slope * inverse / (real)(D - 1);
    }
    for (size_t d = 0; d < D; d += TILE_LANES) {
        const TileVector w = row_get(p->weight, d, D);
        TileVector dw = row_get(dweight, d, D);
        for (size_t j = 0; j < n; j++) {
            const TileVector centred = row_get(s->centred + j * D, d, D);
            dw += s->score_factor[j] * centred;
            row_put(dx + j * D, d, D,
                    s->value_factor[j] * row_get(s->sums + j * D, d, D) + s->score_factor[j] * w -
                        s->mean_factor[j] - s->row_factor[j] * centred);
        }
        row_put(dweight, d, D, dw);
    }
}

// The same for plain scores. The summed rows are d_i and d_i . g_i, with l = -log(sum of e + c).
// This l is at most -a_j for every j in the window of i, so exp(a_j + top) <= 1.
static void pool_plain_backward(Pooling *p, Scratch *s, real *dx, real *dweight,
                                const real *dpooled, const real *pooled, const real *r, PoolRows in,
                                size_t D) {
    const ExpSum *sum = &p->plain_sum.sum;
    for (size_t j = in.n; j-- > 0;) {
        memcpy(s->row, dpooled + j * D, D * sizeof(real));
        s->row[D] = row_dot(dpooled + j * D, pooled + j * D, D);
        exp_window_add(&p->plain_sum, r[j] == -(real)INFINITY ? r[j] : -r[j], s->row);
        const real e = in.mask && !in.mask[j] ? 0 : exp(plain_score(p, &in, j, D) + sum->top);
        const real *x = in.x + j * in.stride, *u = sum->row;
        const real da = p->scale * e * (row_dot(x, u, D) - u[D]);
        for (size_t d = 0; d < D; d++) {
            dx[j * D + d] = e * u[d] + da * p->weight[d];
            dweight[d] += da * x[d];
        }
    }
}

// dx (n, D) from dpooled, and pooled and r of pool_forward(); adds to dweight (D). Tiles are
// processed from last to first, because the sums run backwards:
//   u_j = sum of r_i d_i, t_j = sum of r_i (d_i . g_i) over all i whose window contains j,
//   dx'_j = e_j u_j + da_j (s/D) w',  da_j = e_j (x'_j . u_j - t_j),  dw' += da_j (s/D) x'_j,
// and through the normalisation, because the elements of x' and of w' sum to 0,
//   dx_j = (dx'_j - mean(e_j u_j)) / (deviation + 1e-5) - x'_j (x'_j . dx'_j) / ((D-1) deviation).
static void pool_backward(Pooling *p, Scratch *s, real *dx, real *dweight, const real *dpooled,
                          const real *pooled, const real *r, PoolRows in, size_t D) {
    if (p->plain)
        pool_plain_backward(p, s, dx, dweight, dpooled, pooled, r, in, D);
    else
        WITH_HEAD_SIZE(D, pool_backward_size, p, s, dx, dweight, dpooled, pooled, r, in);
}

// ---- Additive attention of one head over T rows; q, k, v and x are slices of wider rows ----

typedef struct {
    const real *q, *k, *v;        // (T, D), rows `stride` apart
    size_t stride;                // 3C
    const uint8_t *mask;          // (T) or NULL
    const Dropout *drop_query;    // of G; NULL: none
    const Dropout *drop_key;      // of P; NULL: none
    uint64_t first;               // dropout's number of element (0, 0)
    const real *gain;             // (D) of G in the result; NULL: 0
    real *pooled_query, *r_query; // (T, D) G before dropout, (T)
    real *pooled_key, *r_key;     // (T, D) P before dropout, (T)
} AttentionHead;

static const real *dropout_rows(const Dropout *dropout, uint64_t first, size_t count, Scratch *s) {
    if (!dropout) return s->ones;
    dropout_factors(dropout, first, count, s->factors);
    return s->factors;
}

static ALWAYS_INLINE void multiply_size(real *product, const real *x, size_t x_stride,
                                        const real *factors, const real *y, size_t y_stride,
                                        size_t n, size_t D) {
    for (size_t i = 0; i < n; i++)
        row_multiply(product + i * D, x + i * x_stride, factors + i * D, y + i * y_stride, D);
}

// product (n, D) = x * factors * y; rows of x and y are x_stride and y_stride apart.
static void multiply(real *product, const real *x, size_t x_stride, const real *factors,
                     const real *y, size_t y_stride, size_t n, size_t D) {
    WITH_HEAD_SIZE(D, multiply_size, product, x, x_stride, factors, y, y_stride, n);
}

static ALWAYS_INLINE void add_product_size(real *out, const real *x, size_t channels,
                                           const real *pooled, const real *factors, const real *v,
                                           size_t v_stride, size_t n, size_t D) {
    for (size_t i = 0; i < n; i++) {
        const real *p = pooled + i * D, *f = factors + i * D, *v_row = v + i * v_stride;
        const size_t at = i * channels;
        for (size_t d = 0; d < D; d += TILE_LANES)
            row_put(out + at, d, D,
                    row_get(x + at, d, D) +
                        row_get(p, d, D) * row_get(f, d, D) * row_get(v_row, d, D));
    }
}

// out (n, D) = x + pooled * factors * v; rows of out and x are `channels` apart, those of v
// v_stride. out may be x.
static void add_product(real *out, const real *x, size_t channels, const real *pooled,
                        const real *factors, const real *v, size_t v_stride, size_t n, size_t D) {
    WITH_HEAD_SIZE(D, add_product_size, out, x, channels, pooled, factors, v, v_stride, n);
}

// x (n, D) += y (n, D); rows of x are `stride` apart.
static void add_rows(real *x, size_t stride, const real *y, size_t n, size_t D) {
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < D; d++) x[i * stride + d] += y[i * D + d];
}

// The gradients of gain (D) * pooled * factors: dpooled (n, D), dgain (D) += those from dout, whose
// rows are `stride` apart.
static void pooled_query_backward(real *dpooled, real *dgain, const real *dout, size_t stride,
                                  const real *gain, const real *pooled, const real *factors,
                                  size_t n, size_t D) {
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < D; d++) {
            const real dy = dout[i * stride + d] * factors[i * D + d];
            dpooled[i * D + d] += gain[d] * dy;
            dgain[d] += dy * pooled[i * D + d];
        }
}

// Where a head's result goes, starting with its first token: into y, from `row` and `column` on;
// or, if `out` is not NULL, out = x + result, with rows `channels` apart.
typedef struct {
    Matrix y;
    size_t row, column;
    real *out;
    const real *x;
    size_t channels;
} HeadResult;

// Continues from the state of both poolings. out may be x.
static void one_head_forward(const AttentionHead *h, Scratch *s, Pooling *query, Pooling *key,
                             const HeadResult *to, size_t T, size_t D) {
    for (size_t t = 0; t < T; t += TILE) {
        const size_t n = T - t < TILE ? T - t : TILE;
        const uint8_t *mask = h->mask ? h->mask + t : NULL;
        real *G = h->pooled_query + t * D, *P = h->pooled_key + t * D;
        const real *k = h->k + t * h->stride, *v = h->v + t * h->stride;
        const PoolRows q = {h->q + t * h->stride, h->stride, mask, n},
                       Gk = {s->product, D, mask, n};

        pool_forward(query, s, G, h->r_query + t, q, D);
        const real *factors = dropout_rows(h->drop_query, h->first + t * D, n * D, s);
        multiply(s->product, G, D, factors, k, h->stride, n, D);
        real *const passed = s->dproduct; // a buffer of the backward pass
        if (h->gain) multiply(passed, G, D, factors, h->gain, 0, n, D);

        pool_forward(key, s, P, h->r_key + t, Gk, D);
        factors = dropout_rows(h->drop_key, h->first + t * D, n * D, s);
        if (to->out) {
            const size_t C = to->channels;
            add_product(to->out + t * C, to->x + t * C, C, P, factors, v, h->stride, n, D);
            if (h->gain) add_rows(to->out + t * C, C, passed, n, D);
        } else {
            multiply(s->product, P, D, factors, v, h->stride, n, D);
            if (h->gain) add_rows(s->product, D, passed, n, D);
            gemm_input_store_rows(to->y, to->row + t, to->column, s->product, n, D);
        }
    }
}

// Where the gradients to a head's queries, keys and values go, from row `row` on, and their sums
// over rows (D), or NULL.
typedef struct {
    const AttentionGradients *to;
    size_t row, first; // first: the head's first column
    real *bias[3];
} HeadGradients;

static void store_gradient(const HeadGradients *g, AttentionPart part, size_t t, const real *dx,
                           size_t n, size_t D) {
    const AttentionGradient *to = &g->to->parts[part];
    gemm_input_store_rows(to->to, g->row + t, to->column + g->first, dx, n, D);
    for (size_t i = 0; g->bias[part] && i < n; i++)
        for (size_t d = 0; d < D; d++) g->bias[part][d] += dx[i * D + d];
}

// dout (T, D): gradient to the output, rows `channels` apart. dquery_weight, dkey_weight, dgain (D)
// += the gradients to w_q', w_k' and the gain.
static void one_head_backward(const AttentionHead *h, Scratch *s, Pooling *query, Pooling *key,
                              const HeadGradients *to, real *dquery_weight, real *dkey_weight,
                              real *dgain, const real *dout, size_t channels, size_t T, size_t D) {
    const size_t tiles = (T + TILE - 1) / TILE;
    for (size_t tile = tiles; tile-- > 0;) {
        const size_t t = tile * TILE, n = T - t < TILE ? T - t : TILE;
        const uint8_t *mask = h->mask ? h->mask + t : NULL;
        const real *G = h->pooled_query + t * D, *P = h->pooled_key + t * D;
        const real *k = h->k + t * h->stride, *v = h->v + t * h->stride;
        const PoolRows q = {h->q + t * h->stride, h->stride, mask, n},
                       Gk = {s->product, D, mask, n};

        // (P * factor) * v
        const real *factors = dropout_rows(h->drop_key, h->first + t * D, n * D, s);
        multiply(s->dpooled, dout + t * channels, channels, factors, v, h->stride, n, D);
        multiply(s->product, dout + t * channels, channels, factors, P, D, n, D);
        store_gradient(to, VALUE, t, s->product, n, D);

        // P = pool((G * factor) * k)
        factors = dropout_rows(h->drop_query, h->first + t * D, n * D, s);
        multiply(s->product, G, D, factors, k, h->stride, n, D);
        pool_backward(key, s, s->dproduct, dkey_weight, s->dpooled, P, h->r_key + t, Gk, D);
        multiply(s->dpooled, s->dproduct, D, factors, k, h->stride, n, D);
        multiply(s->product, s->dproduct, D, factors, G, D, n, D);
        store_gradient(to, KEY, t, s->product, n, D);

        // G = pool(q)
        if (h->gain)
            pooled_query_backward(s->dpooled, dgain, dout + t * channels, channels, h->gain, G,
                                  factors, n, D);
        pool_backward(query, s, s->dquery, dquery_weight, s->dpooled, G, h->r_query + t, q, D);
        store_gradient(to, QUERY, t, s->dquery, n, D);
    }
}

// ---- All heads --------------------------------------------------------------

static void pooling_carve(Pooling *p, Arena *arena, bool plain, size_t largest_window, size_t D,
                          const char *what) {
    p->plain = plain;
    if (plain)
        p->plain_sum = exp_window_carve(arena, largest_window, D + 1, what);
    else
        p->sum = window_sum_carve(arena, largest_window, D, what);
}

static void scratch_carve(Scratch *s, Arena *arena, bool plain, size_t largest_window, size_t D) {
    const char *what = "attention";
    const size_t rows = TILE * D + TILE_GAP;
    real **const tiles[] = {&s->centred, &s->sums,   &s->product, &s->dproduct,
                            &s->dpooled, &s->dquery, &s->factors, &s->ones};
    real **const numbers[] = {&s->deviation,    &s->inverse,      &s->along,       &s->e,
                              &s->total,        &s->share,        &s->dot,         &s->sum,
                              &s->value_factor, &s->score_factor, &s->mean_factor, &s->row_factor};
    for (size_t i = 0; i < sizeof(tiles) / sizeof(*tiles); i++)
        *tiles[i] = arena_reals(arena, rows, 1, what);
    s->row = arena_reals(arena, D + 1, 1, what);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        *numbers[i] = arena_reals(arena, TILE, 1, what);
    pooling_carve(&s->query, arena, plain, largest_window, D, what);
    pooling_carve(&s->key, arena, plain, largest_window, D, what);
    for (size_t i = 0; s->ones && i < rows; i++) s->ones[i] = 1;
}

// Working memory, shared by all layers of a model, which run one after the other.
typedef struct {
    size_t batch, largest_window, channels, heads, threads;
    bool plain;       // plain scores
    Scratch *scratch; // (threads)
    real *dweights;   // (B, 3, H, D) per sequence: gradients to w_q', w_k' and the gain
    real *dbias;      // (B, 3, H, D) per sequence: gradients to the biases of q, k and v
} AdditiveMemory;

static void *memory_create(const AttentionShape *shape) {
    AdditiveMemory *a = allocate(1, sizeof(*a), "attention");
    *a = (AdditiveMemory){.batch = shape->batch,
                          .largest_window = shape->largest_window,
                          .channels = shape->channels,
                          .heads = shape->heads,
                          .threads = (size_t)thread_limit(),
                          .plain = shape->plan->scores == SCORES_PLAIN};
    a->scratch = allocate(a->threads, sizeof(Scratch), "attention");
    return a;
}

static void memory_carve(void *memory, Arena *arena, bool training) {
    AdditiveMemory *a = memory;
    for (size_t i = 0; i < a->threads; i++)
        scratch_carve(&a->scratch[i], arena, a->plain, a->largest_window, a->channels / a->heads);
    if (!training) return;
    a->dweights = arena_reals(arena, a->batch, 3 * a->channels, "attention");
    a->dbias = arena_reals(arena, a->batch, 3 * a->channels, "attention");
}

static void memory_free(void *memory) {
    free(((AdditiveMemory *)memory)->scratch);
    free(memory);
}

// What a layer keeps for the backward pass.
typedef struct {
    real *weights, *deviations; // (2, H, D) w_q', w_k'; (2, H)
    real *pooled[2];            // (B, H, T, D) pooled queries and keys, before dropout
    real *r[2];                 // (B, H, T) 1 / (sum of e + c); with plain scores log(sum of e + c)
} AdditiveKept;

static size_t weight_numbers(size_t channels, size_t heads) {
    enum { LINE = 16 };
    return (2 * (channels + heads) + LINE - 1) / LINE * LINE;
}

static size_t kept_numbers(size_t rows, size_t channels, size_t heads) {
    return weight_numbers(channels, heads) + 2 * rows * (channels + heads);
}

static AdditiveKept layer_kept(const AttentionCall *call) {
    const size_t C = call->channels, H = call->heads, M = call->in.batch * call->in.queries;
    real *pooled = call->kept + weight_numbers(C, H), *r = pooled + 2 * M * C;
    return (AdditiveKept){call->kept, call->kept + 2 * C, {pooled, pooled + M * C}, {r, r + M * H}};
}

// Computes w_q' and w_k', or copies w_q and w_k with plain scores.
static void normalise_weights(real *normal, real *deviation, bool plain,
                              const real *const learned[ATTENTION_LEARNED], size_t heads,
                              size_t size) {
    for (size_t i = 0; i < 2; i++)
        if (plain)
            memcpy(normal + i * heads * size, learned[i], heads * size * sizeof(real));
        else
            normalise(normal + i * heads * size, deviation + i * heads, learned[i], heads, size);
}

static void pooling_start(Pooling *p, const AttentionPlan *plan, const real *weight, size_t size) {
    p->weight = weight;
    p->scale = p->plain ? 1 / sqrt((real)size) : (real)plan->rescale / (real)size;
    p->sink = (real)plan->sink;
    p->raw = plan->pool_raw;
    if (p->plain)
        exp_window_reset(&p->plain_sum, plan->window);
    else
        window_sum_reset(&p->sum, plan->window, size);
}

// Returns the gain (D) of a head's pooled queries, or NULL.
static const real *head_gain(const real *const learned[ATTENTION_LEARNED], size_t head,
                             size_t size) {
    return learned[ADDITIVE_GAIN] ? learned[ADDITIVE_GAIN] + head * size : NULL;
}

// Returns head `unit` of all sequences, and resets the thread's poolings to the start of its
// sequence.
static AttentionHead head_start(const AttentionCall *call, size_t unit, Scratch *s) {
    const AttentionInput *in = &call->in;
    const size_t T = in->queries, C = call->channels, H = call->heads, D = C / H, b = unit / H,
                 h = unit % H, stride = in->rows[QUERY].stride, at = b * T * stride + h * D;
    const AdditiveKept kept = layer_kept(call);
    pooling_start(&s->query, call->plan, kept.weights + h * D, D);
    pooling_start(&s->key, call->plan, kept.weights + C + h * D, D);
    return (AttentionHead){.q = in->rows[QUERY].x + at,
                           .k = in->rows[KEY].x + at,
                           .v = in->rows[VALUE].x + at,
                           .stride = stride,
                           .mask = in->mask ? in->mask + b * T : NULL,
                           .drop_query = in->dropout,
                           .drop_key = call->dropout,
                           .first = (in->first_row * H + unit) * T * D,
                           .gain = head_gain(call->learned, h, D),
                           .pooled_query = kept.pooled[0] + unit * T * D,
                           .r_query = kept.r[0] + unit * T,
                           .pooled_key = kept.pooled[1] + unit * T * D,
                           .r_key = kept.r[1] + unit * T};
}

static void forward(const AttentionCall *call) {
    const AdditiveMemory *a = call->memory;
    const size_t B = call->in.batch, T = call->in.queries, C = call->channels, H = call->heads,
                 D = C / H;
    const AdditiveKept kept = layer_kept(call);
    normalise_weights(kept.weights, kept.deviations, a->plain, call->learned, H, D);
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < B * H; unit++) {
        Scratch *s = &a->scratch[thread_index()];
        const AttentionHead head = head_start(call, unit, s);
        const size_t row = unit / H * T, column = unit % H * D, at = row * C + column;
        const HeadResult to = {call->y,
                               row,
                               column,
                               call->out ? call->out + at : NULL,
                               call->out ? call->x + at : NULL,
                               C};
        one_head_forward(&head, s, &s->query, &s->key, &to, T, D);
    }
}

// Sums parts (batch, count) into the first one, in order.
static void sum_parts(real *parts, size_t batch, size_t count) {
    for (size_t b = 1; b < batch; b++)
        for (size_t i = 0; i < count; i++) parts[i] += parts[b * count + i];
}

static void backward(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy) {
    const AdditiveMemory *a = call->memory;
    const size_t B = call->in.batch, T = call->in.queries, C = call->channels, H = call->heads,
                 D = C / H;
    const bool biased = gradients->parts[QUERY].bias;
    memset(a->dweights, 0, B * 3 * C * sizeof(real));
    if (biased) memset(a->dbias, 0, B * 3 * C * sizeof(real));
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < B * H; unit++) {
        Scratch *s = &a->scratch[thread_index()];
        const AttentionHead head = head_start(call, unit, s);
        const size_t b = unit / H, first = unit % H * D;
        real *dweight = a->dweights + b * 3 * C + first, *dbias = a->dbias + b * 3 * C + first;
        HeadGradients to = {.to = gradients, .row = b * T, .first = first};
        for (size_t part = QUERY; biased && part <= VALUE; part++) to.bias[part] = dbias + part * C;
        one_head_backward(&head, s, &s->query, &s->key, &to, dweight, dweight + C, dweight + 2 * C,
                          dy + b * T * C + first, C, T, D);
    }
    sum_parts(a->dweights, B, 3 * C);
    for (size_t c = 0; dlearned[ADDITIVE_GAIN] && c < C; c++)
        dlearned[ADDITIVE_GAIN][c] += a->dweights[2 * C + c];
    if (biased) sum_parts(a->dbias, B, 3 * C);
    for (size_t part = QUERY; biased && part <= VALUE; part++)
        for (size_t c = 0; c < C; c++) gradients->parts[part].bias[c] += a->dbias[part * C + c];
    const AdditiveKept kept = layer_kept(call);
    real *row = a->scratch[0].row;
    for (size_t i = 0; i < 2 * H; i++) {
        const real *dweight = a->dweights + i * D;
        if (!a->plain) {
            normalise_backward(row, dweight, kept.weights + i * D, kept.deviations[i], D);
            dweight = row;
        }
        real *target = dlearned[i / H] + i % H * D;
        for (size_t d = 0; d < D; d++) target[d] += dweight[d];
    }
}

// ---- What --stats measures --------------------------------------------------
// Measures the scores of one pooling, and their weights over its windows, from its input x (T, D),
// with rows `stride` apart. e and row (T) are buffers. kept (T): measures only the query `query`
// and keeps its weights; NULL: measures all queries and keeps nothing.
static void measure_pooling(Measurement *scores, Measurement *m, const Pooling *p, Scratch *s,
                            real *e, real *row, PoolRows in, size_t D, double *kept, size_t query) {
    for (size_t t = 0; !p->plain && t < in.n; t += TILE) {
        const size_t n = in.n - t < TILE ? in.n - t : TILE;
        pool_scores(
            p, s, (PoolRows){in.x + t * in.stride, in.stride, in.mask ? in.mask + t : NULL, n}, D);
        memcpy(e + t, s->e, n * sizeof(real));
        // |x' . w'| is at most D
        measurement_add_scores(scores, s->along, (double)D, in.mask ? in.mask + t : NULL, n);
    }
    for (size_t t = 0; p->plain && t < in.n; t++) e[t] = plain_score(p, &in, t, D);
    if (p->plain) measurement_add_scores(scores, e, 0, in.mask, in.n);
    const size_t window = p->plain ? p->plain_sum.window : p->sum.window;
    for (size_t i = 0; i < in.n; i++) {
        const size_t j = window && i + 1 > window ? i + 1 - window : 0, count = i + 1 - j;
        const uint8_t *mask = in.mask ? in.mask + j : NULL;
        if ((in.mask && !in.mask[i]) || (kept && i != query)) continue;
        m->row = kept ? kept + j : NULL;
        memcpy(row, e + j, count * sizeof(real));
        if (p->plain)
            attention_measure_exponentials(m, row, mask, count, (double)p->sink);
        else
            measurement_add_weights(m, row, mask, count, (double)p->sink);
    }
}

// product (T, D) = pooled (T, D) * x (T, D), whose rows are `stride` apart.
static void multiply_rows(real *product, const real *pooled, const real *x, size_t stride, size_t T,
                          size_t D) {
    for (size_t t = 0; t < T; t++)
        for (size_t d = 0; d < D; d++) product[t * D + d] = pooled[t * D + d] * x[t * stride + d];
}

// Each pooling has its own name. This also measures what is added to the residual stream.
static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]) {
    (void)tokens, (void)names;
    const AdditiveMemory *a = call->memory;
    const size_t T = call->in.queries, D = call->channels / call->heads,
                 units = call->in.batch * call->heads;
    Measurement *parts = allocate(units * ADDITIVE_PLACES, sizeof(*parts), "statistics");
    real *rows =
        allocate(a->threads * T * (2 + D), sizeof(real), "statistics"); // (threads, 2 T + T D)
    double *kept[ADDITIVE_PLACES] = {0};                                // (H, T)
    for (size_t place = QUERY_WEIGHTS; statistics->keeps && place <= KEY_WEIGHTS; place++)
        kept[place] = statistics_keep(
            statistics, statistics_find(statistics, layer, additive_places[place]), call->heads, T);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < units; i++) {
        const size_t thread = (size_t)thread_index();
        Scratch *s = &a->scratch[thread];
        Measurement *m = parts + i * ADDITIVE_PLACES;
        real *e = rows + thread * T * (2 + D), *row = e + T, *product = row + T;
        const AttentionHead h = head_start(call, i, s);
        double *keeps[2]; // of the first sequence
        for (size_t part = 0; part < 2; part++)
            keeps[part] = kept[QUERY_WEIGHTS + part] && i < call->heads
                              ? kept[QUERY_WEIGHTS + part] + i * T
                              : NULL;
        measure_pooling(&m[QUERY_SCORES], &m[QUERY_WEIGHTS], &s->query, s, e, row,
                        (PoolRows){h.q, h.stride, h.mask, T}, D, keeps[0], statistics->query);
        multiply_rows(product, h.pooled_query, h.k, h.stride, T, D);
        measure_pooling(&m[KEY_SCORES], &m[KEY_WEIGHTS], &s->key, s, e, row,
                        (PoolRows){product, D, h.mask, T}, D, keeps[1], statistics->query);
        if (!call->out) continue;
        multiply_rows(product, h.pooled_key, h.v, h.stride, T, D);
        for (size_t t = 0; h.gain && t < T; t++)
            for (size_t d = 0; d < D; d++)
                product[t * D + d] += h.gain[d] * h.pooled_query[t * D + d];
        measurement_add(&m[ADDITIVE_OUTPUT], product, h.mask, T, D);
    }
    for (size_t place = 0; place < (call->out ? ADDITIVE_PLACES : ADDITIVE_OUTPUT); place++) {
        Measurement *m = statistics_find(statistics, layer, additive_places[place]);
        for (size_t i = 0; i < units; i++)
            measurement_merge(m, &parts[i * ADDITIVE_PLACES + place]);
    }
    free(parts);
    free(rows);
}

// ---- Decoding: keeps the windows of a layer, so a token costs the same at any position ----

typedef struct {
    size_t threads;
    Arena *arena;               // of all arrays below
    real *weights, *deviations; // (2, H, D) w_q', w_k'; (2, H)
    Scratch *scratch;           // (threads)
    Pooling *poolings;          // (S, H, 2) query and key
} AdditiveState;

static void state_carve(AdditiveState *state, const AttentionDecoding *layer) {
    const size_t H = layer->heads, D = layer->channels / H, count = layer->streams * H * 2;
    const bool plain = layer->plan->scores == SCORES_PLAIN;
    state->weights = arena_reals(state->arena, 2, layer->channels, "decoder");
    state->deviations = arena_reals(state->arena, 2, H, "decoder");
    for (size_t i = 0; i < state->threads; i++)
        scratch_carve(&state->scratch[i], state->arena, plain, 0, D);
    for (size_t i = 0; i < count; i++)
        pooling_carve(&state->poolings[i], state->arena, plain, layer->plan->window, D, "decoder");
}

static void *state_create(const AttentionDecoding *layer) {
    const size_t C = layer->channels, H = layer->heads, D = C / H, count = layer->streams * H * 2;
    AdditiveState *state = allocate(1, sizeof(*state), "decoder");
    *state = (AdditiveState){.threads = (size_t)thread_limit(),
                             .arena = arena_create(),
                             .poolings = allocate(count, sizeof(Pooling), "decoder")};
    state->scratch = allocate(state->threads, sizeof(Scratch), "decoder");
    ARENA_CARVE(state->arena, state_carve(state, layer));
    normalise_weights(state->weights, state->deviations, layer->plan->scores == SCORES_PLAIN,
                      layer->learned, H, D);
    for (size_t i = 0; i < count; i++)
        pooling_start(&state->poolings[i], layer->plan, state->weights + i % 2 * C + i / 2 % H * D,
                      D);
    return state;
}

static void state_free(void *memory) {
    AdditiveState *state = memory;
    arena_free(state->arena);
    free(state->scratch);
    free(state->poolings);
    free(state);
}

static void step(void *memory, const AttentionDecoding *layer, const AttentionStep *token) {
    const AdditiveState *state = memory;
    const size_t C = layer->channels, H = layer->heads, D = C / H;
    const bool joins = !attention_projects(layer->plan);
    Scratch *s = &state->scratch[thread_index()];
    real *const pooled_query = s->dquery, *const pooled_key = s->dpooled; // backward buffers
#pragma omp for collapse(2) schedule(static) nowait
    for (size_t stream = 0; stream < layer->streams; stream++) {
        for (size_t h = 0; h < H; h++) {
            const real *q = token->qkv + stream * 3 * C + h * D;
            real r_query, r_key, *y = token->y + stream * C + h * D;
            const AttentionHead head = {.q = q,
                                        .k = q + C,
                                        .v = q + 2 * C,
                                        .stride = 3 * C,
                                        .gain = head_gain(layer->learned, h, D),
                                        .pooled_query = pooled_query,
                                        .r_query = &r_query,
                                        .pooled_key = pooled_key,
                                        .r_key = &r_key};
            const HeadResult to = {{token->y, C, false}, stream, h * D, joins ? y : NULL, y, C};
            Pooling *p = state->poolings + (stream * H + h) * 2;
            one_head_forward(&head, s, p, p + 1, &to, 1, D);
        }
    }
}

const AttentionKernel additive_kernel = {.create = memory_create,
                                         .carve = memory_carve,
                                         .free = memory_free,
                                         .kept = kept_numbers,
                                         .forward = forward,
                                         .backward = backward,
                                         .measure = measure,
                                         .state_create = state_create,
                                         .step = step,
                                         .state_free = state_free};
