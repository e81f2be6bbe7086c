// tokenize: converts plain text or sentence pairs to a directory of shards, their tokenizer and
// meta.json (data/README.md). A text is a file or a pipe.
//
// All files are first written to a directory inside the output directory. When they are complete,
// they replace the files of an earlier run.
#include "bpe.h"
#include "clock.h"
#include "dataset.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "log.h"
#include "memory.h"
#include "options.h"
#include "pairs.h"
#include "path.h"
#include "streams.h"
#include "terminal.h"
#include "text_format.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGING "unfinished.tmp"   // in the output directory
enum { ENCODE_AT_ONCE = 1 << 24 }; // bytes of text

// clang-format off
static const Option rows[] = {
    {.letter = 'o', .name = OPT_OUTPUT, .kind = OPTION_TEXT, .value = "DIR", .group = "Files",
     .help = "directory for shards, tokenizer and meta.json"},
    {.name = OPT_TRAIN, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "training text, instead of one FILE cut 90/5/5; -: stdin"},
    {.name = OPT_VAL, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "validation text"},
    {.name = OPT_TEST, .kind = OPTION_TEXT, .value = "FILE", .group = "Files", .help = "test text"},
    {.name = OPT_SOURCE, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "sentences to translate, one per line (bpe)"},
    {.name = OPT_TARGET, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "their translations"},
    {.name = OPT_VAL_SOURCE, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "sentences for validation"},
    {.name = OPT_VAL_TARGET, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "their translations"},
    {.name = OPT_TEST_SOURCE, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "sentences for the test"},
    {.name = OPT_TEST_TARGET, .kind = OPTION_TEXT, .value = "FILE", .group = "Files",
     .help = "their translations"},
    {.name = OPT_SHARD_TOKENS, .kind = OPTION_INTEGER, .value = "N", .initial = "100000000",
     .min = 1, .max = INT32_MAX, .group = "Files", .help = "largest number of tokens per shard"},
    {.name = OPT_BINARY, .kind = OPTION_FLAG, .group = "Files",
     .help = "accept files that are not text (bpe, byte)"},
    {.name = OPT_TOKENIZER, .kind = OPTION_CHOICE, .value = "KIND", .initial = "bpe",
     .choices = "bpe|byte|word|spm", .group = "Tokenizer",
     .help = "byte-level BPE, bytes, words, SentencePiece"},
    {.name = OPT_VOCAB_SIZE, .kind = OPTION_INTEGER, .value = "N", .min = 2, .max = 1 << 24,
     .group = "Tokenizer",
     .help = "largest vocabulary; bpe: 512 to 8192 by size, spm: 32000, word: all"},
    {.name = OPT_MODEL, .kind = OPTION_TEXT, .value = "FILE", .group = "Tokenizer",
     .help = "existing tokenizer: .json (bpe), .model (spm), .vocab (word)"},
    {.name = OPT_RESERVE, .kind = OPTION_CHOICE, .value = "LIST",
     .choices = "mask|padding|mask,padding", .group = "Tokenizer",
     .help = "further special tokens (bpe)"},
    {.name = OPT_NORMALISE, .kind = OPTION_FLAG, .group = "Tokenizer",
     .help = "apply NFKC and collapse white space (spm); loses some text"},
};
// clang-format on

typedef struct {
    const Options *options;
    const char *output;
    char *staging;
    bool prepared;                  // both directories exist
    bool binary;                    // accept files that are not text
    bool terminal;                  // standard output is a terminal
    double next;                    // time of the next progress line
    bool shown;                     // the cursor is after a progress line
    const char *names[SPLIT_COUNT]; // file names of the texts
    FileMap files[SPLIT_COUNT];     // only the first if all splits are from one file
    Text texts[SPLIT_COUNT];
    bool paired;
    Pairs pairs[SPLIT_COUNT]; // storage of the texts if paired
    TextCounts counts[SPLIT_COUNT];
    int64_t tokens[SPLIT_COUNT];
    int shards[SPLIT_COUNT];
    uint64_t *checksums[SPLIT_COUNT]; // of the shards
    int64_t decoded[SPLIT_COUNT];     // bytes of the decoded tokens
    int64_t lost[SPLIT_COUNT];        // bytes of the text that decoding does not restore
    TokenizerSettings settings;
    Tokenizer *tokenizer;
    bool has_end; // the training text contains the end token
} Job;

// ---- input ------------------------------------------------------------------

static TokenizerSettings read_settings(const Options *options) {
    const char *reserve = options_text(options, OPT_RESERVE);
    return (TokenizerSettings){
        .kind = tokenizer_kind_from_name(options_text(options, OPT_TOKENIZER), "--tokenizer"),
        .vocabulary = options_integer(options, OPT_VOCAB_SIZE),
        .model = options_text(options, OPT_MODEL),
        .normalise = options_flag(options, OPT_NORMALISE),
        .padding = (reserve && strstr(reserve, "padding")) || options_given(options, OPT_SOURCE),
        .mask = reserve && strstr(reserve, "mask"),
    };
}

// The options that name the two sides of a split.
static const OptionName pair_options[SPLIT_COUNT][2] = {
    {OPT_SOURCE, OPT_TARGET}, {OPT_VAL_SOURCE, OPT_VAL_TARGET}, {OPT_TEST_SOURCE, OPT_TEST_TARGET}};
static const OptionName split_options[SPLIT_COUNT] = {OPT_TRAIN, OPT_VAL, OPT_TEST};

static void check_pair_options(const Options *options, int operand_count) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const OptionName source = pair_options[s][0], target = pair_options[s][1];
        if (options_given(options, source) != options_given(options, target))
            fail_usage("--%s and --%s: name one file each, of pairs of sentences",
                       options_name(source), options_name(target));
        if (options_given(options, source) && !options_given(options, OPT_SOURCE))
            fail_usage("--%s and --%s need --source and --target", options_name(source),
                       options_name(target));
    }
    if (!options_given(options, OPT_SOURCE)) return;
    if (operand_count > 0 || options_given(options, OPT_TRAIN))
        fail_usage("found both pairs of sentences (--source) and a text, expected one of them");
    if (read_settings(options).kind != TOKENIZER_BPE)
        fail_usage("--source and --target are for --tokenizer bpe");
}

// These options take one file each: a second one would silently replace the first.
static void check_repeated(const Options *options, OptionName name) {
    if (options_given_again(options, name))
        fail_usage("--%s is given twice, and takes one file; join several with cat",
                   options_name(name));
}

static void check_options(const Options *options, int operand_count) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        check_repeated(options, split_options[s]);
        for (int side = 0; side < 2; side++) check_repeated(options, pair_options[s][side]);
    }
    const TokenizerKind kind = read_settings(options).kind;
    check_pair_options(options, operand_count);
    const bool named = options_given(options, OPT_TRAIN),
               trains = !options_given(options, OPT_MODEL);
    if (!options_given(options, OPT_OUTPUT))
        fail_usage("--output DIR is missing: name the directory for the shards");
    if (!named && (options_given(options, OPT_VAL) || options_given(options, OPT_TEST)))
        fail_usage("--val and --test need --train FILE");
    if (named && operand_count > 0)
        fail_usage("found both --train and a FILE to be cut, expected one of them");
    if (!named && !options_given(options, OPT_SOURCE) && operand_count != 1)
        fail_usage("found %d text files, expected one (or --train, --val and --test)%s",
                   operand_count, operand_count > 1 ? "; make one of several with cat" : "");
    if (kind == TOKENIZER_BYTE && options_given(options, OPT_VOCAB_SIZE))
        fail_usage("--vocab-size: bytes are always 256");
    if (!trains && kind == TOKENIZER_BYTE)
        fail_usage("--model is for --tokenizer bpe, spm or word: bytes need none");
    const char *model = options_text(options, OPT_MODEL);
    const bool words = model && path_ends_in(model, ".vocab");
    if (kind == TOKENIZER_BPE && (words || (model && path_ends_in(model, ".model"))))
        fail_usage("--model %s: add --tokenizer %s", model, words ? "word" : "spm");
    if (options_given(options, OPT_BINARY) && kind != TOKENIZER_BPE && kind != TOKENIZER_BYTE)
        fail_usage("--binary is for --tokenizer bpe or byte");
    if (!trains && options_given(options, OPT_VOCAB_SIZE))
        fail_usage("--vocab-size: a model that is given has its own vocabulary");
    if (options_given(options, OPT_RESERVE) && (!trains || kind != TOKENIZER_BPE))
        fail_usage("--reserve is for --tokenizer bpe, without --model");
    if (options_given(options, OPT_NORMALISE) && (!trains || kind != TOKENIZER_SPM))
        fail_usage("--normalise is for --tokenizer spm, without --model");
}

// ---- progress ---------------------------------------------------------------
// Shows that `bytes` of `total` (0: unknown) are done, in a line that overwrites itself on a
// terminal, else in a new line every 30 seconds. `done`: "read", "encoded".
static void show_progress(Job *job, const char *name, const char *done, int64_t bytes,
                          int64_t total) {
    const double now = clock_seconds();
    if (now < job->next) return;
    job->next = now + (job->terminal ? 0.2 : 30);
    printf("%s%s: %.0f MB %s", job->terminal ? "\r" : "", name, (double)bytes * 1e-6, done);
    if (total > 0) printf(", %.0f%%", 100 * (double)bytes / (double)total);
    printf(job->terminal ? "\033[K" : "\n");
    fflush(stdout);
    job->shown = job->terminal;
}

static void start_progress(Job *job) {
    if (job->shown) terminal_clear_line(stdout);
    job->shown = false;
    job->next = clock_seconds() + (job->terminal ? 0.5 : 30);
}

// ---- reading ----------------------------------------------------------------

static void prepare_output(Job *job);

// Copies a pipe to an unlinked file in the output directory, because it may be larger than memory
// and is read more than once.
static FileMap read_stream(Job *job, const char *name, int from) {
    prepare_output(job);
    char *path = format_string("%s/XXXXXX", job->staging), buffer[1 << 16];
    const int to = mkstemp(path);
    if (to < 0 || unlink(path) != 0) fail("%s: cannot write: %s", path, strerror(errno));
    start_progress(job);
    for (int64_t total = 0;;) {
        const ssize_t size = read(from, buffer, sizeof(buffer));
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) fail("%s: cannot read: %s", name, strerror(errno));
        if (size == 0) break;
        for (ssize_t done = 0; done < size;) {
            const ssize_t written = write(to, buffer + done, (size_t)(size - done));
            if (written < 0 && errno != EINTR)
                fail("%s: cannot write a copy of %s: %s", job->output, name, strerror(errno));
            if (written > 0) done += written;
        }
        show_progress(job, name, "read", total += size, 0);
    }
    start_progress(job);
    free(path);
    return file_map_descriptor(name, to);
}

// The message has a command that does the same with the converted text. option: the one that names
// the file, or OPT_NONE.
static void refuse_format(const Job *job, const char *name, OptionName option, TextFormat format) {
    if (!format.name || job->binary) return;
    char *others = options_given_text(job->options, OPTION_RUN,
                                      (const OptionName[]){OPT_OUTPUT, option, OPT_NONE});
    char *reader = format_string("./tokenize -o %s%s%s%s -", options_quoted(job->output), others,
                                 option ? " --" : "", options_name(option));
    fail("%s%s", text_format_advice(format, name, reader),
         format.command ? "" : "; --tokenizer byte --binary takes its bytes as they are");
}

// Maps a file, or the contents of a pipe: "-", or a name that is not a regular file.
static FileMap map_input(Job *job, const char *name, OptionName option) {
    struct stat status;
    const bool standard = strcmp(name, "-") == 0;
    FileMap file;
    if (standard ||
        (stat(name, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
        const int fd = standard ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) fail("%s: cannot open: %s", name, strerror(errno));
        file = read_stream(job, standard ? STANDARD_INPUT : name, fd);
        if (!standard) close(fd);
    } else {
        file = file_map(name);
    }
    refuse_format(job, file.path, option, text_format((Text){(const char *)file.data, file.size}));
    return file;
}

static Text map_text(Job *job, SplitName split, const char *name, OptionName option) {
    job->files[split] = map_input(job, name, option);
    job->names[split] = job->files[split].path;
    return (Text){(const char *)job->files[split].data, job->files[split].size};
}

static void read_texts(Job *job, const Options *options, const char *operand) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const char *name = options_text(options, split_options[s]);
        if (name) job->texts[s] = map_text(job, (SplitName)s, name, split_options[s]);
    }
    if (!operand) return;
    text_split(map_text(job, SPLIT_TRAIN, operand, OPT_NONE), job->texts);
    job->names[SPLIT_VAL] = job->names[SPLIT_TEST] = job->names[SPLIT_TRAIN];
}

// Reads two files per split. Its text alternates between sentences of one and of the other.
static void read_pairs(Job *job, const Options *options) {
    job->paired = true;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        FileMap files[2] = {{0}};
        PairSide sides[2];
        if (!options_given(options, pair_options[s][0])) continue;
        for (int side = 0; side < 2; side++) {
            const OptionName option = pair_options[s][side];
            files[side] = map_input(job, options_text(options, option), option);
            sides[side] =
                (PairSide){files[side].path, {(const char *)files[side].data, files[side].size}};
        }
        const Pairs pairs = pairs_join(sides[0], sides[1], BPE_END);
        if (pairs.left_out > 0)
            warn("%s and %s: %lld pairs with an empty side are left out, the first is line %lld",
                 files[0].path, files[1].path, (long long)pairs.left_out,
                 (long long)pairs.first_empty);
        for (int side = 0; side < 2; side++) file_unmap(&files[side]);
        job->pairs[s] = pairs;
        job->texts[s] = (Text){pairs.text.data, pairs.text.size};
        job->counts[s] = pairs.counts;
    }
}

static void check_texts(Job *job) {
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Text text = job->texts[s];
        job->counts[s] = text_count(text);
        if ((s == SPLIT_TRAIN || job->files[s].path) &&
            job->counts[s].words == job->counts[s].lines)
            fail("%s: has no words to make the %s split of", job->names[s], split_name(s));
        const size_t valid =
            job->settings.kind == TOKENIZER_SPM ? utf8_valid_prefix(text) : text.size;
        if (valid < text.size)
            fail("%s: byte %zu of the %s text is not UTF-8, which the spm tokenizer needs: convert "
                 "the text (iconv), or take --tokenizer bpe or byte",
                 job->names[s], valid, split_name(s));
    }
}

// ---- the output directory ---------------------------------------------------

static void remove_file(const char *directory, const char *name) {
    char *path = path_in(directory, name);
    if (unlink(path) != 0) fail("%s: cannot remove: %s", path, strerror(errno));
    free(path);
}

// Returns whether this program writes files of this name: train_000000.bin, tokenizer.model.
static bool is_ours(const char *name) {
    static const char *const files[] = {"tokenizer.model", "tokenizer.vocab", "tokenizer.json",
                                        "vocab.json", "merges.txt"};
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
        if (strcmp(name, files[i]) == 0) return true;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const size_t prefix = strlen(split_name(s));
        if (strncmp(name, split_name(s), prefix) != 0 || name[prefix] != '_') continue;
        const char *digits = name + prefix + 1;
        const size_t length = strspn(digits, "0123456789");
        if (length >= 6 && strcmp(digits + length, ".bin") == 0) return true;
    }
    return false;
}

// Only one run at a time may write to a directory. The lock is held until the process ends.
static void lock_output(const char *directory) {
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail("%s: cannot open: %s", directory, strerror(errno));
    if (file_lock(fd)) return;
    if (errno == EWOULDBLOCK)
        fail("%s: another tokenize writes there; wait until it ends or take another --output",
             directory);
    warn("%s: cannot be locked (%s): see that no other tokenize writes there", directory,
         strerror(errno));
}

// Creates the output and staging directories and removes files of an unfinished run from the
// latter.
static void prepare_output(Job *job) {
    size_t count;
    if (job->prepared) return;
    job->prepared = true;
    directory_create(job->output);
    lock_output(job->output);
    char **names = directory_list(job->output, &count);
    bool used = false; // by an earlier run, whose files are replaced
    for (size_t i = 0; i < count; i++) used = used || strcmp(names[i], "meta.json") == 0;
    for (size_t i = 0; i < count; i++)
        if (is_ours(names[i]) ? !used : dataset_split_of(names[i]) >= 0)
            fail("%s/%s: another program made it: take another --output", job->output, names[i]);
    directory_list_free(names, count);
    directory_create(job->staging);
    names = directory_list(job->staging, &count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], ".") != 0 && strcmp(names[i], "..") != 0)
            remove_file(job->staging, names[i]);
    directory_list_free(names, count);
}

static void write_meta(const Job *job, const char *json) {
    char *path = path_in(job->output, "meta.json"), *line = format_string("%s\n", json);
    atomic_save(path, line, strlen(line));
    free(path);
    free(line);
}

// Returns the token that precedes a text. With BPE it is a newline if the training text contains no
// <|endoftext|>, because a model only knows the tokens it was trained on.
static int32_t end_token(const Job *job) {
    const int32_t end = tokenizer_end(job->tokenizer);
    size_t before;
    const int32_t *first = tokenizer_before(job->tokenizer, &before);
    if (before > 0 && !job->paired) return first[before - 1];
    if (job->settings.kind != TOKENIZER_BPE || job->has_end) return end;
    int32_t *tokens;
    const size_t count = tokenizer_encode(job->tokenizer, "\n", 1, 1, &tokens);
    const int32_t newline = count == 1 ? tokens[0] : end;
    free(tokens);
    return newline;
}

static void write_checksums(const Job *job, int split, JsonWriter *w) {
    json_open(w, "checksums", '[');
    for (int i = 0; i < job->shards[split]; i++) {
        char *text = format_string("%016llx", (unsigned long long)job->checksums[split][i]);
        json_write_string(w, text);
        free(text);
    }
    json_end(w, ']');
}

static void write_full_meta(const Job *job) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "tokenizer", tokenizer_kind_name(job->settings.kind));
    json_add_integer(&w, "vocab_size", tokenizer_vocabulary(job->tokenizer));
    json_add_integer(&w, "pad", tokenizer_padding(job->tokenizer));
    json_add_integer(&w, "mask", tokenizer_mask(job->tokenizer));
    json_add_integer(&w, "end", end_token(job));
    if (job->paired) json_add_bool(&w, "paired", true);
    json_open(&w, "splits", '{');
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const char *const keys[] = {"tokens", "words", "lines", "bytes", "decoded_bytes"};
        const TextCounts counts = job->counts[s];
        const int64_t values[] = {job->tokens[s], counts.words, counts.lines, counts.bytes,
                                  job->decoded[s]};
        json_open(&w, split_name(s), '{');
        for (int i = 0; i < 5; i++) json_add_integer(&w, keys[i], values[i]);
        write_checksums(job, s, &w);
        json_end(&w, '}');
    }
    json_end(&w, '}');
    json_end(&w, '}');
    write_meta(job, w.text);
    json_writer_free(&w);
}

// Replaces the files of an earlier run by those in the staging directory. Until this is complete,
// meta.json marks the directory as unfinished.
static void publish(const Job *job) {
    size_t count;
    write_meta(job, "{\"unfinished\": true}");
    char **names = directory_list(job->output, &count);
    for (size_t i = 0; i < count; i++)
        if (is_ours(names[i])) remove_file(job->output, names[i]);
    directory_list_free(names, count);

    names = directory_list(job->staging, &count);
    for (size_t i = 0; i < count; i++) {
        if (!is_ours(names[i])) continue;
        char *from = path_in(job->staging, names[i]), *to = path_in(job->output, names[i]);
        if (rename(from, to) != 0) fail("%s: cannot rename to %s: %s", from, to, strerror(errno));
        free(from);
        free(to);
    }
    directory_list_free(names, count);
    if (rmdir(job->staging) != 0) fail("%s: cannot remove: %s", job->staging, strerror(errno));
    write_full_meta(job);
}

// ---- tokens -----------------------------------------------------------------
// Returns whether the tokenizer encodes BPE_END as its end token.
static bool has_end_token(const Tokenizer *tokenizer) {
    int32_t *tokens;
    const size_t count = tokenizer_encode(tokenizer, BPE_END, strlen(BPE_END), 0, &tokens);
    const bool found = count == 1 && tokens[0] == tokenizer_end(tokenizer);
    free(tokens);
    return found;
}

static void make_tokenizer(Job *job) {
    const TokenizerSettings *settings = &job->settings;
    const TokenizerKind kind = settings->kind;
    if ((kind == TOKENIZER_SPM || kind == TOKENIZER_BPE) && !settings->model) {
        printf("training %s on %lld bytes\n",
               kind == TOKENIZER_SPM ? "SentencePiece" : "a byte-level BPE",
               (long long)job->texts[SPLIT_TRAIN].size);
        fflush(stdout);
    }
    job->tokenizer = tokenizer_create(settings, job->staging, job->texts, SPLIT_COUNT);
    if (job->paired && (tokenizer_padding(job->tokenizer) < 0 || !has_end_token(job->tokenizer)))
        fail("%s: has no " BPE_PADDING " or no " BPE_END
             ", which pairs need; without --model a tokenizer with "
             "both is trained",
             settings->model);
    const int32_t found = tokenizer_vocabulary(job->tokenizer);
    if (found < settings->vocabulary && kind != TOKENIZER_WORD)
        warn("--vocab-size %lld: the training text has only %d pieces",
             (long long)settings->vocabulary, found);
}

// Counts the decoded and the lost bytes of a piece of text.
static void check_decoding(Job *job, SplitName s, Text text, const int32_t *tokens, size_t count) {
    size_t size;
    char *decoded = tokenizer_decode(job->tokenizer, tokens, count, &size);
    job->decoded[s] += (int64_t)size;
    job->lost[s] += (int64_t)text_lost(text, (Text){decoded, size});
    free(decoded);
}

// Writes the tokens that the tokenizer puts before or after a text. Pairs have their own ends.
static void add_around(Job *job, SplitName s,
                       const int32_t *(*around)(const Tokenizer *tokenizer, size_t *count),
                       ShardWriter *writer) {
    size_t count;
    const int32_t *tokens = around(job->tokenizer, &count);
    if (job->paired || count == 0 || job->texts[s].size == 0) return;
    shard_writer_add(writer, tokens, count);
    job->tokens[s] += (int64_t)count;
}

static void encode_text(Job *job, SplitName s, ShardWriter *writer) {
    const int32_t end = tokenizer_end(job->tokenizer);
    const size_t whole = job->texts[s].size;
    start_progress(job);
    add_around(job, s, tokenizer_before, writer);
    for (Text rest = job->texts[s]; rest.size > 0;) {
        // Encode in parts, so that memory does not grow with the text.
        const Text text = {rest.data, tokenizer_cut(job->tokenizer, rest, ENCODE_AT_ONCE)};
        int32_t *tokens;
        const size_t count = tokenizer_encode(job->tokenizer, text.data, text.size, 1, &tokens);
        check_decoding(job, s, text, tokens, count);
        for (size_t i = 0; i < count && s == SPLIT_TRAIN && !job->has_end; i++)
            job->has_end = tokens[i] == end;
        shard_writer_add(writer, tokens, count);
        job->tokens[s] += (int64_t)count;
        free(tokens);
        rest = (Text){rest.data + text.size, rest.size - text.size};
        show_progress(job, split_name(s), "encoded", (int64_t)(whole - rest.size), (int64_t)whole);
    }
    add_around(job, s, tokenizer_after, writer);
    start_progress(job);
}

static void encode_split(Job *job, SplitName s, int64_t shard_tokens) {
    ShardWriter *writer = shard_writer_open(job->staging, split_name(s),
                                            tokenizer_vocabulary(job->tokenizer), shard_tokens);
    encode_text(job, s, writer);
    // A sentence's end is written as a newline.
    job->decoded[s] -= 2 * job->pairs[s].pairs * (int64_t)(strlen(BPE_END) - 1);
    job->shards[s] = shard_writer_close(writer, &job->checksums[s]);
}

// ---- terminal output --------------------------------------------------------
static const char *count_text(int64_t number, char text[32]) {
    return format_count((double)number, text);
}

static void print_table(const Job *job) {
    char a[32], b[32], c[32], d[32];
    printf("%s: %s tokenizer, vocabulary of %s\n", job->output,
           tokenizer_kind_name(job->settings.kind),
           count_text(tokenizer_vocabulary(job->tokenizer), a));
    printf("%-5s %15s %13s %11s %15s %7s %12s\n", "split", "tokens", "words", "lines", "bytes",
           "shards", "bytes/token");
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const TextCounts counts = job->counts[s];
        printf("%-5s %15s %13s %11s %15s %7d", split_name(s), count_text(job->tokens[s], a),
               count_text(counts.words, b), count_text(counts.lines, c),
               count_text(counts.bytes, d), job->shards[s]);
        if (job->tokens[s] > 0) printf(" %12.3f", (double)counts.bytes / (double)job->tokens[s]);
        printf("\n");
    }
    for (int s = 0; s < SPLIT_COUNT; s++)
        if (job->lost[s] > 0)
            printf("%s: %s bytes (%.2f%%) of the text are lost in its tokens; bits per byte count "
                   "the %s bytes that the tokens decode to\n",
                   split_name(s), count_text(job->lost[s], a),
                   100 * (double)job->lost[s] / (double)job->counts[s].bytes,
                   count_text(job->decoded[s], b));
}

int main(int argc, char **argv) {
    streams_open();
    // A file that grows too large, or a closed pipe, becomes an error of write() with a message.
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    const char **operands;
    int operand_count;
    Options *options = options_create("tokenize", "Turns plain text into a data set for training.");
    options_add(options, rows, sizeof(rows) / sizeof(*rows));
    options_parse(options, argc, argv, &operands, &operand_count);
    check_options(options, operand_count);

    Job job = {.options = options, .output = options_text(options, OPT_OUTPUT)};
    job.staging = format_string("%s/" STAGING, job.output);
    job.settings = read_settings(options);
    job.binary = options_flag(options, OPT_BINARY);
    job.terminal = isatty(STDOUT_FILENO);
    if (options_given(options, OPT_SOURCE)) {
        read_pairs(&job, options);
    } else {
        read_texts(&job, options, operand_count > 0 ? operands[0] : NULL);
        check_texts(&job);
    }
    prepare_output(&job);
    make_tokenizer(&job);
    for (int s = 0; s < SPLIT_COUNT; s++)
        encode_split(&job, (SplitName)s, options_integer(options, OPT_SHARD_TOKENS));
    publish(&job);
    print_table(&job);
    streams_flush();

    tokenizer_free(job.tokenizer);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        file_unmap(&job.files[s]);
        free(job.checksums[s]);
        bytes_free(&job.pairs[s].text);
    }
    free(job.staging);
    free(operands);
    options_free(options);
    return 0;
}
