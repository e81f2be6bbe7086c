// Input: pairs of sentences, as two texts separated by the first NUL byte or, after a leading NUL
// byte, as tokens of paired shards. A pass over the task's batches must contain every pair that is
// not too long exactly once.
#include "dataset.h"
#include "harness.h"
#include "pairs.h"
#include "translation.h"
#include <stdlib.h>
#include <string.h>

static Options *options;

void fuzz_start(void) {
    static const Option seed = {.name = OPT_SEED,
                                .kind = OPTION_INTEGER,
                                .scope = OPTION_TRAINING,
                                .initial = "1",
                                .max = 9};
    static const char meta[] = "{\"tokenizer\": \"none\", \"vocab_size\": 256, \"pad\": 0, "
                               "\"end\": 124, \"paired\": true}";
    fuzz_file("meta.json", meta, strlen(meta));
    options = options_create("fuzz", "");
    options_add(options, &seed, 1);
    task_translation.add_options(options);
    options_set(options, OPT_MAX_LENGTH, "6", "fuzz");
    options_set(options, OPT_BATCH_TOKENS, "16", "fuzz");
}

static void write_shards(const char *tokens, size_t count) {
    const int32_t header[SHARD_HEADER_SIZE / sizeof(int32_t)] = {SHARD_MAGIC, 1, (int32_t)count};
    Bytes shard = {0};
    bytes_append(&shard, header, sizeof(header));
    for (size_t i = 0; i < count; i++) bytes_append(&shard, (const char[]){tokens[i], '\0'}, 2);
    fuzz_file("train_000000.bin", shard.data, shard.size);
    fuzz_file("val_000000.bin", shard.data, shard.size);
    bytes_free(&shard);
}

static void check_batches(void) {
    Dataset *dataset = dataset_open(fuzz_directory());
    const TaskType *type = &task_translation;
    void *task = type->create(&(TaskSetup){
        .options = options, .dataset = dataset, .training = true, .uses = {true, true}});
    const int64_t pairs = type->plan(task)->sequences;
    int64_t place = 0, validated = 0;
    Batch batch;
    while (place < pairs) {
        const Update update = type->update(task, place);
        if (update.sequences < 1) abort();
        for (int64_t i = 0; i < update.batches; i++) type->train_batch(task, &update, i, &batch);
        place += update.sequences;
    }
    for (int64_t i = 0; type->evaluation_batch(task, SPLIT_VAL, i, &batch); i++)
        validated += batch.batch;
    if (place != pairs || validated != pairs) abort();
    type->destroy(task);
    dataset_close(dataset);
}

void fuzz_one(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    if (size > 0 && text[0] == '\0') {
        write_shards(text + 1, size - 1);
    } else {
        const char *end = size > 0 ? memchr(text, '\0', size) : NULL;
        const size_t first = end ? (size_t)(end - text) : size, second = end ? first + 1 : size;
        Pairs pairs = pairs_join((PairSide){"first", {text, first}},
                                 (PairSide){"second", {text + second, size - second}}, "|");
        write_shards(pairs.text.data, pairs.text.size);
        bytes_free(&pairs.text);
    }
    check_batches();
}
