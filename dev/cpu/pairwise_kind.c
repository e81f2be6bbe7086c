// Pairwise attention (pairwise_attention.h) as a kind of attention (attention.h).
#include "attention.h"
#include "memory.h"
#include "pairwise_attention.h"
#include <stdlib.h>

static PairwiseKind kind_of(const AttentionPlan *plan) {
    return (PairwiseKind){plan->similarity, plan->activation, plan->power};
}

static void *create(const AttentionShape *s) {
    return pairwise_attention_create(kind_of(s->plan), s->batch, s->length, s->length, s->channels,
                                     s->heads);
}

static void carve(void *memory, Arena *arena, bool training) {
    pairwise_attention_carve(memory, arena, training);
}

static void destroy(void *memory) {
    pairwise_attention_free(memory);
}

static void forward(const AttentionCall *call) {
    pairwise_attention_forward(call->memory, call->y, call->learned, &call->in);
}

static void backward(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy) {
    pairwise_attention_backward(call->memory, gradients, dlearned, dy, call->learned, &call->in);
}

// Measurements of a layer: weights, scores, the sum of weights in each row, and whether a row is
// dead (1) or not (0).
typedef struct {
    Measurement *weights, *scores, *sums, *dead;
    double bound; // of scores; 0: none
    const AttentionInput *in;
    double *kept;             // (H, Tk) weights of query `query` of the first sequence, or NULL
    size_t heads, query, row; // row: number of rows before this one, head by head
} PairwiseMeasurements;

static void measure_row(void *context, const real *weights, const real *scores, const uint8_t *mask,
                        size_t count) {
    PairwiseMeasurements *m = context;
    const size_t h = m->row / m->in->queries, i = m->row % m->in->queries;
    real sum = 0, dead = 1;
    m->weights->row = m->kept && h < m->heads && i == m->query
                          ? m->kept + h * m->in->keys + attention_first_key(m->in, i)
                          : NULL;
    m->row++;
    for (size_t j = 0; j < count; j++) {
        sum += weights[j];
        if (weights[j] != 0) dead = 0;
    }
    measurement_add_quotients(m->weights, weights, mask, count, 1);
    measurement_add_scores(m->scores, scores, m->bound, mask, count);
    measurement_add(m->sums, &sum, NULL, 1, 1);
    measurement_add(m->dead, &dead, NULL, 1, 1);
}

// Measures the output of attention before the projection.
static void measure_output(const AttentionCall *call, const uint8_t *tokens, Measurement *m) {
    real *row = allocate(call->channels, sizeof(real), "statistics");
    for (size_t i = 0; i < call->in.batch * call->in.queries; i++) {
        gemm_input_load(call->y, i, 0, row, call->channels);
        measurement_add(m, row, tokens ? tokens + i : NULL, 1, call->channels);
    }
    free(row);
}

static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]) {
    const PairwiseSimilarity similarity = call->plan->similarity;
    const bool bounded = similarity == SIMILARITY_COSINE || similarity == SIMILARITY_ANGLE;
    measure_output(call, tokens, statistics_find(statistics, layer, "attention_output"));
    PairwiseMeasurements m = {statistics_find(statistics, layer, names[0]),
                              statistics_find(statistics, layer, names[1]),
                              statistics_find(statistics, layer, "row_sums"),
                              statistics_find(statistics, layer, "dead_rows"),
                              bounded,
                              &call->in,
                              NULL,
                              call->heads,
                              statistics->query,
                              0};
    m.kept = statistics_keep(statistics, m.weights, call->heads, call->in.keys);
    pairwise_attention_measure(call->memory, call->learned, &call->in, tokens, measure_row, &m);
}

// ---- decoding: prepared keys, and values ------------------------------------

static void step(void *state, const AttentionDecoding *layer, const AttentionStep *token) {
    const KeyValueCache *cache = state;
    const PairwiseKind kind = kind_of(layer->plan);
    const size_t D = cache->head_size;
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < cache->units; unit++) {
        const KeyValueStep s = key_value_step(cache, token, unit);
        pairwise_attention_direct(kind, s.query, D);
        pairwise_attention_direct(kind, s.keys + s.own * D, D);
        pairwise_attention_decode(s.y, s.weights, kind, layer->learned, s.head, s.query, s.keys,
                                  s.values, s.count, D);
    }
}

const AttentionKernel pairwise_kernel = {.adds_bias = true,
                                         .create = create,
                                         .carve = carve,
                                         .free = destroy,
                                         .forward = forward,
                                         .backward = backward,
                                         .measure = measure,
                                         .state_create = key_value_cache_create,
                                         .state_grow = key_value_cache_grow,
                                         .step = step,
                                         .state_free = key_value_cache_free};
