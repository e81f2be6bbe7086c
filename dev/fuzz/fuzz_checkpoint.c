// Weights of a Fastformer, loaded as train_fastformer --prompt does, and a few tokens made with them.
#include "dataset.h"
#include "harness.h"
#include "train.h"
#include <string.h>

extern const ModelType fastformer;

enum { TOKENS = 12 };

// A directory of data whose vocabulary is that of the corpus's checkpoints (seeds.sh).
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
}

void fuzz_one(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("weights.safetensors", data, size);
    const char *arguments[] = {"train_fastformer",
                               "-i",
                               fuzz_directory(),
                               "-e",
                               path,
                               "--prompt",
                               "one",
                               "-g",
                               "3",
                               "-p",
                               "fp32",
                               NULL};
    train_main(sizeof(arguments) / sizeof(*arguments) - 1, (char **)arguments, &fastformer);
}
