#include "additive_global.h"

#include "attention.h"
#include "error.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct AdditiveGlobal {
    size_t channels, heads, size; // C, H, D
    size_t batch, length;         // B and T that the memory is for
    real *weights;                // (B H, 2, T) of both poolings
    double *sums;                 // (B H, SUMS, D)
    real *rows;                   // (B H, D)
};

enum { DW_QUERY = 4, DW_KEY = 5, DBIAS = 6, SUMS = 9 };

// One head of one sequence. Rows are in float, sums over rows in double.
typedef struct {
    const AttentionInput *in;
    size_t sequence, first, size; // b, h D, D
    const real *w_query, *w_key;  // (D)
    real *alpha, *beta;           // (T) weights of queries and of p
    double *query, *key;          // (D) g, and sum of beta_j k_j; pool(p) is their product
    double *dquery, *dpooled;     // (D) gradients to g and to pool(p)
    double *dw_query, *dw_key;    // (D)
    double *dbias[3];             // (D) sums of the gradients' rows
    real *row;                    // (D) an output row
    Measurement *scores;          // receives the scores of both poolings, or NULL
} AdditiveGlobalHead;

AdditiveGlobal *additive_global_create(size_t batch, size_t length, size_t channels, size_t heads) {
    AdditiveGlobal *a = allocate(1, sizeof(*a), "attention");
    *a = (AdditiveGlobal){.channels = channels,
                          .heads = heads,
                          .size = channels / heads,
                          .batch = batch,
                          .length = length};
    return a;
}

void additive_global_carve(AdditiveGlobal *a, Arena *arena) {
    const char *what = "attention";
    a->weights = arena_reals(arena, a->batch * a->heads * 2, a->length, what);
    a->sums = arena_array(arena, a->batch * SUMS * a->channels, sizeof(double), what);
    a->rows = arena_reals(arena, a->batch, a->channels, what);
}

static void check_input(const AdditiveGlobal *a, const AttentionInput *in) {
    attention_check(in, a->batch, a->length, a->length);
    if (in->causal || in->queries != in->keys)
        fail("additive attention: a sequence to itself in both directions is all that it takes");
}

static AdditiveGlobalHead head_of(const AdditiveGlobal *a, size_t unit, const real *weights,
                                  const AttentionInput *in) {
    const size_t D = a->size, first = unit % a->heads * D;
    double *sums = a->sums + unit * SUMS * D;
    AdditiveGlobalHead head = {.in = in,
                               .sequence = unit / a->heads,
                               .first = first,
                               .size = D,
                               .w_query = weights + first,
                               .w_key = weights + a->channels + first,
                               .alpha = a->weights + unit * 2 * a->length,
                               .row = a->rows + unit * D};
    head.beta = head.alpha + a->length;
    head.query = sums;
    head.key = sums + D;
    head.dquery = sums + 2 * D;
    head.dpooled = sums + 3 * D;
    head.dw_query = sums + DW_QUERY * D;
    head.dw_key = sums + DW_KEY * D;
    for (size_t part = QUERY; part <= VALUE; part++) head.dbias[part] = sums + (DBIAS + part) * D;
    memset(sums, 0, SUMS * D * sizeof(double));
    return head;
}

// Element d of a row of queries, keys or values is x[d] + bias[d].
typedef struct {
    const real *x, *bias;
} Row;

static Row row_of(const AdditiveGlobalHead *head, AttentionPart part, size_t j) {
    const AttentionRows *from = &head->in->rows[part];
    return (Row){from->x + (head->sequence * head->in->keys + j) * from->stride + head->first,
                 from->bias ? from->bias + head->first : NULL};
}

static double at(Row row, size_t d) {
    return (double)(row.bias ? row.x[d] + row.bias[d] : row.x[d]);
}

// Computes the weights (T) that pool x_j * factor (D; NULL: 1), and the weighted sum (D) of the
// x_j.
static void pool(const AdditiveGlobalHead *head, AttentionPart part, const double *factor,
                 const real *w, real *weights, double *sum) {
    const size_t T = head->in->keys, D = head->size;
    const uint8_t *mask = head->in->mask ? head->in->mask + head->sequence * T : NULL;
    const double scale = 1 / sqrt((double)D);
    double largest = -INFINITY, total = 0;
    for (size_t j = 0; j < T; j++) {
        const Row row = row_of(head, part, j);
        double score = 0;
#pragma omp simd reduction(+ : score)
        for (size_t d = 0; d < D; d++)
            score += (double)w[d] * (factor ? factor[d] : 1) * at(row, d);
        weights[j] = (real)(scale * score);
        if ((!mask || mask[j]) && (double)weights[j] > largest) largest = (double)weights[j];
    }
    if (head->scores) measurement_add_scores(head->scores, weights, 0, mask, T);
    for (size_t j = 0; j < T; j++) {
        weights[j] = mask && !mask[j] ? 0 : (real)exp((double)weights[j] - largest);
        total += (double)weights[j];
    }
    for (size_t j = 0; j < T; j++) {
        if (weights[j] == 0) continue;
        weights[j] = (real)((double)weights[j] / total);
        const Row row = row_of(head, part, j);
        for (size_t d = 0; d < D; d++) sum[d] += (double)weights[j] * at(row, d);
    }
}

static AdditiveGlobalHead pool_both(const AdditiveGlobal *a, size_t unit, const real *weights,
                                    const AttentionInput *in, Measurement *scores) {
    AdditiveGlobalHead head = head_of(a, unit, weights, in);
    head.scores = scores;
    pool(&head, QUERY, NULL, head.w_query, head.alpha, head.query);
    pool(&head, KEY, head.query, head.w_key, head.beta, head.key);
    return head;
}

void additive_global_forward(const AdditiveGlobal *a, Matrix y, const real *weights,
                             const AttentionInput *in) {
    check_input(a, in);
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) {
        const AdditiveGlobalHead head = pool_both(a, unit, weights, in, NULL);
        for (size_t i = 0; i < in->queries; i++) {
            const Row value = row_of(&head, VALUE, i);
            for (size_t d = 0; d < a->size; d++)
                head.row[d] = (real)(head.query[d] * head.key[d] * at(value, d));
            gemm_input_store(y, head.sequence * in->queries + i, head.first, head.row, a->size);
        }
    }
}

// Stores head->row, the gradient to row j of a part.
static void store_gradient(const AdditiveGlobalHead *head, const AttentionGradients *gradients,
                           AttentionPart part, size_t j) {
    const AttentionGradient *to = &gradients->parts[part];
    for (size_t d = 0; d < head->size; d++) head->dbias[part][d] += (double)head->row[d];
    gemm_input_store(to->to, head->sequence * head->in->keys + j, to->column + head->first,
                     head->row, head->size);
}

// The gradients to the values, and to pool(p), which multiplies all values.
static void backward_values(const AdditiveGlobalHead *head, const AttentionGradients *gradients,
                            const real *dy, size_t channels) {
    for (size_t i = 0; i < head->in->queries; i++) {
        const Row value = row_of(head, VALUE, i);
        const real *dout = dy + (head->sequence * head->in->queries + i) * channels + head->first;
        for (size_t d = 0; d < head->size; d++) {
            head->dpooled[d] += (double)dout[d] * at(value, d);
            head->row[d] = (real)(head->query[d] * head->key[d] * (double)dout[d]);
        }
        store_gradient(head, gradients, VALUE, i);
    }
}

// Input and output of pool(), and their gradients.
typedef struct {
    AttentionPart part;
    const double *factor; // NULL: 1
    const real *w, *weights;
    const double *sum, *dpooled; // weighted sum of x_j; gradient to the pooled x_j * factor
    double *dw, *dfactor;
} Pooling;

static void pool_backward(const AdditiveGlobalHead *head, const Pooling *p,
                          const AttentionGradients *gradients) {
    const size_t D = head->size;
    const double scale = 1 / sqrt((double)D);
    double along = 0;
    for (size_t d = 0; d < D; d++)
        along += p->dpooled[d] * (p->factor ? p->factor[d] : 1) * p->sum[d];
    for (size_t j = 0; j < head->in->keys; j++) {
        const Row row = row_of(head, p->part, j);
        const double weight = (double)p->weights[j];
        double dweight = -along;
#pragma omp simd reduction(+ : dweight)
        for (size_t d = 0; d < D; d++)
            dweight += p->dpooled[d] * (p->factor ? p->factor[d] : 1) * at(row, d);
        const double dscore = scale * weight * dweight;
        for (size_t d = 0; d < D; d++) {
            const double factor = p->factor ? p->factor[d] : 1, x = at(row, d),
                         gradient = weight * p->dpooled[d] + dscore * (double)p->w[d];
            p->dw[d] += dscore * factor * x;
            if (p->dfactor) p->dfactor[d] += gradient * x;
            head->row[d] = (real)(factor * gradient);
        }
        store_gradient(head, gradients, p->part, j);
    }
}

static void add(real *to, const double *from, size_t count) {
    for (size_t i = 0; to && i < count; i++) to[i] += (real)from[i];
}

void additive_global_backward(const AdditiveGlobal *a, const AttentionGradients *gradients,
                              real *dweights, const real *dy, const real *weights,
                              const AttentionInput *in) {
    const size_t units = in->batch * a->heads, D = a->size;
    check_input(a, in);
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < units; unit++) {
        const AdditiveGlobalHead h = pool_both(a, unit, weights, in, NULL);
        backward_values(&h, gradients, dy, a->channels);
        const Pooling keys = {KEY, h.query, h.w_key, h.beta, h.key, h.dpooled, h.dw_key, h.dquery};
        const Pooling queries = {QUERY,   NULL,     h.w_query,  h.alpha,
                                 h.query, h.dquery, h.dw_query, NULL};
        pool_backward(&h, &keys, gradients);
        pool_backward(&h, &queries, gradients);
    }
    for (size_t unit = 0; unit < units; unit++) {
        const size_t first = unit % a->heads * D;
        const double *sums = a->sums + unit * SUMS * D;
        add(dweights + first, sums + DW_QUERY * D, D);
        add(dweights + a->channels + first, sums + DW_KEY * D, D);
        for (size_t part = QUERY; part <= VALUE; part++) {
            real *bias = gradients->parts[part].bias;
            add(bias ? bias + first : NULL, sums + (DBIAS + part) * D, D);
        }
    }
}

void additive_global_measure(const AdditiveGlobal *a, const real *weights, const AttentionInput *in,
                             double *kept, Measurement *m, Measurement *scores) {
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) {
        const AdditiveGlobalHead head = pool_both(a, unit, weights, in, scores);
        const uint8_t *mask = in->mask ? in->mask + head.sequence * in->keys : NULL;
        double *row = kept && unit < a->heads ? kept + unit * in->keys : NULL;
        m->row = row;
        measurement_add_weights(m, head.alpha, mask, in->keys, 0);
        m->row = row ? row + a->heads * in->keys : NULL;
        measurement_add_weights(m, head.beta, mask, in->keys, 0);
    }
}

// ---- as a kind of attention -------------------------------------------------

static void *create(const AttentionShape *s) {
    return additive_global_create(s->batch, s->length, s->channels, s->heads);
}

static void carve(void *memory, Arena *arena, bool training) {
    (void)training;
    additive_global_carve(memory, arena);
}

static void forward(const AttentionCall *call) {
    additive_global_forward(call->memory, call->y, call->learned[0], &call->in);
}

static void backward(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy) {
    additive_global_backward(call->memory, gradients, dlearned[0], dy, call->learned[0], &call->in);
}

static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]) {
    (void)tokens;
    Measurement *m = statistics_find(statistics, layer, names[0]);
    double *kept = statistics_keep(statistics, m, 2 * call->heads, call->in.keys);
    additive_global_measure(call->memory, call->learned[0], &call->in, kept, m,
                            statistics_find(statistics, layer, names[1]));
}

const AttentionKernel additive_global_kernel = {.adds_bias = true,
                                                .create = create,
                                                .carve = carve,
                                                .free = free,
                                                .forward = forward,
                                                .backward = backward,
                                                .measure = measure};
