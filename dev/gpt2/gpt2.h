// What GPT-2 is on any device: its configuration, where its parameters lie, where it drops out.
// train_gpt2.c builds it; the CUDA program holds a CPU model next to its own for options,
// parameters, decoding, exchange,
// --stats and what it says of itself.
#ifndef GPT2_H
#define GPT2_H

#include "layer_parameters.h"
#include "model.h"
#include "model_options.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    ModelSizes size;
    AttentionKind attention;
    int32_t padding; // the token whose embedding takes no gradient from the lookup; -1: none
} Gpt2Config;

// Of the parameters in the flat arrays. Hugging Face's Conv1D stores weights as (in, out).
typedef struct {
    OuterParameters outer;
    TransformerParameters *layers; // (L)
} Gpt2Parameters;

// Places where dropout happens.
enum {
    SITE_EMBEDDING = 0,
    SITE_ATTENTION = 1,
    SITE_PROJECTION = 2,
    SITE_FFN = 3,
    SITES_PER_LAYER = 3
};

static inline uint32_t dropout_site(size_t layer, uint32_t site) {
    return site == SITE_EMBEDDING ? 0 : (uint32_t)layer * SITES_PER_LAYER + site;
}

extern const ModelType gpt2;
const Gpt2Config *gpt2_config(const void *model);
const Gpt2Parameters *gpt2_offsets(const void *model);

#endif
