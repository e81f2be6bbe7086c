// Softmax and softmax1 (softmax_attention.h) as kinds of attention (attention.h).
#include "attention.h"
#include "softmax_attention.h"
#include <string.h>

static void *create(const AttentionShape *s) {
    return softmax_attention_create(s->precision, s->plan->sink, s->batch, s->length, s->length,
                                    s->rows, s->channels, s->heads);
}

static void carve(void *memory, Arena *arena, bool training) {
    softmax_attention_carve(memory, arena, training);
}

static void destroy(void *memory) {
    softmax_attention_free(memory);
}

// Numbers kept for the backward pass: the logarithms of denominators (B, H, T).
static size_t kept(size_t rows, size_t channels, size_t heads) {
    (void)channels;
    return rows * heads;
}

static void forward(const AttentionCall *call) {
    softmax_attention_forward(call->memory, call->y, call->kept, &call->in);
}

static void backward(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy) {
    (void)dlearned;
    softmax_attention_backward(call->memory, gradients, dy, call->y, call->kept, &call->in);
    // Without a sink, the bias of the keys adds the same number to all scores of a row, which
    // changes no weight, so its gradient is 0. The computed gradient is rounding error, which AdamW
    // would turn into full steps.
    real *bias = gradients->parts[KEY].bias;
    if (call->plan->sink == 0 && bias) memset(bias, 0, call->channels * sizeof(real));
}

static void measure_row(Measurement *m, const AttentionCall *call, size_t h, real *scores,
                        const uint8_t *mask, size_t count) {
    (void)h;
    attention_measure_exponentials(m, scores, mask, count, call->plan->sink);
}

static void measure(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]) {
    attention_measure_pairs(call, false, measure_row, tokens, statistics, layer, names);
}

// ---- decoding: keys and values of the tokens so far, or of the window -------

static void step(void *state, const AttentionDecoding *layer, const AttentionStep *token) {
    const KeyValueCache *s = state;
    const AttentionCache cache = {
        .keys = s->keys, .values = s->values, .positions = s->room, .window = layer->plan->window};
    softmax_attention_decode(token->y, &cache, token->qkv, token->bias, layer->plan->sink,
                             token->count, layer->streams, layer->channels, layer->heads);
}

const AttentionKernel softmax_kernel = {.adds_bias = true,
                                        .create = create,
                                        .carve = carve,
                                        .free = destroy,
                                        .kept = kept,
                                        .forward = forward,
                                        .backward = backward,
                                        .measure = measure,
                                        .state_create = key_value_cache_create,
                                        .state_grow = key_value_cache_grow,
                                        .step = step,
                                        .state_free = key_value_cache_free};
