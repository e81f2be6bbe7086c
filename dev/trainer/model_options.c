#include "model_options.h"

#include "error.h"
#include <stdlib.h>
#include <string.h>

ModelSizes model_sizes(const ModelSetup *setup) {
    const Options *o = setup->options;
    ModelSizes s = {.layers = (size_t)options_integer(o, "layers"),
                    .channels = (size_t)options_integer(o, "channels"),
                    .heads = (size_t)options_integer(o, "heads"),
                    .vocabulary = (size_t)setup->vocabulary,
                    .positions = (size_t)setup->positions};
    s.head_size = s.channels / s.heads;
    if (s.channels % s.heads != 0)
        fail("--heads %zu: the %zu channels must divide into heads", s.heads, s.channels);
    return s;
}

AttentionKind attention_kind(const Options *o) {
    AttentionKind kind = {.name = options_text(o, "attention")};
    const char *power = options_text(o, "cosine-power");
    kind.cosine = strcmp(kind.name, "cosine") == 0;
    kind.additive = strcmp(kind.name, "additive") == 0;
    kind.learned_power = kind.cosine && strcmp(power, "learned") == 0;
    if (kind.cosine && !kind.learned_power) kind.power = strtod(power, NULL);
    kind.sink = strcmp(kind.name, "softmax1") == 0 ? 1 : 0;
    return kind;
}
