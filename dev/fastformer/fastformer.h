// What the Fastformer is on any device: its configuration, where its parameters lie, where it drops
// out. train_fastformer.c builds it; the CUDA program holds a CPU model next to its own for
// options, parameters, decoding, --stats and what it says of itself.
#ifndef FASTFORMER_H
#define FASTFORMER_H

#include "layer_parameters.h"
#include "model.h"
#include "model_options.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    ModelSizes size;
    size_t *windows;    // (L) k; 0: global
    real rescale, sink; // s, c
    bool pool_raw;      // pool x instead of the normalised x'
    int32_t padding;    // the token whose row takes no gradient; -1: none
} FastformerConfig;

// Of the parameters in the flat arrays.
typedef struct {
    NormParameters norm;
    LinearParameters qkv;        // C -> 3C
    size_t query_attn, key_attn; // (H, D) w_q, w_k
    FfnParameters ffn;
} LayerOffsets;

typedef struct {
    OuterParameters outer;
    LayerOffsets *layers; // (L)
} FastformerParameters;

// Places where dropout happens.
enum { SITE_EMBEDDING = 0, SITE_QUERY = 1, SITE_KEY = 2, SITE_FFN = 3, SITES_PER_LAYER = 3 };

static inline uint32_t dropout_site(size_t layer, uint32_t site) {
    return site == SITE_EMBEDDING ? 0 : (uint32_t)layer * SITES_PER_LAYER + site;
}

extern const ModelType fastformer;
extern const Exchange fastformer_exchange; // with Hugging Face transformers
const FastformerConfig *fastformer_config(const void *model);
const FastformerParameters *fastformer_offsets(const void *model);

#endif
