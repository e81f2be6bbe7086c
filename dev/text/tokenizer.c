#include "tokenizer.h"
#include "bytes.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "sentencepiece.h"
#include "words.h"
#include <stdlib.h>
#include <string.h>

enum { SPM_VOCABULARY = 32000, BYTE_VOCABULARY = 256 };

struct Tokenizer {
    TokenizerKind kind;
    int32_t vocabulary, end, padding;
    FileMap file;         // word: tokenizer.vocab
    Words *words;         // word
    int32_t unknown;      // word: token of WORD_UNKNOWN; -1: none
    Sentencepiece *model; // spm
};

static const char *const kind_names[] = {"none", "byte", "word", "spm"};

TokenizerKind tokenizer_kind_from_name(const char *name, const char *source) {
    for (int kind = TOKENIZER_NONE; kind <= TOKENIZER_SPM; kind++)
        if (strcmp(name, kind_names[kind]) == 0) return (TokenizerKind)kind;
    fail("%s: unknown tokenizer \"%s\", expected none, byte, word or spm", source, name);
}

const char *tokenizer_kind_name(TokenizerKind kind) {
    return kind_names[kind];
}

// ---- making and opening ----------------------------------------------------------------------------

static void copy_file(const char *from, const char *to) {
    FileMap source = file_map(from);
    AtomicFile *copy = atomic_open(to);
    atomic_write(copy, source.data, source.size);
    atomic_commit(copy);
    file_unmap(&source);
}

void tokenizer_create(TokenizerKind kind, const char *directory, const Text *texts, int count,
                      int64_t vocabulary, const char *model) {
    if (kind == TOKENIZER_WORD) {
        char *path = format_string("%s/tokenizer.vocab", directory);
        Words *words = words_of_texts(texts, count, vocabulary);
        words_save(words, path);
        words_free(words);
        free(path);
    } else if (kind == TOKENIZER_SPM) {
        char *prefix = format_string("%s/tokenizer", directory), *path = format_string("%s.model", prefix);
        if (model)
            copy_file(model, path);
        else
            sentencepiece_train(texts[0], vocabulary > 0 ? vocabulary : SPM_VOCABULARY, prefix);
        free(prefix);
        free(path);
    }
}

static void open_words(Tokenizer *tokenizer, const char *directory) {
    char *path = format_string("%s/tokenizer.vocab", directory);
    tokenizer->file = file_map(path);
    tokenizer->words = words_of_lines((Text){(const char *)tokenizer->file.data, tokenizer->file.size}, path);
    tokenizer->vocabulary = words_count(tokenizer->words);
    tokenizer->end = words_find(tokenizer->words, (Text){WORD_END, strlen(WORD_END)});
    tokenizer->unknown = words_find(tokenizer->words, (Text){WORD_UNKNOWN, strlen(WORD_UNKNOWN)});
    tokenizer->padding = -1;
    if (tokenizer->end < 0) fail("%s: has no line " WORD_END, path);
    free(path);
}

static void open_model(Tokenizer *tokenizer, const char *directory) {
    char *path = format_string("%s/tokenizer.model", directory);
    tokenizer->model = sentencepiece_open(path);
    tokenizer->vocabulary = sentencepiece_size(tokenizer->model);
    tokenizer->end = sentencepiece_end(tokenizer->model);
    tokenizer->padding = sentencepiece_padding(tokenizer->model);
    free(path);
}

Tokenizer *tokenizer_open(TokenizerKind kind, const char *directory) {
    Tokenizer *tokenizer = allocate(1, sizeof(*tokenizer), "a tokenizer");
    tokenizer->kind = kind;
    switch (kind) {
    case TOKENIZER_WORD:
        open_words(tokenizer, directory);
        break;
    case TOKENIZER_SPM:
        open_model(tokenizer, directory);
        break;
    case TOKENIZER_BYTE:
        tokenizer->vocabulary = BYTE_VOCABULARY;
        tokenizer->end = '\n';
        tokenizer->padding = -1;
        break;
    case TOKENIZER_NONE:
        abort();
    }
    return tokenizer;
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    if (tokenizer->words) words_free(tokenizer->words);
    if (tokenizer->model) sentencepiece_free(tokenizer->model);
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

// ---- encoding --------------------------------------------------------------------------------------

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
    for (TextItem item = text_next(text, &at, &word); item != TEXT_END; item = text_next(text, &at, &word))
        out[count++] = item == TEXT_WORD ? word_token(tokenizer, word) : tokenizer->end;
    const bool unended = text.size > 0 && text.data[text.size - 1] != '\n';
    if (unended && !last_end) count--;
    *tokens = out;
    return count;
}

size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t size, int lines,
                        int32_t **tokens) {
    const Text whole = {text, size};
    switch (tokenizer->kind) {
    case TOKENIZER_BYTE:
        return encode_bytes(whole, tokens);
    case TOKENIZER_WORD:
        return encode_words(tokenizer, whole, lines, tokens);
    case TOKENIZER_SPM:
        return sentencepiece_encode(tokenizer->model, whole, lines, tokens);
    case TOKENIZER_NONE:
        break;
    }
    abort();
}

// ---- decoding --------------------------------------------------------------------------------------

static char *decode_byte_tokens(const int32_t *tokens, size_t count, size_t *size) {
    char *text = allocate(count + 1, 1, "a text");
    for (size_t i = 0; i < count; i++) text[i] = (char)tokens[i];
    *size = count;
    return text;
}

static char *decode_words(const Tokenizer *tokenizer, const int32_t *tokens, size_t count, size_t *size) {
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

char *tokenizer_decode(const Tokenizer *tokenizer, const int32_t *tokens, size_t count, size_t *size) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= tokenizer->vocabulary)
            fail("token %d cannot be decoded: the vocabulary has %d", tokens[i], tokenizer->vocabulary);
    switch (tokenizer->kind) {
    case TOKENIZER_BYTE:
        return decode_byte_tokens(tokens, count, size);
    case TOKENIZER_WORD:
        return decode_words(tokenizer, tokens, count, size);
    case TOKENIZER_SPM:
        return sentencepiece_decode(tokenizer->model, tokens, count, size);
    case TOKENIZER_NONE:
        break;
    }
    abort();
}

bool tokenizer_is_partial(const Tokenizer *tokenizer, int32_t token) {
    switch (tokenizer->kind) {
    case TOKENIZER_BYTE:
        return token >= 0x80;
    case TOKENIZER_SPM:
        return sentencepiece_is_byte(tokenizer->model, token);
    case TOKENIZER_WORD:
    case TOKENIZER_NONE:
        break;
    }
    return false;
}
