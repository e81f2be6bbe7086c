// What the encoder-decoder is on any device: its configuration, where its parameters lie, where it
// drops out. train_translate.c builds it; the CUDA program holds a CPU model next to its own for
// options, parameters, decoding, exchange, --stats and what it says of itself.
#ifndef TRANSLATE_H
#define TRANSLATE_H

#include "activation.h"
#include "layer_parameters.h"
#include "model.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t encoder_layers, decoder_layers, channels, heads, inner; // C, H, F
    size_t vocabulary, positions;                                  // V, the longest sentence
    NormOrder order;
    ActivationKind activation;
    double dropout, attention_dropout, smoothing;
    int32_t padding, end; // tokens; the decoder begins with the first
} TranslateConfig;

// A layer of the decoder: with cross-attention between self-attention and feed-forward network.
typedef struct {
    TransformerParameters self;
    CrossAttentionParameters cross;
} DecoderParameters;

// Of the parameters in the flat arrays, under the names of Hugging Face's class.
typedef struct {
    size_t token;                              // (V, C)
    TransformerParameters *encoder;            // (layers)
    DecoderParameters *decoder;                // (layers)
    NormParameters encoder_norm, decoder_norm; // pre-norm: after the stack
    size_t bias; // (1, V) of the logits, which is not trained: 0 but in files of others
} TranslateParameters;

// Where dropout happens: on both embeddings, in three places per layer of the encoder, in five of
// the decoder.
enum { SITE_SOURCE, SITE_TARGET, SITE_LAYERS, ENCODER_SITES = 3, DECODER_SITES = 5 };

static inline uint32_t encoder_site(size_t l) {
    return (uint32_t)(SITE_LAYERS + ENCODER_SITES * l);
}

static inline uint32_t decoder_site(const TranslateConfig *c, size_t l, uint32_t site) {
    return encoder_site(c->encoder_layers) + (uint32_t)(DECODER_SITES * l) + site;
}

extern const ModelType translate;
const TranslateConfig *translate_config(const void *model);
const TranslateParameters *translate_offsets(const void *model);

#endif
