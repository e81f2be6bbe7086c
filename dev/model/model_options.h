// Options shared by all models, and the values computed from them.
#ifndef MODEL_OPTIONS_H
#define MODEL_OPTIONS_H

#include "model.h"
#include <stddef.h>

enum { MAX_LAYERS = 256, MAX_CHANNELS = 65536, MAX_HEADS = 1024 };

// clang-format off
// --layers, --channels, --heads, with their keys in a checkpoint's metadata.
#define SIZE_OPTIONS(layers_key, channels_key, heads_key) \
    {.letter = 'L', .name = OPT_LAYERS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, \
     .value = "N", .initial = "6", .min = 1, .max = MAX_LAYERS, .metadata_key = layers_key, \
     .group = "Model", .help = "layers"}, \
    {.letter = 'C', .name = OPT_CHANNELS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, \
     .value = "N", .initial = "128", .min = 1, .max = MAX_CHANNELS, .metadata_key = channels_key, \
     .group = "Model", .help = "channels"}, \
    {.letter = 'H', .name = OPT_HEADS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, \
     .value = "N", .initial = "4", .min = 1, .max = MAX_HEADS, .metadata_key = heads_key, \
     .group = "Model", .help = "attention heads"}

// --dropout.
#define DROPOUT_OPTION \
    {.name = OPT_DROPOUT, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "P", \
     .initial = "0.1", .max = 0.99, .group = "Model", .help = "dropout probability"}
// clang-format on

// ModelType.facts of a model with --channels, --heads and --dropout.
ModelFacts model_facts(const Options *options, const char *file);

// The sizes of a model, from these options and the data.
typedef struct {
    size_t layers, channels, heads, head_size; // L, C, H, D
    size_t vocabulary, positions;              // V, rows of the position embedding
} ModelSizes;
ModelSizes model_sizes(const ModelSetup *setup);

#endif
