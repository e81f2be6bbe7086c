#include "model_options.h"

#include "error.h"
#include <stdlib.h>
#include <string.h>

ModelFacts model_facts(const Options *options, const char *file) {
    const ModelFacts facts = {.channels = options_integer(options, OPT_CHANNELS),
                              .heads = options_integer(options, OPT_HEADS),
                              .dropout = options_number(options, OPT_DROPOUT)};
    if (facts.channels % facts.heads == 0) return facts;
    if (file)
        fail("%s: has %lld channels and %lld heads, into which they do not divide", file,
             (long long)facts.channels, (long long)facts.heads);
    fail("--heads %lld: the %lld channels must divide into heads", (long long)facts.heads,
         (long long)facts.channels);
}

ModelSizes model_sizes(const ModelSetup *setup) {
    const ModelFacts facts = model_facts(setup->options, NULL);
    return (ModelSizes){.layers = (size_t)options_integer(setup->options, OPT_LAYERS),
                        .channels = (size_t)facts.channels,
                        .heads = (size_t)facts.heads,
                        .head_size = (size_t)(facts.channels / facts.heads),
                        .vocabulary = (size_t)setup->vocabulary,
                        .positions = (size_t)setup->positions};
}

// A number from 0 to 1; -1: "learned".
static double cosine_power(const char *text) {
    if (strcmp(text, "learned") == 0) return -1;
    char *end;
    const double power = strtod(text, &end);
    if (end == text || *end || !(power >= 0 && power <= 1))
        fail_usage("--cosine-power %s: expected a number from 0 to 1, or learned", text);
    return power;
}

AttentionKind attention_kind(const Options *o) {
    AttentionKind kind = {.name = options_text(o, OPT_ATTENTION)};
    kind.cosine = strcmp(kind.name, "cosine") == 0;
    kind.additive = strcmp(kind.name, "additive") == 0;
    const double power = cosine_power(options_text(o, OPT_COSINE_POWER));
    kind.learned_power = kind.cosine && power < 0;
    if (kind.cosine && !kind.learned_power) kind.power = power;
    kind.sink = strcmp(kind.name, "softmax1") == 0 ? 1 : 0;
    return kind;
}
