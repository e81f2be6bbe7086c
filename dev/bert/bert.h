// What BERT is on any device: its configuration, where its parameters lie, where it drops out.
// train_bert.c builds it; the CUDA program holds a CPU model next to its own for options,
// parameters, exchange, --stats and what it says of itself.
#ifndef BERT_H
#define BERT_H

#include "layer_parameters.h"
#include "model.h"
#include "model_options.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    ModelSizes size;
    size_t inner; // F
    AttentionKind attention;
    int32_t padding; // token whose lookup takes no gradient; -1: none
} BertConfig;

// Of the parameters in the flat arrays, under the names of Hugging Face's class.
typedef struct {
    size_t token, position,
        type;            // (V, C), (positions, C), (2, C) of which all tokens have the first
    NormParameters norm; // of their sum
    TransformerParameters *layers; // (L)
    LinearParameters transform;    // C -> C, of the prediction
    NormParameters transform_norm;
    size_t bias; // (V) of the logits
} BertParameters;

// Where dropout happens: three places per layer.
enum { SITE_EMBEDDING, SITE_LAYERS };

extern const ModelType bert;
const BertConfig *bert_config(const void *model);
const BertParameters *bert_offsets(const void *model);

#endif
