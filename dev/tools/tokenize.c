// tokenize: plain text -> a directory of shards, their tokenizer and meta.json (data/README.md).
//
// All is made in a directory inside the output first; only when it is complete does it take the place of what
// an earlier run left there.
#include "dataset.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "options.h"
#include "streams.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGING "unfinished.tmp"   // in the output directory
enum { ENCODE_AT_ONCE = 1 << 24 }; // bytes of text

static const Option rows[] = {
    {'o', "output", OPTION_TEXT, OPTION_RUN, "DIR", NULL, 0, 0, NULL, NULL, "Files",
     "where shards, tokenizer and meta.json go"},
    {0, "train", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, "Files",
     "training text, instead of one FILE that is cut 90/5/5"},
    {0, "val", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, "Files", "validation text"},
    {0, "test", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, "Files", "test text"},
    {0, "shard-tokens", OPTION_INTEGER, OPTION_RUN, "N", "100000000", 1, INT32_MAX, NULL, NULL, "Files",
     "most tokens in a shard"},
    {0, "tokenizer", OPTION_CHOICE, OPTION_RUN, "KIND", "spm", 0, 0, "spm|byte|word", NULL, "Tokenizer",
     "SentencePiece BPE, bytes, or white-space separated words"},
    {0, "vocab-size", OPTION_INTEGER, OPTION_RUN, "N", NULL, 2, INT32_MAX, NULL, NULL, "Tokenizer",
     "most tokens in the vocabulary; spm: 32000, word: all words"},
    {0, "model", OPTION_TEXT, OPTION_RUN, "FILE", NULL, 0, 0, NULL, NULL, "Tokenizer",
     "a SentencePiece model, instead of training one"},
};

typedef struct {
    const char *output;
    char *staging;
    const char *names[SPLIT_COUNT]; // of the files the texts are from
    FileMap files[SPLIT_COUNT];     // of one file: only the first
    Text texts[SPLIT_COUNT];
    TextCounts counts[SPLIT_COUNT];
    int64_t tokens[SPLIT_COUNT];
    int shards[SPLIT_COUNT];
    TokenizerKind kind;
    Tokenizer *tokenizer;
} Job;

// ---- input -----------------------------------------------------------------------------------------

static void check_options(const Options *options, int operand_count) {
    const bool spm = strcmp(options_text(options, "tokenizer"), "spm") == 0;
    const bool byte = strcmp(options_text(options, "tokenizer"), "byte") == 0;
    const bool named = options_given(options, "train");
    if (!options_given(options, "output")) fail_usage("--output DIR is missing: where should the shards go?");
    if (!named && (options_given(options, "val") || options_given(options, "test")))
        fail_usage("--val and --test need --train FILE");
    if (named && operand_count > 0)
        fail_usage("found both --train and a FILE to be cut, expected one of them");
    if (!named && operand_count != 1)
        fail_usage("found %d text files, expected one (or --train, --val and --test)", operand_count);
    if (byte && options_given(options, "vocab-size")) fail_usage("--vocab-size: bytes are always 256");
    if (!spm && options_given(options, "model")) fail_usage("--model is for --tokenizer spm");
    if (options_given(options, "model") && options_given(options, "vocab-size"))
        fail_usage("--vocab-size: a model that is given has its own vocabulary");
}

static Text map_text(Job *job, SplitName split, const char *name) {
    job->files[split] = file_map(name);
    return (Text){(const char *)job->files[split].data, job->files[split].size};
}

static void read_texts(Job *job, const Options *options, const char *operand) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        job->names[s] = operand ? operand : options_text(options, split_name(s));
        if (!operand && job->names[s]) job->texts[s] = map_text(job, (SplitName)s, job->names[s]);
    }
    if (operand) text_split(map_text(job, SPLIT_TRAIN, operand), job->texts);
}

static void check_texts(Job *job) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Text text = job->texts[s];
        job->counts[s] = text_count(text);
        if ((s == SPLIT_TRAIN || job->files[s].path) && job->counts[s].words == job->counts[s].lines)
            fail("%s: has no words to make the %s split of", job->names[s], split_name(s));
        const size_t valid = job->kind == TOKENIZER_SPM ? utf8_valid_prefix(text) : text.size;
        if (valid < text.size)
            fail("%s: byte %zu of the %s text is no UTF-8, which the spm tokenizer needs: convert the text "
                 "(iconv), "
                 "or take --tokenizer byte",
                 job->names[s], valid, split_name(s));
    }
}

// ---- the output directory --------------------------------------------------------------------------

static int list_directory(const char *path, struct dirent ***entries) {
    const int count = scandir(path, entries, NULL, alphasort);
    if (count < 0) fail("%s: cannot read the directory: %s", path, strerror(errno));
    return count;
}

static void free_list(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
}

static void remove_file(const char *directory, const char *name) {
    char *path = format_string("%s/%s", directory, name);
    if (unlink(path) != 0) fail("%s: cannot remove: %s", path, strerror(errno));
    free(path);
}

// Whether a file is one that this program writes: train_000000.bin, tokenizer.model.
static bool is_ours(const char *name) {
    if (strcmp(name, "tokenizer.model") == 0 || strcmp(name, "tokenizer.vocab") == 0) return true;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const size_t prefix = strlen(split_name(s));
        if (strncmp(name, split_name(s), prefix) != 0 || name[prefix] != '_') continue;
        const char *digits = name + prefix + 1;
        const size_t length = strspn(digits, "0123456789");
        if (length >= 6 && strcmp(digits + length, ".bin") == 0) return true;
    }
    return false;
}

// Makes output and staging directory; the latter is emptied of what a run left that did not finish.
static void prepare_output(const Job *job) {
    struct dirent **entries;
    directory_create(job->output);
    int count = list_directory(job->output, &entries);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (dataset_split_of(name) >= 0 && !is_ours(name))
            fail("%s/%s: is a shard that another program made: take another --output", job->output, name);
    }
    free_list(entries, count);
    directory_create(job->staging);
    count = list_directory(job->staging, &entries);
    for (int i = 0; i < count; i++)
        if (strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0)
            remove_file(job->staging, entries[i]->d_name);
    free_list(entries, count);
}

static void write_meta(const Job *job, const char *text) {
    char *path = format_string("%s/meta.json", job->output);
    AtomicFile *file = atomic_open(path);
    atomic_write(file, text, strlen(text));
    atomic_write(file, "\n", 1);
    atomic_commit(file);
    free(path);
}

static void write_full_meta(const Job *job) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_key(&w, "tokenizer");
    json_write_string(&w, tokenizer_kind_name(job->kind));
    json_key(&w, "vocab_size");
    json_write_integer(&w, tokenizer_vocabulary(job->tokenizer));
    json_key(&w, "pad");
    json_write_integer(&w, tokenizer_padding(job->tokenizer));
    json_key(&w, "end");
    json_write_integer(&w, tokenizer_end(job->tokenizer));
    json_key(&w, "splits");
    json_begin(&w, '{');
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const char *const keys[] = {"tokens", "words", "lines", "bytes"};
        const TextCounts counts = job->counts[s];
        const int64_t values[] = {job->tokens[s], counts.words, counts.lines, counts.bytes};
        json_key(&w, split_name(s));
        json_begin(&w, '{');
        for (int i = 0; i < 4; i++) {
            json_key(&w, keys[i]);
            json_write_integer(&w, values[i]);
        }
        json_end(&w, '}');
    }
    json_end(&w, '}');
    json_end(&w, '}');
    write_meta(job, w.text);
    json_writer_free(&w);
}

// Puts what is in the staging directory in the place of an earlier run's files. From the first removal to the
// last step, meta.json says that the directory is not to be used.
static void publish(const Job *job) {
    struct dirent **entries;
    write_meta(job, "{\"unfinished\": true}");
    int count = list_directory(job->output, &entries);
    for (int i = 0; i < count; i++)
        if (is_ours(entries[i]->d_name)) remove_file(job->output, entries[i]->d_name);
    free_list(entries, count);

    count = list_directory(job->staging, &entries);
    for (int i = 0; i < count; i++) {
        if (!is_ours(entries[i]->d_name)) continue;
        char *from = format_string("%s/%s", job->staging, entries[i]->d_name);
        char *to = format_string("%s/%s", job->output, entries[i]->d_name);
        if (rename(from, to) != 0) fail("%s: cannot rename to %s: %s", from, to, strerror(errno));
        free(from);
        free(to);
    }
    free_list(entries, count);
    if (rmdir(job->staging) != 0) fail("%s: cannot remove: %s", job->staging, strerror(errno));
    write_full_meta(job);
}

// ---- tokens ----------------------------------------------------------------------------------------

static void make_tokenizer(Job *job, const Options *options) {
    const int64_t wanted = options_integer(options, "vocab-size");
    const char *model = options_text(options, "model");
    if (job->kind == TOKENIZER_SPM && !model) {
        printf("training SentencePiece on %lld bytes\n", (long long)job->texts[SPLIT_TRAIN].size);
        fflush(stdout);
    }
    tokenizer_create(job->kind, job->staging, job->texts, SPLIT_COUNT, wanted, model);
    job->tokenizer = tokenizer_open(job->kind, job->staging);
    if (job->kind == TOKENIZER_SPM && tokenizer_vocabulary(job->tokenizer) < wanted)
        warn("--vocab-size %lld: the training text has only %d pieces", (long long)wanted,
             tokenizer_vocabulary(job->tokenizer));
}

// Encodes a split in pieces cut at line ends, so that memory does not grow with the text.
static void encode_split(Job *job, SplitName s, int64_t shard_tokens) {
    const Text text = job->texts[s];
    ShardWriter *writer =
        shard_writer_open(job->staging, split_name(s), tokenizer_vocabulary(job->tokenizer), shard_tokens);
    for (size_t start = 0; start < text.size;) {
        size_t end = text.size;
        if (end - start > ENCODE_AT_ONCE) {
            const char *newline =
                memchr(text.data + start + ENCODE_AT_ONCE, '\n', end - start - ENCODE_AT_ONCE);
            if (newline) end = (size_t)(newline - text.data) + 1;
        }
        int32_t *tokens;
        const size_t count = tokenizer_encode(job->tokenizer, text.data + start, end - start, 1, &tokens);
        shard_writer_add(writer, tokens, count);
        job->tokens[s] += (int64_t)count;
        free(tokens);
        start = end;
    }
    job->shards[s] = shard_writer_close(writer);
}

// ---- what the user sees ----------------------------------------------------------------------------

// 1234567 -> "1,234,567".
static const char *grouped(int64_t number, char text[32]) {
    char digits[32];
    const int length = snprintf(digits, sizeof(digits), "%lld", (long long)number);
    char *out = text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return text;
}

static void print_table(const Job *job) {
    char a[32], b[32], c[32], d[32];
    printf("%s: %s tokenizer, vocabulary of %s\n", job->output, tokenizer_kind_name(job->kind),
           grouped(tokenizer_vocabulary(job->tokenizer), a));
    printf("%-5s %15s %13s %11s %15s %7s %12s\n", "split", "tokens", "words", "lines", "bytes", "shards",
           "bytes/token");
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const TextCounts counts = job->counts[s];
        printf("%-5s %15s %13s %11s %15s %7d", split_name(s), grouped(job->tokens[s], a),
               grouped(counts.words, b), grouped(counts.lines, c), grouped(counts.bytes, d), job->shards[s]);
        if (job->tokens[s] > 0) printf(" %12.3f", (double)counts.bytes / (double)job->tokens[s]);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    streams_open();
    const char **operands;
    int operand_count;
    Options *options = options_create("tokenize", "Makes a directory of tokens for training, of plain text.");
    options_add(options, rows, sizeof(rows) / sizeof(*rows));
    options_parse(options, argc, argv, &operands, &operand_count);
    check_options(options, operand_count);

    Job job = {.output = options_text(options, "output")};
    job.staging = format_string("%s/" STAGING, job.output);
    job.kind = tokenizer_kind_from_name(options_text(options, "tokenizer"), "--tokenizer");
    read_texts(&job, options, operand_count > 0 ? operands[0] : NULL);
    check_texts(&job);
    prepare_output(&job);
    make_tokenizer(&job, options);
    for (int s = 0; s < SPLIT_COUNT; s++)
        encode_split(&job, (SplitName)s, options_integer(options, "shard-tokens"));
    publish(&job);
    print_table(&job);
    streams_flush();

    tokenizer_free(job.tokenizer);
    for (int s = 0; s < SPLIT_COUNT; s++) file_unmap(&job.files[s]);
    free(job.staging);
    free(operands);
    options_free(options);
    return 0;
}
