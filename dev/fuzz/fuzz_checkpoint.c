// Input: weights of a Fastformer. Loads them as train_fastformer --prompt does and generates a few
// tokens.
#include "dataset.h"
#include "harness.h"
#include "memory_files.h"
#include "run.h"
#include <string.h>

extern const ModelType fastformer;

enum { TOKENS = 12 };

static const char weights[] = MEMORY_DIRECTORY "/weights.safetensors";

static Ranks *ranks;
static Options *options;

// Writes a data set with the vocabulary of the checkpoints in the corpus (seeds.py).
void fuzz_start(void) {
    const int32_t header[SHARD_HEADER_SIZE / sizeof(int32_t)] = {SHARD_MAGIC, 1, TOKENS};
    const uint16_t tokens[TOKENS] = {1, 2, 3, 0, 1, 2, 3, 0, 3, 2, 1, 0};
    char shard[SHARD_HEADER_SIZE + sizeof(tokens)];
    memcpy(shard, header, sizeof(header));
    memcpy(shard + sizeof(header), tokens, sizeof(tokens));
    fuzz_file("train_000000.bin", shard, sizeof(shard));
    static const char words[] = "<eos>\n<unk>\none\ntwo\n";
    static const char meta[] = "{\"tokenizer\":\"word\",\"vocab_size\":4,\"pad\":-1,\"end\":0}";
    fuzz_file("tokenizer.vocab", words, strlen(words));
    fuzz_file("meta.json", meta, strlen(meta));
    const char *arguments[] = {"train_fastformer",
                               "-i",
                               fuzz_directory(),
                               "-e",
                               weights,
                               "--prompt",
                               "one",
                               "-g",
                               "3",
                               "-p",
                               "fp32",
                               NULL};
    ranks = ranks_open(1);
    options = trainer_options_create(&fastformer);
    options_parse(options, sizeof(arguments) / sizeof(*arguments) - 1, (char **)arguments, NULL,
                  NULL);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_file("weights.safetensors", data, size);
    train_run("train_fastformer", options, ranks, &fastformer);
}
