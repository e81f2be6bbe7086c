// The attention kinds on the GPU: the functions of each, in a table.
#include "additive_attention.cuh"
#include "additive_global.cuh"
#include "attention.cuh"
#include "attention_statistics.cuh"
#include "attention_step.cuh"
#include "cosine_attention.cuh"
#include "softmax_attention.cuh"

// ---- decoding with keys and values ------------------------------------------

// Tokens to remember: a window, or `room` if the text is shorter.
static size_t window_room(const DeviceAttentionShape *s, size_t room) {
    const size_t window = s->plan->window;
    return window > 0 && window < room ? window : room;
}

static size_t key_value_memory(const DeviceAttentionShape *s, size_t room) {
    return 2 * window_room(s, room) * s->batch * s->channels;
}

static void key_value_step(const Device *d, const DeviceAttentionCall *call) {
    const DeviceAttentionShape *s = &call->shape;
    attention_step::KeyValues p = {};
    for (int part = QUERY; part <= VALUE; part++)
        p.rows[part] = (const float *)call->in.rows[part].data;
    p.exponent = call->learned[0];
    p.memory = call->memory.numbers;
    p.y = (float *)call->y.data;
    p.count = call->memory.count;
    p.stride = call->in.rows[QUERY].columns;
    p.y_stride = call->y.columns;
    p.streams = s->batch;
    p.channels = s->channels;
    p.room = window_room(s, call->memory.room);
    p.size = (int)(s->channels / s->heads);
    p.cosine = s->plan->kind == ATTENTION_COSINE;
    p.scale = 1 / sqrtf((float)p.size);
    p.log_sink = logf((float)s->plan->sink);
    p.power = (float)s->plan->power;
    launch_early(d, attention_step::key_value_kernel, blocks_of(s->batch * s->heads, 1),
                 attention_step::WARPS * WARP, 0, p);
}

// ---- what --stats measures of queries with keys -----------------------------

static void pairs_measure(const Device *d, const DeviceAttentionCall *call,
                          const DeviceStatistics *s, const uint8_t *tokens, size_t layer,
                          const char *const places[2]) {
    const AttentionPlan *plan = call->shape.plan;
    const bool cosine = plan->kind == ATTENTION_COSINE,
               rescaled = !cosine && plan->scores == SCORES_RESCALED && plan->rescale > 0;
    const float bound = rescaled ? (float)plan->rescale : 1,
                scale = 1 / (sqrtf((float)(call->in.channels / call->in.heads)) * bound);
    Measurement *weights = statistics_find(s->to, layer, places[0]),
                *scores = statistics_find(s->to, layer, places[1]);
    const MeasuredRows rows = {call->in,
                               tokens,
                               cosine || rescaled,
                               cosine ? QUOTIENTS : EXPONENTIALS,
                               bound,
                               logf((float)plan->sink),
                               call->learned[0],
                               (float)plan->power};
    WITH_TYPE(call->in.rows[QUERY], T,
              measuring::measure_pairs<T>(d, s, rows, scale, scores, weights));
}

// ---- softmax, softmax1 ------------------------------------------------------

static size_t softmax_workspace(const Device *d, const DeviceAttentionShape *s) {
    return softmax_attention_workspace(d, s->batch, s->length, s->channels, s->heads, s->in_bf16);
}

// The logarithms of the denominators (B, H, Tq).
static size_t softmax_kept(const DeviceAttentionShape *s) {
    return s->batch * s->length * s->heads;
}

static void softmax_forward(const Device *d, const DeviceAttentionCall *call) {
    softmax_attention_forward(d, call->y, call->kept, &call->in, call->shape.plan->sink);
}

static void softmax_backward(const Device *d, const DeviceAttentionCall *call,
                             const DeviceAttentionGradients *gradients, float *const *, Matrix dy) {
    softmax_attention_backward(d, gradients, dy, call->y, call->kept, &call->in, call->workspace);
}

// ---- cosine -----------------------------------------------------------------

static size_t cosine_workspace(const Device *, const DeviceAttentionShape *s) {
    return cosine_attention_workspace(s->batch, s->length, s->channels, s->heads);
}

static size_t nothing_kept(const DeviceAttentionShape *) {
    return 0;
}

static void cosine_forward(const Device *d, const DeviceAttentionCall *call) {
    cosine_attention_forward(d, call->y, call->learned[0], call->shape.plan->power, &call->in,
                             call->workspace);
}

static void cosine_backward(const Device *d, const DeviceAttentionCall *call,
                            const DeviceAttentionGradients *gradients, float *const *dlearned,
                            Matrix dy) {
    cosine_attention_backward(d, gradients, dlearned[0], dy, call->learned[0],
                              call->shape.plan->power, &call->in, call->workspace);
}

// ---- additive, in windows ---------------------------------------------------

static AdditiveAttention additive_of(const DeviceAttentionShape *s) {
    const AttentionPlan *plan = s->plan;
    const bool plain = plan->scores == SCORES_PLAIN;
    return {s->channels,       s->heads,       plan->window, (float)plan->rescale,
            (float)plan->sink, plan->pool_raw, plain,        s->batch,
            s->length};
}

static size_t additive_workspace(const Device *d, const DeviceAttentionShape *s) {
    const AdditiveAttention attention = additive_of(s);
    return additive_attention_workspace(d, &attention, s->training);
}

// The pooled queries and keys (B, H, T, D) and the reciprocals of the denominators (B, H, T), or
// with plain scores their logarithms.
static size_t additive_kept(const DeviceAttentionShape *s) {
    return 2 * s->batch * s->length * (s->channels + s->heads);
}

static AdditiveInput additive_input(const DeviceAttentionCall *call) {
    const DeviceAttentionShape *s = &call->shape;
    const size_t M = s->batch * s->length;
    float *const r = call->kept + 2 * M * s->channels;
    return {(const float *)call->in.rows[QUERY].data,
            {call->learned[ADDITIVE_QUERY], call->learned[ADDITIVE_KEY]},
            call->learned[ADDITIVE_GAIN],
            call->in.mask,
            call->in.dropout,
            call->dropout,
            call->kept,
            call->kept + M * s->channels,
            r,
            r + M * s->heads,
            call->workspace,
            call->in.batch,
            call->in.queries};
}

static void additive_forward(const Device *d, const DeviceAttentionCall *call) {
    const AdditiveAttention attention = additive_of(&call->shape);
    additive_attention_forward(d, &attention, call->y, call->x, additive_input(call));
}

static void additive_backward(const Device *d, const DeviceAttentionCall *call,
                              const DeviceAttentionGradients *gradients, float *const *dlearned,
                              Matrix dy) {
    const AdditiveAttention attention = additive_of(&call->shape);
    additive_attention_backward(
        d, &attention, gradients->parts[QUERY],
        {{dlearned[ADDITIVE_QUERY], dlearned[ADDITIVE_KEY], dlearned[ADDITIVE_GAIN]}}, dy,
        additive_input(call));
}

static size_t additive_memory(const DeviceAttentionShape *s, size_t room) {
    const size_t rows = s->plan->window == 0 ? 1 : window_room(s, room);
    return (1 + rows) * 2 * s->batch * (s->channels + 2 * s->heads);
}

static void additive_step(const Device *d, const DeviceAttentionCall *call) {
    const AdditiveAttention attention = additive_of(&call->shape);
    attention_step::Additive p = {};
    p.qkv = (const float *)call->in.rows[QUERY].data;
    for (int i = 0; i < 2; i++) p.learned[i] = call->learned[i];
    p.gain = call->learned[ADDITIVE_GAIN];
    p.memory = call->memory.numbers;
    p.y = (float *)call->y.data;
    p.x = call->x;
    p.count = call->memory.count;
    p.stride = call->in.rows[QUERY].columns;
    p.y_stride = call->y.columns;
    p.streams = call->shape.batch;
    p.channels = attention.channels;
    p.window = attention.window;
    p.size = (int)(attention.channels / attention.heads);
    p.plain = attention.plain;
    p.raw = attention.pool_raw;
    p.scale = p.plain ? 1 / sqrtf((float)p.size) : attention.rescale / (float)p.size;
    p.log_sink = logf(attention.sink);
    launch_early(d, attention_step::additive_kernel, blocks_of(p.streams * attention.heads, 1),
                 WARP, 0, p);
}

// Scores are measured once per token, weights in the windows of all queries.
static void additive_measure(const Device *d, const DeviceAttentionCall *call,
                             const DeviceStatistics *s, const uint8_t *tokens, size_t layer,
                             const char *const *) {
    const AttentionPlan *plan = call->shape.plan;
    const DeviceAttentionInput *in = &call->in;
    const AdditiveInput kept = additive_input(call);
    const size_t D = in->channels / in->heads, T = in->queries;
    const bool plain = plan->scores == SCORES_PLAIN;
    const auto pooled = [&](const float *x) { // pooled rows (B, H, T, D)
        return HeadRows<float>{x, in->heads * T * D, T * D, D};
    };
    const Values<float> parts[] = {{head_rows<float>(in, QUERY), {}},
                                   {head_rows<float>(in, KEY), pooled(kept.pooled_query)},
                                   {head_rows<float>(in, VALUE),
                                    pooled(kept.pooled_key), // the result
                                    kept.gain ? pooled(kept.pooled_query) : HeadRows<float>{},
                                    HeadRows<float>{kept.gain, 0, D, 0}}};
    Measurement *to[ADDITIVE_PLACES];
    for (int i = 0; i < (call->x ? ADDITIVE_PLACES : ADDITIVE_OUTPUT); i++)
        to[i] = statistics_find(s->to, layer, additive_places[i]);
    MeasuredRows rows = {*in,
                         tokens,
                         !plain,
                         EXPONENTIALS,
                         plain ? 1 : (float)plan->rescale,
                         logf((float)plan->sink),
                         NULL,
                         0};
    MeasuredRows once = {head_input(*in), NULL, !plain, NO_WEIGHTS, 1, 0, NULL, 0};
    for (int i = 0; i < 2; i++) {
        const Values<float> scores = measuring::pooling_scores(s, in);
        measuring::score_pooling(d, s, parts[i], call->learned[i], plain, in);
        statistics_rows(d, s, once, scores, to[QUERY_SCORES + i], NULL);
        statistics_rows(d, s, rows, scores, NULL, to[QUERY_WEIGHTS + i]);
    }
    if (!call->x) return;
    once.in.queries = T;
    once.in.keys = D;
    once.in.mask = NULL;
    once.tokens = tokens;
    once.bounded = false;
    statistics_rows(d, s, once, parts[VALUE], to[ADDITIVE_OUTPUT], NULL);
}

// ---- additive, of whole sequences -------------------------------------------

static size_t global_workspace(const Device *, const DeviceAttentionShape *s) {
    return additive_global_workspace(s->batch, s->length, s->channels, s->heads);
}

static size_t global_kept(const DeviceAttentionShape *s) {
    return additive_global_kept(s->batch, s->channels, s->heads);
}

static void global_forward(const Device *d, const DeviceAttentionCall *call) {
    additive_global_forward(d, call->y, call->kept, call->learned[0], &call->in, call->workspace);
}

static void global_backward(const Device *d, const DeviceAttentionCall *call,
                            const DeviceAttentionGradients *gradients, float *const *dlearned,
                            Matrix dy) {
    additive_global_backward(d, gradients, dlearned[0], dy, call->kept, call->learned[0], &call->in,
                             call->workspace);
}

template <typename T>
static void measure_global(const Device *d, const DeviceAttentionCall *call,
                           const DeviceStatistics *s, Measurement *scores, Measurement *weights) {
    const DeviceAttentionInput *in = &call->in;
    const size_t step = pooling::kept_numbers((int)(in->channels / in->heads));
    const MeasuredRows rows = {head_input(*in), NULL, false, EXPONENTIALS, 1, -INFINITY, NULL, 0};
    const HeadRows<float> factors[] = {{}, {call->kept, in->heads * step, step, 0}};
    for (int part = QUERY; part <= KEY; part++) {
        const Values<T> x = {head_rows<T>(in, (AttentionPart)part), factors[part]};
        measuring::score_pooling(d, s, x, call->learned[0] + (size_t)part * in->channels, true, in);
        statistics_rows(d, s, rows, measuring::pooling_scores(s, in), scores, weights);
    }
}

static void global_measure(const Device *d, const DeviceAttentionCall *call,
                           const DeviceStatistics *s, const uint8_t *, size_t layer,
                           const char *const places[2]) {
    Measurement *weights = statistics_find(s->to, layer, places[0]),
                *scores = statistics_find(s->to, layer, places[1]);
    WITH_TYPE(call->in.rows[QUERY], T, measure_global<T>(d, call, s, scores, weights));
}

// ---- the table --------------------------------------------------------------
// In softmax without a sink the key bias shifts all scores of a row equally and changes no weight.
// Its gradient would be rounding errors, which AdamW would turn into full steps.
const DeviceAttentionKernel attention_kernels[ATTENTION_KINDS] = {
    /* ATTENTION_SOFTMAX */
    {false, softmax_workspace, softmax_kept, softmax_forward, softmax_backward, key_value_memory,
     key_value_step, pairs_measure},
    /* ATTENTION_SOFTMAX1 */
    {true, softmax_workspace, softmax_kept, softmax_forward, softmax_backward, key_value_memory,
     key_value_step, pairs_measure},
    /* ATTENTION_COSINE */
    {true, cosine_workspace, nothing_kept, cosine_forward, cosine_backward, key_value_memory,
     key_value_step, pairs_measure},
    /* ATTENTION_ADDITIVE */
    {true, additive_workspace, additive_kept, additive_forward, additive_backward, additive_memory,
     additive_step, additive_measure},
    /* ATTENTION_ADDITIVE_GLOBAL */
    {true, global_workspace, global_kept, global_forward, global_backward, NULL, NULL,
     global_measure}, // bidirectional
    /* ATTENTION_PAIRWISE: CPU only */
};
