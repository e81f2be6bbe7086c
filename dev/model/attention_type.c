#include "attention_type.h"

#include "error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double DEVIATION = 0.02; // initialisation of score vectors
enum { ANY_SCORES = 1 << SCORES_PLAIN | 1 << SCORES_RESCALED | 1 << SCORES_QKNORM };

// ---- pairs of queries and keys ----------------------------------------------
// FLOP of the products with the keys and values that a query sees.
static double pair_flops(size_t channels, size_t heads, double queries, double keys) {
    (void)heads;
    return 4 * queries * keys * (double)channels;
}

// A key and a value per visible token and key head.
static double pair_state(const AttentionPlan *plan, size_t channels, size_t heads, double tokens) {
    const double window = (double)plan->window,
                 groups = (double)(plan->groups ? plan->groups : heads);
    return 2 * (window > 0 && window < tokens ? window : tokens) * groups *
           ((double)channels / (double)heads);
}

static void softmax1_configure(AttentionPlan *plan, const Options *options) {
    (void)options;
    plan->sink = 1;
}

// ---- cosine -----------------------------------------------------------------
// Parses --cosine-power, a number from 0 to 1. Returns -1 for "learned".
static double cosine_power(const char *text) {
    if (strcmp(text, "learned") == 0) return -1;
    char *end;
    const double power = strtod(text, &end);
    if (end == text || *end || !(power >= 0 && power <= 1))
        fail_usage("--cosine-power %s: expected a number from 0 to 1, or learned", text);
    return power;
}

static void cosine_configure(AttentionPlan *plan, const Options *options) {
    plan->power = cosine_power(options_text(options, OPT_COSINE_POWER));
}

static void cosine_parameters(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                              size_t channels, size_t heads) {
    (void)channels;
    char name[PARAMETER_NAME];
    if (plan->power >= 0) return;
    snprintf(name, sizeof(name), "%s.norm_const", prefix);
    plan->learned[0] = add_vector(table, name, heads, 0.5);
}

// FLOP of the products with each head's state (D, D).
static double cosine_flops(size_t channels, size_t heads, double queries, double keys) {
    (void)keys;
    return 4 * ((double)channels / (double)heads) * queries * (double)channels;
}

// One (D, D) per head, or the keys and values of the window.
static double cosine_state(const AttentionPlan *plan, size_t channels, size_t heads,
                           double tokens) {
    if (plan->window > 0) return pair_state(plan, channels, heads, tokens);
    return (double)channels * ((double)channels / (double)heads);
}

// ---- additive ---------------------------------------------------------------

static void additive_configure(AttentionPlan *plan, const Options *options) {
    plan->rescale = options_number(options, OPT_RESCALE);
    plan->sink = options_number(options, OPT_SINK);
    plan->pool_raw = strcmp(options_text(options, OPT_POOL), "raw") == 0;
    plan->query_gain = options_number(options, OPT_QUERY_GAIN);
}

static void additive_parameters(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                                size_t channels, size_t heads) {
    static const char *const names[] = {"query_attn", "key_attn", "query_gain"};
    if (channels / heads < 2)
        fail("--heads %zu: the %zu channels must divide into heads of at least 2", heads, channels);
    for (size_t i = ADDITIVE_QUERY; i <= ADDITIVE_GAIN; i++) {
        char name[PARAMETER_NAME];
        snprintf(name, sizeof(name), "%s.%s", prefix, names[i]);
        if (i < ADDITIVE_GAIN)
            plan->learned[i] = add_matrix(table, name, heads, channels / heads, DEVIATION);
        else if (plan->query_gain > 0)
            plan->learned[i] = add_vector(table, name, channels, plan->query_gain);
    }
}

// 0: only FLOP of matrix products are counted, and this kind has none.
static double additive_flops(size_t channels, size_t heads, double queries, double keys) {
    (void)channels, (void)heads, (void)queries, (void)keys;
    return 0;
}

// Two poolings per head, each with a window's rows and two sums, all with their weights.
static double additive_state(const AttentionPlan *plan, size_t channels, size_t heads,
                             double tokens) {
    const size_t numbers = plan->scores == SCORES_PLAIN ? 2 : 1; // per head's row, without x
    (void)tokens;
    return 2 * ((double)plan->window + 3) * (double)(channels + numbers * heads);
}

static void global_parameters(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                              size_t channels, size_t heads) {
    (void)heads;
    char name[PARAMETER_NAME];
    snprintf(name, sizeof(name), "%s.pooling", prefix);
    plan->learned[0] = add_matrix(table, name, 2, channels, DEVIATION);
}

// Two scores and two sums of 2 FLOP per channel each, and the product with values.
static double global_flops(size_t channels, size_t heads, double queries, double keys) {
    (void)heads, (void)keys;
    return 9 * queries * (double)channels;
}

// ---- pairwise ---------------------------------------------------------------

static void pairwise_configure(AttentionPlan *plan, const Options *options) {
    cosine_configure(plan, options);
    plan->similarity = (PairwiseSimilarity)options_choice(options, OPT_SIMILARITY);
    plan->activation = (PairwiseActivation)options_choice(options, OPT_ACTIVATION);
}

// Weights that do not add up to 1 are divided by a power of the number of keys.
static void pairwise_parameters(AttentionPlan *plan, ParameterTable *table, const char *prefix,
                                size_t channels, size_t heads) {
    const bool sums = plan->activation == ACTIVATE_SOFTMAX || plan->activation == ACTIVATE_SOFTMAX1,
               relu = plan->activation == ACTIVATE_LEARNED_RELU;
    const struct {
        bool learned;
        const char *name;
        double value;
    } all[PAIRWISE_LEARNED] = {
        [PAIRWISE_POWER] = {!sums && plan->power < 0, "norm_const", 0.5},
        [PAIRWISE_MINKOWSKI] = {plan->similarity == SIMILARITY_MINKOWSKI, "minkowski", 0},
        [PAIRWISE_FACTOR] = {relu, "factor", 1},
        [PAIRWISE_THRESHOLD] = {relu, "threshold", 0}};
    (void)channels;
    for (size_t i = 0; i < PAIRWISE_LEARNED; i++) {
        char name[PARAMETER_NAME];
        snprintf(name, sizeof(name), "%s.%s", prefix, all[i].name);
        if (all[i].learned) plan->learned[i] = add_vector(table, name, heads, all[i].value);
    }
}

// ---- the table --------------------------------------------------------------

const AttentionType attention_types[ATTENTION_KINDS] = {
    [ATTENTION_SOFTMAX] = {.name = "softmax",
                           .causal = true,
                           .both = true,
                           .compares = true,
                           .scores = ANY_SCORES,
                           .flops = pair_flops,
                           .state = pair_state},
    [ATTENTION_SOFTMAX1] = {.name = "softmax1",
                            .causal = true,
                            .both = true,
                            .configure = softmax1_configure,
                            .compares = true,
                            .scores = ANY_SCORES,
                            .flops = pair_flops,
                            .state = pair_state},
    [ATTENTION_COSINE] = {.name = "cosine",
                          .causal = true,
                          .both = true,
                          .configure = cosine_configure,
                          .add_parameters = cosine_parameters,
                          .compares = true,
                          .flops = cosine_flops,
                          .state = cosine_state},
    [ATTENTION_ADDITIVE] = {.name = "additive",
                            .causal = true,
                            .exact = true,
                            .joins = true,
                            .pools = true,
                            .usual = SCORES_RESCALED,
                            .scores = 1U << SCORES_PLAIN | 1U << SCORES_RESCALED,
                            .configure = additive_configure,
                            .add_parameters = additive_parameters,
                            .flops = additive_flops,
                            .state = additive_state},
    [ATTENTION_ADDITIVE_GLOBAL] = {.name = "additive",
                                   .both = true,
                                   .add_parameters = global_parameters,
                                   .flops = global_flops},
    [ATTENTION_PAIRWISE] = {.name = "pairwise",
                            .causal = true,
                            .both = true,
                            .compares = true,
                            .configure = pairwise_configure,
                            .add_parameters = pairwise_parameters,
                            .flops = pair_flops,
                            .state = pair_state},
};

AttentionPlan attention_plan(AttentionKind kind, bool causal) {
    AttentionPlan plan = {.kind = kind,
                          .causal = causal,
                          .scores = kind < ATTENTION_KINDS ? attention_types[kind].usual : 0,
                          .projection = no_linear(),
                          .gains = NO_PARAMETER};
    for (size_t i = 0; i < ATTENTION_LEARNED; i++) plan.learned[i] = NO_PARAMETER;
    return plan;
}

AttentionKind attention_find(const char *name, size_t length, bool causal) {
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        const AttentionType *type = &attention_types[kind];
        if (strlen(type->name) == length && memcmp(type->name, name, length) == 0 &&
            (causal ? type->causal : type->both))
            return (AttentionKind)kind;
    }
    return ATTENTION_KINDS;
}
