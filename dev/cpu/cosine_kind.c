// Cosine attention as a kind (attention.h): the products are those of cosine_attention.h.
#include "attention.h"
#include "cosine_attention.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>

static void *create(const AttentionShape *s) {
    return cosine_attention_create(s->precision, s->plan->power, s->batch, s->length, s->length,
                                   s->channels, s->heads);
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

// Weights are the scores over n^power.
static void measure_row(Measurement *m, const AttentionCall *call, size_t h, real *scores,
                        const uint8_t *mask, size_t count) {
    const real *exponent = call->learned[0];
    const double power = exponent ? 1 / (1 + exp(-(double)exponent[h])) : call->plan->power;
    size_t seen = 0;
    for (size_t j = 0; j < count; j++) seen += !mask || mask[j];
    measurement_add_quotients(m, scores, mask, count, pow((double)seen, power));
}

static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *name) {
    attention_measure_pairs(call, true, measure_row, tokens, statistics,
                            statistics_find(statistics, layer, name));
}

// ---- decoding: a state of fixed size ----------------------------------------

typedef struct {
    size_t streams, channels, heads;
    double power;
    const real *exponent;
    real *sums; // (S, H, D, D)
} CosineState;

static void *state_create(const AttentionPlan *plan, const real *const learned[ATTENTION_LEARNED],
                          size_t streams, size_t channels, size_t heads) {
    const size_t D = channels / heads;
    CosineState *s = allocate(1, sizeof(*s), "decoder");
    *s = (CosineState){.streams = streams,
                       .channels = channels,
                       .heads = heads,
                       .power = plan->power,
                       .exponent = learned[0],
                       .sums = allocate(streams * heads, D * D * sizeof(real), "decoder")};
    return s;
}

static void step(void *state, const AttentionStep *token) {
    const CosineState *s = state;
    cosine_attention_decode(token->y, s->sums, token->qkv, token->bias, s->exponent, s->power,
                            token->count, s->streams, s->channels, s->heads);
}

static void state_free(void *state) {
    free(((CosineState *)state)->sums);
    free(state);
}

const AttentionKernel cosine_kernel = {.adds_bias = true,
                                       .create = create,
                                       .carve = carve,
                                       .free = destroy,
                                       .forward = forward,
                                       .backward = backward,
                                       .measure = measure,
                                       .state_create = state_create,
                                       .step = step,
                                       .state_free = state_free};
