#include "model_options.h"

#include "error.h"
#include <stdlib.h>
#include <string.h>

size_t model_head_size(const Options *options, const char *file) {
    const int64_t channels = options_integer(options, OPT_CHANNELS),
                  heads = options_integer(options, OPT_HEADS);
    if (channels % heads == 0) return (size_t)(channels / heads);
    if (file)
        fail("%s: has %lld channels and %lld heads, into which they do not divide", file,
             (long long)channels, (long long)heads);
    fail("--heads %lld: the %lld channels must divide into heads", (long long)heads,
         (long long)channels);
}

ModelSizes model_sizes(const ModelSetup *setup) {
    const Options *o = setup->options;
    return (ModelSizes){.layers = (size_t)options_integer(o, OPT_LAYERS),
                        .channels = (size_t)options_integer(o, OPT_CHANNELS),
                        .heads = (size_t)options_integer(o, OPT_HEADS),
                        .head_size = model_head_size(o, NULL),
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
