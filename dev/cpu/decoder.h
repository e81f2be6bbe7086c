// Decoding as blocks.h is training: what models share when a token goes through their layers, all
// of it but how they attend. A layer is
//
//   x += attend(LayerNorm(x) W_qkv) W_proj + b
//   x += activation(LayerNorm(x) W_up + b) W_down + b
//
// A model's decoder holds a Decoder as its first member. S texts side by side ("streams"), C
// channels, F channels inside the feed-forward network, L layers.
#ifndef CPU_DECODER_H
#define CPU_DECODER_H

#include "activation.h"
#include "barrier.h"
#include "cpu_model.h"
#include "decode.h"
#include "layer_parameters.h"
#include "model_options.h"

typedef struct Decoder Decoder;

// Where the parameters of a layer lie. projection NULL: what attends adds to x itself.
typedef struct {
    const NormParameters *norm;
    const LinearParameters *qkv, *projection;
    const FfnParameters *ffn;
} DecoderParameters;

// What is decoded, constant once it is created.
typedef struct {
    ModelSizes size;
    OuterParameters outer;
    ActivationKind activation;
    bool exact_qkv; // queries, keys and values in float32, whatever the precision of decoding
    DecoderParameters (*layer)(const void *model, size_t l);
    // Attention of layer l, by all threads, each for a share: from decoder->projected, queries,
    // keys and values without their bias, to decoder->attended, or where there is no projection to
    // decoder->x.
    void (*attend)(const Decoder *decoder, size_t l);
} DecoderShape;

// A linear layer, packed for decoding.
typedef struct {
    DecodeWeight weight;
    size_t bias; // or NO_PARAMETER
} DecoderLinear;

typedef struct {
    NormParameters norm, ffn_norm;
    DecoderLinear qkv, projection, up, down;
    bool projects;
} DecoderLayer;

struct Decoder {
    CpuModel *model;
    DecoderShape shape;
    DecoderLayer *layers; // (L)
    size_t streams;       // S
    size_t position;      // of the next token
    size_t count;         // tokens read
    int threads;          // of the parallel region
    real *x, *added,
        *attended;            // (S, C) the residual stream; what is added to it; attention's output
    real *projected, *hidden; // (S, 3C), (S, F)
    real *norm; // (threads, S, C) each thread makes all of it: less than waiting for another
    DecodeWeight classifier; // (V, C)
    Barrier barrier;         // between the threads
};

void decoder_create(Decoder *decoder, CpuModel *model, const DecoderShape *shape, int streams);
void decoder_free(Decoder *decoder);

// Entries of ModelType (model.h), for decoders that begin with this one. A token beyond the last
// position ends the program.
void decoder_decode(void *decoder, const int32_t *tokens, real *logits);
void decoder_place(void *decoder, int64_t position);

// Keys and values of all positions so far, of `units` heads (layers, streams, heads): (units, room,
// D) each. Room grows with the text: a short one needs no memory for all that the model could take.
typedef struct {
    size_t units, head_size, room;
    real *keys, *values;
} KeyValueCache;

// Makes room for a token after `count` others, of a text that mostly has at most `positions`.
void key_value_cache_grow(KeyValueCache *cache, size_t count, size_t positions);
void key_value_cache_free(KeyValueCache *cache);

#endif
