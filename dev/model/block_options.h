// Options for the blocks of decoders: norm, positions, feed-forward network, scores, grouped heads
// and output layer. Each model has its own defaults, which its checkpoints omit.
#ifndef MODEL_BLOCK_OPTIONS_H
#define MODEL_BLOCK_OPTIONS_H

#include "transformer_plan.h"

// clang-format off
#define BLOCK_OPTIONS(norms, places, activations) \
    {.name = OPT_NORM, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND", \
     .initial = norms, .implied = true, .choices = "layer|rms", .group = OPTION_GROUP_MORE, \
     .help = "LayerNorm or RMSNorm"}, \
    {.name = OPT_NORM_EPS, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X", \
     .initial = "1e-5", .implied = true, .min = 1e-12, .max = 1, .metadata_key = "rms_norm_eps", \
     .group = OPTION_GROUP_MORE, .help = "added to the variance that a norm divides by"}, \
    {.name = OPT_POSITIONS, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND", \
     .initial = places, .implied = true, .choices = "learned|sinusoidal|rotary|none", \
     .group = OPTION_GROUP_MORE, .help = "positions"}, \
    {.name = OPT_ROTARY_BASE, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X", \
     .initial = "10000", .implied = true, .min = 1, .max = 1e12, .metadata_key = "rope_theta", \
     .group = OPTION_GROUP_MORE, .help = "base of rotary positions"}, \
    {.name = OPT_ROTARY_PART, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X", \
     .initial = "1", .implied = true, .max = 1, .metadata_key = "partial_rotary_factor", \
     .group = OPTION_GROUP_MORE, .help = "fraction of rotary frequencies used, the fastest"}, \
    {.name = OPT_TOKEN_SHIFT, .kind = OPTION_NUMBER, .scope = OPTION_MODEL, .value = "X", \
     .initial = "0", .implied = true, .max = 1, .metadata_key = "token_shift", \
     .group = OPTION_GROUP_MORE, \
     .help = "fraction of attention's input channels that come from the token before"}, \
    {.name = OPT_FFN, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND", \
     .initial = activations, .implied = true, .choices = "gelu|relu|relu2|swiglu", \
     .group = OPTION_GROUP_MORE, .help = "activation of feed-forward networks"}, \
    {.name = OPT_FFN_SIZE, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N", \
     .initial = "0", .implied = true, .max = MAX_INNER, .metadata_key = "intermediate_size", \
     .group = OPTION_GROUP_MORE, \
     .help = "channels inside feed-forward networks (0: 4 C; SwiGLU 8/3 C)"}, \
    {.name = OPT_SCORES, .kind = OPTION_CHOICE, .scope = OPTION_MODEL, .value = "KIND", \
     .initial = "usual", .implied = true, .choices = "usual|plain|rescaled|qknorm", \
     .group = OPTION_GROUP_MORE, \
     .help = "scores: plain or normalised (usual: softmax plain, additive rescaled)"}, \
    {.name = OPT_KV_HEADS, .kind = OPTION_INTEGER, .scope = OPTION_MODEL, .value = "N", \
     .initial = "0", .implied = true, .max = MAX_HEADS, .metadata_key = "num_key_value_heads", \
     .group = OPTION_GROUP_MORE, .help = "heads of keys and values (0: as many as heads)"}, \
    {.name = OPT_UNTIED, .kind = OPTION_FLAG, .scope = OPTION_MODEL, .implied = true, \
     .group = OPTION_GROUP_MORE, .help = "output layer with a weight of its own"}
// clang-format on

enum { MAX_INNER = 1 << 20 };

// Applies these options to a plan made by plan_create(). Rotary positions, scores and grouped heads
// apply to the layers that compare queries with keys. `gelu`: the model's variant of GELU. Exits
// with an error if the options are invalid.
void plan_choose_blocks(TransformerPlan *plan, const Options *options, ActivationKind gelu);

// Returns whether all blocks are those of GPT-2 and the published Fastformer.
bool plan_has_usual_blocks(const TransformerPlan *plan, ActivationKind gelu);

// ---- parameters of these blocks ---------------------------------------------
// Names are printf formats.

NormParameters plan_add_norm(const TransformerPlan *plan, ParameterTable *table, const char *name,
                             ...) __attribute__((format(printf, 3, 4)));

// Return the rows of W_qkv, (H + 2H') D, and of W_up, F or 2F.
size_t plan_qkv_rows(const TransformerPlan *plan, const AttentionPlan *attention);
size_t plan_up_rows(const TransformerPlan *plan);

// Adds the position embedding if positions are learned.
void plan_add_positions(TransformerPlan *plan, ParameterTable *table, const char *name);

// Adds the parameters of a layer's attention other than its linear layers: the gains of --scores
// qknorm, PREFIX.q_norm.weight and PREFIX.k_norm.weight, and the kind's own, PREFIX.NAME.
void plan_add_attention(const TransformerPlan *plan, AttentionPlan *attention,
                        ParameterTable *table, const char *prefix);

// Adds the output layer's weight if it is untied; it is the last parameter.
void plan_add_output(TransformerPlan *plan, ParameterTable *table, const char *name);

#endif
