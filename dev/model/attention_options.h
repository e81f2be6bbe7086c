// --attention and --windows: the kind and the window of every layer of any model.
//
//   --attention KIND              all layers
//   --attention KIND,KIND,...     one entry per layer
//   --attention KIND*3+KIND       a repeated pattern; its length divides the number of layers
//   --windows auto                layer l sees 4 * 2^l tokens, the last layer all tokens
//   --windows global              every layer sees all tokens
//   --windows 4,8,global          one entry per layer
//
// KIND:N or KIND:global instead of KIND sets the window of these layers and overrides --windows.
#ifndef MODEL_ATTENTION_OPTIONS_H
#define MODEL_ATTENTION_OPTIONS_H

#include "attention_type.h"
#include "metadata.h"

// clang-format off
// Rows of options. `silent`: checkpoints omit the default, as earlier versions did.
#define ATTENTION_OPTION(usual, silent) \
    {.name = OPT_ATTENTION, .kind = OPTION_TEXT, .scope = OPTION_MODEL, .value = "KIND", \
     .initial = usual, .implied = silent, .group = "Model", \
     .help = "attention: " ATTENTION_NAMES ", one per layer (,) or a pattern (A*3+B)"}
#define WINDOWS_OPTION(usual, silent) \
    {.name = OPT_WINDOWS, .kind = OPTION_TEXT, .scope = OPTION_MODEL, .value = "LIST", \
     .initial = usual, .implied = silent, .metadata_key = "windows|window_sizes", \
     .group = "Model", .help = "windows: auto (4,8,..,global), global or a list"}
#define COSINE_OPTION(silent) \
    {.name = OPT_COSINE_POWER, .kind = OPTION_TEXT, .scope = OPTION_MODEL, .value = "P", \
     .initial = "learned", .implied = silent, .group = OPTION_GROUP_MORE, \
     .help = "exponent of the divisor (keys seen)^P of cosine and pairwise: 0 to 1, or learned"}
#define PAIRWISE_OPTIONS \
    {.name = OPT_SIMILARITY, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "NAME", \
     .initial = "dot", .implied = true, .choices = PAIRWISE_SIMILARITIES, \
     .group = OPTION_GROUP_MORE, .help = "pairwise: similarity of query and key"}, \
    {.name = OPT_ACTIVATION, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "NAME", \
     .initial = "softmax", .implied = true, .choices = PAIRWISE_ACTIVATIONS, \
     .metadata_key = "attention_activation", .group = OPTION_GROUP_MORE, \
     .help = "pairwise: function that turns similarities into weights"}
#define ADDITIVE_OPTIONS(silent) \
    {.name = OPT_RESCALE, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "S", \
     .initial = "10", .implied = silent, .max = 40, .metadata_key = "rescale", \
     .group = OPTION_GROUP_MORE, .help = "additive: bound of scores, which stay within -S..S"}, \
    {.name = OPT_SINK, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X", \
     .initial = "1e-5", .implied = silent, .max = 1e6, .metadata_key = "eps_denominator", \
     .group = OPTION_GROUP_MORE, \
     .help = "additive: term added to denominators (0 softmax, 1 softmax1)"}, \
    {.name = OPT_POOL, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "WHAT", \
     .initial = "normalised", .implied = silent, .choices = "normalised|raw", \
     .group = OPTION_GROUP_MORE, .help = "additive: vectors to pool"}, \
    {.name = OPT_QUERY_GAIN, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "G", \
     .initial = "0", .implied = true, .max = 10, .metadata_key = "query_gain", \
     .group = OPTION_GROUP_MORE, \
     .help = "additive: initial gain, learned per channel, of pooled queries in the result; " \
             "0: none"}
// clang-format on

// Returns each layer's attention, (layers), allocated, as these options define it for a model with
// this many positions. The plans have no parameters yet. Only causal attention has windows. Exits
// with an error if the options are invalid.
AttentionPlan *attention_plans(const Options *options, size_t layers, size_t positions,
                               bool causal);

// Rewrites the windows in a checkpoint's metadata for a larger number of positions: a window that
// spans all positions still does so afterwards. Implements ModelType.extend.
void attention_extend(Safetensors *file, int64_t positions);

#endif
