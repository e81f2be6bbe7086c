#include "tokenizer.h"
#include "bpe.h"
#include "bpe_file.h"
#include "bytes.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "sentencepiece.h"
#include "words.h"
#include <stdlib.h>
#include <string.h>

#define MODEL_FILE "tokenizer.model" // spm
#define WORD_FILE "tokenizer.vocab"  // word

enum {
    SPM_VOCABULARY = 32000,
    BPE_LEAST = 512, // for a small text
    BPE_MOST = 8192, // for one of more than 6 MB
    BYTES_PER_TOKEN = 1500,
    BYTE_VOCABULARY = 256
};

struct Tokenizer {
    TokenizerKind kind;
    int32_t vocabulary, end, padding, mask;
    FileMap file;         // word: tokenizer.vocab
    Words *words;         // word
    int32_t unknown;      // word: token of WORD_UNKNOWN; -1: none
    Sentencepiece *model; // spm
    Bpe *bpe;             // bpe
};

static const char *const kind_names[] = {"none", "byte", "word", "spm", "bpe"};

// The file of each kind; NULL: none.
static const char *const kind_files[] = {
    [TOKENIZER_WORD] = WORD_FILE, [TOKENIZER_SPM] = MODEL_FILE, [TOKENIZER_BPE] = BPE_FILE};

TokenizerKind tokenizer_kind_from_name(const char *name, const char *source) {
    for (int kind = TOKENIZER_NONE; kind <= TOKENIZER_BPE; kind++)
        if (strcmp(name, kind_names[kind]) == 0) return (TokenizerKind)kind;
    fail("%s: unknown tokenizer \"%s\", expected none, byte, word, spm or bpe", source, name);
}

const char *tokenizer_kind_name(TokenizerKind kind) {
    return kind_names[kind];
}

TokenizerKind tokenizer_kind(const Tokenizer *tokenizer) {
    return tokenizer ? tokenizer->kind : TOKENIZER_NONE;
}

// ---- making and opening -----------------------------------------------------

static void copy_file(const char *from, const char *to) {
    FileMap source = file_map(from);
    atomic_save(to, source.data, source.size);
    file_unmap(&source);
}

static void open_words(Tokenizer *tokenizer, const char *path) {
    tokenizer->file = file_map(path);
    tokenizer->words =
        words_of_lines((Text){(const char *)tokenizer->file.data, tokenizer->file.size}, path);
    tokenizer->vocabulary = words_count(tokenizer->words);
    tokenizer->end = words_find(tokenizer->words, (Text){WORD_END, strlen(WORD_END)});
    tokenizer->unknown = words_find(tokenizer->words, (Text){WORD_UNKNOWN, strlen(WORD_UNKNOWN)});
    if (tokenizer->end < 0) fail("%s: has no line " WORD_END, path);
}

static void create_words(const TokenizerSettings *settings, const char *directory,
                         const Text *texts, int count) {
    char *path = format_string("%s/" WORD_FILE, directory);
    Tokenizer given = {0}; // checked under the name that the user gave
    if (settings->model)
        open_words(&given, settings->model);
    else
        given.words = words_of_texts(texts, count, settings->vocabulary);
    words_save(given.words, path);
    words_free(given.words);
    file_unmap(&given.file);
    free(path);
}

// Exits with an error that names the file if it is no SentencePiece model that encodes text.
static void check_model(const char *path) {
    Sentencepiece *model = sentencepiece_open(path);
    int32_t *tokens;
    sentencepiece_encode(model, (Text){"", 0}, false, &tokens);
    free(tokens);
    sentencepiece_free(model);
}

static void create_model(const TokenizerSettings *settings, const char *directory, Text text) {
    char *prefix = format_string("%s/tokenizer", directory),
         *path = format_string("%s.model", prefix);
    const int64_t vocabulary = settings->vocabulary > 0 ? settings->vocabulary : SPM_VOCABULARY;
    if (settings->model) {
        check_model(settings->model); // under the name that the user gave
        copy_file(settings->model, path);
    } else {
        sentencepiece_train(text, vocabulary, settings->normalise, prefix);
    }
    free(prefix);
    free(path);
}

// Returns a vocabulary size for a text of that many bytes: a model learns nothing about rare
// tokens.
static int64_t bpe_vocabulary(size_t size) {
    int64_t vocabulary = BPE_LEAST;
    while (vocabulary < BPE_MOST && (size_t)vocabulary * BYTES_PER_TOKEN < size) vocabulary *= 2;
    return vocabulary;
}

static Bpe *create_bpe(const TokenizerSettings *settings, const char *directory, Text text) {
    const int64_t vocabulary =
        settings->vocabulary > 0 ? settings->vocabulary : bpe_vocabulary(text.size);
    const char *reserved[3];
    int count = 0;
    if (settings->padding) reserved[count++] = BPE_PADDING; // first, so that it is token 0
    reserved[count++] = BPE_END;
    if (settings->mask) reserved[count++] = BPE_MASK;
    if (vocabulary < BYTE_VOCABULARY + count)
        fail("--vocab-size %lld: the bytes and the special tokens are %d", (long long)vocabulary,
             BYTE_VOCABULARY + count);
    Bpe *bpe = settings->model ? bpe_open(settings->model)
                               : bpe_train(&text, 1, vocabulary, reserved, count);
    if (bpe->decodes_only)
        fail("%s: holds no merges, so it decodes tokens and encodes no text", bpe->source);
    bpe_save(bpe, directory);
    return bpe;
}

static bool has_file(const char *directory, const char *name) {
    char *path = path_in(directory, name);
    const bool there = file_exists(path);
    free(path);
    return there;
}

bool tokenizer_has_file(const char *name) {
    return strcmp(name, MODEL_FILE) == 0 || strcmp(name, WORD_FILE) == 0 || bpe_has_file(name);
}

bool tokenizer_exists(TokenizerKind kind, const char *directory) {
    if (kind == TOKENIZER_BPE) return bpe_exists(directory); // in several files
    return kind == TOKENIZER_BYTE || (kind_files[kind] && has_file(directory, kind_files[kind]));
}

char *tokenizer_model(TokenizerKind kind, const char *directory) {
    if (!tokenizer_exists(kind, directory) || !kind_files[kind]) return NULL;
    // A Hugging Face directory may store BPE in other files.
    return has_file(directory, kind_files[kind]) ? path_in(directory, kind_files[kind])
                                                 : copy_string(directory);
}

TokenizerKind tokenizer_find(const char *directory) {
    static const TokenizerKind kinds[] = {TOKENIZER_SPM, TOKENIZER_WORD, TOKENIZER_BPE};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (tokenizer_exists(kinds[i], directory)) return kinds[i];
    return TOKENIZER_NONE;
}

static void open_model(Tokenizer *tokenizer, const char *path) {
    tokenizer->model = sentencepiece_open(path);
    tokenizer->vocabulary = tokenizer->model->count;
    tokenizer->end = tokenizer->model->end;
    tokenizer->padding = tokenizer->model->padding;
}

static Tokenizer *tokenizer_of_bpe(Bpe *bpe) {
    Tokenizer *tokenizer = allocate(1, sizeof(*tokenizer), "a tokenizer");
    *tokenizer = (Tokenizer){.kind = TOKENIZER_BPE,
                             .bpe = bpe,
                             .vocabulary = bpe->count,
                             .end = bpe->end,
                             .padding = bpe->padding,
                             .mask = bpe->mask};
    if (tokenizer->end < 0) tokenizer->end = bpe->byte_tokens['\n'];
    return tokenizer;
}

Tokenizer *tokenizer_open(TokenizerKind kind, const char *directory) {
    if (kind == TOKENIZER_BPE) return tokenizer_of_bpe(bpe_open(directory));
    Tokenizer *tokenizer = allocate(1, sizeof(*tokenizer), "a tokenizer");
    tokenizer->kind = kind;
    tokenizer->padding = tokenizer->mask = -1;
    if (kind == TOKENIZER_BYTE) {
        tokenizer->vocabulary = BYTE_VOCABULARY;
        tokenizer->end = '\n';
        return tokenizer;
    }
    char *path = path_in(directory, kind_files[kind]);
    (kind == TOKENIZER_WORD ? open_words : open_model)(tokenizer, path);
    free(path);
    return tokenizer;
}

Tokenizer *tokenizer_create(const TokenizerSettings *settings, const char *directory,
                            const Text *texts, int count) {
    const TokenizerKind kind = settings->kind;
    if (kind == TOKENIZER_BPE) return tokenizer_of_bpe(create_bpe(settings, directory, texts[0]));
    if (kind == TOKENIZER_WORD) create_words(settings, directory, texts, count);
    if (kind == TOKENIZER_SPM) create_model(settings, directory, texts[0]);
    return tokenizer_open(kind, directory);
}

Tokenizer *tokenizer_train_bpe(Text text, int64_t vocabulary) {
    return tokenizer_of_bpe(bpe_train(&text, 1, vocabulary, NULL, 0));
}

static void copy_into(const char *directory, const char *name, const char *from) {
    char *path = path_in(directory, name);
    copy_file(from, path);
    free(path);
}

void tokenizer_save(const Tokenizer *tokenizer, const char *directory) {
    if (tokenizer->words)
        copy_into(directory, WORD_FILE, tokenizer->file.path);
    else if (tokenizer->model)
        copy_into(directory, MODEL_FILE, tokenizer->model->file.path);
    else if (tokenizer->bpe && tokenizer->bpe->decodes_only)
        copy_into(directory, BPE_LLMC_FILE, tokenizer->bpe->source);
    else if (tokenizer->bpe)
        bpe_save(tokenizer->bpe, directory);
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    if (tokenizer->words) words_free(tokenizer->words);
    if (tokenizer->model) sentencepiece_free(tokenizer->model);
    bpe_free(tokenizer->bpe);
    file_unmap(&tokenizer->file);
    free(tokenizer);
}

int32_t tokenizer_vocabulary(const Tokenizer *tokenizer) {
    return tokenizer->vocabulary;
}

int32_t tokenizer_end(const Tokenizer *tokenizer) {
    return tokenizer->end;
}

int32_t tokenizer_padding(const Tokenizer *tokenizer) {
    return tokenizer->padding;
}

int32_t tokenizer_mask(const Tokenizer *tokenizer) {
    return tokenizer->mask;
}

const int32_t *tokenizer_before(const Tokenizer *tokenizer, size_t *count) {
    *count = tokenizer->bpe ? tokenizer->bpe->before_count : 0;
    return *count ? tokenizer->bpe->before : NULL;
}

const int32_t *tokenizer_after(const Tokenizer *tokenizer, size_t *count) {
    *count = tokenizer->bpe ? tokenizer->bpe->after_count : 0;
    return *count ? tokenizer->bpe->after : NULL;
}

bool tokenizer_is_unused(const Tokenizer *tokenizer, int32_t token) {
    return tokenizer->bpe && tokenizer->bpe->tokens[token].size == 0;
}

bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t token) {
    return tokenizer->bpe && tokenizer->bpe->flags[token] & BPE_SPECIAL;
}

// ---- encoding ---------------------------------------------------------------

static size_t encode_bytes(Text text, int32_t **tokens) {
    int32_t *out = allocate(text.size, sizeof(*out), "tokens");
    for (size_t i = 0; i < text.size; i++) out[i] = (unsigned char)text.data[i];
    *tokens = out;
    return text.size;
}

static int32_t word_token(const Tokenizer *tokenizer, Text word) {
    const int32_t token = words_find(tokenizer->words, word);
    if (token >= 0) return token;
    if (tokenizer->unknown < 0)
        fail("%s: has neither the word \"%.*s\" nor " WORD_UNKNOWN, tokenizer->file.path,
             (int)(word.size < 100 ? word.size : 100), word.data);
    return tokenizer->unknown;
}

static size_t encode_words(const Tokenizer *tokenizer, Text text, bool last_end, int32_t **tokens) {
    const TextCounts counts = text_count(text);
    int32_t *out = allocate((size_t)counts.words, sizeof(*out), "tokens");
    size_t count = 0, at = 0;
    Text word;
    for (TextItem item; (item = text_next(text, &at, &word)) != TEXT_END;)
        out[count++] = item == TEXT_WORD ? word_token(tokenizer, word) : tokenizer->end;
    const bool unended = text.size > 0 && text.data[text.size - 1] != '\n';
    if (unended && !last_end) count--;
    *tokens = out;
    return count;
}

size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t size, int lines,
                        int32_t **tokens) {
    const Text whole = {text, size};
    if (size == 0) { // needs no merges
        *tokens = allocate(1, sizeof(int32_t), "tokens");
        return 0;
    }
    switch (tokenizer->kind) {
    case TOKENIZER_BYTE:
        return encode_bytes(whole, tokens);
    case TOKENIZER_WORD:
        return encode_words(tokenizer, whole, lines, tokens);
    case TOKENIZER_SPM:
        return sentencepiece_encode(tokenizer->model, whole, lines, tokens);
    case TOKENIZER_BPE:
        return bpe_encode(tokenizer->bpe, whole, tokens);
    case TOKENIZER_NONE:
        break;
    }
    abort();
}

size_t tokenizer_cut(const Tokenizer *tokenizer, Text text, size_t from) {
    if (text.size <= from) return text.size;
    if (tokenizer->kind == TOKENIZER_BYTE) return from;
    if (tokenizer->bpe) return bpe_cut(tokenizer->bpe, text, from);
    const char *newline = memchr(text.data + from, '\n', text.size - from);
    return newline ? (size_t)(newline - text.data) + 1 : text.size;
}

// ---- decoding ---------------------------------------------------------------

static char *decode_byte_tokens(const int32_t *tokens, size_t count, size_t *size) {
    char *text = allocate(count + 1, 1, "a text");
    for (size_t i = 0; i < count; i++) text[i] = (char)tokens[i];
    *size = count;
    return text;
}

static char *decode_words(const Tokenizer *tokenizer, const int32_t *tokens, size_t count,
                          size_t *size) {
    Bytes text = {0};
    for (size_t i = 0; i < count; i++) {
        const Text word = words_text(tokenizer->words, tokens[i]);
        const bool line_start = text.size == 0 || text.data[text.size - 1] == '\n';
        if (tokens[i] == tokenizer->end) {
            bytes_append(&text, "\n", 1);
        } else {
            bytes_append(&text, " ", line_start ? 0 : 1);
            bytes_append(&text, word.data, word.size);
        }
    }
    *size = text.size;
    bytes_append(&text, "", 1);
    return text.data;
}

char *tokenizer_decode(const Tokenizer *tokenizer, const int32_t *tokens, size_t count,
                       size_t *size) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= tokenizer->vocabulary)
            fail("token %d cannot be decoded: the vocabulary has %d", tokens[i],
                 tokenizer->vocabulary);
    switch (tokenizer->kind) {
    case TOKENIZER_BYTE:
        return decode_byte_tokens(tokens, count, size);
    case TOKENIZER_WORD:
        return decode_words(tokenizer, tokens, count, size);
    case TOKENIZER_SPM:
        return sentencepiece_decode(tokenizer->model, tokens, count, size);
    case TOKENIZER_BPE:
        return bpe_decode(tokenizer->bpe, tokens, count, size);
    case TOKENIZER_NONE:
        break;
    }
    abort();
}

bool tokenizer_is_partial(const Tokenizer *tokenizer, int32_t token) {
    return tokenizer->kind == TOKENIZER_SPM && tokenizer->model->pieces[token].kind == PIECE_BYTE;
}
