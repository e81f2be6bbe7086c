// The kinds of attention that --attention selects, as models and devices see them. A kind is a row
// of this table and of one table per device (dev/cpu/attention.c), with its own file there.
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
    ATTENTION_ADDITIVE,        // causal, over windows
    ATTENTION_ADDITIVE_GLOBAL, // over whole sequences
    ATTENTION_PAIRWISE,        // any similarity and activation
    ATTENTION_KINDS
} AttentionKind;

enum { ATTENTION_LEARNED = 4 }; // most parameters that a kind has of its own

// The parameters of additive attention in windows: w_q and w_k (H, D), and the gain of the pooled
// queries (C), which only models with --query-gain have.
enum { ADDITIVE_QUERY, ADDITIVE_KEY, ADDITIVE_GAIN };

// The attention of a layer: its kind, settings and parameters. Self-attention computes queries,
// keys and values from one input; cross-attention computes keys and values from another one.
typedef struct {
    AttentionKind kind;
    bool causal;       // a token sees the tokens up to itself; else its whole sequence
    size_t window;     // only the last `window` of these; 0: all
    double sink;       // added to the denominator: 0 softmax, 1 softmax1
    double power;      // cosine, pairwise: exponent of the number of keys; negative: learned
    double rescale;    // additive: bound of scores
    bool pool_raw;     // additive: pool x instead of the normalised x'
    double query_gain; // additive: initial gain of the pooled queries in the result; 0: not added
    PairwiseSimilarity similarity; // pairwise
    PairwiseActivation activation;
    ScoresKind scores; // rescaled: by `rescale`
    // Preparation of queries and keys in kinds that compare them (query_key.h):
    bool prepares;  // false: H heads of keys, plain scores, no rotation
    size_t groups;  // heads of keys and values; 0: H
    double epsilon; // qknorm
    size_t gains;   // (2, D) qknorm; or NO_PARAMETER
    Rotary rotary;
    size_t shifted; // self-attention, pre-norm: number of first input channels that are taken from
                    // the previous token
    NormParameters norm;
    LinearParameters qkv;              // C -> C + 2 H' D; cross-attention instead:
    LinearParameters query, key_value; // C -> C, C -> 2C
    LinearParameters projection;       // C -> C; no_linear(): added to the residual stream directly
    size_t learned[ATTENTION_LEARNED]; // the kind's own parameters, or NO_PARAMETER
    uint32_t weight_sites[2];          // dropout of the weights, or of the results of two poolings
    uint32_t site;                     // dropout of the projection's output
} AttentionPlan;

typedef struct {
    const char *name;  // for --attention; a kind computed in two ways has two rows
    bool causal, both; // supports causal, bidirectional attention
    bool exact;        // needs float32 queries, keys and values from float32 inputs for accuracy
    bool joins;        // needs no projection: its result can be added to the residual stream
    bool pools;        // applies dropout in two places instead of one
    bool compares;     // compares queries with keys: supports rotation and grouped heads
    ScoresKind usual;  // default scores
    unsigned scores;   // bit set (1 << kind) of the scores that --scores may select
    // Reads the options of the kind; NULL: none.
    void (*configure)(AttentionPlan *plan, const Options *options);
    // Adds the kind's own parameters, PREFIX.NAME, and records them in plan->learned; NULL: none.
    void (*add_parameters)(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                           size_t channels, size_t heads);
    // Returns the FLOP of a layer's forward pass without its linear layers, for `queries` queries
    // that see `keys` keys on average.
    double (*flops)(size_t channels, size_t heads, double queries, double keys);
    // Returns how many numbers decoding stores for a text of `tokens` tokens; NULL: cannot decode.
    double (*state)(const AttentionPlan *plan, size_t channels, size_t heads, double tokens);
} AttentionType;

extern const AttentionType attention_types[ATTENTION_KINDS];

// The names, for --help.
#define ATTENTION_NAMES "softmax|softmax1|cosine|additive|pairwise"

// Returns the kind of this name (length bytes) and direction, or ATTENTION_KINDS if none exists.
AttentionKind attention_find(const char *name, size_t length, bool causal);

// Returns a plan of this kind without parameters.
AttentionPlan attention_plan(AttentionKind kind, bool causal);

// Returns whether the output is projected.
static inline bool attention_projects(const AttentionPlan *plan) {
    return plan->projection.weight != NO_PARAMETER;
}

// AttentionType.flops of the plan's kind, with at most `window` keys.
static inline double attention_flops(const AttentionPlan *plan, size_t channels, size_t heads,
                                     double queries, double keys) {
    const double window = (double)plan->window;
    return attention_types[plan->kind].flops(channels, heads, queries,
                                             window > 0 && window < keys ? window : keys);
}

#endif
