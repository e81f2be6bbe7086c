// Pairwise attention as a kind (attention.h): the weights are those of pairwise_attention.h.
#include "attention.h"
#include "memory.h"
#include "pairwise_attention.h"
#include "threads.h"
#include <stdlib.h>
#include <string.h>

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

// Of a layer: its weights, their scores and their sum in each row, and whether that row is dead (1)
// or not (0).
typedef struct {
    Measurement *weights, *scores, *sums, *dead;
    double bound; // of scores; 0: none
    const AttentionInput *in;
    double *kept;             // (H, Tk) weights of the query `query` of the first sequence; NULL
    size_t heads, query, row; // row: those before this one, head by head
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

// The result of attention, before its projection.
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

// ---- decoding: keys, as they are compared, and values of all tokens so far ----

typedef struct {
    KeyValueCache cache;
    real *weights; // (threads, room)
} PairwiseState;

static void *state_create(const AttentionDecoding *layer) {
    PairwiseState *s = allocate(1, sizeof(*s), "decoder");
    s->cache = key_value_cache(layer, 0);
    return s;
}

static void state_grow(void *state, size_t count, size_t positions) {
    PairwiseState *s = state;
    const size_t room = s->cache.room;
    key_value_cache_grow(&s->cache, count, positions);
    if (s->cache.room == room) return;
    free(s->weights);
    s->weights = allocate((size_t)thread_limit(), s->cache.room * sizeof(real), "decoder");
}

static void step(void *state, const AttentionDecoding *layer, const AttentionStep *token) {
    const PairwiseState *s = state;
    const PairwiseKind kind = kind_of(layer->plan);
    const size_t C = layer->channels, H = layer->heads, D = C / H, t = token->count;
    const size_t window = layer->plan->window,
                 begin = window > 0 && t >= window ? t + 1 - window : 0;
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < s->cache.units; unit++) {
        const size_t stream = unit / H, h = unit % H;
        real *keys = s->cache.keys + unit * s->cache.room * D,
             *values = s->cache.values + unit * s->cache.room * D;
        real *q = token->qkv + stream * 3 * C + h * D;
        for (size_t d = 0; token->bias && d < D; d++)
            for (size_t part = QUERY; part <= VALUE; part++)
                q[part * C + d] += token->bias[part * C + h * D + d];
        memcpy(keys + t * D, q + C, D * sizeof(real));
        memcpy(values + t * D, q + 2 * C, D * sizeof(real));
        pairwise_attention_direct(kind, q, D);
        pairwise_attention_direct(kind, keys + t * D, D);
        pairwise_attention_decode(
            token->y + stream * C + h * D, s->weights + (size_t)thread_index() * s->cache.room,
            kind, layer->learned, h, q, keys + begin * D, values + begin * D, t + 1 - begin, D);
    }
}

static void state_free(void *state) {
    PairwiseState *s = state;
    key_value_cache_free(&s->cache);
    free(s->weights);
    free(s);
}

const AttentionKernel pairwise_kernel = {.adds_bias = true,
                                         .create = create,
                                         .carve = carve,
                                         .free = destroy,
                                         .forward = forward,
                                         .backward = backward,
                                         .measure = measure,
                                         .state_create = state_create,
                                         .state_grow = state_grow,
                                         .step = step,
                                         .state_free = state_free};
