#include "decoder.h"

#include "error.h"
#include "layernorm.h"
#include "memory.h"
#include "threads.h"
#include <stdlib.h>
#include <string.h>

// ---- what is packed ---------------------------------------------------------

static real *buffer(size_t rows, size_t columns) {
    return allocate(rows, columns * sizeof(real), "decoder");
}

static const real *values_at(const Decoder *d, size_t offset) {
    return offset == NO_PARAMETER ? NULL : d->model->state.values + offset;
}

static DecoderLinear linear_create(const Decoder *d, Precision precision,
                                   const LinearParameters *parameters) {
    return (DecoderLinear){decode_weight_create(precision, values_at(d, parameters->weight),
                                                parameters->shape.outputs, parameters->shape.inputs,
                                                parameters->shape.layout),
                           parameters->bias};
}

static DecoderLayer layer_create(const Decoder *d, const DecoderParameters *parameters) {
    const Precision precision = d->model->decoding;
    DecoderLayer layer = {
        .norm = *parameters->norm,
        .ffn_norm = parameters->ffn->norm,
        .qkv =
            linear_create(d, d->shape.exact_qkv ? PRECISION_FLOAT32 : precision, parameters->qkv),
        .up = linear_create(d, precision, &parameters->ffn->up),
        .down = linear_create(d, precision, &parameters->ffn->down),
        .projects = parameters->projection,
    };
    if (layer.projects) layer.projection = linear_create(d, precision, parameters->projection);
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

void decoder_create(Decoder *d, CpuModel *model, const DecoderShape *shape, int streams) {
    const size_t S = (size_t)streams, C = shape->size.channels, V = shape->size.vocabulary;
    size_t weights = V * C;
    *d = (Decoder){.model = model, .shape = *shape, .streams = S};
    d->layers = allocate(shape->size.layers, sizeof(DecoderLayer), "decoder");
    for (size_t l = 0; l < shape->size.layers; l++) {
        const DecoderParameters parameters = shape->layer(model, l);
        d->layers[l] = layer_create(d, &parameters);
        weights += layer_weights(&d->layers[l]);
    }
    d->classifier = decode_weight_create(model->decoding, values_at(d, shape->outer.token), V, C,
                                         WEIGHT_OUT_IN);
    d->threads = decode_threads(weights);
    d->x = buffer(S, C);
    d->added = buffer(S, C);
    d->attended = buffer(S, C);
    d->projected = buffer(S, 3 * C);
    d->hidden = buffer(S, d->layers[0].up.weight.n);
    d->norm = buffer((size_t)d->threads * S, C);
}

void decoder_free(Decoder *d) {
    for (size_t l = 0; l < d->shape.size.layers; l++) {
        DecoderLayer *layer = &d->layers[l];
        DecoderLinear *const linears[LINEARS] = {&layer->qkv, &layer->projection, &layer->up,
                                                 &layer->down};
        for (size_t i = 0; i < LINEARS; i++) decode_weight_free(&linears[i]->weight);
    }
    real *const buffers[] = {d->x, d->added, d->attended, d->projected, d->hidden, d->norm};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) free(buffers[i]);
    decode_weight_free(&d->classifier);
    free(d->layers);
}

// ---- a token ----------------------------------------------------------------
//
// All threads of one parallel region call these functions, each for its share of the columns; a
// barrier separates what writes all of an array from what reads it.

// Before the parallel region: x = token embedding + position, tokens (S).
static void embed(Decoder *d, const int32_t *tokens) {
    const size_t C = d->shape.size.channels;
    const real *place = values_at(d, d->shape.outer.position) + d->position * C;
    if (d->position == d->shape.size.positions)
        fail("decoding: the model has %zu positions, no token can follow", d->shape.size.positions);
    for (size_t s = 0; s < d->streams; s++) {
        const real *row = values_at(d, d->shape.outer.token) + (size_t)tokens[s] * C;
        for (size_t i = 0; i < C; i++) d->x[s * C + i] = row[i] + place[i];
    }
}

// LayerNorm of x (S, C), all of it for the calling thread.
static const real *normalise(const Decoder *d, const NormParameters *parameters) {
    const size_t S = d->streams, C = d->shape.size.channels;
    real *norm = d->norm + (size_t)thread_index() * S * C;
    for (size_t s = 0; s < S; s++)
        layernorm_row(norm + s * C, d->x + s * C, values_at(d, parameters->gain),
                      values_at(d, parameters->bias), C);
    return norm;
}

// x += input W^T + bias.
static void add_product(Decoder *d, const real *input, const DecoderLinear *linear) {
    const size_t C = d->shape.size.channels;
    const DecodeShare share = decode_share(C);
    decode_product(d->added, input, &linear->weight, values_at(d, linear->bias), d->streams);
    for (size_t s = 0; s < d->streams; s++)
        for (size_t i = share.begin; i < share.begin + share.count; i++)
            d->x[s * C + i] += d->added[s * C + i];
    barrier_wait(&d->barrier);
}

static void decode_ffn(Decoder *d, const DecoderLayer *layer) {
    const size_t F = layer->up.weight.n;
    const DecodeShare share = decode_share(F);
    decode_product(d->hidden, normalise(d, &layer->ffn_norm), &layer->up.weight,
                   values_at(d, layer->up.bias), d->streams);
    for (size_t s = 0; s < d->streams; s++)
        activation_row(d->hidden + s * F + share.begin, d->shape.activation, share.count);
    barrier_wait(&d->barrier);
    add_product(d, d->hidden, &layer->down);
}

static void decode_layer(Decoder *d, size_t l) {
    const DecoderLayer *layer = &d->layers[l];
    decode_product(d->projected, normalise(d, &layer->norm), &layer->qkv.weight, NULL, d->streams);
    barrier_wait(&d->barrier);
    d->shape.attend(d, l);
    barrier_wait(&d->barrier);
    if (layer->projects) add_product(d, d->attended, &layer->projection);
    decode_ffn(d, layer);
}

void decoder_decode(void *decoder, const int32_t *tokens, real *logits) {
    Decoder *d = decoder;
    embed(d, tokens);
#pragma omp parallel num_threads(d->threads)
    {
        for (size_t l = 0; l < d->shape.size.layers; l++) decode_layer(d, l);
        if (logits)
            decode_product(logits, normalise(d, &d->shape.outer.norm), &d->classifier,
                           values_at(d, d->shape.outer.bias), d->streams);
    }
    d->position++;
    d->count++;
}

void decoder_place(void *decoder, int64_t position) {
    ((Decoder *)decoder)->position = (size_t)position;
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

void key_value_cache_grow(KeyValueCache *c, size_t count, size_t positions) {
    enum { FIRST_ROOM = 64 };
    if (count < c->room) return;
    size_t room = c->room ? 2 * c->room : FIRST_ROOM;
    if (room > positions && count < positions) room = positions;
    c->keys = larger_cache(c, c->keys, count, room);
    c->values = larger_cache(c, c->values, count, room);
    c->room = room;
}

void key_value_cache_free(KeyValueCache *c) {
    free(c->keys);
    free(c->values);
}
