// Decoding as blocks.h is training: what models share when a token goes through their layers. All threads of
// one parallel region (decode.h) call these functions, each for its share of the columns; decoder_wait()
// stands between what writes all of an array and what reads it.
//
// S texts side by side ("streams"), C channels, F channels inside the feed-forward network.
#ifndef CPU_DECODER_H
#define CPU_DECODER_H

#include "activation.h"
#include "barrier.h"
#include "cpu_model.h"
#include "decode.h"
#include "layer_parameters.h"

typedef struct {
    const CpuModel *model;
    size_t streams, channels;   // S, C
    size_t position, positions; // of the next token; how many there are
    size_t count;               // tokens read
    int threads;                // of the parallel region
    real *x, *added, *attended; // (S, C) the residual stream; what is added to it; what attention gave
    real *projected, *hidden;   // (S, 3C), (S, F)
    real *norm;                 // (threads, S, C) each thread makes all of it: less than waiting for another
    DecodeWeight classifier;    // (V, C)
    Barrier barrier;            // between the threads
} Decoder;

// A linear layer, packed for decoding.
typedef struct {
    DecodeWeight weight;
    size_t bias; // or NO_PARAMETER
} DecoderLinear;

typedef struct {
    NormParameters norm;
    ActivationKind activation;
    DecoderLinear up, down;
} DecoderFfn;

// For a model whose tied embedding (V, C) is the parameter at `token`, and whose layers have `weights`
// weights.
void decoder_create(Decoder *decoder, const CpuModel *model, int streams, size_t positions, size_t channels,
                    size_t inner, size_t vocabulary, size_t token, size_t weights);
void decoder_free(Decoder *decoder);

DecoderLinear decoder_linear_create(const Decoder *decoder, Precision precision, const LinearParameters *at);
void decoder_linear_free(DecoderLinear *linear);
DecoderFfn decoder_ffn_create(const Decoder *decoder, const FfnParameters *at, ActivationKind activation);
void decoder_ffn_free(DecoderFfn *ffn);

// Entry of ModelType (model.h), for decoders that begin with this one.
void decoder_place(void *decoder, int64_t position);

// Before the parallel region: x = token embedding + position, tokens (S). Ends the program behind the last
// position.
void decoder_embed(Decoder *decoder, const int32_t *tokens, size_t token, size_t position);

// LayerNorm of x (S, C), all of it for the calling thread.
const real *decoder_norm(const Decoder *decoder, const NormParameters *at);

// y (S, N) = input (S, K) W^T, with the bias or without.
void decoder_linear(const Decoder *decoder, real *y, const real *input, const DecoderLinear *linear,
                    bool add_bias);

// x += input W^T + bias; waits.
void decoder_residual(Decoder *decoder, const real *input, const DecoderLinear *linear);

// x through a pre-norm feed-forward network; waits.
void decoder_ffn(Decoder *decoder, const DecoderFfn *ffn);

// logits (S, V) from x through the final normalisation; NULL: nobody asks.
void decoder_logits(const Decoder *decoder, real *logits, const NormParameters *norm, size_t bias);

// After the parallel region: a token of each text was read.
void decoder_advance(Decoder *decoder);

void decoder_wait(Decoder *decoder);

// Keys and values of all positions so far, of `units` heads (layers, streams, heads): (units, room, D) each.
// Room grows with the text: a short one needs no memory for all that the model could take.
typedef struct {
    size_t units, head_size, room;
    real *keys, *values;
} KeyValueCache;

// Makes room for a token behind `count` others, of a text that mostly has at most `positions`.
void key_value_cache_grow(KeyValueCache *cache, size_t count, size_t positions);
void key_value_cache_free(KeyValueCache *cache);

#endif
