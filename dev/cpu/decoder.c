#include "decoder.h"

#include "error.h"
#include "layernorm.h"
#include "memory.h"
#include "threads.h"
#include <stdlib.h>
#include <string.h>

static real *buffer(size_t rows, size_t columns) {
    return allocate(rows, columns * sizeof(real), "decoder");
}

void decoder_create(Decoder *d, const CpuModel *model, int streams, size_t positions, size_t channels,
                    size_t inner, size_t vocabulary, size_t token, size_t weights) {
    const size_t S = (size_t)streams, C = channels;
    const int threads = decode_threads(weights + vocabulary * C);
    *d = (Decoder){.model = model,
                   .streams = S,
                   .channels = C,
                   .positions = positions,
                   .threads = threads,
                   .x = buffer(S, C),
                   .added = buffer(S, C),
                   .attended = buffer(S, C),
                   .projected = buffer(S, 3 * C),
                   .hidden = buffer(S, inner),
                   .norm = buffer((size_t)threads * S, C),
                   .classifier = decode_weight_create(model->decoding, model->state.values + token,
                                                      vocabulary, C, WEIGHT_OUT_IN)};
}

void decoder_free(Decoder *d) {
    real *const buffers[] = {d->x, d->added, d->attended, d->projected, d->hidden, d->norm};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) free(buffers[i]);
    decode_weight_free(&d->classifier);
}

DecoderLinear decoder_linear_create(const Decoder *d, Precision precision, const LinearParameters *at) {
    return (DecoderLinear){decode_weight_create(precision, d->model->state.values + at->weight,
                                                at->shape.outputs, at->shape.inputs, at->shape.layout),
                           at->bias};
}

void decoder_linear_free(DecoderLinear *linear) {
    decode_weight_free(&linear->weight);
}

DecoderFfn decoder_ffn_create(const Decoder *d, const FfnParameters *at, ActivationKind activation) {
    return (DecoderFfn){.norm = at->norm,
                        .activation = activation,
                        .up = decoder_linear_create(d, d->model->decoding, &at->up),
                        .down = decoder_linear_create(d, d->model->decoding, &at->down)};
}

void decoder_ffn_free(DecoderFfn *ffn) {
    decoder_linear_free(&ffn->up);
    decoder_linear_free(&ffn->down);
}

void decoder_place(void *decoder, int64_t position) {
    ((Decoder *)decoder)->position = (size_t)position;
}

void decoder_embed(Decoder *d, const int32_t *tokens, size_t token, size_t position) {
    const size_t C = d->channels;
    const real *values = d->model->state.values, *place = values + position + d->position * C;
    if (d->position == d->positions)
        fail("decoding: the model has %zu positions, no token can follow", d->positions);
    for (size_t s = 0; s < d->streams; s++) {
        const real *row = values + token + (size_t)tokens[s] * C;
        for (size_t i = 0; i < C; i++) d->x[s * C + i] = row[i] + place[i];
    }
}

static const real *values_at(const Decoder *d, size_t offset) {
    return offset == NO_PARAMETER ? NULL : d->model->state.values + offset;
}

const real *decoder_norm(const Decoder *d, const NormParameters *at) {
    const size_t S = d->streams, C = d->channels;
    real *norm = d->norm + (size_t)thread_index() * S * C;
    for (size_t s = 0; s < S; s++)
        layernorm_row(norm + s * C, d->x + s * C, values_at(d, at->gain), values_at(d, at->bias), C);
    return norm;
}

void decoder_linear(const Decoder *d, real *y, const real *input, const DecoderLinear *linear,
                    bool add_bias) {
    decode_product(y, input, &linear->weight, add_bias ? values_at(d, linear->bias) : NULL, d->streams);
}

void decoder_residual(Decoder *d, const real *input, const DecoderLinear *linear) {
    const size_t C = d->channels;
    const DecodeShare share = decode_share(C);
    decoder_linear(d, d->added, input, linear, true);
    for (size_t s = 0; s < d->streams; s++)
        for (size_t i = share.begin; i < share.begin + share.count; i++)
            d->x[s * C + i] += d->added[s * C + i];
    decoder_wait(d);
}

void decoder_ffn(Decoder *d, const DecoderFfn *ffn) {
    const size_t F = ffn->up.weight.n;
    const DecodeShare share = decode_share(F);
    decoder_linear(d, d->hidden, decoder_norm(d, &ffn->norm), &ffn->up, true);
    for (size_t s = 0; s < d->streams; s++)
        activation_row(d->hidden + s * F + share.begin, ffn->activation, share.count);
    decoder_wait(d);
    decoder_residual(d, d->hidden, &ffn->down);
}

void decoder_logits(const Decoder *d, real *logits, const NormParameters *norm, size_t bias) {
    if (!logits) return;
    decode_product(logits, decoder_norm(d, norm), &d->classifier, values_at(d, bias), d->streams);
}

void decoder_advance(Decoder *d) {
    d->position++;
    d->count++;
}

void decoder_wait(Decoder *d) {
    barrier_wait(&d->barrier);
}

// ---- keys and values ---------------------------------------------------------------------------------

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
