#include "translator.h"

#include "softmax_attention.h"
#include "transformer.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    Transformer *model;
    size_t sentences, beams, length; // B, streams per sentence, S
    size_t position, positions;      // of the next token; maximum
    uint8_t *mask;                   // (B, S)
    real *encoded;                   // (layers, B, S, 2C)
    size_t streams;                  // capacity of the cache: the streams of the first token
    real *keys, *values;             // (layers, streams, H, positions, D)
    uint32_t *origins,
        *selected;  // (streams, positions) the stream that wrote each token; buffer for selecting
    real *attended; // (streams, C)
} Translator;

void translator_memory_free(TranslatorMemory *m) {
    void *const rooms[] = {m->mask.memory,    m->encoded.memory, m->keys.memory,
                           m->values.memory,  m->origins.memory, m->selected.memory,
                           m->attended.memory};
    for (size_t i = 0; i < sizeof(rooms) / sizeof(*rooms); i++) free(rooms[i]);
}

static size_t decoder_layers(const Transformer *t) {
    return t->plan.stacks[1].end - t->plan.stacks[1].first;
}

static const TransformerLayer *decoder_layer(const Transformer *t, size_t l) {
    return &t->layers[t->plan.stacks[1].first + l];
}

// Computes the encoder's result.
static void encode(const Transformer *t, const BlockPass *pass) {
    cpu_blocks.embed_forward(pass, 0);
    for (size_t l = 0; l < t->plan.stacks[0].end; l++) {
        cpu_blocks.attention_forward(pass, l);
        cpu_blocks.ffn_forward(pass, l);
    }
    cpu_blocks.encoded_forward(pass);
}

void *translator_create(void *model, const Batch *batch, int beams, int64_t positions) {
    Transformer *t = model;
    Translator *d = allocate(1, sizeof(*d), "decoder");
    *d = (Translator){.model = t,
                      .sentences = (size_t)batch->batch,
                      .beams = (size_t)beams,
                      .length = (size_t)batch->source.length,
                      .positions = (size_t)positions};
    const size_t layers = decoder_layers(t), C = t->plan.size.channels;
    const size_t rows = d->sentences * d->length, streams = d->sentences * d->beams;
    Batch of_source;
    BlockPass pass = pass_forward(&t->model, batch, false, NULL);
    const BlockPass source = pass_source(&pass, &of_source);
    pass.source = &source;
    TranslatorMemory *rooms = &t->translator;
    const char *what = "decoder";
    d->mask = room_for(&rooms->mask, rows, 1, what);
    memcpy(d->mask, batch->source.mask, rows);
    d->encoded = room_for(&rooms->encoded, layers * rows, 2 * C * sizeof(real), what);
    d->streams = streams;
    d->keys = room_for(&rooms->keys, layers * streams * d->positions, C * sizeof(real), what);
    d->values = room_for(&rooms->values, layers * streams * d->positions, C * sizeof(real), what);
    d->origins = room_for(&rooms->origins, streams, d->positions * sizeof(uint32_t), what);
    d->selected = room_for(&rooms->selected, streams, d->positions * sizeof(uint32_t), what);
    d->attended = room_for(&rooms->attended, streams, C * sizeof(real), what);
    encode(t, &pass);
    for (size_t l = 0; l < layers; l++)
        linear_forward(&source, &decoder_layer(t, l)->cross.key_value,
                       d->encoded + l * rows * 2 * C, t->encoded.result);
    return d;
}

static void decode_attention(const BlockPass *pass, const Translator *d, size_t l, real *x) {
    const ModelSizes *size = &d->model->plan.size;
    const AttentionBlock *b = &decoder_layer(d->model, l)->attention;
    const size_t C = size->channels, at_layer = l * d->streams * d->positions * C;
    const AttentionCache cache = {.keys = d->keys + at_layer,
                                  .values = d->values + at_layer,
                                  .positions = d->positions,
                                  .origins = d->origins};
    sublayer_begin(pass, &b->common.sublayer, x);
    linear_forward(pass, &b->qkv, b->projected, b->common.sublayer.input);
#pragma omp parallel
    {
        softmax_attention_decode(d->attended, &cache, b->projected,
                                 pass_values(pass, b->qkv.parameters.bias), 0, d->position,
                                 pass->rows, C, size->heads);
#pragma omp barrier
#pragma omp for
        for (size_t i = 0; i < pass->rows; i++)
            gemm_input_store(b->common.attended, i, 0, d->attended + i * C, C);
    }
    linear_forward(pass, &b->common.projection, pass->work->output, b->common.attended);
    sublayer_residual(pass, &b->common.sublayer, x, x, pass->work->output);
}

// A sentence's streams are the queries of one sequence.
static void decode_cross_attention(const BlockPass *pass, const Translator *d, size_t l, real *x) {
    const CrossAttentionBlock *b = &decoder_layer(d->model, l)->cross;
    const size_t C = d->model->plan.size.channels;
    const AttentionInput in =
        attention_cross(b->queries, pass_values(pass, b->query.parameters.bias),
                        d->encoded + l * d->sentences * d->length * 2 * C,
                        pass_values(pass, b->key_value.parameters.bias), C, d->mask, d->sentences,
                        d->beams, d->length);
    sublayer_begin(pass, &b->common.sublayer, x);
    linear_forward(pass, &b->query, b->queries, b->common.sublayer.input);
    attention_sublayer_forward(pass, &b->common, &in, x, x);
}

void translator_decode(void *decoder, const int32_t *tokens, real *logits) {
    Translator *d = decoder;
    Transformer *t = d->model;
    const Batch batch = {
        .batch = (int64_t)(d->sentences * d->beams), .length = 1, .inputs = tokens};
    const BlockPass pass = pass_forward(&t->model, &batch, false, NULL);
    Embedding embedding = t->embeddings[1];
    embedding.sinusoids += d->position * t->plan.size.channels;
    real *x = t->streams[1][0];
    embed_forward(&pass, &embedding, x);
    for (size_t i = 0; i < pass.rows; i++) d->origins[i * d->positions + d->position] = (uint32_t)i;
    for (size_t l = 0; l < decoder_layers(t); l++) {
        decode_attention(&pass, d, l, x);
        decode_cross_attention(&pass, d, l, x);
        ffn_block_forward(&pass, &decoder_layer(t, l)->ffn, x, x);
    }
    if (logits) head_logits(&pass, &t->head, x, logits);
    d->position++;
}

// Continues the streams `from` (count).
static void select_streams(Translator *d, const size_t *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        memcpy(d->selected + i * d->positions, d->origins + from[i] * d->positions,
               d->position * sizeof(uint32_t));
    uint32_t *old = d->origins;
    d->origins = d->selected;
    d->selected = old;
}

// Moves the data of the remaining sentences to the front.
static void select_sentences(Translator *d, const size_t *from, size_t count) {
    const size_t layers = decoder_layers(d->model),
                 row = d->length * 2 * d->model->plan.size.channels;
    for (size_t i = 0; i < count; i++)
        memmove(d->mask + i * d->length, d->mask + from[i * d->beams] / d->beams * d->length,
                d->length);
    for (size_t l = 0; l < layers; l++)
        for (size_t i = 0; i < count; i++)
            memmove(d->encoded + (l * count + i) * row,
                    d->encoded + (l * d->sentences + from[i * d->beams] / d->beams) * row,
                    row * sizeof(real));
    d->sentences = count;
}

void translator_select(void *decoder, const size_t *from, size_t count) {
    Translator *d = decoder;
    select_streams(d, from, count);
    if (count < d->sentences * d->beams) select_sentences(d, from, count / d->beams);
}
