#include "pairwise_attention.h"

#include "arena.h"
#include "head_row.h"
#include "memory.h"
#include "sizes.h"
#include "threads.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double PI = 3.14159265358979324;
static const double SMALLEST_SINE = 1e-4; // lower bound, in the derivative of an angle
static const real LEAK = (real)0.1;       // slope of ACTIVATE_SOFT_RELU's gradient below 0

// Working memory of a thread, for one head of one sequence.
typedef struct {
    real *q, *k, *v;                   // (Tq, D), (Tk, D)
    real *dq, *dk, *dv;                // the same
    real *q_scale, *k_scale;           // (Tq), (Tk) 1 / length
    real *scores, *weights, *dweights; // (Tk) of a row
    real *result;                      // (D) of a row
    real *factors;                     // (Tk) of dropout
} Worker;

struct PairwiseAttention {
    PairwiseKind kind;
    size_t heads, channels, size; // H, C, D
    size_t batch, queries, keys;  // the largest B, Tq and Tk
    int threads;
    Worker *workers; // (threads)
    real *dbias;     // (B H, 3, D) sums over rows
    real *dlearned;  // (B H, PAIRWISE_LEARNED)
};

// The parameters of one head.
typedef struct {
    PairwiseKind kind;
    size_t size; // D
    real power, minkowski, factor, threshold;
} Head;

PairwiseAttention *pairwise_attention_create(PairwiseKind kind, size_t batch, size_t queries,
                                             size_t keys, size_t channels, size_t heads) {
    PairwiseAttention *a = allocate(1, sizeof(*a), "attention");
    *a = (PairwiseAttention){.kind = kind,
                             .heads = heads,
                             .channels = channels,
                             .size = channels / heads,
                             .batch = batch,
                             .queries = queries,
                             .keys = keys,
                             .threads = thread_limit()};
    a->workers = allocate((size_t)a->threads, sizeof(Worker), "attention");
    return a;
}

void pairwise_attention_carve(PairwiseAttention *a, Arena *arena, bool training) {
    const char *what = "attention";
    for (int i = 0; i < a->threads; i++) {
        Worker *w = &a->workers[i];
        w->q = arena_reals(arena, a->queries, a->size, what);
        w->k = arena_reals(arena, a->keys, a->size, what);
        w->v = arena_reals(arena, a->keys, a->size, what);
        w->q_scale = arena_reals(arena, 1, a->queries, what);
        w->k_scale = arena_reals(arena, 1, a->keys, what);
        w->scores = arena_reals(arena, 1, a->keys, what);
        w->weights = arena_reals(arena, 1, a->keys, what);
        w->factors = arena_reals(arena, 1, a->keys, what);
        w->result = arena_reals(arena, 1, a->size, what);
        if (!training) continue;
        w->dq = arena_reals(arena, a->queries, a->size, what);
        w->dk = arena_reals(arena, a->keys, a->size, what);
        w->dv = arena_reals(arena, a->keys, a->size, what);
        w->dweights = arena_reals(arena, 1, a->keys, what);
    }
    if (!training) return;
    a->dbias = arena_reals(arena, a->batch * a->heads, 3 * a->size, what);
    a->dlearned = arena_reals(arena, a->batch * a->heads, PAIRWISE_LEARNED, what);
}

void pairwise_attention_free(PairwiseAttention *a) {
    if (!a) return;
    free(a->workers);
    free(a);
}

static real logistic(real x) {
    return (real)(1 / (1 + exp(-(double)x)));
}

static Head head_of(PairwiseKind kind, const real *const learned[PAIRWISE_LEARNED], size_t h,
                    size_t size) {
    const real *power = learned[PAIRWISE_POWER], *minkowski = learned[PAIRWISE_MINKOWSKI];
    return (Head){.kind = kind,
                  .size = size,
                  .power = power ? logistic(power[h]) : (real)kind.power,
                  .minkowski = minkowski ? 1 + (real)exp((double)minkowski[h]) : 2,
                  .factor = learned[PAIRWISE_FACTOR] ? learned[PAIRWISE_FACTOR][h] : 1,
                  .threshold = learned[PAIRWISE_THRESHOLD] ? learned[PAIRWISE_THRESHOLD][h] : 0};
}

static bool directed(PairwiseKind kind) {
    return kind.similarity == SIMILARITY_COSINE || kind.similarity == SIMILARITY_ANGLE;
}

static bool exponential(PairwiseKind kind) {
    return kind.activation == ACTIVATE_SOFTMAX || kind.activation == ACTIVATE_SOFTMAX1;
}

// ---- similarity -------------------------------------------------------------
// Returns the largest |q - k|, and sets `place` to its index.
static real largest_difference(const real *q, const real *k, size_t n, size_t *place) {
    real largest = 0;
    *place = 0;
    for (size_t d = 0; d < n; d++) {
        const real difference = q[d] > k[d] ? q[d] - k[d] : k[d] - q[d];
        if (difference > largest) largest = difference, *place = d;
    }
    return largest;
}

// The mean of t^P, t = |q - k| / largest.
static double minkowski_mean(const real *q, const real *k, size_t n, double largest, double power) {
    double sum = 0;
    for (size_t d = 0; d < n; d++) sum += pow(fabs((double)(q[d] - k[d])) / largest, power);
    return sum / (double)n;
}

static real similarity(const Head *h, const real *restrict q, const real *restrict k) {
    const size_t D = h->size;
    size_t place;
    real sum = 0;
    switch (h->kind.similarity) {
    case SIMILARITY_DOT:
        return dot(q, k, D) / (real)sqrt((double)D);
    case SIMILARITY_COSINE:
        return dot(q, k, D);
    case SIMILARITY_ANGLE:
        return (real)(1 - acos(fmin(1, fmax(-1, (double)dot(q, k, D)))) / PI);
    case SIMILARITY_EUCLIDEAN:
#pragma omp simd reduction(+ : sum)
        for (size_t d = 0; d < D; d++) sum += (q[d] - k[d]) * (q[d] - k[d]);
        return -(real)sqrt((double)sum / (double)D);
    case SIMILARITY_MANHATTAN:
#pragma omp simd reduction(+ : sum)
        for (size_t d = 0; d < D; d++) sum += q[d] > k[d] ? q[d] - k[d] : k[d] - q[d];
        return -sum / (real)D;
    case SIMILARITY_CHEBYSHEV:
        return -largest_difference(q, k, D, &place);
    default: {
        const double largest = (double)largest_difference(q, k, D, &place),
                     power = (double)h->minkowski;
        if (largest == 0) return 0;
        return (real)(-largest * pow(minkowski_mean(q, k, D, largest, power), 1 / power));
    }
    }
}

// Minkowski similarity: adds to dq and dk, and returns the gradient of P, given the gradient g of
// the score.
static real minkowski_backward(const Head *h, real *restrict dq, real *restrict dk, real g,
                               const real *restrict q, const real *restrict k) {
    const size_t D = h->size;
    const double P = (double)h->minkowski;
    size_t place;
    const double largest = (double)largest_difference(q, k, D, &place);
    if (largest == 0) return 0;
    double sum = 0, logs = 0;
    for (size_t d = 0; d < D; d++) {
        const double t = fabs((double)(q[d] - k[d])) / largest, power = pow(t, P);
        sum += power;
        if (t > 0) logs += power * log(t);
    }
    const double mean = sum / (double)D, outer = pow(mean, 1 / P - 1) / (double)D;
    for (size_t d = 0; d < D; d++) {
        const double difference = (double)(q[d] - k[d]), t = fabs(difference) / largest;
        const real slope = (real)copysign(outer * pow(t, P - 1), -difference);
        if (t > 0) dq[d] += g * slope, dk[d] -= g * slope;
    }
    return g * (real)(largest * pow(mean, 1 / P) * (log(mean) / P - logs / sum) / P);
}

// Adds to dq and dk, given the gradient g of their score a. Returns the gradient of Minkowski's P.
static real similarity_backward(const Head *h, real *restrict dq, real *restrict dk, real g, real a,
                                const real *restrict q, const real *restrict k) {
    const size_t D = h->size;
    size_t place;
    real each = g;
    switch (h->kind.similarity) {
    case SIMILARITY_MINKOWSKI:
        return minkowski_backward(h, dq, dk, g, q, k);
    case SIMILARITY_CHEBYSHEV:
        if (largest_difference(q, k, D, &place) == 0) return 0;
        if (q[place] > k[place]) each = -g;
        dq[place] += each;
        dk[place] -= each;
        return 0;
    case SIMILARITY_MANHATTAN:
        for (size_t d = 0; d < D; d++) {
            const real step = q[d] > k[d] ? -g : q[d] < k[d] ? g : 0;
            dq[d] += step / (real)D;
            dk[d] -= step / (real)D;
        }
        return 0;
    case SIMILARITY_EUCLIDEAN: // a = -|q - k| / sqrt(D)
        each = a < 0 ? g / (a * (real)D) : 0;
        for (size_t d = 0; d < D; d++) {
            dq[d] += each * (q[d] - k[d]);
            dk[d] -= each * (q[d] - k[d]);
        }
        return 0;
    case SIMILARITY_ANGLE:
        each = (real)((double)g / (PI * fmax(SMALLEST_SINE, sin(PI * (1 - (double)a)))));
        break;
    case SIMILARITY_DOT:
        each = g / (real)sqrt((double)D);
        break;
    default:
        break;
    }
    add_multiple(dq, each, k, D);
    add_multiple(dk, each, q, D);
    return 0;
}

// ---- activation -------------------------------------------------------------
// Computes weights (n) from scores (n), which may be the same array; masked keys get 0. Returns the
// scale of the weights: 1 for exponentials, else 1 / s^p for s keys that are not masked.
static real weigh_exponentials(const Head *h, real *weights, const real *scores,
                               const uint8_t *mask, size_t n) {
    const bool sink = h->kind.activation == ACTIVATE_SOFTMAX1;
    real top = sink ? 0 : -INFINITY, sum;
    for (size_t j = 0; j < n; j++)
        if ((!mask || mask[j]) && scores[j] > top) top = scores[j];
    sum = sink ? vector_exp(-top) : 0;
    for (size_t j = 0; j < n; j++) {
        weights[j] = !mask || mask[j] ? vector_exp(scores[j] - top) : 0;
        sum += weights[j];
    }
    for (size_t j = 0; sum > 0 && j < n; j++) weights[j] /= sum;
    return 1;
}

static real weigh(const Head *h, real *weights, const real *scores, const uint8_t *mask, size_t n) {
    if (exponential(h->kind)) return weigh_exponentials(h, weights, scores, mask, n);
    size_t seen = 0;
    for (size_t j = 0; j < n; j++) seen += !mask || mask[j];
    const real scale = seen > 0 ? (real)exp(-(double)h->power * log((double)seen)) : 0;
    for (size_t j = 0; j < n; j++) {
        real a = scores[j];
        if (h->kind.activation == ACTIVATE_LEARNED_RELU) {
            a = a > h->threshold ? h->factor * (a - h->threshold) : 0;
        } else if (h->kind.activation == ACTIVATE_SIGMOID) {
            a = logistic(a);
        } else if (h->kind.activation != ACTIVATE_NONE) {
            a = a > 0 ? a : 0;
        }
        weights[j] = !mask || mask[j] ? a * scale : 0;
    }
    return scale;
}

// Returns the gradient of a score a, given the gradient g of its weight. Adds to dlearned.
static real activation_backward_of(const Head *h, real *dlearned, real g, real a, real scale) {
    switch (h->kind.activation) {
    case ACTIVATE_RELU:
        return a > 0 ? g * scale : 0;
    case ACTIVATE_SOFT_RELU:
        return g * scale * (a > 0 ? 1 : LEAK);
    case ACTIVATE_LEARNED_RELU:
        if (!(a > h->threshold)) return 0;
        dlearned[PAIRWISE_FACTOR] += g * scale * (a - h->threshold);
        dlearned[PAIRWISE_THRESHOLD] -= g * scale * h->factor;
        return g * scale * h->factor;
    case ACTIVATE_SIGMOID: {
        const real s = logistic(a);
        return g * scale * s * (1 - s);
    }
    default:
        return g * scale;
    }
}

// ---- passes -----------------------------------------------------------------
// Shared by all heads of one pass.
typedef struct {
    const PairwiseAttention *attention;
    const AttentionInput *in;
    const real *const *learned;
    const real *dy; // (B, Tq, C) or NULL
} Pass;

// One head of one sequence, loaded.
typedef struct {
    Head head;
    size_t unit, b, column; // its number, sequence, first channel
    const Worker *worker;
} Unit;

// Loads the rows of a part and adds the bias. If only their direction matters, scales them to
// length 1.
static void load_rows(const Pass *pass, const Unit *u, AttentionPart part, real *to, real *scales) {
    const AttentionInput *in = pass->in;
    const AttentionRows *from = &in->rows[part];
    const size_t D = u->head.size, length = part == QUERY ? in->queries : in->keys;
    for (size_t t = 0; t < length; t++) {
        const real *x = from->x + (u->b * length + t) * from->stride + u->column;
        real *row = to + t * D;
        for (size_t d = 0; d < D; d++) row[d] = x[d] + (from->bias ? from->bias[u->column + d] : 0);
        if (scales && directed(u->head.kind)) scales[t] = normalise(row, D);
    }
}

static Unit unit_load(const Pass *pass, size_t unit) {
    const PairwiseAttention *a = pass->attention;
    const size_t h = unit % a->heads;
    const Unit u = {.head = head_of(a->kind, pass->learned, h, a->size),
                    .unit = unit,
                    .b = unit / a->heads,
                    .column = h * a->size,
                    .worker = &a->workers[thread_index()]};
    load_rows(pass, &u, QUERY, u.worker->q, u.worker->q_scale);
    load_rows(pass, &u, KEY, u.worker->k, u.worker->k_scale);
    load_rows(pass, &u, VALUE, u.worker->v, NULL);
    return u;
}

// The keys that a query sees, and the scale of its weights.
typedef struct {
    size_t first, count;
    const uint8_t *mask; // (count) or NULL
    real scale;          // returned by weigh()
} Row;

static Row row_weigh(const Pass *pass, const Unit *u, size_t i) {
    const AttentionInput *in = pass->in;
    const Worker *w = u->worker;
    const size_t D = u->head.size, first = attention_first_key(in, i);
    Row row = {.first = first,
               .count = attention_keys_end(in, i) - first,
               .mask = in->mask ? in->mask + u->b * in->keys + first : NULL};
    for (size_t j = 0; j < row.count; j++)
        w->scores[j] = !row.mask || row.mask[j]
                           ? similarity(&u->head, w->q + i * D, w->k + (first + j) * D)
                           : 0;
    row.scale = weigh(&u->head, w->weights, w->scores, row.mask, row.count);
    return row;
}

// Computes the dropout factors of a row's weights; all are 1 without dropout.
static void row_factors(const Pass *pass, const Unit *u, size_t i, const Row *row) {
    const AttentionInput *in = pass->in;
    const uint64_t H = pass->attention->heads, h = u->unit % H,
                   width = round_up(in->keys, DROPOUT_BLOCK);
    const uint64_t line = ((in->first_row + u->b) * H + h) * in->queries + i;
    if (in->dropout)
        dropout_factors(in->dropout, line * width + row->first, row->count, u->worker->factors);
    else
        for (size_t j = 0; j < row->count; j++) u->worker->factors[j] = 1;
}

static void forward_unit(const Pass *pass, size_t unit, Matrix y) {
    const Unit u = unit_load(pass, unit);
    const Worker *w = u.worker;
    const size_t D = u.head.size;
    for (size_t i = 0; i < pass->in->queries; i++) {
        const Row row = row_weigh(pass, &u, i);
        row_factors(pass, &u, i, &row);
        memset(w->result, 0, D * sizeof(real));
        for (size_t j = 0; j < row.count; j++)
            add_multiple(w->result, w->weights[j] * w->factors[j], w->v + (row.first + j) * D, D);
        gemm_input_store(y, u.b * pass->in->queries + i, u.column, w->result, D);
    }
}

void pairwise_attention_forward(PairwiseAttention *a, Matrix y,
                                const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in) {
    const Pass pass = {a, in, learned, NULL};
    attention_check(in, a->batch, a->queries, a->keys);
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) forward_unit(&pass, unit, y);
}

// ---- backward ---------------------------------------------------------------

// Backward pass of query i: from dy to the gradients of its weights, its scores, q, k, v and what
// is learned.
static void backward_row(const Pass *pass, const Unit *u, size_t i, real *dlearned) {
    const Worker *w = u->worker;
    const size_t D = u->head.size, C = pass->attention->channels;
    const real *dy = pass->dy + (u->b * pass->in->queries + i) * C + u->column;
    const Row row = row_weigh(pass, u, i);
    row_factors(pass, u, i, &row);
    real along = 0; // sum of w dw
    size_t seen = 0;
    for (size_t j = 0; j < row.count; j++) {
        const size_t at = (row.first + j) * D;
        if (row.mask && !row.mask[j]) continue;
        w->dweights[j] = dot(dy, w->v + at, D) * w->factors[j];
        along += w->weights[j] * w->dweights[j];
        seen++;
        add_multiple(w->dv + at, w->weights[j] * w->factors[j], dy, D);
    }
    for (size_t j = 0; j < row.count; j++) {
        const size_t at = (row.first + j) * D;
        if (row.mask && !row.mask[j]) continue;
        const real g = exponential(u->head.kind)
                           ? w->weights[j] * (w->dweights[j] - along)
                           : activation_backward_of(&u->head, dlearned, w->dweights[j],
                                                    w->scores[j], row.scale);
        if (g != 0)
            dlearned[PAIRWISE_MINKOWSKI] += similarity_backward(
                &u->head, w->dq + i * D, w->dk + at, g, w->scores[j], w->q + i * D, w->k + at);
    }
    if (seen > 0 && !exponential(u->head.kind))
        dlearned[PAIRWISE_POWER] -= along * (real)log((double)seen);
}

// Stores the gradients of a part's rows and adds them up for its bias. If only the direction of
// rows matters, goes through their normalisation first.
static void store_rows(const Pass *pass, const Unit *u, AttentionPart part,
                       const AttentionGradient *to, real *gradients, const real *x,
                       const real *scales) {
    const PairwiseAttention *a = pass->attention;
    const size_t D = a->size, length = part == QUERY ? pass->in->queries : pass->in->keys;
    real *bias = a->dbias + (u->unit * 3 + part) * D;
    for (size_t t = 0; t < length; t++) {
        real *g = gradients + t * D;
        if (scales && directed(a->kind)) differentiate_normalise(g, x + t * D, scales[t], D);
        gemm_input_store(to->to, u->b * length + t, to->column + u->column, g, D);
        for (size_t d = 0; d < D; d++) bias[d] += g[d];
    }
}

static void backward_unit(const Pass *pass, size_t unit, const AttentionGradients *gradients) {
    const PairwiseAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const Unit u = unit_load(pass, unit);
    const Worker *w = u.worker;
    real *dlearned = a->dlearned + unit * PAIRWISE_LEARNED;
    memset(w->dq, 0, in->queries * a->size * sizeof(real));
    memset(w->dk, 0, in->keys * a->size * sizeof(real));
    memset(w->dv, 0, in->keys * a->size * sizeof(real));
    memset(a->dbias + unit * 3 * a->size, 0, 3 * a->size * sizeof(real));
    memset(dlearned, 0, PAIRWISE_LEARNED * sizeof(real));
    for (size_t i = 0; i < in->queries; i++) backward_row(pass, &u, i, dlearned);
    dlearned[PAIRWISE_POWER] *= u.head.power * (1 - u.head.power); // derivative of logistic()
    dlearned[PAIRWISE_MINKOWSKI] *= u.head.minkowski - 1;          // derivative of 1 + exp(r)
    store_rows(pass, &u, QUERY, &gradients->parts[QUERY], w->dq, w->q, w->q_scale);
    store_rows(pass, &u, KEY, &gradients->parts[KEY], w->dk, w->k, w->k_scale);
    store_rows(pass, &u, VALUE, &gradients->parts[VALUE], w->dv, w->v, NULL);
}

void pairwise_attention_backward(PairwiseAttention *a, const AttentionGradients *gradients,
                                 real *const dlearned[PAIRWISE_LEARNED], const real *dy,
                                 const real *const learned[PAIRWISE_LEARNED],
                                 const AttentionInput *in) {
    const Pass pass = {a, in, learned, dy};
    const size_t units = in->batch * a->heads, D = a->size;
    attention_check(in, a->batch, a->queries, a->keys);
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < units; unit++) backward_unit(&pass, unit, gradients);
    for (size_t unit = 0; unit < units; unit++) {
        const size_t h = unit % a->heads;
        for (size_t i = 0; i < PAIRWISE_LEARNED; i++)
            if (dlearned[i]) dlearned[i][h] += a->dlearned[unit * PAIRWISE_LEARNED + i];
        for (size_t part = QUERY; part <= VALUE; part++) {
            real *bias = gradients->parts[part].bias;
            for (size_t d = 0; bias && d < D; d++)
                bias[h * D + d] += a->dbias[(unit * 3 + part) * D + d];
        }
    }
}

// ---- what --stats measures --------------------------------------------------

void pairwise_attention_measure(PairwiseAttention *a, const real *const learned[PAIRWISE_LEARNED],
                                const AttentionInput *in, const uint8_t *tokens,
                                PairwiseVisit visit, void *context) {
    const Pass pass = {a, in, learned, NULL};
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) {
        const Unit u = unit_load(&pass, unit);
        for (size_t i = 0; i < in->queries; i++) {
            if (tokens && !tokens[u.b * in->queries + i]) continue;
            const Row row = row_weigh(&pass, &u, i);
            visit(context, u.worker->weights, u.worker->scores, row.mask, row.count);
        }
    }
}

// ---- decoding ---------------------------------------------------------------

void pairwise_attention_direct(PairwiseKind kind, real *row, size_t size) {
    if (directed(kind)) normalise(row, size);
}

void pairwise_attention_decode(real *restrict y, real *restrict weights, PairwiseKind kind,
                               const real *const learned[PAIRWISE_LEARNED], size_t h, const real *q,
                               const real *keys, const real *values, size_t count, size_t size) {
    const Head head = head_of(kind, learned, h, size);
    for (size_t j = 0; j < count; j++) weights[j] = similarity(&head, q, keys + j * size);
    weigh(&head, weights, weights, NULL, count);
    memset(y, 0, size * sizeof(real));
    for (size_t j = 0; j < count; j++) add_multiple(y, weights[j], values + j * size, size);
}
