#include "run_data.h"

#include "bytes.h"
#include "error.h"
#include "file.h"
#include "hash.h"
#include "huggingface.h"
#include "log.h"
#include "memory.h"
#include "streams.h"
#include "text_format.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EMBEDDED_NAME "embedded"

// ---- metadata of checkpoints ------------------------------------------------
// Returns an id of the vocabulary, from the texts of its tokens; NULL if there is no tokenizer.
static char *tokenizer_id(const Dataset *dataset) {
    if (!dataset->tokenizer) return NULL;
    uint64_t hash = HASH_START;
    for (int32_t token = 0; token < dataset->vocabulary; token++) {
        size_t size;
        char *text = tokenizer_decode(dataset->tokenizer, &token, 1, &size);
        hash = hash_bytes(hash, text, size + 1); // including the NUL
        free(text);
    }
    return format_string("%016llx", (unsigned long long)hash);
}

static char *absolute_path(const char *path) {
    char *absolute = realpath(path, NULL);
    return absolute ? absolute : copy_string(path);
}

void run_data_describe(const Dataset *dataset, Metadata **rows, int *count) {
    metadata_add(rows, count, "padding_token", format_string("%d", dataset->padding));
    metadata_add(rows, count, "mask_token", format_string("%d", dataset->mask));
    metadata_add(rows, count, "end_token", format_string("%d", dataset->end));
    metadata_add(rows, count, "data",
                 dataset->embedded                     ? copy_string(EMBEDDED_NAME)
                 : dataset->recall.kind != RECALL_NONE ? copy_string(dataset->name)
                                                       : absolute_path(dataset->name));
    metadata_add(rows, count, "tokenizer",
                 copy_string(tokenizer_kind_name(tokenizer_kind(dataset->tokenizer))));
    char *id = tokenizer_id(dataset);
    if (id) metadata_add(rows, count, "tokenizer_id", id);
}

static char *shards_key(const Split *split) {
    return format_string("%s_shards", split->name);
}

void run_data_describe_shards(const Dataset *dataset, Metadata **rows, int *count) {
    metadata_add(rows, count, "train_tokens",
                 format_string("%lld", (long long)dataset->splits[SPLIT_TRAIN].tokens));
    for (int s = 0; s < SPLIT_COUNT; s++) {
        char *key = shards_key(&dataset->splits[s]);
        metadata_add(rows, count, key, split_checksums(&dataset->splits[s]));
        free(key);
    }
}

// Returns how a split has changed, in words, newly allocated; NULL: it has not. States from
// versions without checksums hold the number of tokens.
static char *find_change(const Safetensors *state, const Dataset *dataset, const Split *split) {
    char *key = shards_key(split), *now = split_checksums(split), *change = NULL;
    const char *then = safetensors_metadata(state, key);
    const int64_t tokens = split == dataset->splits
                               ? safetensors_integer(state, "train_tokens", 0, INT64_MAX)
                               : split->tokens;
    if (tokens != split->tokens)
        change = format_string("%s: its %s split had %lld tokens", dataset->name, split->name,
                               (long long)tokens);
    else if (then && strcmp(then, now) != 0 && strlen(then) == strlen(now)) {
        size_t i = 0;
        while (then[i] == now[i]) i++;
        const char *path = split->shards[i / strlen("0123456789abcdef ")].path;
        change = format_string("%s: had other tokens", path ? path : "the embedded text");
    } else if (then && strcmp(then, now) != 0)
        change = format_string("%s: its %s split had other shards", dataset->name, split->name);
    free(now);
    free(key);
    return change;
}

void run_data_check_unchanged(const Options *options, const Safetensors *state,
                              const Dataset *dataset) {
    const long long step = safetensors_integer(state, "step", 0, INT64_MAX);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        char *change = find_change(state, dataset, &dataset->splits[s]);
        if (!change) continue;
        if (dataset->embedded)
            fail("%s when step %lld was saved, by another version of this program; start a new run "
                 "from its weights with -e",
                 change, step);
        if (!options_given(options, OPT_INPUT))
            fail("%s when step %lld was saved; to continue on the present data, add --input %s",
                 change, step, dataset->name);
        warn("%s when step %lld was saved; the run continues on the present data%s", change, step,
             s == SPLIT_VAL ? ", and validation losses of before are not compared" : "");
        free(change);
    }
}

char *run_data_validation_id(const Dataset *dataset) {
    char *checksums = split_checksums(&dataset->splits[SPLIT_VAL]);
    const uint64_t hash = hash_bytes(HASH_START, checksums, strlen(checksums));
    free(checksums);
    return format_string("%016llx", (unsigned long long)hash);
}

char *run_data_sizes(const Dataset *dataset) {
    const Split *splits = dataset->splits;
    if (dataset->recall.kind != RECALL_NONE)
        return format_string("generated sequences, vocabulary %d", dataset->vocabulary);
    return format_string("%lld train, %lld val, %lld test tokens, vocabulary %d",
                         (long long)splits[SPLIT_TRAIN].tokens, (long long)splits[SPLIT_VAL].tokens,
                         (long long)splits[SPLIT_TEST].tokens, dataset->vocabulary);
}

char *run_data_in_short(const Dataset *dataset) {
    char count[32], *text = format_string("%s: ", dataset->name);
    const bool generated = dataset->recall.kind != RECALL_NONE;
    for (int s = 0; s < SPLIT_COUNT && !generated; s++) {
        const double tokens = (double)dataset->splits[s].tokens;
        if (tokens > 0)
            append_format(&text, "%s%s %s", s > 0 ? ", " : "", format_about(tokens, count),
                          split_name(s));
    }
    append_format(&text, "%s, vocabulary %s", generated ? "generated sequences" : " tokens",
                  format_count(dataset->vocabulary, count));
    return text;
}

// Returns whether the tokenizer has files, which belong next to the checkpoints, and these are not
// those of the data.
static bool is_saved_to(const Dataset *dataset, const char *directory) {
    char *from = absolute_path(dataset->name), *to = absolute_path(directory);
    const TokenizerKind kind = tokenizer_kind(dataset->tokenizer);
    const bool saved = kind != TOKENIZER_NONE && kind != TOKENIZER_BYTE &&
                       (dataset->embedded || strcmp(from, to) != 0);
    free(from);
    free(to);
    return saved;
}

void run_data_check_output(const Dataset *dataset, const char *directory) {
    char *meta = path_in(directory, "meta.json");
    if (is_saved_to(dataset, directory) && file_exists(meta))
        fail("%s: is a data set, whose tokenizer would be replaced; choose another --output",
             directory);
    free(meta);
}

void run_data_save_tokenizer(const Dataset *dataset, const char *directory) {
    if (is_saved_to(dataset, directory)) tokenizer_save(dataset->tokenizer, directory);
}

// ---- opening ----------------------------------------------------------------
static void take_token(const Safetensors *weights, const char *key, int32_t *token) {
    if (safetensors_metadata(weights, key))
        *token = (int32_t)safetensors_integer(weights, key, -1, INT32_MAX);
}

// Returns the kind that the weights name, or else that of the files next to them.
static TokenizerKind kind_of(const Safetensors *weights, const char *directory) {
    const char *name = safetensors_metadata(weights, "tokenizer");
    if (name) return tokenizer_kind_from_name(name, weights->file.path);
    const TokenizerKind found = tokenizer_find(directory);
    char *wordpiece = path_in(directory, "vocab.txt");
    if (found == TOKENIZER_NONE && file_exists(wordpiece))
        fail("%s: is WordPiece, but only byte-level BPE can be read", wordpiece);
    if (found == TOKENIZER_NONE)
        fail("%s: no tokenizer is next to it (tokenizer.json, or vocab.json and merges.txt); "
             "put its files there, or give its data with --input",
             weights->file.path);
    free(wordpiece);
    return found;
}

// Opens the tokenizer next to the weights, or else the one with their data.
static Tokenizer *open_tokenizer(const Safetensors *weights, TokenizerKind kind,
                                 const char *directory) {
    const char *data = safetensors_metadata(weights, "data");
    if (kind == TOKENIZER_NONE)
        fail("%s: was trained on data without a tokenizer, so no text can be read or written",
             weights->file.path);
    if (tokenizer_exists(kind, directory)) return tokenizer_open(kind, directory);
    if (!data || !tokenizer_exists(kind, data))
        fail("%s: its tokenizer (%s) is not next to it; put its files there, or give its data with "
             "--input",
             weights->file.path, tokenizer_kind_name(kind));
    return tokenizer_open(kind, data);
}

static Dataset *open_text(const Safetensors *weights) {
    char *directory = path_directory(weights->file.path);
    const TokenizerKind kind = kind_of(weights, directory);
    Dataset *dataset = dataset_of_tokenizer(directory, open_tokenizer(weights, kind, directory));
    take_token(weights, "padding_token", &dataset->padding);
    take_token(weights, "mask_token", &dataset->mask);
    take_token(weights, "end_token", &dataset->end);
    const int32_t tokens[] = {dataset->padding, dataset->mask, dataset->end};
    for (int i = 0; i < 3; i++)
        if (tokens[i] >= dataset->vocabulary)
            fail("%s: its metadata name token %d, the tokenizer next to it has %d",
                 weights->file.path, tokens[i], dataset->vocabulary);
    free(directory);
    return dataset;
}

static Dataset *open_data(const Safetensors *weights) {
    const char *data = safetensors_metadata(weights, "data");
    if (!data)
        fail("%s: does not name its training data; give the data with --input", weights->file.path);
    if (strcmp(data, EMBEDDED_NAME) == 0) return dataset_open(NULL);
    if (!recall_named(data) && !file_exists(data))
        fail("%s: was trained on %s, which is missing; give the data with --input",
             weights->file.path, data);
    return dataset_open(data);
}

char *run_data_advice(const Safetensors *weights, const Dataset *dataset) {
    static const char *const options[] = {[TOKENIZER_BYTE] = "--tokenizer byte",
                                          [TOKENIZER_WORD] = "--tokenizer word --model ",
                                          [TOKENIZER_SPM] = "--tokenizer spm --model ",
                                          [TOKENIZER_BPE] = "--model "};
    const char *name = safetensors_metadata(weights, "tokenizer");
    char *directory = path_directory(weights->file.path);
    const TokenizerKind kind =
        name ? tokenizer_kind_from_name(name, weights->file.path) : tokenizer_find(directory);
    char *model = tokenizer_model(kind, directory), *advice;
    if ((model || kind == TOKENIZER_BYTE) && strcmp(directory, dataset->name) != 0)
        advice = format_string("make the data with its tokenizer: ./tokenize -o DIR %s%s TEXT",
                               options[kind], model ? model : "");
    else
        advice = copy_string("give the data it was trained on with --input");
    free(model);
    free(directory);
    return advice;
}

// Returns whether the data have the tokenizer of the weights, as far as these tell. rows: the
// weights' vocabulary size. Weights from elsewhere may round it up; then the tokenizer next to them
// decides.
static bool is_tokenizer_of(const Safetensors *weights, const Dataset *dataset, int64_t rows) {
    const char *stored = safetensors_metadata(weights, "tokenizer_id");
    char *directory = path_directory(weights->file.path), *id = tokenizer_id(dataset);
    bool same = rows == dataset->vocabulary;
    if (stored) {
        same = id ? strcmp(stored, id) == 0 : same;
    } else if (!same && rows > dataset->vocabulary && id &&
               safetensors_metadata(weights, HUGGINGFACE_ORIGIN)) {
        const TokenizerKind kind = tokenizer_find(directory);
        same = kind == TOKENIZER_NONE || strcmp(directory, dataset->name) == 0;
        if (!same) {
            Dataset *beside = dataset_of_tokenizer(directory, tokenizer_open(kind, directory));
            char *theirs = tokenizer_id(beside);
            same = strcmp(id, theirs) == 0;
            free(theirs);
            dataset_close(beside);
        }
    }
    free(id);
    free(directory);
    return same;
}

void run_data_check_tokenizer(const Safetensors *weights, const Dataset *dataset) {
    const int64_t rows = safetensors_integer(weights, "vocab_size", 1, INT32_MAX);
    if (is_tokenizer_of(weights, dataset, rows)) return;
    if (rows == dataset->vocabulary)
        fail("%s: was trained with another tokenizer than that of %s; %s", weights->file.path,
             dataset->name, run_data_advice(weights, dataset));
    fail("%s: its vocabulary has %lld tokens, that of %s has %d; %s", weights->file.path,
         (long long)rows, dataset->name, dataset->vocabulary, run_data_advice(weights, dataset));
}

Dataset *run_data_open(const Options *options, const Safetensors *weights, bool only_text) {
    const char *input = options_text(options, OPT_INPUT);
    if (input || !weights) {
        Dataset *dataset = dataset_open(input);
        if (weights) run_data_check_tokenizer(weights, dataset);
        return dataset;
    }
    Dataset *dataset = only_text ? open_text(weights) : open_data(weights);
    run_data_check_tokenizer(weights, dataset);
    return dataset;
}

// Only warns about bytes of an unknown format: a model may have been trained on such a file.
static void refuse_format(const char *name, Text text) {
    const TextFormat format = text_format(text);
    if (!format.name) return;
    char *advice = text_format_advice(format, name, "... --eval -");
    if (format.command) fail("%s", advice);
    warn("%s", advice);
    free(advice);
}

void run_data_take_text(Dataset *dataset, SplitName split, const char *path) {
    const bool piped = strcmp(path, "-") == 0;
    const char *name = piped ? STANDARD_INPUT : path;
    const int fd = piped ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("--eval %s: expected val, test, - or a text file: %s", path, strerror(errno));
    Bytes text = streams_read(fd, name);
    if (!piped) close(fd);
    refuse_format(name, (Text){text.data, text.size});
    dataset_take_text(dataset, split, name, (Text){text.data, text.size});
    bytes_free(&text);
}

void run_data_tell(Options *options, const Dataset *dataset) {
    if (!options_text(options, OPT_INPUT) && !dataset->embedded)
        options_set(options, OPT_INPUT, dataset->name, "--input");
}
