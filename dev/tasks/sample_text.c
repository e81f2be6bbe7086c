#include "language.h"
#include "memory.h"
#include "sampler.h"
#include "train.h"
#include <stdlib.h>
#include <string.h>

char *sample_text(const Run *run, uint32_t number) {
    const Options *o = run->options;
    const Tokenizer *tokenizer = run->dataset->tokenizer;
    const int64_t wanted = options_integer(o, "sample-tokens"), room = run->setup.positions - 1;
    const size_t count = (size_t)(wanted < room ? wanted : room);
    if (!tokenizer || run->dataset->end < 0) return NULL;
    const SamplerSettings settings = {options_number(o, "temperature"), options_integer(o, "top-k"),
                                      options_number(o, "top-p")};
    Random random = random_stream((uint64_t)options_integer(o, "seed"), RANDOM_SAMPLE, number, 0);
    int32_t *tokens = allocate(count + 1, sizeof(int32_t), "a sample");
    real *logits = allocate((size_t)run->setup.vocabulary, sizeof(real), "logits");
    void *decoder = run->type->decoder_create(run->model, 1);
    tokens[0] = run->dataset->end;
    for (size_t i = 0; i < count; i++) {
        run->type->decode(decoder, &tokens[i], logits);
        tokens[i + 1] = sampler_draw(&settings, logits, run->setup.vocabulary, &random);
    }
    size_t size;
    char *decoded = tokenizer_decode(tokenizer, tokens + 1, count, &size);
    char *text = allocate(size + 1, 1, "a sample");
    memcpy(text, decoded, size);
    run->type->decoder_destroy(decoder);
    free(decoded);
    free(logits);
    free(tokens);
    return text;
}
