// Input: a shard of tokens, used for every split of a data set without meta.json (as llm.c's).
#include "dataset.h"
#include "harness.h"
#include "memory.h"
#include <stdlib.h>

enum { LENGTH = 8 };

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    int32_t inputs[LENGTH], targets[LENGTH];
    for (int s = 0; s < SPLIT_COUNT; s++) {
        char *name = format_string("%s_000000.bin", split_name(s));
        fuzz_file(name, data, size);
        free(name);
    }
    Dataset *dataset = dataset_open(fuzz_directory());
    const Split *split = &dataset->splits[SPLIT_VAL];
    for (int64_t j = 0; split_block(split, LENGTH, j, dataset->end, inputs, targets) > 0; j++)
        for (int i = 0; i < LENGTH; i++)
            if (inputs[i] < 0 || inputs[i] >= dataset->vocabulary ||
                targets[i] >= dataset->vocabulary)
                abort();
    dataset_check(dataset, 0, 1);
    for (int moving = 0; moving < 2; moving++) {
        Loader *loader = loader_create(&dataset->splits[SPLIT_TRAIN], LENGTH, 1, moving);
        for (int64_t n = 0; n < 2 * loader_sequences(loader); n++)
            loader_sequence(loader, n, inputs, targets);
        loader_free(loader);
    }
    dataset_close(dataset);
}
