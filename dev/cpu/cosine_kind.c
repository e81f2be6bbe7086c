// Cosine attention as a kind of attention (attention.h), computed by cosine_attention.h.
#include "attention.h"
#include "cosine_attention.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>

static void *create(const AttentionShape *s) {
    CosineAttention *a = cosine_attention_create(s->precision, s->plan->power, s->batch, s->length,
                                                 s->length, s->channels, s->heads);
    if (s->largest_window > 0) cosine_attention_set_window(a, s->largest_window);
    return a;
}

static void carve(void *memory, Arena *arena, bool training) {
    (void)training;
    cosine_attention_carve(memory, arena);
}

static void destroy(void *memory) {
    cosine_attention_free(memory);
}

static void forward(const AttentionCall *call) {
    cosine_attention_forward(call->memory, call->y, call->learned[0], &call->in);
}

static void backward(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy) {
    cosine_attention_backward(call->memory, gradients, dlearned[0], dy, call->learned[0],
                              &call->in);
}

// The weights are the scores divided by n^power.
static void measure_row(Measurement *m, const AttentionCall *call, size_t h, real *scores,
                        const uint8_t *mask, size_t count) {
    const real *exponent = call->learned[0];
    const double power = exponent ? 1 / (1 + exp(-(double)exponent[h])) : call->plan->power;
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    measurement_add_quotients(m, scores, mask, count, pow((double)seen, power));
}

static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]) {
    attention_measure_pairs(call, true, measure_row, tokens, statistics, layer, names);
}

// ---- decoding: a state of fixed size, or the keys and values of a window ----

typedef struct {
    real *sums;           // (S, H, D, D); or with a window,
    KeyValueCache *cache; // a ring of its last tokens
} CosineState;

static void *state_create(const AttentionDecoding *layer) {
    CosineState *s = allocate(1, sizeof(*s), "decoder");
    s->cache = key_value_cache_create(layer);
    const size_t D = s->cache->head_size;
    if (layer->plan->window == 0)
        s->sums = allocate(s->cache->units, D * D * sizeof(real), "decoder");
    return s;
}

static void state_grow(void *state, size_t count, size_t positions) {
    CosineState *s = state;
    if (!s->sums) key_value_cache_grow(s->cache, count, positions);
}

static void step(void *state, const AttentionDecoding *layer, const AttentionStep *token) {
    const CosineState *s = state;
    const CosineMemory memory = {layer->plan->window, s->sums, s->cache->keys, s->cache->values,
                                 s->cache->room};
    cosine_attention_decode(token->y, &memory, token->qkv, token->bias, layer->learned[0],
                            layer->plan->power, token->count, layer->streams, layer->channels,
                            layer->heads);
}

static void state_free(void *state) {
    CosineState *s = state;
    key_value_cache_free(s->cache);
    free(s->sums);
    free(s);
}

const AttentionKernel cosine_kernel = {.adds_bias = true,
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
