#include "block_options.h"

#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static size_t inner_size(const Options *options, size_t channels, ActivationKind activation) {
    enum { STEP = 32 }; // matrix products are fastest with multiples of this
    const size_t given = (size_t)options_integer(options, OPT_FFN_SIZE);
    if (given > 0) return given;
    return activation == SWIGLU ? (8 * channels / 3 + STEP - 1) / STEP * STEP : 4 * channels;
}

// Sets a layer's scores: those of --scores (-1: not given) if its kind supports them, else its
// default.
static void choose_scores(AttentionPlan *a, int scores, const Options *options, size_t layer) {
    const AttentionType *type = &attention_types[a->kind];
    if (scores > SCORES_PLAIN && type->compares && !type->scores)
        fail_usage("--scores: layer %zu has %s attention, whose scores are its own", layer,
                   type->name);
    a->scores = scores >= 0 && type->scores & 1U << scores ? (ScoresKind)scores : type->usual;
    if (a->scores == SCORES_RESCALED) a->rescale = options_number(options, OPT_RESCALE);
}

static Rotary read_rotary(const Options *options, size_t head_size) {
    const Rotary rotary = {options_number(options, OPT_ROTARY_BASE),
                           options_number(options, OPT_ROTARY_PART)};
    if (head_size % 2 != 0)
        fail_usage("--positions rotary: heads of %zu channels; they must be even", head_size);
    if (rotary.part * (double)head_size < 2)
        fail_usage("--rotary-part %g: rotates none of the %zu pairs of channels of a head; use "
                   "--positions none instead",
                   rotary.part, head_size / 2);
    return rotary;
}

// Sets scores, grouped heads and rotation in the layers whose kind compares queries with keys.
static void prepare_attention(TransformerPlan *p, const Options *options) {
    const bool rotary = p->positions == POSITIONS_ROTARY;
    const long long groups = options_integer(options, OPT_KV_HEADS);
    const int scores = options_choice(options, OPT_SCORES) - 1; // "usual" is the first
    const size_t kv_heads = groups > 0 ? (size_t)groups : p->size.heads;
    const bool grouped = kv_heads != p->size.heads;
    bool scored = scores <= SCORES_PLAIN, compared = !grouped && !rotary;
    if (p->size.heads % kv_heads != 0)
        fail_usage("--kv-heads %lld: does not divide the %zu heads", groups, p->size.heads);
    const Rotary angles = rotary ? read_rotary(options, p->size.head_size) : (Rotary){0};
    if (scores == SCORES_RESCALED && p->size.head_size < 2)
        fail_usage("--scores rescaled: heads of one channel; they must have two or more");
    for (size_t l = 0; l < p->size.layers; l++) {
        AttentionPlan *a = &p->layers[l].attention;
        const AttentionType *type = &attention_types[a->kind];
        choose_scores(a, scores, options, l + 1);
        scored |= (int)a->scores == scores;
        compared |= type->compares;
        a->groups = type->compares ? kv_heads : p->size.heads;
        a->epsilon = p->epsilon;
        a->prepares = type->compares && (grouped || rotary || a->scores != SCORES_PLAIN);
        if (a->prepares) a->rotary = angles;
    }
    if (!scored) fail_usage("--scores: no layer has %s scores", options_text(options, OPT_SCORES));
    if (!compared)
        fail_usage("%s: no layer compares queries with keys",
                   rotary ? "--positions rotary" : "--kv-heads");
}

// Returns how many input channels of each attention layer come from the previous token.
static size_t shifted_channels(const Options *options, size_t channels) {
    const double part = options_number(options, OPT_TOKEN_SHIFT);
    const size_t shifted = (size_t)(part * (double)channels + 0.5);
    if (part > 0 && shifted == 0)
        fail_usage("--token-shift %g: is less than half of one of %zu channels", part, channels);
    return shifted;
}

void plan_choose_blocks(TransformerPlan *p, const Options *options, ActivationKind gelu) {
    // In the order of the option's choices, like PositionKind.
    const ActivationKind kinds[] = {gelu, RELU, RELU2, SWIGLU};
    p->rms = strcmp(options_text(options, OPT_NORM), "rms") == 0;
    p->epsilon = options_number(options, OPT_NORM_EPS);
    p->positions = (PositionKind)options_choice(options, OPT_POSITIONS);
    p->activation = kinds[options_choice(options, OPT_FFN)];
    p->inner = inner_size(options, p->size.channels, p->activation);
    p->untied = options_flag(options, OPT_UNTIED);
    for (size_t l = 0; l < p->size.layers; l++)
        p->layers[l].attention.shifted = shifted_channels(options, p->size.channels);
    prepare_attention(p, options);
}

bool plan_has_usual_blocks(const TransformerPlan *p, ActivationKind gelu) {
    bool changed = p->positions != POSITIONS_LEARNED;
    for (size_t l = 0; l < p->size.layers; l++) {
        const AttentionPlan *a = &p->layers[l].attention;
        changed |= a->groups != p->size.heads || a->scores != attention_types[a->kind].usual;
    }
    return !p->rms && p->epsilon == NORM_EPSILON && p->activation == gelu &&
           p->inner == 4 * p->size.channels && !p->untied && !changed;
}

NormParameters plan_add_norm(const TransformerPlan *plan, ParameterTable *table, const char *name,
                             ...) {
    char text[PARAMETER_NAME];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof(text), name, arguments);
    va_end(arguments);
    NormParameters norm =
        (plan->rms ? add_rms_norm : add_norm)(table, plan->size.channels, "%s", text);
    norm.epsilon = plan->epsilon;
    return norm;
}

size_t plan_qkv_rows(const TransformerPlan *p, const AttentionPlan *a) {
    return p->size.channels + 2 * a->groups * p->size.head_size;
}

size_t plan_up_rows(const TransformerPlan *p) {
    return activation_inputs(p->activation) * p->inner;
}

void plan_add_positions(TransformerPlan *p, ParameterTable *table, const char *name) {
    EmbeddingPlan *embedding = &p->stacks[0].embedding;
    embedding->positions = p->positions;
    embedding->position = p->positions == POSITIONS_LEARNED
                              ? add_matrix(table, name, p->size.positions, p->size.channels, 0.02)
                              : NO_PARAMETER;
}

static void add_gains(AttentionPlan *a, ParameterTable *table, const char *prefix, size_t size) {
    const int64_t shape = (int64_t)size;
    char name[PARAMETER_NAME];
    snprintf(name, sizeof(name), "%s.q_norm.weight", prefix);
    a->gains = parameter_add(table, name, 1, &shape, false, 1, 0);
    snprintf(name, sizeof(name), "%s.k_norm.weight", prefix);
    parameter_add_adjacent(table, name, 1, &shape, false, 1, 0);
}

void plan_add_attention(const TransformerPlan *p, AttentionPlan *a, ParameterTable *table,
                        const char *prefix) {
    const AttentionType *type = &attention_types[a->kind];
    a->gains = NO_PARAMETER;
    if (a->scores == SCORES_QKNORM) add_gains(a, table, prefix, p->size.head_size);
    if (type->add_parameters)
        type->add_parameters(a, table, prefix, p->size.channels, p->size.heads);
}

void plan_add_output(TransformerPlan *p, ParameterTable *table, const char *name) {
    if (p->untied) p->output = add_matrix(table, name, p->size.vocabulary, p->size.channels, 0.02);
}
