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
