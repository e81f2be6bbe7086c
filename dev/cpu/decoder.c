#include "decoder.h"

#include "barrier.h"
#include "decode.h"
#include "error.h"
#include "layernorm.h"
#include "memory.h"
#include "query_key.h"
#include "threads.h"
#include "transformer.h"
#include <stdlib.h>
#include <string.h>

// A linear layer, packed for decoding.
typedef struct {
    DecodeWeight weight;
    size_t bias; // or NO_PARAMETER
} DecoderLinear;

typedef struct {
    const LayerPlan *plan;
    const AttentionKernel *kernel;
    AttentionDecoding attention;
    void *state;  // of attention
    real *before; // (2, S, --token-shift's channels) of the previous and the current token
    DecoderLinear qkv, projection, up, down;
} DecoderLayer;

typedef struct {
    const CpuModel *model;
    const TransformerPlan *plan;
    DecoderLayer *layers; // (L)
    size_t streams;       // S
    size_t position;      // of the next token
    size_t count;         // tokens read
    int threads;          // of the parallel region
    real *x, *added,
        *attended; // (S, C) the residual stream; what is added to it; attention's output
    real *projected,
        *prepared;            // (S, 3C) at most: queries, keys and values; as attention reads them
    real *hidden, *activated; // (S, F), SwiGLU (S, 2F); (S, F), the same array unless SwiGLU
    const real *sinusoids, *angles; // shared with the model
    real *norm; // (threads, S, C) every thread computes all of it, which is faster than a barrier
    DecodeWeight classifier; // (V, C)
    Barrier barrier;         // between the threads
} Decoder;

// ---- creation ---------------------------------------------------------------

static real *buffer(size_t rows, size_t columns) {
    return allocate(rows, columns * sizeof(real), "decoder");
}

static const real *values_at(const Decoder *d, size_t offset) {
    return offset == NO_PARAMETER ? NULL : d->model->state.values + offset;
}

static DecoderLinear decoder_linear(const Decoder *d, Precision precision,
                                    const LinearParameters *parameters) {
    return (DecoderLinear){decode_weight_create(precision, values_at(d, parameters->weight),
                                                parameters->shape.outputs, parameters->shape.inputs,
                                                parameters->shape.layout),
                           parameters->bias};
}

static DecoderLayer layer_create(const Decoder *d, const LayerPlan *plan) {
    const Precision precision = d->model->decoding;
    const AttentionPlan *a = &plan->attention;
    DecoderLayer layer = {
        .plan = plan,
        .kernel = attention_kernel(a->kind),
        .attention = {a, {NULL}, d->streams, d->plan->size.channels, d->plan->size.heads},
        .qkv = decoder_linear(d, attention_types[a->kind].exact ? PRECISION_FLOAT32 : precision,
                              &a->qkv),
        .up = decoder_linear(d, precision, &plan->ffn.up),
        .down = decoder_linear(d, precision, &plan->ffn.down),
    };
    if (attention_projects(a)) layer.projection = decoder_linear(d, precision, &a->projection);
    for (size_t i = 0; i < ATTENTION_LEARNED; i++)
        layer.attention.learned[i] = values_at(d, a->learned[i]);
    layer.state = layer.kernel->state_create(&layer.attention);
    layer.before = buffer(2 * d->streams, a->shifted);
    return layer;
}

enum { LINEARS = 4 }; // of a layer

static size_t layer_weights(const DecoderLayer *layer) {
    const DecoderLinear *const linears[LINEARS] = {&layer->qkv, &layer->projection, &layer->up,
                                                   &layer->down};
    size_t weights = 0;
    for (size_t i = 0; i < LINEARS; i++) weights += linears[i]->weight.n * linears[i]->weight.k;
    return weights;
}

void *decoder_create(void *model, int streams) {
    const Transformer *t = model;
    const ModelSizes *size = &t->plan.size;
    const size_t S = (size_t)streams, C = size->channels, V = size->vocabulary;
    size_t weights = V * C;
    Decoder *d = allocate(1, sizeof(Decoder), "decoder");
    *d = (Decoder){.model = &t->model,
                   .plan = &t->plan,
                   .streams = S,
                   .sinusoids = t->sinusoids,
                   .angles = t->angles};
    d->layers = allocate(size->layers, sizeof(DecoderLayer), "decoder");
    for (size_t l = 0; l < size->layers; l++) {
        d->layers[l] = layer_create(d, &t->plan.layers[l]);
        weights += layer_weights(&d->layers[l]);
    }
    d->classifier =
        decode_weight_create(d->model->decoding, values_at(d, t->plan.output), V, C, WEIGHT_OUT_IN);
    d->threads = decode_threads(weights);
    d->x = buffer(S, C);
    d->added = buffer(S, C);
    d->attended = buffer(S, C);
    d->projected = buffer(S, 3 * C);
    d->prepared = buffer(S, 3 * C);
    d->hidden = buffer(S, activation_inputs(t->plan.activation) * t->plan.inner);
    d->activated = t->plan.activation == SWIGLU ? buffer(S, t->plan.inner) : d->hidden;
    d->norm = buffer((size_t)d->threads * S, C);
    return d;
}

void decoder_destroy(void *decoder) {
    Decoder *d = decoder;
    if (d->activated != d->hidden) free(d->activated);
    for (size_t l = 0; l < d->plan->size.layers; l++) {
        DecoderLayer *layer = &d->layers[l];
        DecoderLinear *const linears[LINEARS] = {&layer->qkv, &layer->projection, &layer->up,
                                                 &layer->down};
        for (size_t i = 0; i < LINEARS; i++) decode_weight_free(&linears[i]->weight);
        layer->kernel->state_free(layer->state);
        free(layer->before);
    }
    real *const buffers[] = {d->x,        d->added,  d->attended, d->projected,
                             d->prepared, d->hidden, d->norm};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) free(buffers[i]);
    decode_weight_free(&d->classifier);
    free(d->layers);
    free(d);
}

// ---- a token ----------------------------------------------------------------
//
// All threads of one parallel region call these functions, each for its share of the columns. A
// barrier separates writing an array from reading all of it.

// Called before the parallel region: x = token embedding + position, tokens (S).
static void embed(Decoder *d, const int32_t *tokens) {
    const size_t C = d->plan->size.channels;
    const EmbeddingPlan *embedding = &d->plan->stacks[0].embedding;
    const real *place = d->sinusoids ? d->sinusoids : values_at(d, embedding->position);
    if (d->position == d->plan->size.positions)
        fail("decoding: the model has %zu positions, no token can follow", d->plan->size.positions);
    for (size_t s = 0; s < d->streams; s++) {
        const real *row = values_at(d, embedding->token) + (size_t)tokens[s] * C;
        for (size_t i = 0; i < C; i++)
            d->x[s * C + i] = place ? row[i] + place[d->position * C + i] : row[i];
    }
}

// Returns LayerNorm of x (S, C), all of it for the calling thread.
static real *normalise(const Decoder *d, const NormParameters *parameters) {
    const size_t S = d->streams, C = d->plan->size.channels;
    real *norm = d->norm + (size_t)thread_index() * S * C;
    for (size_t s = 0; s < S; s++)
        layernorm_row(norm + s * C, d->x + s * C, values_at(d, parameters->gain),
                      values_at(d, parameters->bias), parameters->epsilon, C);
    return norm;
}

// x += input W^T + bias.
static void add_product(Decoder *d, const real *input, const DecoderLinear *linear) {
    const size_t C = d->plan->size.channels;
    const DecodeShare share = decode_share(C);
    decode_product(d->added, input, &linear->weight, values_at(d, linear->bias), d->streams);
    for (size_t s = 0; s < d->streams; s++)
        for (size_t i = share.begin; i < share.begin + share.count; i++)
            d->x[s * C + i] += d->added[s * C + i];
    barrier_wait(&d->barrier);
}

// Computes activated (S, F) from hidden (S, F or 2F); each thread its share of the columns.
static void activate(Decoder *d) {
    const size_t F = d->plan->inner;
    const bool gated = d->plan->activation == SWIGLU;
    const DecodeShare share = decode_share(F);
    if (gated) barrier_wait(&d->barrier); // other threads computed what this one reads
    for (size_t s = 0; s < d->streams; s++) {
        real *y = d->activated + s * F + share.begin;
        const real *x = d->hidden + s * 2 * F + share.begin;
        if (gated)
            swiglu_row(y, x, x + F, share.count);
        else
            activation_row(y, d->plan->activation, share.count);
    }
    barrier_wait(&d->barrier);
}

static void decode_ffn(Decoder *d, const DecoderLayer *layer) {
    decode_product(d->hidden, normalise(d, &layer->plan->ffn.norm), &layer->up.weight,
                   values_at(d, layer->up.bias), d->streams);
    activate(d);
    add_product(d, d->activated, &layer->down);
}

// Returns queries, keys and values as attention reads them; each thread prepares some of the
// streams.
static real *prepare(Decoder *d, const DecoderLayer *layer) {
    const AttentionPlan *plan = &layer->plan->attention;
    if (!plan->prepares) return d->projected;
    const size_t C = d->plan->size.channels, N = layer->qkv.weight.n;
    const QueryKeyShape shape = query_key_shape(plan, C, d->plan->size.heads, d->angles);
    for (size_t s = (size_t)thread_index(); s < d->streams; s += (size_t)d->threads)
        query_key_row(d->prepared + s * 3 * C, d->projected + s * N, NULL,
                      values_at(d, plan->gains), &shape, d->position);
    barrier_wait(&d->barrier);
    return d->prepared;
}

// Returns the input of the product for queries, keys and values, like normalise(). One thread
// stores what the next token needs, in the half that no thread reads for this token.
static const real *attention_input(const Decoder *d, const DecoderLayer *layer) {
    const size_t S = d->streams, C = d->plan->size.channels, N = layer->plan->attention.shifted;
    const real *before = layer->before + d->count % 2 * S * N;
    real *next = layer->before + (d->count + 1) % 2 * S * N;
    real *norm = normalise(d, &layer->plan->attention.norm);
    for (size_t s = 0; s < S; s++) {
        if (thread_index() == 0) memcpy(next + s * N, norm + s * C, N * sizeof(real));
        memcpy(norm + s * C, before + s * N, N * sizeof(real));
    }
    return norm;
}

static void decode_attention(Decoder *d, const DecoderLayer *layer) {
    const AttentionPlan *plan = &layer->plan->attention;
    const real *bias = values_at(d, layer->qkv.bias);
    const bool adds_bias = layer->kernel->adds_bias && !plan->prepares,
               projects = attention_projects(plan);
    decode_product(d->projected, attention_input(d, layer), &layer->qkv.weight,
                   adds_bias ? NULL : bias, d->streams);
    barrier_wait(&d->barrier);
    const AttentionStep token = {prepare(d, layer), adds_bias ? bias : NULL,
                                 projects ? d->attended : d->x, d->count};
    layer->kernel->step(layer->state, &layer->attention, &token);
    barrier_wait(&d->barrier);
    if (projects) add_product(d, d->attended, &layer->projection);
}

void decoder_decode(void *decoder, const int32_t *tokens, real *logits) {
    Decoder *d = decoder;
    const size_t layers = d->plan->size.layers, positions = d->plan->size.positions;
    embed(d, tokens);
    for (size_t l = 0; l < layers; l++)
        if (d->layers[l].kernel->state_grow)
            d->layers[l].kernel->state_grow(d->layers[l].state, d->count, positions);
#pragma omp parallel num_threads(d->threads)
    {
        for (size_t l = 0; l < layers; l++) {
            decode_attention(d, &d->layers[l]);
            decode_ffn(d, &d->layers[l]);
        }
        if (logits)
            decode_product(logits, normalise(d, &d->plan->stacks[0].norm), &d->classifier,
                           values_at(d, d->plan->bias), d->streams);
    }
    d->position++;
    d->count++;
}

void decoder_place(void *decoder, int64_t position) {
    ((Decoder *)decoder)->position = (size_t)position;
}
