#include "bytes.h"
#include "corpus.h"
#include "dataset.h"
#include "memory.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- shards made by hand ----------------------------------------------------
// Writes a shard of the numbers first, first + 1, ...
static void make_shard(const char *name, int32_t magic, int32_t version, int32_t first,
                       int32_t count) {
    Bytes file = {0};
    int32_t header[256] = {magic, version, count};
    bytes_append(&file, header, sizeof(header));
    for (int32_t i = 0; i < count; i++) {
        const uint32_t token = (uint32_t)(first + i);
        const uint16_t narrow = (uint16_t)token;
        bytes_append(&file, version == 1 ? (const void *)&narrow : &token, version == 1 ? 2 : 4);
    }
    test_file(name, file.data, file.size);
    bytes_free(&file);
}

static void make_text(const char *name, const char *text) {
    test_file(name, text, strlen(text));
}

static void open_and_close(void *unused) {
    (void)unused;
    Dataset *dataset = dataset_open(test_directory());
    dataset_check(dataset, 0, 1);
    dataset_close(dataset);
}

#define CHECK_REFUSED(message) CHECK_FAILS(open_and_close, NULL, 1, message)

static void test_shards(void) {
    make_shard("train_000001.bin", 20240520, 7, 107, 5);
    make_shard("train_000000.bin", 20240520, 1, 100, 7);
    make_shard("train_000002.bin", 20240801, 7, 112, 1);
    make_shard("val_000000.bin", 20240520, 1, 7, 3);
    make_shard("train_000003.bin.tmp", 1, 1, 1, 1);
    make_text("notes.txt", "no shard");
    Dataset *dataset = dataset_open(test_directory());
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK_TEXT(dataset->name, test_directory());
    CHECK_TEXT(train->name, "train");
    CHECK(train->shard_count == 3 && train->tokens == 13);
    CHECK(train->words == 0 && train->lines == 0 && train->bytes == 0);
    for (int i = 0; i < 13; i++) CHECK(split_token(train, i) == 100 + i);
    CHECK(dataset->splits[SPLIT_VAL].tokens == 3 && dataset->splits[SPLIT_TEST].tokens == 0);
    CHECK(dataset->vocabulary == 50257 && dataset->end == 50256 && dataset->padding == -1);
    CHECK(dataset->tokenizer == NULL);
    dataset_close(dataset);
}

static void test_llmc_names(void) {
    CHECK(dataset_split_of("train_000000.bin") == SPLIT_TRAIN);
    CHECK(dataset_split_of("tiny_shakespeare_val.bin") == SPLIT_VAL);
    CHECK(dataset_split_of("edu_fineweb_train_000001.bin") == SPLIT_TRAIN);
    CHECK(dataset_split_of("test.bin") == SPLIT_TEST);
    CHECK(dataset_split_of("train_test_000000.bin") == SPLIT_TEST);
    const char *const others[] = {"training_0.bin", "train_0.txt",         ".bin", "bin", "",
                                  "constrain.bin",  "train_000000.bin.tmp"};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        CHECK(dataset_split_of(others[i]) == -1);
}

static void test_llama3(void) {
    make_shard("tiny_shakespeare_train.bin", 20240801, 7, 128250, 6);
    Dataset *dataset = dataset_open(test_directory());
    CHECK(dataset->vocabulary == 128256 && dataset->end == 128000);
    CHECK(split_token(&dataset->splits[SPLIT_TRAIN], 5) == 128255);
    dataset_close(dataset);
}

static void test_hostile_shards(void) {
    CHECK_REFUSED("has no train_*.bin");
    make_shard("train_000000.bin", 20240521, 1, 0, 4);
    CHECK_REFUSED("train_000000.bin: is not a shard of tokens: found magic 20240521");
    make_shard("train_000000.bin", 20240520, 2, 0, 4);
    CHECK_REFUSED("found version 2, expected 1 (uint16) or 7 (uint32)");
    make_shard("train_000000.bin", 20240520, 1, 0, 0);
    CHECK_REFUSED("has 0 tokens, expected at least 1");
    make_shard("train_000000.bin", 20240520, 1, 50255, 3);
    CHECK_REFUSED("token number 2 is 50257, expected less than the vocabulary's 50257");
    make_shard("train_000000.bin", 20240520, 7, -1, 1);
    CHECK_REFUSED("token number 0 is 4294967295");
    make_shard("train_000000.bin", 20240520, 1, 0, 8);
    make_shard("test_000000.bin", 20240520, 7, 50257, 100);
    CHECK_REFUSED("test_000000.bin: token number 0 is 50257");

    int32_t header[257] = {20240520, 1, 3};
    test_file("test_000000.bin", header, sizeof(header));
    CHECK_REFUSED("has 1028 bytes, expected 1030 for 3 tokens");
    header[2] = 1;
    test_file("test_000000.bin", header, sizeof(header));
    CHECK_REFUSED("has 1028 bytes, expected 1026 for 1 tokens");
    header[1] = 7;
    header[2] = INT32_MAX;
    test_file("test_000000.bin", header, sizeof(header));
    CHECK_REFUSED("expected 8589935612 for 2147483647 tokens");
    header[2] = -1;
    test_file("test_000000.bin", header, sizeof(header));
    CHECK_REFUSED("has -1 tokens");
    test_file("test_000000.bin", header, 1023);
    CHECK_REFUSED("has 1023 bytes, expected a header of 1024");
    test_file("test_000000.bin", header, 0);
    CHECK_REFUSED("has 0 bytes");
}

static void open_named(void *name) {
    dataset_open(name);
}

// A missing directory can be created by its recipe or from a text.
static void test_no_directory(void) {
    char name[512];
    CHECK_FAILS(open_named, "no/such/directory", 1,
                "no/such/directory: no such directory; ./tokenize -o no/such/directory "
                "TEXT creates it");
    snprintf(name, sizeof(name), "%s/corpus", test_directory());
    make_text("corpus.sh", "exit 0");
    CHECK_FAILS(open_named, name, 1, "corpus: no such directory; make ");
    snprintf(name, sizeof(name), "%s/corpus.sh", test_directory());
    CHECK_FAILS(open_named, name, 1,
                "corpus.sh: is a file, not a directory of tokens; ./tokenize -o DIR ");
}

// Every length around a vector's, and the largest token at every position.
static void test_token_check(void) {
    for (int32_t count = 1; count < 80; count++) {
        int32_t *tokens = allocate((size_t)count, sizeof(*tokens), "tokens");
        for (int32_t i = 0; i < count; i++) tokens[i] = 9;
        Shard shard = shard_in_memory(tokens, count);
        shard.vocabulary = 10;
        shard_check(&shard);
        shard_close(&shard);
    }
    for (int32_t place = 0; place < 40; place++) {
        Bytes file = {0};
        int32_t header[256] = {20240520, 1, 40};
        uint16_t tokens[40] = {0};
        tokens[place] = UINT16_MAX;
        bytes_append(&file, header, sizeof(header));
        bytes_append(&file, tokens, sizeof(tokens));
        test_file("train_000000.bin", file.data, file.size);
        bytes_free(&file);
        char message[64];
        snprintf(message, sizeof(message), "token number %d is 65535", place);
        CHECK_REFUSED(message);
    }
}

// ---- meta.json --------------------------------------------------------------

static void test_meta(void) {
    make_shard("train_000000.bin", 20240520, 1, 0, 4);
    make_shard("test_000000.bin", 20240520, 1, 1, 2);
    make_text("tokenizer.vocab", "the\n<eos>\ncat\n<unk>\n");
    make_text("meta.json",
              "{\"tokenizer\": \"word\", \"vocab_size\": 4, \"pad\": -1, \"end\": 1, \"splits\": "
              "{\"train\": "
              "{\"tokens\": 4, \"words\": 5, \"lines\": 6, \"bytes\": 7}, \"test\": {}}}");
    Dataset *dataset = dataset_open(test_directory());
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK(dataset->vocabulary == 4 && dataset->padding == -1 && dataset->end == 1);
    CHECK(train->words == 5 && train->lines == 6 && train->bytes == 7);
    CHECK(dataset->splits[SPLIT_TEST].words == 0);
    int32_t tokens[4];
    size_t size;
    for (int i = 0; i < 4; i++) tokens[i] = split_token(train, i);
    char *text = tokenizer_decode(dataset->tokenizer, tokens, 4, &size);
    CHECK_TEXT(text, "the\ncat <unk>");
    free(text);
    dataset_close(dataset);

    make_text("meta.json", "{\"tokenizer\": \"none\", \"vocab_size\": 4, \"pad\": 0, \"end\": -1}");
    dataset = dataset_open(test_directory());
    CHECK(dataset->tokenizer == NULL && dataset->padding == 0 && dataset->end == -1);
    dataset_close(dataset);
}

static void test_hostile_meta(void) {
    const struct {
        const char *text, *message;
    } cases[] = {
        {"", "meta.json"},
        {"[]", "meta.json: is not a JSON object"},
        {"{\"unfinished\": true}", "meta.json: a run of tokenize did not finish"},
        {"{}", "tokenizer"},
        {"{\"tokenizer\": 3}", "tokenizer"},
        {"{\"tokenizer\": \"unigram\"}", "meta.json: unknown tokenizer \"unigram\""},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 0}", "vocab_size"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 256}", "pad"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0}", "end"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 257, \"pad\": 0, \"end\": 0}",
         "\"vocab_size\" is 257"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0, \"paired\": 1}",
         "\"paired\" is not true or false"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0, \"splits\": 3}",
         "\"splits\" is not an object"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0, \"splits\": "
         "{\"train\": "
         "[]}}",
         "\"train\" is not an object"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0, \"splits\": "
         "{\"train\": "
         "{\"tokens\": 3}}}",
         "\"train\" has 3 tokens, but its shards hold 4"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0, \"splits\": "
         "{\"train\": "
         "{\"words\": -1}}}",
         "words"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 1, \"splits\": "
         "{\"train\": {\"checksums\": 7}}}",
         "\"checksums\" of \"train\": expected a list of 1, one for each shard"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 1, \"splits\": "
         "{\"train\": {\"checksums\": [\"ab\", \"cd\"]}}}",
         "expected a list of 1"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 1, \"splits\": "
         "{\"train\": {\"checksums\": [12]}}}",
         "\"checksums\" of \"train\": number 0 is not a hexadecimal number"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 1, \"splits\": "
         "{\"train\": {\"checksums\": [\"12x\"]}}}",
         "number 0 is not a hexadecimal number"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 1, \"splits\": "
         "{\"train\": {\"checksums\": [\"1234\"]}}}",
         "train_000000.bin: was changed or damaged since it was made"},
        {"{\"tokenizer\": \"none\", \"vocab_size\": 3, \"pad\": 0, \"end\": 1}",
         "token number 3 is 3"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 0}",
         "meta.json: \"pad\" and \"end\" are both token 0"},
        {"{\"tokenizer\": \"byte\", \"vocab_size\": 256, \"pad\": 0, \"end\": 2, \"mask\": 2}",
         "meta.json: \"mask\" and \"end\" are both token 2"},
        {"{\"tokenizer\": \"word\", \"vocab_size\": 4, \"pad\": 0, \"end\": 0}", "tokenizer.vocab"},
        {"{\"tokenizer\": \"spm\", \"vocab_size\": 4, \"pad\": 0, \"end\": 0}", "tokenizer.model"},
    };
    make_shard("train_000000.bin", 20240520, 1, 0, 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        make_text("meta.json", cases[i].text);
        CHECK_REFUSED(cases[i].message);
    }
}

// The checksum in meta.json detects any changed token; tokens in memory have no checksum to match.
static void test_checksums(void) {
    enum { COUNT = 70000 }; // more than one read
    make_shard("train_000000.bin", 20240520, 7, 0, COUNT);
    make_text("meta.json",
              "{\"tokenizer\": \"none\", \"vocab_size\": 100000, \"pad\": 0, \"end\": 1}");
    Dataset *dataset = dataset_open(test_directory());
    dataset_check(dataset, 0, 1);
    char *checksums = split_checksums(&dataset->splits[SPLIT_TRAIN]);
    CHECK(strlen(checksums) == 16);
    dataset_close(dataset);
    char *meta = format_string("{\"tokenizer\": \"none\", \"vocab_size\": 100000, \"pad\": 0, "
                               "\"end\": 1, \"splits\": {\"train\": {\"checksums\": [\"%s\"]}}}",
                               checksums);
    make_text("meta.json", meta);
    dataset = dataset_open(test_directory());
    dataset_check(dataset, 0, 1);
    dataset_close(dataset);
    make_shard("train_000000.bin", 20240520, 7, 1, COUNT);
    CHECK_REFUSED("train_000000.bin: was changed or damaged since it was made: its checksum is ");
    free(meta);
    free(checksums);
}

// ---- files that change while they are used ----------------------------------

typedef enum { SHRINK, REPLACE, OVERWRITE, REMOVE, LEAVE } Change;

static void read_changed(void *change) {
    int32_t file[256 + 500] = {SHARD_MAGIC, 1, 1000}, tokens[1000];
    char *path = copy_string(test_file("train_000000.bin", file, sizeof(file)));
    Shard shard = shard_open(path);
    shard.vocabulary = 10;
    shard_check(&shard);
    if (*(Change *)change == SHRINK && truncate(path, 2000) != 0) abort();
    if (*(Change *)change == REPLACE && unlink(path) == 0)
        test_file("train_000000.bin", file, sizeof(file));
    memset(file + 256, 0xff, 2000);
    if (*(Change *)change == OVERWRITE) {
        FILE *again = fopen(path, "r+");
        if (!again || fwrite(file, 1, sizeof(file), again) != sizeof(file) || fclose(again) != 0)
            abort();
    }
    if (*(Change *)change == REMOVE) unlink(path);
    shard_copy(&shard, 0, 1000, tokens);
    shard_copy(&shard, 999, 1, tokens);
    shard_close(&shard);
    free(path);
}

static void test_changing_files(void) {
    Change change = LEAVE;
    read_changed(&change);
    change = SHRINK; // a memory map of it would raise SIGBUS
    CHECK_FAILS(read_changed, &change, 1, "train_000000.bin: was changed while it was in use");
    change = REPLACE;
    CHECK_FAILS(read_changed, &change, 1, "train_000000.bin: was changed while it was in use");
    change = OVERWRITE; // tokens beyond the vocabulary would cause SIGSEGV
    CHECK_FAILS(read_changed, &change, 1, "train_000000.bin: was changed while it was in use");
    change = REMOVE;
    CHECK_FAILS(read_changed, &change, 1, "train_000000.bin: cannot open");
}

// ---- the embedded corpus ----------------------------------------------------
// Three similar splits, which together decode to the whole corpus.
static void test_embedded(void) {
    Dataset *dataset = dataset_open(NULL);
    const double whole = (double)corpus_text().size;
    CHECK_TEXT(dataset->name, "embedded");
    CHECK(dataset->vocabulary == 1024 && dataset->padding == -1);
    int64_t bytes = 0;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Split *split = &dataset->splits[s];
        int32_t *tokens = allocate((size_t)split->tokens, sizeof(*tokens), "tokens");
        for (int64_t i = 0; i < split->tokens; i++) tokens[i] = split_token(split, i);
        size_t size;
        char *text = tokenizer_decode(dataset->tokenizer, tokens, (size_t)split->tokens, &size);
        CHECK((int64_t)size == split->bytes && text[size - 1] == '\n');
        CHECK(split->words == 0); // words mean nothing in a program
        // The bytes per token are similar in all splits.
        const Split *train = &dataset->splits[SPLIT_TRAIN];
        CHECK_CLOSE((double)split->bytes / (double)split->tokens,
                    (double)train->bytes / (double)train->tokens, 0.1);
        bytes += split->bytes;
        free(text);
        free(tokens);
    }
    CHECK((double)bytes == whole);
    CHECK_CLOSE((double)dataset->splits[SPLIT_VAL].bytes / whole, 0.1, 0.02);
    CHECK_CLOSE((double)dataset->splits[SPLIT_TEST].bytes / whole, 0.1, 0.02);
    char *end = tokenizer_decode(dataset->tokenizer, &dataset->end, 1, &(size_t){0});
    CHECK_TEXT(end, "\n");
    free(end);
    dataset_close(dataset);
}

// ---- training order ---------------------------------------------------------

enum { LENGTH = 4, SEQUENCES = 2 + 0 + 5 }; // from shards of 9, 4 and 23 tokens

static Dataset *three_shards(void) {
    make_shard("train_000000.bin", 20240520, 1, 0, 9);
    make_shard("train_000001.bin", 20240520, 1, 1000, 4);
    make_shard("train_000002.bin", 20240520, 7, 2000, 23);
    return dataset_open(test_directory());
}

static void test_loader(void) {
    Dataset *dataset = three_shards();
    Loader *loader = loader_create(&dataset->splits[SPLIT_TRAIN], LENGTH, 7, false);
    CHECK(loader_sequences(loader) == SEQUENCES);
    const int32_t starts[SEQUENCES] = {0, 4, 2000, 2004, 2008, 2012, 2016};
    int32_t order[5][SEQUENCES];
    for (int epoch = 0; epoch < 5; epoch++) {
        int seen[SEQUENCES] = {0};
        for (int n = 0; n < SEQUENCES; n++) {
            int32_t inputs[LENGTH], targets[LENGTH];
            loader_sequence(loader, epoch * SEQUENCES + n, inputs, targets);
            for (int i = 0; i < LENGTH; i++)
                CHECK(inputs[i] == inputs[0] + i && targets[i] == inputs[i] + 1);
            for (int j = 0; j < SEQUENCES; j++) seen[j] += starts[j] == inputs[0];
            order[epoch][n] = inputs[0];
        }
        for (int j = 0; j < SEQUENCES; j++) CHECK(seen[j] == 1);
    }
    CHECK(memcmp(order[0], order[1], sizeof(order[0])) != 0);
    CHECK(memcmp(order[1], order[2], sizeof(order[0])) != 0);

    // A loader that starts in the middle continues in the same order; other seeds give others.
    Loader *resumed = loader_create(&dataset->splits[SPLIT_TRAIN], LENGTH, 7, false);
    Loader *other = loader_create(&dataset->splits[SPLIT_TRAIN], LENGTH, 8, false);
    int differing = 0;
    for (int n = 3; n < 5 * SEQUENCES; n++) {
        int32_t inputs[LENGTH], targets[LENGTH];
        loader_sequence(resumed, n, inputs, targets);
        CHECK(inputs[0] == order[n / SEQUENCES][n % SEQUENCES]);
        loader_sequence(other, n, inputs, targets);
        differing += inputs[0] != order[n / SEQUENCES][n % SEQUENCES];
    }
    CHECK(differing > 2 * SEQUENCES);
    CHECK(loader_left_out(loader) == 4 + 2); // of 9, 4 and 23
    loader_free(loader);
    loader_free(resumed);
    loader_free(other);
    dataset_close(dataset);
}

// Treats all shards as one text, whatever their lengths: in each epoch every token is a target, up
// to T - 1 of them twice, in sequences with other starts than before.
static void check_moving(Dataset *dataset, int length) {
    enum { TOKENS = 9 + 4 + 23, EPOCHS = 6 };
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    Loader *loader = loader_create(train, length, 7, true);
    const int sequences = (TOKENS + length - 1) / length;
    CHECK(loader_sequences(loader) == sequences && loader_left_out(loader) == 0);
    int32_t text[TOKENS], inputs[TOKENS], targets[TOKENS];
    split_copy(train, 0, TOKENS, text);
    int starts[TOKENS] = {0}, differing = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[TOKENS] = {0}, twice = 0;
        for (int n = 0; n < sequences; n++) {
            loader_sequence(loader, epoch * sequences + n, inputs, targets);
            int start = 0;
            while (text[start] != inputs[0]) start++;
            differing += starts[start]++ == 0;
            for (int i = 0; i < length; i++) {
                CHECK(inputs[i] == text[(start + i) % TOKENS]);
                CHECK(targets[i] == text[(start + i + 1) % TOKENS]);
                seen[(start + i + 1) % TOKENS]++;
            }
        }
        for (int i = 0; i < TOKENS; i++) {
            CHECK(seen[i] == 1 || seen[i] == 2);
            twice += seen[i] == 2;
        }
        CHECK(twice == sequences * length - TOKENS && twice < length);
    }
    CHECK(length == 1 || differing > sequences);
    // From any position, as in a resumed run.
    Loader *resumed = loader_create(train, length, 7, true);
    for (int n = EPOCHS * sequences - 1; n >= 0; n--) {
        int32_t again[TOKENS];
        loader_sequence(loader, n, inputs, targets);
        loader_sequence(resumed, n, again, targets);
        CHECK(memcmp(again, inputs, (size_t)length * sizeof(int32_t)) == 0);
    }
    loader_free(loader);
    loader_free(resumed);
}

static void test_moving(void) {
    Dataset *dataset = three_shards();
    for (int length = 1; length < 36; length++) check_moving(dataset, length);
    dataset_close(dataset);
}

// All 24 orders of four sequences are about equally frequent: chi squared with 23 degrees of
// freedom stays below its 99.9% quantile.
static void test_shuffle_uniform(void) {
    enum { EPOCHS = 24000 };
    make_shard("train_000000.bin", 20240520, 1, 0, 5);
    Dataset *dataset = dataset_open(test_directory());
    Loader *loader = loader_create(&dataset->splits[SPLIT_TRAIN], 1, 3, false);
    int counts[256] = {0};
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int code = 0;
        for (int64_t n = 0; n < 4; n++) {
            int32_t input, target;
            loader_sequence(loader, 4 * epoch + n, &input, &target);
            code = code * 4 + input;
        }
        counts[code]++;
    }
    double chi = 0;
    int orders = 0;
    for (int i = 0; i < 256; i++) {
        const double difference = counts[i] - EPOCHS / 24.0;
        if (counts[i] > 0) chi += difference * difference / (EPOCHS / 24.0);
        orders += counts[i] > 0;
    }
    CHECK(orders == 24);
    CHECK(chi < 49.7);
    loader_free(loader);
    dataset_close(dataset);
}

static void load_moving_too_long(void *dataset) {
    loader_create(&((Dataset *)dataset)->splits[SPLIT_TRAIN], 36, 7, true);
}

static void load_too_long(void *dataset) {
    loader_create(&((Dataset *)dataset)->splits[SPLIT_TRAIN], 23, 7, false);
}

static void test_too_short(void) {
    Dataset *dataset = three_shards();
    Loader *loader = loader_create(&dataset->splits[SPLIT_TRAIN], 22, 7, false);
    CHECK(loader_sequences(loader) == 1);
    loader_free(loader);
    CHECK_FAILS(load_too_long, dataset, 1, "the train split has no sequence of 23 tokens");
    CHECK_FAILS(load_moving_too_long, dataset, 1, "the train split has no sequence of 36 tokens");
    dataset_close(dataset);
}

// ---- evaluation order -------------------------------------------------------

static void check_blocks(const Split *split, int64_t length, int32_t end) {
    int32_t *inputs = allocate((size_t)length, sizeof(int32_t), "inputs");
    int32_t *targets = allocate((size_t)length, sizeof(int32_t), "targets");
    int64_t at = 0, got = length;
    for (int64_t j = 0; got == length; j++) {
        got = split_block(split, length, j, end, inputs, targets);
        CHECK(got == (split->tokens - at < length ? split->tokens - at : length));
        for (int64_t i = 0; i < length; i++) {
            const bool counted = i < got && (at + i > 0 || end >= 0);
            CHECK(targets[i] == (counted ? split_token(split, at + i) : -1));
            if (i < got && at + i > 0) CHECK(inputs[i] == split_token(split, at + i - 1));
            if (i < got && at + i == 0 && end >= 0) CHECK(inputs[i] == end);
            CHECK(inputs[i] >= 0);
        }
        at += got;
    }
    CHECK(at == split->tokens);
    CHECK(split_block(split, length, INT64_MAX, end, inputs, targets) == 0);
    free(inputs);
    free(targets);
}

static void test_blocks(void) {
    Dataset *dataset = three_shards();
    const Split *split = &dataset->splits[SPLIT_TRAIN];
    const int64_t lengths[] = {1, 2, 3, 4, 5, 9, 12, 35, 36, 37, 100};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        check_blocks(split, lengths[i], 77);
        check_blocks(split, lengths[i], -1);
    }
    int32_t inputs[2], targets[2];
    CHECK(split_block(&dataset->splits[SPLIT_VAL], 2, 0, 77, inputs, targets) == 0);
    CHECK(inputs[0] == 0 && inputs[1] == 0 && targets[0] == -1 && targets[1] == -1);
    dataset_close(dataset);
}

// ---- writing ----------------------------------------------------------------

static void check_writer(int32_t vocabulary, int width) {
    const int32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, vocabulary - 1};
    char *meta = format_string(
        "{\"tokenizer\": \"none\", \"vocab_size\": %d, \"pad\": -1, \"end\": -1}", vocabulary);
    make_text("meta.json", meta);
    free(meta);
    ShardWriter *writer = shard_writer_open(test_directory(), "train", vocabulary, 4);
    shard_writer_add(writer, tokens, 3);
    shard_writer_add(writer, tokens + 3, 0);
    shard_writer_add(writer, tokens + 3, 7);
    uint64_t *checksums;
    CHECK(shard_writer_close(writer, &checksums) == 3);
    Dataset *dataset = dataset_open(test_directory());
    const Split *train = &dataset->splits[SPLIT_TRAIN];
    CHECK(train->shard_count == 3 && train->shards[0].count == 4 && train->shards[2].count == 2);
    CHECK(train->shards[0].width == width);
    for (int i = 0; i < 10; i++) CHECK(split_token(train, i) == tokens[i]);
    dataset_check(dataset, 0, 1);
    for (int i = 0; i < 3; i++) CHECK(train->shards[i].checksum == checksums[i]);
    dataset_close(dataset);
    free(checksums);
}

static void test_writer(void) {
    check_writer(65536, 2);
    check_writer(65537, 4);
    check_writer(1000000, 4);
    ShardWriter *writer = shard_writer_open(test_directory(), "val", 10, 4);
    uint64_t *checksums;
    CHECK(shard_writer_close(writer, &checksums) == 0);
    free(checksums);
}

static void open_lone_token(void *unused) {
    (void)unused;
    Dataset *dataset = dataset_open(test_directory());
    if (dataset->splits[SPLIT_VAL].tokens != 0 || dataset->splits[SPLIT_TEST].tokens != 2)
        exit(EXIT_FAILURE);
    dataset_close(dataset);
}

// The first token of a split is predicted only if a token precedes every text.
static void test_lone_token(void) {
    char errors[1024];
    make_shard("train_0.bin", 20240520, 1, 0, 8);
    make_shard("val_0.bin", 20240520, 1, 0, 1);
    make_shard("test_0.bin", 20240520, 1, 0, 2);
    Dataset *dataset = dataset_open(test_directory());
    CHECK(dataset->end >= 0 && dataset->splits[SPLIT_VAL].tokens == 1);
    dataset_close(dataset);
    make_text(
        "meta.json",
        "{\"tokenizer\": \"none\", \"vocab_size\": 50, \"pad\": -1, \"end\": -1, \"splits\": {}}");
    CHECK(test_child(open_lone_token, NULL, errors, sizeof(errors)) == 0);
    CHECK(strstr(errors, "its val split is a single token, too few to predict one"));
}

static void check_targets(void *unused) {
    (void)unused;
    Dataset *dataset = dataset_open(test_directory());
    dataset_check(dataset, 0, 1);
    dataset_check_targets(dataset);
}

static void test_padding_alone(void) {
    char errors[1024];
    make_shard("train_0.bin", 20240520, 1, 0, 8);
    make_shard("val_0.bin", 20240520, 1, 0, 1); // token 0
    make_text("meta.json", "{\"tokenizer\": \"none\", \"vocab_size\": 50, \"pad\": 0, \"end\": 1}");
    CHECK(test_child(check_targets, NULL, errors, sizeof(errors)) == 1);
    CHECK(strstr(errors, "its val split is nothing but padding (token 0)"));
    make_shard("val_0.bin", 20240520, 1, 0, 2);
    CHECK(test_child(check_targets, NULL, errors, sizeof(errors)) == 0);
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"shards", test_shards},
        {"names of llm.c's shards", test_llmc_names},
        {"Llama 3 shards", test_llama3},
        {"hostile shards", test_hostile_shards},
        {"every token is checked", test_token_check},
        {"meta.json", test_meta},
        {"hostile meta.json", test_hostile_meta},
        {"no directory", test_no_directory},
        {"checksums", test_checksums},
        {"files that change", test_changing_files},
        {"embedded corpus", test_embedded},
        {"training order", test_loader},
        {"sequences that move", test_moving},
        {"shuffling is uniform", test_shuffle_uniform},
        {"split too short", test_too_short},
        {"split of one token", test_lone_token},
        {"split of padding", test_padding_alone},
        {"evaluation order", test_blocks},
        {"writing shards", test_writer},
    };
    return test_main(argc, argv, "dataset", cases, sizeof(cases) / sizeof(*cases));
}
