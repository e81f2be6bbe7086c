// The kinds of attention that --attention names, as models and devices see them. A kind is a row of
// this table and of one for each device (dev/cpu/attention.c), with a file of its own there.
//
// C channels, H heads, D = C/H.
#ifndef MODEL_ATTENTION_TYPE_H
#define MODEL_ATTENTION_TYPE_H

#include "layer_parameters.h"
#include "options.h"
#include "pairwise_kind.h"

typedef enum {
    ATTENTION_SOFTMAX,
    ATTENTION_SOFTMAX1,
    ATTENTION_COSINE,
    ATTENTION_ADDITIVE,        // of windows, causal
    ATTENTION_ADDITIVE_GLOBAL, // of whole sequences
    ATTENTION_PAIRWISE,        // any similarity and activation
    ATTENTION_KINDS
} AttentionKind;

enum { ATTENTION_LEARNED = 4 }; // parameters of its own that a kind has, at most

// The attention of a layer: its kind, what that computes with, and its parameters. Self-attention
// makes queries, keys and values of one input, cross-attention keys and values of another.
typedef struct {
    AttentionKind kind;
    bool causal;    // a token sees those up to itself, else all of its sequence
    size_t window;  // of these the last so many; 0: all
    double sink;    // added to the denominator: 0 softmax, 1 softmax1
    double power;   // cosine, pairwise: of the number of keys seen, where none is learned
    double rescale; // additive: bound of scores
    bool pool_raw;  // additive: pool x instead of the normalised x'
    PairwiseSimilarity similarity; // pairwise
    PairwiseActivation activation;
    ScoresKind scores; // rescaled: by `rescale`
    // Kinds that compare queries with keys, of what is done to these before (query_key.h):
    bool prepares;  // anything; else there are H heads of keys, plain, not rotated
    size_t groups;  // heads of keys and values; 0: H
    double epsilon; // of qknorm
    size_t gains;   // (2, D) of qknorm; or NO_PARAMETER
    Rotary rotary;
    size_t shifted; // of self-attention's input, pre-norm: the first channels are those of the
                    // token before
    NormParameters norm;
    LinearParameters qkv;              // C -> C + 2 H' D; or, with cross-attention:
    LinearParameters query, key_value; // C -> C, C -> 2C
    LinearParameters
        projection; // C -> C; no_linear(): the result joins the residual stream as it is
    size_t learned[ATTENTION_LEARNED]; // the kind's own parameters, or NO_PARAMETER
    uint32_t weight_sites[2];          // of the dropout of weights, or of what two poolings make,
    uint32_t site;                     // and of the projection's output
} AttentionPlan;

typedef struct {
    const char *name;  // of --attention; a kind that is computed in two ways has a row for each
    bool causal, both; // the directions that it works in
    bool exact;        // queries, keys and values are float32 and made of float32, or too much is
                       // lost
    bool joins;        // it needs no projection: its result can join the residual stream as it is
    bool pools;        // it drops out in two places, not one
    bool compares;     // queries with keys: these may be rotated, and keys shared by heads
    ScoresKind usual;  // scores, unless --scores says otherwise,
    unsigned scores;   // and 1 << kind of those that it can choose
    // Takes what the options say of the kind; NULL: nothing.
    void (*configure)(AttentionPlan *plan, const Options *options);
    // Adds its own parameters, PREFIX.NAME, and notes them in plan->learned; NULL: it has none.
    void (*add_parameters)(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                           size_t channels, size_t heads);
    // FLOP of a layer's forward pass but for its linear layers, for so many queries that see so
    // many keys on average.
    double (*flops)(size_t channels, size_t heads, double queries, double keys);
    // Numbers that decoding keeps of a text of so many tokens; NULL: the kind does not decode.
    double (*state)(const AttentionPlan *plan, size_t channels, size_t heads, double tokens);
} AttentionType;

extern const AttentionType attention_types[ATTENTION_KINDS];

// Their names, for --help.
#define ATTENTION_NAMES "softmax|softmax1|cosine|additive|pairwise"

// The kind of that name (length bytes) that works in this direction; ATTENTION_KINDS: none does.
AttentionKind attention_find(const char *name, size_t length, bool causal);

// A kind's attention, without parameters.
AttentionPlan attention_plan(AttentionKind kind, bool causal);

// Whether a plan has its output projected.
static inline bool attention_projects(const AttentionPlan *plan) {
    return plan->projection.weight != NO_PARAMETER;
}

// FLOP of an attention's forward pass as above.
static inline double attention_flops(const AttentionPlan *plan, size_t channels, size_t heads,
                                     double queries, double keys) {
    const double window = (double)plan->window;
    return attention_types[plan->kind].flops(channels, heads, queries,
                                             window > 0 && window < keys ? window : keys);
}

#endif
