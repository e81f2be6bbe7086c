// Input: meta.json of a data set with valid shards and a valid tokenizer.
#include "dataset.h"
#include "harness.h"
#include <string.h>

enum { TOKENS = 12 };

void fuzz_start(void) {
    const int32_t header[SHARD_HEADER_SIZE / sizeof(int32_t)] = {SHARD_MAGIC, 1, TOKENS};
    const uint16_t tokens[TOKENS] = {1, 2, 3, 0, 1, 2, 3, 0, 3, 2, 1, 0};
    char shard[SHARD_HEADER_SIZE + sizeof(tokens)];
    memcpy(shard, header, sizeof(header));
    memcpy(shard + sizeof(header), tokens, sizeof(tokens));
    fuzz_file("train_000000.bin", shard, sizeof(shard));
    fuzz_file("val_000000.bin", shard, sizeof(shard));
    static const char words[] = "<eos>\n<unk>\none\ntwo\n";
    fuzz_file("tokenizer.vocab", words, strlen(words));
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_file("meta.json", data, size);
    dataset_close(dataset_open(fuzz_directory()));
}
