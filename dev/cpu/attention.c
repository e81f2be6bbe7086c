#include "attention.h"

#include "memory.h"
#include "threads.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const AttentionKernel *const kernels[ATTENTION_KINDS] = {
    [ATTENTION_SOFTMAX] = &softmax_kernel,
    [ATTENTION_SOFTMAX1] = &softmax_kernel,
    [ATTENTION_COSINE] = &cosine_kernel,
    [ATTENTION_ADDITIVE] = &additive_kernel,
    [ATTENTION_ADDITIVE_GLOBAL] = &additive_global_kernel,
    [ATTENTION_PAIRWISE] = &pairwise_kernel,
};

const AttentionKernel *attention_kernel(AttentionKind kind) {
    return kernels[kind];
}

void attention_memory_add(AttentionMemory *m, const AttentionShape *shape) {
    const AttentionKind kind = shape->plan->kind;
    if (!m->memory[kind]) m->memory[kind] = kernels[kind]->create(shape);
}

void attention_memory_carve(const AttentionMemory *m, Arena *arena, bool training) {
    for (size_t kind = 0; kind < ATTENTION_KINDS; kind++)
        if (m->memory[kind]) kernels[kind]->carve(m->memory[kind], arena, training);
}

void attention_memory_free(AttentionMemory *m) {
    for (size_t kind = 0; kind < ATTENTION_KINDS; kind++)
        if (m->memory[kind]) kernels[kind]->free(m->memory[kind]);
}

// ---- keys and values --------------------------------------------------------

static real *larger_cache(const KeyValueCache *c, real *old, size_t positions, size_t room) {
    const size_t D = c->head_size;
    real *larger = allocate(c->units * room, D * sizeof(real), "the cache of keys and values");
    for (size_t unit = 0; positions > 0 && unit < c->units; unit++)
        memcpy(larger + unit * room * D, old + unit * c->room * D, positions * D * sizeof(real));
    free(old);
    return larger;
}

void *key_value_cache_create(const AttentionDecoding *layer) {
    KeyValueCache *c = allocate(1, sizeof(*c), "decoder");
    *c = (KeyValueCache){.units = layer->streams * layer->heads,
                         .heads = layer->heads,
                         .head_size = layer->channels / layer->heads,
                         .ring = layer->plan->window};
    return c;
}

void key_value_cache_grow(void *cache, size_t count, size_t positions) {
    enum { FIRST_ROOM = 64 };
    KeyValueCache *c = cache;
    if (count < c->room || (c->ring > 0 && c->room == c->ring)) return;
    size_t room = c->room ? 2 * c->room : FIRST_ROOM;
    if (room > positions && count < positions) room = positions;
    if (c->ring > 0 && room > c->ring) room = c->ring;
    c->keys = larger_cache(c, c->keys, count, room);
    c->values = larger_cache(c, c->values, count, room);
    free(c->weights);
    c->weights = allocate((size_t)thread_limit(), room * sizeof(real), "decoder");
    c->room = room;
}

void key_value_cache_free(void *cache) {
    KeyValueCache *c = cache;
    free(c->keys);
    free(c->values);
    free(c->weights);
    free(c);
}

KeyValueStep key_value_step(const KeyValueCache *c, const AttentionStep *token, size_t unit) {
    const size_t D = c->head_size, C = c->heads * D, at = unit % c->heads * D,
                 own = token->count % c->room, first = unit * c->room * D;
    real *q = token->qkv + unit / c->heads * 3 * C + at;
    for (size_t part = QUERY; token->bias && part <= VALUE; part++)
        for (size_t d = 0; d < D; d++) q[part * C + d] += token->bias[part * C + at + d];
    memcpy(c->keys + first + own * D, q + C, D * sizeof(real));
    memcpy(c->values + first + own * D, q + 2 * C, D * sizeof(real));
    return (KeyValueStep){.head = unit % c->heads,
                          .own = own,
                          .count = token->count < c->room ? token->count + 1 : c->room,
                          .query = q,
                          .keys = c->keys + first,
                          .values = c->values + first,
                          .weights = c->weights + (size_t)thread_index() * c->room,
                          .y = token->y + unit * D};
}

// ---- what --stats measures of pairs -----------------------------------------
// Loads row t of a head's queries or keys (D), with bias; scaled to length 1 if `unit`.
static void load_row(const AttentionCall *call, bool unit, AttentionPart part, size_t b, size_t h,
                     size_t t, real *row) {
    const AttentionInput *in = &call->in;
    const size_t D = call->channels / call->heads, length = part == QUERY ? in->queries : in->keys;
    const AttentionRows *from = &in->rows[part];
    const real *x = from->x + (b * length + t) * from->stride + h * D;
    double square = 0;
    for (size_t d = 0; d < D; d++) {
        row[d] = from->bias ? x[d] + from->bias[h * D + d] : x[d];
        square += (double)row[d] * (double)row[d];
    }
    if (!unit) return;
    const double inverse = square > 1e-24 ? 1 / sqrt(square) : 0;
    for (size_t d = 0; d < D; d++) row[d] = (real)((double)row[d] * inverse);
}

void attention_measure_exponentials(Measurement *m, real *scores, const uint8_t *mask, size_t count,
                                    double sink) {
    real largest = sink > 0 ? (real)log(sink) : -INFINITY;
    for (size_t j = 0; mask && j < count; j++)
        if (!mask[j]) scores[j] = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (size_t j = 0; j < count; j++) largest = scores[j] > largest ? scores[j] : largest;
#pragma omp simd
    for (size_t j = 0; j < count; j++) scores[j] = vector_exp(scores[j] - largest);
    measurement_add_weights(m, scores, mask, count, sink * exp(-(double)largest));
}

// What the threads of attention_measure_pairs() share.
typedef struct {
    const AttentionCall *call;
    bool unit;
    MeasureRow row;
    const uint8_t *tokens;
    const real *keys; // (B, H, D, Tk) all keys, loaded
    real *rows;       // (threads, D + Tk) a query and its scores
    double *kept;     // (H, Tk) weights of query `query` of the first sequence, or NULL
    size_t query;
} Measuring;

// Adds the weights and scores of queries [first, last) of one head of one sequence (unit).
static void measure_rows(const Measuring *all, size_t unit, size_t first, size_t last,
                         Measurement *m, Measurement *of_scores) {
    const AttentionCall *call = all->call;
    const AttentionInput *in = &call->in;
    const size_t D = call->channels / call->heads, b = unit / call->heads, h = unit % call->heads;
    const real scale = all->unit ? 1 : 1 / (real)sqrt((double)D);
    const bool rescaled = call->plan->scores == SCORES_RESCALED;
    const double bound = all->unit ? 1 : rescaled ? call->plan->rescale : 0;
    real *query = all->rows + (size_t)thread_index() * (D + in->keys), *restrict scores = query + D;
    for (size_t i = first; i < last; i++) {
        if (all->tokens && !all->tokens[b * in->queries + i]) continue;
        if (all->kept && (b > 0 || i != all->query)) continue;
        const size_t begin = attention_first_key(in, i), count = attention_keys_end(in, i) - begin;
        const uint8_t *mask = in->mask ? in->mask + b * in->keys + begin : NULL;
        load_row(call, all->unit, QUERY, b, h, i, query);
        memset(scores, 0, count * sizeof(real));
        for (size_t d = 0; d < D; d++) {
            const real *key = all->keys + (unit * D + d) * in->keys + begin, q = scale * query[d];
#pragma omp simd
            for (size_t j = 0; j < count; j++) scores[j] += q * key[j];
        }
        measurement_add_scores(of_scores, scores, bound, mask, count);
        m->row = all->kept ? all->kept + h * in->keys + begin : NULL;
        all->row(m, call, h, scores, mask, count);
    }
}

// Returns the keys of all heads, dimension by dimension: (B, H, D, Tk). The caller frees them.
static real *load_keys(const AttentionCall *call, bool unit_length) {
    const AttentionInput *in = &call->in;
    const size_t H = call->heads, D = call->channels / H, units = in->batch * H;
    real *keys = allocate(units * D * in->keys, sizeof(real), "statistics"),
         *rows = allocate((size_t)thread_limit() * D, sizeof(real), "statistics");
#pragma omp parallel for schedule(static)
    for (size_t unit = 0; unit < units; unit++) {
        real *row = rows + (size_t)thread_index() * D;
        for (size_t t = 0; t < in->keys; t++) {
            load_row(call, unit_length, KEY, unit / H, unit % H, t, row);
            for (size_t d = 0; d < D; d++) keys[(unit * D + d) * in->keys + t] = row[d];
        }
    }
    free(rows);
    return keys;
}

void attention_measure_pairs(const AttentionCall *call, bool unit, MeasureRow row,
                             const uint8_t *tokens, Statistics *statistics, size_t layer,
                             const char *const names[2]) {
    enum { ROWS = 64 };
    Measurement *m = statistics_find(statistics, layer, names[0]),
                *of_scores = statistics_find(statistics, layer, names[1]);
    const AttentionInput *in = &call->in;
    const size_t D = call->channels / call->heads, blocks = (in->queries + ROWS - 1) / ROWS;
    const size_t count = in->batch * call->heads * blocks;
    Measurement *parts = allocate(2 * count, sizeof(*parts), "statistics");
    real *keys = load_keys(call, unit),
         *rows = allocate((size_t)thread_limit() * (D + in->keys), sizeof(real), "statistics");
    double *kept = statistics_keep(statistics, m, call->heads, in->keys);
    const Measuring all = {call, unit, row, tokens, keys, rows, kept, statistics->query};
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < count; i++) {
        const size_t first = i % blocks * ROWS, rest = in->queries - first;
        measure_rows(&all, i / blocks, first, first + (rest < ROWS ? rest : ROWS), &parts[2 * i],
                     &parts[2 * i + 1]);
    }
    for (size_t i = 0; i < count; i++) {
        measurement_merge(m, &parts[2 * i]);
        measurement_merge(of_scores, &parts[2 * i + 1]);
    }
    free(parts);
    free(keys);
    free(rows);
}
