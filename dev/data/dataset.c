#include "dataset.h"
#include "bytes.h"
#include "corpus.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "random.h"
#include "terminal.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const split_names[SPLIT_COUNT] = {"train", "val", "test"};

// llm.c's shards identify their vocabulary only by the magic number.
enum { GPT2_VOCABULARY = 50257, GPT2_END = 50256, LLAMA3_VOCABULARY = 128256, LLAMA3_END = 128000 };

// The embedded corpus. A part ends at the first line end after PART_SIZE bytes.
enum { EMBEDDED_VOCABULARY = 1024, PART_SIZE = 2000 };

const char *split_name(int split) {
    return split_names[split];
}

// ---- the files of a directory -----------------------------------------------

int dataset_split_of(const char *file_name) {
    const size_t length = strlen(file_name);
    int found = -1;
    if (length < 4 || strcmp(file_name + length - 4, ".bin") != 0) return -1;
    const char *end = file_name + length - 4;
    for (const char *word = file_name; word < end;) {
        const char *stop = memchr(word, '_', (size_t)(end - word));
        if (!stop) stop = end;
        for (int s = 0; s < SPLIT_COUNT; s++)
            if (strlen(split_names[s]) == (size_t)(stop - word) &&
                memcmp(word, split_names[s], (size_t)(stop - word)) == 0)
                found = s;
        word = stop + 1;
    }
    return found;
}

static void add_shard(Split *split, Shard shard) {
    split->shards[split->shard_count++] = shard;
    split->tokens += shard.count;
    split->first[split->shard_count] = split->tokens;
}

static void reserve_shards(Split *split, size_t count) {
    split->shards = allocate(count, sizeof(Shard), "the list of shards");
    split->first = allocate(count + 1, sizeof(int64_t), "the list of shards");
}

// Reports a missing directory. data/NAME.sh, if it exists, creates data/NAME.
static _Noreturn void fail_without_directory(const char *name) {
    char *recipe = format_string("%s.sh", name);
    if (access(recipe, R_OK) == 0) fail("%s: no such directory; make %s creates it", name, name);
    fail("%s: no such directory; ./tokenize -o %s TEXT creates it", name, name);
}

static void open_splits(Dataset *dataset) {
    size_t count;
    struct stat status;
    if (stat(dataset->name, &status) == 0 ? !S_ISDIR(status.st_mode) : errno == ENOTDIR)
        fail("%s: is a file, not a directory of tokens; ./tokenize -o DIR %s makes one",
             dataset->name, dataset->name);
    char **names = directory_list(dataset->name, &count);
    if (!names) fail_without_directory(dataset->name);
    for (int s = 0; s < SPLIT_COUNT; s++) reserve_shards(&dataset->splits[s], count);
    for (size_t i = 0; i < count; i++) {
        const int split = dataset_split_of(names[i]);
        char *path = path_in(dataset->name, names[i]);
        if (split >= 0) add_shard(&dataset->splits[split], shard_open(path));
        free(path);
    }
    directory_list_free(names, count);
    if (dataset->splits[SPLIT_TRAIN].tokens == 0)
        fail("%s: has no train_*.bin; ./tokenize -o %s TEXT makes one", dataset->name,
             dataset->name);
}

// ---- meta.json --------------------------------------------------------------
// Returns a count from meta.json, or 0 if it is missing.
static int64_t count_of(const Json *object, const char *key, const char *source) {
    return json_find(object, key) ? json_integer(object, key, 0, INT64_C(1) << 53, source) : 0;
}

static const Json *member(const Json *object, const char *key, const char *source) {
    const Json *value = json_find(object, key);
    if (value && value->kind != JSON_OBJECT) fail("%s: \"%s\" is not an object", source, key);
    return value;
}

static void read_counts(Split *split, const Json *counts, const char *source) {
    const int64_t tokens = count_of(counts, "tokens", source);
    if (json_find(counts, "tokens") && tokens != split->tokens)
        fail("%s: \"%s\" has %lld tokens, but its shards hold %lld: files are missing or of "
             "another run",
             source, split->name, (long long)tokens, (long long)split->tokens);
    split->words = count_of(counts, "words", source);
    split->lines = count_of(counts, "lines", source);
    // The size of the decoded text, which may differ from that of the original text.
    split->bytes =
        count_of(counts, json_find(counts, "decoded_bytes") ? "decoded_bytes" : "bytes", source);
}

// Reads one checksum per shard, in order.
static void read_checksums(Split *split, const Json *counts, const char *source) {
    const Json *checksums = json_find(counts, "checksums");
    if (!checksums) return;
    if (checksums->kind != JSON_ARRAY || checksums->count != (size_t)split->shard_count)
        fail("%s: \"checksums\" of \"%s\": expected a list of %d, one for each shard", source,
             split->name, split->shard_count);
    for (int i = 0; i < split->shard_count; i++) {
        const Json *item = &checksums->items[i];
        char *end = "?";
        if (item->kind == JSON_STRING) split->shards[i].expected = strtoull(item->string, &end, 16);
        if (*end || end == item->string)
            fail("%s: \"checksums\" of \"%s\": number %d is not a hexadecimal number", source,
                 split->name, i);
    }
}

static void open_tokenizer(Dataset *dataset, TokenizerKind kind, const char *path) {
    dataset->tokenizer = tokenizer_open(kind, dataset->name);
    if (tokenizer_vocabulary(dataset->tokenizer) != dataset->vocabulary)
        fail("%s: \"vocab_size\" is %d, but the tokenizer next to it has %d tokens", path,
             dataset->vocabulary, tokenizer_vocabulary(dataset->tokenizer));
}

// A special token that differs from the tokenizer's, or that has two meanings, would silently train
// a different model. "end" is not compared: the tokenizer alone does not define it.
static void check_meanings(const Dataset *dataset, const char *path) {
    const Tokenizer *tokenizer = dataset->tokenizer;
    const struct {
        const char *key;
        int32_t token, theirs;
    } meanings[] = {{"pad", dataset->padding, tokenizer ? tokenizer_padding(tokenizer) : -1},
                    {"mask", dataset->mask, tokenizer ? tokenizer_mask(tokenizer) : -1},
                    {"end", dataset->end, -1}};
    for (int i = 0; i < 3; i++) {
        const int32_t token = meanings[i].token, theirs = meanings[i].theirs;
        if (token < 0) continue;
        if (theirs >= 0 && token != theirs)
            fail("%s: \"%s\" is token %d, but %d in the tokenizer next to it", path,
                 meanings[i].key, token, theirs);
        for (int j = 0; j < i; j++)
            if (token == meanings[j].token)
                fail("%s: \"%s\" and \"%s\" are both token %d", path, meanings[j].key,
                     meanings[i].key, token);
    }
}

static void read_meta(Dataset *dataset, const char *path) {
    Json *meta = json_read_object(path);
    if (json_find(meta, "unfinished"))
        fail("%s: a run of tokenize did not finish; run it again", path);
    const TokenizerKind kind = tokenizer_kind_from_name(json_string(meta, "tokenizer", path), path);
    dataset->vocabulary = (int32_t)json_integer(meta, "vocab_size", 1, INT32_MAX, path);
    dataset->padding = (int32_t)json_integer(meta, "pad", -1, dataset->vocabulary - 1, path);
    if (json_find(meta, "mask"))
        dataset->mask = (int32_t)json_integer(meta, "mask", -1, dataset->vocabulary - 1, path);
    dataset->end = (int32_t)json_integer(meta, "end", -1, dataset->vocabulary - 1, path);
    const Json *paired = json_find(meta, "paired");
    if (paired && paired->kind != JSON_BOOL) fail("%s: \"paired\" is not true or false", path);
    dataset->paired = paired && paired->boolean;
    const Json *splits = member(meta, "splits", path);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Json *counts = splits ? member(splits, split_names[s], path) : NULL;
        if (!counts) continue;
        read_counts(&dataset->splits[s], counts, path);
        read_checksums(&dataset->splits[s], counts, path);
    }
    json_free(meta);

    if (kind != TOKENIZER_NONE) open_tokenizer(dataset, kind, path);
    check_meanings(dataset, path);
}

static void assume_llmc(Dataset *dataset) {
    const bool llama3 = dataset->splits[SPLIT_TRAIN].shards[0].magic == SHARD_MAGIC_LLAMA3;
    dataset->vocabulary = llama3 ? LLAMA3_VOCABULARY : GPT2_VOCABULARY;
    dataset->end = llama3 ? LLAMA3_END : GPT2_END;
    dataset->padding = -1;
    if (tokenizer_find(dataset->name) != TOKENIZER_BPE) return;
    dataset->tokenizer = tokenizer_open(TOKENIZER_BPE, dataset->name);
    if (tokenizer_vocabulary(dataset->tokenizer) != dataset->vocabulary)
        fail("%s: its shards have no meta.json, so %d tokens are expected, but the tokenizer next "
             "to them has %d",
             dataset->name, dataset->vocabulary, tokenizer_vocabulary(dataset->tokenizer));
}

// ---- opening ----------------------------------------------------------------

static Dataset *dataset_create(const char *name) {
    Dataset *dataset = allocate(1, sizeof(*dataset), "a data set");
    dataset->name = copy_string(name);
    dataset->mask = -1;
    for (int s = 0; s < SPLIT_COUNT; s++) dataset->splits[s].name = split_names[s];
    return dataset;
}

Dataset *dataset_of_tokenizer(const char *name, Tokenizer *tokenizer) {
    Dataset *dataset = dataset_create(name);
    dataset->tokenizer = tokenizer;
    dataset->vocabulary = tokenizer_vocabulary(tokenizer);
    dataset->padding = tokenizer_padding(tokenizer);
    dataset->mask = tokenizer_mask(tokenizer);
    dataset->end = tokenizer_end(tokenizer);
    return dataset;
}

// Assigns every tenth part of the corpus to validation and another tenth to test, so that the three
// splits are similar.
static void deal_corpus(Bytes parts[SPLIT_COUNT]) {
    Text rest = corpus_text();
    for (int i = 0; rest.size > 0; i++) {
        const char *newline = rest.size > PART_SIZE
                                  ? memchr(rest.data + PART_SIZE, '\n', rest.size - PART_SIZE)
                                  : NULL;
        const size_t size = newline ? (size_t)(newline - rest.data) + 1 : rest.size;
        bytes_append(&parts[i % 10 == 4   ? SPLIT_VAL
                            : i % 10 == 9 ? SPLIT_TEST
                                          : SPLIT_TRAIN],
                     rest.data, size);
        rest = (Text){rest.data + size, rest.size - size};
    }
}

static Dataset *open_embedded(void) {
    Bytes parts[SPLIT_COUNT] = {{0}};
    deal_corpus(parts);
    const Text train = {parts[SPLIT_TRAIN].data, parts[SPLIT_TRAIN].size};
    Dataset *dataset =
        dataset_of_tokenizer("embedded", tokenizer_train_bpe(train, EMBEDDED_VOCABULARY));
    dataset->embedded = true;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        Split *split = &dataset->splits[s];
        int32_t *tokens;
        const size_t count =
            tokenizer_encode(dataset->tokenizer, parts[s].data, parts[s].size, 1, &tokens);
        reserve_shards(split, 1);
        add_shard(split, shard_in_memory(tokens, (int64_t)count));
        split->bytes = (int64_t)parts[s].size; // no word count: the text is source code
        bytes_free(&parts[s]);
    }
    return dataset;
}

// Encodes a text in parts and shows the progress, because a long text takes a while.
static size_t encode_parts(const Tokenizer *tokenizer, Text text, int32_t **tokens) {
    enum { PART_BYTES = 1 << 22 };
    Bytes all = {0};
    Meter meter = meter_start();
    for (Text rest = text; rest.size > 0;) {
        const size_t size = tokenizer_cut(tokenizer, rest, PART_BYTES);
        int32_t *part;
        const size_t count = tokenizer_encode(tokenizer, rest.data, size, 1, &part);
        bytes_append(&all, part, count * sizeof(*part));
        free(part);
        rest = (Text){rest.data + size, rest.size - size};
        meter_show(&meter, "tokenizing", 1 - (double)rest.size / (double)text.size);
    }
    meter_end(&meter);
    *tokens = (int32_t *)(void *)all.data;
    return all.size / sizeof(**tokens);
}

void dataset_need_tokenizer(const Dataset *dataset, const char *used) {
    if (!dataset->tokenizer)
        fail("%s: has no tokenizer, so no text can be %s; make it with ./tokenize", dataset->name,
             used);
}

void dataset_take_text(Dataset *dataset, SplitName split, const char *name, Text text) {
    dataset_need_tokenizer(dataset, "read");
    Split *s = &dataset->splits[split];
    size_t before, size;
    const int32_t *first = tokenizer_before(dataset->tokenizer, &before);
    if (dataset->end < 0 && before > 0) dataset->end = first[before - 1];
    int32_t *tokens;
    const size_t count = encode_parts(dataset->tokenizer, text, &tokens);
    if (count < (dataset->end < 0 ? 2 : 1))
        fail("%s: has %zu tokens, of which nothing can be predicted", name, count);
    free(tokenizer_decode(dataset->tokenizer, tokens, count, &size));
    for (int i = 0; i < s->shard_count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->first);
    const TextCounts counts = text_count(text);
    *s = (Split){
        .name = s->name, .words = counts.words, .lines = counts.lines, .bytes = (int64_t)size};
    reserve_shards(s, 1);
    add_shard(s, shard_in_memory(tokens, (int64_t)count));
    s->shards[0].vocabulary = dataset->vocabulary;
    s->shards[0].padding = dataset->padding;
}

// Empties an evaluation split of one token: without a preceding token it has no target.
static void leave_out_lone_tokens(Dataset *dataset) {
    for (int s = SPLIT_VAL; s < SPLIT_COUNT; s++) {
        Split *split = &dataset->splits[s];
        if (split->tokens != 1 || dataset->end >= 0) continue;
        warn("%s: its %s split is a single token, too few to predict one: the split is ignored",
             dataset->name, split->name);
        split->tokens = 0;
    }
}

static Dataset *open_generated(const char *name) {
    Dataset *dataset = dataset_create(name);
    dataset->recall = recall_parse(name);
    dataset->vocabulary = recall_vocabulary(&dataset->recall);
    dataset->padding = dataset->end = -1;
    for (int s = 0; s < SPLIT_COUNT; s++)
        dataset->splits[s].tokens = s == SPLIT_TRAIN ? RECALL_EPOCH : RECALL_EVALUATION;
    return dataset;
}

Dataset *dataset_open(const char *directory) {
    if (!directory) return open_embedded();
    if (recall_named(directory)) return open_generated(directory);
    Dataset *dataset = dataset_create(directory);
    char *meta = path_in(directory, "meta.json");
    open_splits(dataset);
    if (file_exists(meta))
        read_meta(dataset, meta);
    else
        assume_llmc(dataset);
    free(meta);
    for (int s = 0; s < SPLIT_COUNT; s++)
        for (int i = 0; i < dataset->splits[s].shard_count; i++) {
            dataset->splits[s].shards[i].vocabulary = dataset->vocabulary;
            dataset->splits[s].shards[i].padding = dataset->padding;
        }
    leave_out_lone_tokens(dataset);
    return dataset;
}

void dataset_check(const Dataset *dataset, int part, int parts) {
    for (int s = 0, number = 0; s < SPLIT_COUNT; s++)
        for (int i = 0; i < dataset->splits[s].shard_count; i++, number++)
            if (number % parts == part) shard_check(&dataset->splits[s].shards[i]);
}

int64_t split_paddings(const Split *split) {
    int64_t count = 0;
    for (int i = 0; i < split->shard_count; i++) count += split->shards[i].paddings;
    return count;
}

void dataset_check_targets(const Dataset *dataset) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Split *split = &dataset->splits[s];
        if (split->tokens > 0 && split_paddings(split) == split->tokens)
            fail("%s: its %s split is nothing but padding (token %d)", dataset->name, split->name,
                 dataset->padding);
    }
}

char *split_checksums(const Split *split) {
    char *text = copy_string("");
    for (int i = 0; i < split->shard_count; i++)
        append_format(&text, "%s%016llx", i ? " " : "",
                      (unsigned long long)split->shards[i].checksum);
    return text;
}

void dataset_close(Dataset *dataset) {
    if (!dataset) return;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        for (int i = 0; i < dataset->splits[s].shard_count; i++)
            shard_close(&dataset->splits[s].shards[i]);
        free(dataset->splits[s].shards);
        free(dataset->splits[s].first);
    }
    tokenizer_free(dataset->tokenizer);
    free(dataset->name);
    free(dataset);
}

// ---- reading a split in order -----------------------------------------------
// Returns the index of the last of `count` ascending numbers that is at most i. The first one is.
static int last_at_most(const int64_t *numbers, int count, int64_t i) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (numbers[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void split_copy(const Split *split, int64_t start, int64_t count, int32_t *out) {
    for (int s = last_at_most(split->first, split->shard_count, start); count > 0; s++) {
        const Shard *shard = &split->shards[s];
        const int64_t offset = start - split->first[s], left = shard->count - offset;
        const int64_t part = count < left ? count : left;
        shard_copy(shard, offset, part, out);
        start += part;
        out += part;
        count -= part;
    }
}

int32_t split_token(const Split *split, int64_t i) {
    int32_t token;
    split_copy(split, i, 1, &token);
    return token;
}

int64_t split_block(const Split *split, int64_t length, int64_t j, int32_t end, int32_t *inputs,
                    int32_t *targets) {
    const int64_t start = j <= split->tokens / length ? j * length : split->tokens;
    const int64_t left = split->tokens - start, count = left < length ? left : length;
    for (int64_t i = count; i < length; i++) {
        inputs[i] = 0;
        targets[i] = -1;
    }
    if (count == 0) return 0;
    split_copy(split, start, count, targets);
    if (start > 0) inputs[0] = split_token(split, start - 1);
    memcpy(inputs + 1, targets, (size_t)(count - 1) * sizeof(*inputs));
    if (start == 0) {
        inputs[0] = end >= 0 ? end : targets[0];
        if (end < 0) targets[0] = -1;
    }
    return count;
}

// ---- the shuffled order of training -----------------------------------------

struct Loader {
    const Split *split;
    int64_t length, sequences;
    uint64_t seed;
    int64_t *first;  // fixed: (shard_count + 1) sequences before each shard; moving: NULL
    int64_t epoch;   // the epoch of `order` and `offset`; -1: none
    uint32_t *order; // (sequences)
    int64_t offset;  // moving: start of sequence 0
};

// Returns the number of fixed sequences before each shard, (shard_count + 1), allocated.
static int64_t *fixed_places(const Split *split, int64_t length) {
    int64_t *first = allocate((size_t)split->shard_count + 1, sizeof(int64_t), "the loader");
    for (int s = 0; s < split->shard_count; s++)
        first[s + 1] = first[s] + (split->shards[s].count - 1) / length;
    return first;
}

Loader *loader_create(const Split *split, int64_t length, uint64_t seed, bool moving) {
    Loader *loader = allocate(1, sizeof(*loader), "the loader");
    *loader = (Loader){.split = split, .length = length, .seed = seed, .epoch = -1};
    if (!moving) {
        loader->first = fixed_places(split, length);
        loader->sequences = loader->first[split->shard_count];
    } else if (split->tokens > length) {
        loader->sequences = split->tokens / length + (split->tokens % length > 0);
    }
    if (loader->sequences == 0)
        fail("the %s split has no sequence of %lld tokens and the one after them (%lld tokens in "
             "%d shards): take a shorter --seq-len",
             split->name, (long long)length, (long long)split->tokens, split->shard_count);
    if (loader->sequences > UINT32_MAX)
        fail(
            "the %s split has %lld sequences of %lld tokens, more than %u: take a longer --seq-len",
            split->name, (long long)loader->sequences, (long long)length, UINT32_MAX);
    loader->order = allocate((size_t)loader->sequences, sizeof(uint32_t), "the order of sequences");
    return loader;
}

void loader_free(Loader *loader) {
    if (!loader) return;
    free(loader->first);
    free(loader->order);
    free(loader);
}

int64_t loader_sequences(const Loader *loader) {
    return loader->sequences;
}

int64_t loader_left_out(const Loader *loader) {
    int64_t left = 0;
    for (int s = 0; loader->first && s < loader->split->shard_count; s++) {
        const int64_t sequences = loader->first[s + 1] - loader->first[s];
        left += loader->split->shards[s].count - (sequences ? sequences * loader->length + 1 : 0);
    }
    return left;
}

static Random epoch_stream(const Loader *loader, RandomPurpose purpose, int64_t epoch) {
    return random_stream(loader->seed, purpose, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32));
}

// Draws the order (Fisher-Yates shuffle) and the offset of an epoch. They depend only on seed and
// epoch.
static void start_epoch(Loader *loader, int64_t epoch) {
    Random random = epoch_stream(loader, RANDOM_SHUFFLE, epoch);
    uint32_t *order = loader->order;
    for (int64_t i = 0; i < loader->sequences; i++) {
        const int64_t j = (int64_t)random_below(&random, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    random = epoch_stream(loader, RANDOM_OFFSET, epoch);
    loader->offset = (int64_t)random_below(&random, (uint64_t)loader->split->tokens);
    loader->epoch = epoch;
}

// Returns the index in the split of a sequence's first token.
static int64_t sequence_start(const Loader *loader, int64_t sequence) {
    const Split *split = loader->split;
    if (!loader->first) return (loader->offset + sequence * loader->length) % split->tokens;
    const int s = last_at_most(loader->first, split->shard_count, sequence);
    return split->first[s] + (sequence - loader->first[s]) * loader->length;
}

// Copies tokens of a split, wrapping around at its end.
static void copy_around(const Split *split, int64_t start, int64_t count, int32_t *out) {
    const int64_t left = split->tokens - start, part = count < left ? count : left;
    split_copy(split, start, part, out);
    split_copy(split, 0, count - part, out + part);
}

void loader_sequence(Loader *loader, int64_t n, int32_t *inputs, int32_t *targets) {
    const int64_t epoch = n / loader->sequences, T = loader->length;
    if (epoch != loader->epoch) start_epoch(loader, epoch);
    const int64_t start = sequence_start(loader, loader->order[n % loader->sequences]);
    copy_around(loader->split, start, T, inputs);
    memcpy(targets, inputs + 1, (size_t)(T - 1) * sizeof(*targets));
    copy_around(loader->split, (start + T) % loader->split->tokens, 1, targets + T - 1);
}
