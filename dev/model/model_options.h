// Rows of options that models share, and what they come to.
#ifndef MODEL_OPTIONS_H
#define MODEL_OPTIONS_H

#include "model.h"
#include <stddef.h>

enum { MAX_LAYERS = 256, MAX_CHANNELS = 65536, MAX_HEADS = 1024 };

// --layers, --channels, --heads, under the names that a checkpoint has for them.
#define SIZE_OPTIONS(layers_key, channels_key, heads_key)                                          \
    {'L', "layers",   OPTION_INTEGER, OPTION_MODEL, "N",     "6",                                  \
     1,   MAX_LAYERS, NULL,           layers_key,   "Model", "layers"},                            \
        {'C', "channels",   OPTION_INTEGER, OPTION_MODEL, "N",     "128",                          \
         1,   MAX_CHANNELS, NULL,           channels_key, "Model", "channels"},                    \
    {                                                                                              \
        'H', "heads", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, MAX_HEADS, NULL, heads_key,       \
            "Model", "heads"                                                                       \
    }

// --attention, one of these kinds, and --cosine-power; --dropout.
#define ATTENTION_OPTIONS(kinds)                                                                   \
    {0, "attention", OPTION_CHOICE, OPTION_MODEL, "KIND",  "softmax",                              \
     0, 0,           kinds,         NULL,         "Model", "kind"},                                \
    {                                                                                              \
        0, "cosine-power", OPTION_TEXT, OPTION_MODEL, "P", "learned", 0, 0, NULL, NULL, "Model",   \
            "cosine: divide by (keys seen)^P, 0 to 1 or learned"                                   \
    }
#define DROPOUT_OPTION                                                                             \
    {                                                                                              \
        0, "dropout", OPTION_NUMBER, OPTION_TRAINING, "P", "0.1", 0, 0.99, NULL, NULL, "Model",    \
            "dropout probability"                                                                  \
    }

// Channels a head, of --channels and --heads. Ends the program where the channels do not divide
// into heads; file: what said so, NULL: the options.
size_t model_head_size(const Options *options, const char *file);

// What these and the data say of a model's size.
typedef struct {
    size_t layers, channels, heads, head_size; // L, C, H, D
    size_t vocabulary, positions;              // V, rows of the position embedding
} ModelSizes;
ModelSizes model_sizes(const ModelSetup *setup);

// What --attention and --cosine-power say.
typedef struct {
    const char *name;      // "softmax"
    bool cosine, additive; // neither: softmax
    bool learned_power;    // cosine: the power of n is sigmoid(exponent)
    double power;          // else
    double sink;           // of the softmax's denominator
} AttentionKind;
AttentionKind attention_kind(const Options *options);

#endif
