#include "bpe_file.h"
#include "bytes.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "words.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// GPT-2's pattern as it is written in the wild.
static const char *const patterns[] = {
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
};

enum { MOST_TOKENS = 1 << 24, MOST_SPECIALS = 4096, LLMC_MAGIC = 20240328, LLMC_HEADER = 1024 };

// A tokenizer while its file is read.
typedef struct {
    const char *path;
    const char **names;   // (most) how the file writes a token; NULL: not seen yet
    unsigned char *added; // (most) 1: it is special
    unsigned char *made;  // (most) 1: a byte, or made by a merge
    int64_t most;         // tokens that the file may name
    Words *written;       // the number of a name is the token
    Bpe *bpe;
} Reader;

// ---- bytes and characters ---------------------------------------------------
// The bytes that a name of a vocabulary file stands for, appended; false: a character stands for
// none.
static bool append_bytes(Bytes *out, const char *name) {
    uint16_t characters[256];
    bpe_byte_characters(characters);
    for (const unsigned char *u = (const unsigned char *)name; *u; u += *u < 0x80 ? 1 : 2) {
        // All of the characters are below U+0144, so one or two bytes long.
        const unsigned code = *u < 0x80 ? *u : *u < 0xe0 ? (*u & 0x1fu) << 6 | (u[1] & 0x3fu) : 0;
        int byte = 0;
        while (byte < 256 && characters[byte] != code) byte++;
        if (byte == 256) return false;
        bytes_append(out, &(char){(char)byte}, 1);
    }
    return true;
}

// How files write a token, NUL-terminated fresh memory.
static char *written_name(const Bpe *bpe, int32_t token) {
    const Text text = bpe->tokens[token];
    const bool special = bpe_is_special(bpe, token);
    uint16_t characters[256];
    bpe_byte_characters(characters);
    Bytes name = {0};
    for (size_t i = 0; i < text.size; i++) {
        const uint16_t code = special ? 0 : characters[(unsigned char)text.data[i]];
        if (special || code < 0x80)
            bytes_append(&name, text.data + i, 1);
        else
            bytes_append(&name, (char[]){(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))},
                         2);
    }
    bytes_append(&name, "", 1);
    return name.data;
}

// ---- the vocabulary ---------------------------------------------------------

static Reader reader_open(const char *path, size_t most) {
    if (most > MOST_TOKENS) fail("%s: has %zu tokens, more than %d", path, most, MOST_TOKENS);
    return (Reader){.path = path,
                    .most = (int64_t)most,
                    .names = allocate(most, sizeof(char *), "a vocabulary"),
                    .added = allocate(most, 1, "a vocabulary"),
                    .made = allocate(most, 1, "a vocabulary"),
                    .written = words_create(),
                    .bpe = bpe_create(path)};
}

static Bpe *reader_close(Reader *r) {
    bpe_finish(r->bpe);
    free(r->names);
    free(r->added);
    free(r->made);
    words_free(r->written);
    return r->bpe;
}

static void read_vocabulary(Reader *r, const Json *vocabulary) {
    for (size_t i = 0; i < vocabulary->count; i++) {
        const char *name = vocabulary->keys[i];
        const Json *number = &vocabulary->items[i];
        if (number->kind != JSON_NUMBER ||
            !(number->number >= 0 && number->number < (double)r->most) ||
            number->number != (double)(int64_t)number->number)
            fail("%s: vocab: the token \"%s\" has no number from 0 to %lld, one after the other",
                 r->path, name, (long long)r->most - 1);
        const int64_t token = (int64_t)number->number;
        if (r->names[token])
            fail("%s: vocab: token %lld stands there twice, as \"%s\" and as \"%s\"", r->path,
                 (long long)token, r->names[token], name);
        r->names[token] = name;
    }
}

static void refuse_true(const Json *object, const char *key, const char *what, const char *path) {
    const Json *value = json_find(object, key);
    if (value && value->kind == JSON_BOOL && value->boolean)
        fail("%s: %s has \"%s\": true, which is not supported", path, what, key);
}

static void read_added(Reader *r, const Json *list) {
    if (list->count > MOST_SPECIALS)
        fail("%s: has %zu added tokens, more than %d", r->path, list->count, MOST_SPECIALS);
    for (size_t i = 0; i < list->count; i++) {
        const Json *item = &list->items[i];
        const char *content = json_string(item, "content", r->path);
        const int64_t token = json_integer(item, "id", 0, r->most - 1, r->path);
        refuse_true(item, "single_word", content, r->path);
        refuse_true(item, "lstrip", content, r->path);
        refuse_true(item, "rstrip", content, r->path);
        if (r->names[token] && strcmp(r->names[token], content) != 0)
            fail("%s: token %lld stands there twice, as \"%s\" and as \"%s\"", r->path,
                 (long long)token, r->names[token], content);
        r->names[token] = content;
        r->added[token] = 1;
    }
}

// The bytes of all tokens, from their names.
static void make_tokens(Reader *r) {
    int64_t count = r->most;
    while (count > 0 && !r->names[count - 1]) count--;
    for (int32_t token = 0; token < count; token++) {
        const char *name = r->names[token];
        if (!name)
            fail("%s: the vocabulary has a hole: no token has the number %d", r->path, token);
        if (!*name) fail("%s: token %d is empty", r->path, token);
        if (words_add(r->written, (Text){name, strlen(name)}, 1) != token)
            fail("%s: the token \"%s\" stands there twice, one of them as number %d", r->path, name,
                 token);
        Bytes bytes = {0};
        if (r->added[token])
            bytes_append(&bytes, name, strlen(name));
        else if (!append_bytes(&bytes, name))
            fail("%s: token %d, \"%s\", has a character that stands for no byte: it is no "
                 "byte-level "
                 "vocabulary",
                 r->path, token, name);
        bpe_add_token(r->bpe, (Text){bytes.data, bytes.size}, r->added[token]);
        r->made[token] = bytes.size == 1 && !r->added[token];
        bytes_free(&bytes);
    }
}

// ---- merges -----------------------------------------------------------------

static int32_t merge_part(const Reader *r, size_t number, Text name) {
    const int32_t token = words_find(r->written, name);
    const int length = (int)(name.size < 100 ? name.size : 100);
    if (token < 0)
        fail("%s: merge %zu: \"%.*s\" is not in the vocabulary", r->path, number, length,
             name.data);
    return token;
}

static void read_merge(Reader *r, size_t number, Text left, Text right) {
    const int32_t a = merge_part(r, number, left), b = merge_part(r, number, right);
    Bytes both = {0};
    bytes_append(&both, left.data, left.size);
    bytes_append(&both, right.data, right.size);
    const int32_t merged = merge_part(r, number, (Text){both.data, both.size});
    bytes_free(&both);
    if (!r->made[a] || !r->made[b])
        fail("%s: merge %zu is out of order: no merge before it makes \"%s\"", r->path, number,
             r->names[r->made[a] ? b : a]);
    if (r->added[merged])
        fail("%s: merge %zu makes the special token \"%s\"", r->path, number, r->names[merged]);
    if (pair_map_find(&r->bpe->pairs, a, b) >= 0)
        fail("%s: merge %zu, \"%s %s\", stands there twice", r->path, number, r->names[a],
             r->names[b]);
    bpe_add_merge(r->bpe, a, b, merged);
    r->made[merged] = 1;
}

// A merge written as "LEFT RIGHT".
static void read_merge_line(Reader *r, size_t number, Text line) {
    const char *space = memchr(line.data, ' ', line.size);
    const size_t left = space ? (size_t)(space - line.data) : 0,
                 right = space ? line.size - left - 1 : 0;
    if (left == 0 || right == 0)
        fail("%s: merge %zu: found \"%.*s\", expected two tokens with a space between them",
             r->path, number, (int)(line.size < 100 ? line.size : 100), line.data);
    read_merge(r, number, (Text){line.data, left}, (Text){space + 1, right});
}

static void read_merges(Reader *r, const Json *merges) {
    for (size_t i = 0; i < merges->count; i++) {
        const Json *item = &merges->items[i];
        const Json *parts = item->items;
        if (item->kind == JSON_STRING)
            read_merge_line(r, i, (Text){item->string, strlen(item->string)});
        else if (item->kind == JSON_ARRAY && item->count == 2 && parts[0].kind == JSON_STRING &&
                 parts[1].kind == JSON_STRING)
            read_merge(r, i, (Text){parts[0].string, strlen(parts[0].string)},
                       (Text){parts[1].string, strlen(parts[1].string)});
        else
            fail("%s: merge %zu: expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]", r->path, i);
    }
}

// ---- tokenizer.json ---------------------------------------------------------

static const Json *member(const Json *object, const char *key, JsonKind kind, const char *path) {
    const Json *value = json_find(object, key);
    if (!value || value->kind != kind)
        fail("%s: expected \"%s\" to be %s", path, key,
             kind == JSON_OBJECT ? "an object" : "an array");
    return value;
}

static bool is_null(const Json *object, const char *key) {
    const Json *value = json_find(object, key);
    return !value || value->kind == JSON_NULL;
}

static bool has_type(const Json *object, const char *type) {
    const Json *value = json_find(object, "type");
    return value && value->kind == JSON_STRING && strcmp(value->string, type) == 0;
}

static bool is_gpt2_split(const Json *split) {
    const Json *pattern = json_find(split, "pattern");
    const Json *regex = pattern ? json_find(pattern, "Regex") : NULL;
    const Json *behavior = json_find(split, "behavior"), *invert = json_find(split, "invert");
    if (!has_type(split, "Split") || !regex || regex->kind != JSON_STRING) return false;
    if (!behavior || behavior->kind != JSON_STRING || strcmp(behavior->string, "Isolated") != 0)
        return false;
    if (invert && invert->kind == JSON_BOOL && invert->boolean) return false;
    return strcmp(regex->string, patterns[0]) == 0 || strcmp(regex->string, patterns[1]) == 0;
}

// GPT-2's: ByteLevel with its own pattern, or ByteLevel behind a split by that pattern.
static void check_words(const Json *root, const char *path) {
    const Json *words = json_find(root, "pre_tokenizer"),
               *steps = words ? json_find(words, "pretokenizers") : NULL;
    bool own_pattern = true;
    if (words && has_type(words, "Sequence") && steps && steps->kind == JSON_ARRAY &&
        steps->count == 2 && is_gpt2_split(&steps->items[0])) {
        words = &steps->items[1];
        own_pattern = false;
    }
    const Json *pattern = words ? json_find(words, "use_regex") : NULL;
    const bool uses =
        !pattern || (pattern->kind == JSON_BOOL && pattern->boolean); // true where it is missing
    if (!words || !has_type(words, "ByteLevel") || uses != own_pattern)
        fail("%s: \"pre_tokenizer\" is not GPT-2's (ByteLevel), which is the only one supported",
             path);
    refuse_true(words, "add_prefix_space", "\"pre_tokenizer\"", path);
}

static void check_supported(const Json *root, const Json *model, const char *path) {
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (json_find(model, "type") && !has_type(model, "BPE"))
        fail("%s: its model is not \"BPE\", which is the only one supported", path);
    if (!is_null(root, "normalizer"))
        fail("%s: has a \"normalizer\", which is not supported: text would not come back as it was",
             path);
    check_words(root, path);
    const Json *decoder = json_find(root, "decoder"), *dropout = json_find(model, "dropout");
    if (!decoder || !has_type(decoder, "ByteLevel"))
        fail("%s: \"decoder\" is not \"ByteLevel\", which is the only one supported", path);
    if (dropout && dropout->kind == JSON_NUMBER && dropout->number != 0)
        fail("%s: \"dropout\" is %g, which is not supported", path, dropout->number);
    refuse_true(model, "ignore_merges", "\"model\"", path);
    for (int i = 0; i < 2; i++) {
        const Json *text = json_find(model, texts[i]);
        if (text && text->kind == JSON_STRING && *text->string)
            fail("%s: \"%s\" is \"%s\", which is not supported", path, texts[i], text->string);
    }
}

static Bpe *open_tokenizer_json(const char *path) {
    FileMap file = file_map(path);
    Json *root = json_parse((const char *)file.data, file.size, path);
    const Json *model = member(root, "model", JSON_OBJECT, path);
    check_supported(root, model, path);
    const Json *vocabulary = member(model, "vocab", JSON_OBJECT, path);
    const Json *merges = member(model, "merges", JSON_ARRAY, path);
    const Json *added =
        is_null(root, "added_tokens") ? NULL : member(root, "added_tokens", JSON_ARRAY, path);
    Reader r = reader_open(path, vocabulary->count + (added ? added->count : 0));
    read_vocabulary(&r, vocabulary);
    if (added) read_added(&r, added);
    make_tokens(&r);
    read_merges(&r, merges);
    Bpe *bpe = reader_close(&r);
    json_free(root);
    file_unmap(&file);
    return bpe;
}

// ---- vocab.json and merges.txt ----------------------------------------------
// The next line of merges.txt that holds a merge, from *at on; false at the end.
static bool next_merge(Text file, size_t *at, Text *line) {
    while (*at < file.size) {
        const char *start = file.data + *at, *newline = memchr(start, '\n', file.size - *at);
        *line = (Text){start, newline ? (size_t)(newline - start) : file.size - *at};
        *at += line->size + 1;
        if (line->size > 0 && start[line->size - 1] == '\r') line->size--;
        const bool version = line->size >= 8 && memcmp(start, "#version", 8) == 0;
        if (line->size > 0 && !version) return true;
    }
    return false;
}

// These files do not say which tokens are special: those in angle or square brackets that no merge
// makes.
static void find_added(Reader *r, Text merges) {
    Words *made = words_create();
    Bytes names = {0}; // of what merges make, one behind the other
    Text line;
    bytes_reserve(&names, merges.size); // so that it does not move
    for (size_t at = 0; next_merge(merges, &at, &line);) {
        const char *space = memchr(line.data, ' ', line.size);
        const size_t start = names.size, left = space ? (size_t)(space - line.data) : line.size;
        bytes_append(&names, line.data, left);
        if (space) bytes_append(&names, space + 1, line.size - left - 1);
        words_add(made, (Text){names.data + start, names.size - start}, 1);
    }
    int count = 0;
    for (int64_t i = 0; i < r->most; i++) {
        const size_t size = r->names[i] ? strlen(r->names[i]) : 0;
        if (size < 3 || words_find(made, (Text){r->names[i], size}) >= 0) continue;
        const char first = r->names[i][0], last = r->names[i][size - 1];
        r->added[i] = (first == '<' && last == '>') || (first == '[' && last == ']');
        count += r->added[i];
    }
    if (count > MOST_SPECIALS)
        fail("%s: has %d special tokens, more than %d", r->path, count, MOST_SPECIALS);
    words_free(made);
    bytes_free(&names);
}

static Bpe *open_vocab_json(const char *path) {
    char *merges_path = format_string("%.*smerges.txt", (int)(path_name(path) - path), path);
    FileMap file = file_map(path), merges_file = file_map(merges_path);
    Json *root = json_parse((const char *)file.data, file.size, path);
    if (root->kind != JSON_OBJECT) fail("%s: is not a JSON object", path);
    const Text merges = {(const char *)merges_file.data, merges_file.size};
    Reader r = reader_open(path, root->count);
    read_vocabulary(&r, root);
    find_added(&r, merges);
    make_tokens(&r);
    r.path = merges_path;
    Text line;
    size_t number = 0;
    for (size_t at = 0; next_merge(merges, &at, &line); number++) read_merge_line(&r, number, line);
    Bpe *bpe = reader_close(&r);
    json_free(root);
    file_unmap(&file);
    file_unmap(&merges_file);
    free(merges_path);
    return bpe;
}

// ---- gpt2_tokenizer.bin -----------------------------------------------------
// 256 uint32 of header (magic, version, tokens, from version 2 on the one that ends a text), then
// each token: a byte with its length, its bytes.
static Bpe *open_llmc(const char *path) {
    FileMap file = file_map(path);
    uint32_t header[4];
    if (file.size < LLMC_HEADER)
        fail("%s: has %zu bytes, expected a header of %d", path, file.size, LLMC_HEADER);
    memcpy(header, file.data, sizeof(header));
    if (header[0] != LLMC_MAGIC || header[1] < 1 || header[1] > 2)
        fail("%s: is no tokenizer of llm.c: found magic %u, version %u, expected %d, 1 or 2", path,
             header[0], header[1], LLMC_MAGIC);
    const uint32_t count = header[2], end = header[1] == 1 ? count - 1 : header[3];
    if (count < 1 || count > MOST_TOKENS || end >= count)
        fail("%s: the header says %u tokens, the last of a text being %u", path, count, end);
    Bpe *bpe = bpe_create(path);
    bpe->decodes_only = true;
    size_t at = LLMC_HEADER;
    for (uint32_t i = 0; i < count; i++) {
        const size_t size = at < file.size ? file.data[at] : 0;
        if (size == 0 || size > file.size - at - 1)
            fail("%s: token %u of %u is empty or cut off", path, i, count);
        bpe_add_token(bpe, (Text){(const char *)file.data + at + 1, size}, i == end);
        at += 1 + size;
    }
    if (at != file.size) fail("%s: has %zu bytes behind its last token", path, file.size - at);
    bpe_finish(bpe);
    file_unmap(&file);
    return bpe;
}

// ---- opening and saving -----------------------------------------------------

static const char *const names[] = {BPE_FILE, "vocab.json", BPE_LLMC_FILE};

// The first of the files above in a directory, fresh memory; NULL: none is there.
static char *find_file(const char *directory) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = format_string("%s/%s", directory, names[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

bool bpe_has_file(const char *name) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return strcmp(name, "merges.txt") == 0;
}

bool bpe_exists(const char *directory) {
    char *path = find_file(directory);
    free(path);
    return path != NULL;
}

static bool ends_in(const char *path, const char *end) {
    const size_t size = strlen(path), length = strlen(end);
    return size >= length && strcmp(path + size - length, end) == 0;
}

Bpe *bpe_open(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        char *file = find_file(path);
        if (!file) fail("%s: has no tokenizer.json, no vocab.json and no gpt2_tokenizer.bin", path);
        Bpe *bpe = bpe_open(file);
        free(file);
        return bpe;
    }
    if (ends_in(path, ".bin")) return open_llmc(path);
    return ends_in(path, "vocab.json") ? open_vocab_json(path) : open_tokenizer_json(path);
}

// GPT-2's settings: what stands before the added tokens, and between them and the vocabulary.
static const char head[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":";
static const char settings[] = ",\"normalizer\":null,"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                               "false,\"trim_offsets\":true,\"use_"
                               "regex\":true},"
                               "\"post_processor\":null,"
                               "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                               "\"trim_offsets\":true,\"use_regex\":true},"
                               "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                               "\"continuing_subword_prefix\":null,"
                               "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":"
                               "false,\"ignore_merges\":false,"
                               "\"vocab\":";

static void write_added(JsonWriter *w, const Bpe *bpe, char *const *written) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    json_begin(w, '[');
    for (int32_t token = 0; token < bpe->count; token++) {
        if (!bpe_is_special(bpe, token)) continue;
        json_begin(w, '{');
        json_key(w, "id");
        json_write_integer(w, token);
        json_key(w, "content");
        json_write_string(w, written[token]);
        for (int i = 0; i < 4; i++) {
            json_key(w, flags[i]);
            json_write_bool(w, false);
        }
        json_key(w, "special");
        json_write_bool(w, true);
        json_end(w, '}');
    }
    json_end(w, ']');
}

static void write_vocabulary(JsonWriter *w, const Bpe *bpe, char *const *written) {
    json_begin(w, '{');
    for (int32_t token = 0; token < bpe->count; token++) {
        json_key(w, written[token]);
        json_write_integer(w, token);
    }
    json_end(w, '}');
}

static void write_merges(JsonWriter *w, const Bpe *bpe, char *const *written) {
    json_begin(w, '[');
    for (int32_t i = 0; i < bpe->pairs.count; i++) {
        char *pair =
            format_string("%s %s", written[bpe->merges[i].left], written[bpe->merges[i].right]);
        json_write_string(w, pair);
        free(pair);
    }
    json_end(w, ']');
}

static void write_text(AtomicFile *file, const char *text) {
    atomic_write(file, text, strlen(text));
}

static AtomicFile *open_output(const char *directory, const char *name) {
    char *path = format_string("%s/%s", directory, name);
    AtomicFile *file = atomic_open(path);
    free(path);
    return file;
}

void bpe_save(const Bpe *bpe, const char *directory) {
    char **written = allocate((size_t)bpe->count, sizeof(char *), "a vocabulary");
    for (int32_t i = 0; i < bpe->count; i++) written[i] = written_name(bpe, i);
    JsonWriter added = {0}, vocabulary = {0}, merges = {0};
    write_added(&added, bpe, written);
    write_vocabulary(&vocabulary, bpe, written);
    write_merges(&merges, bpe, written);
    const char *const whole[] = {head,           added.text,  settings, vocabulary.text,
                                 ",\"merges\":", merges.text, "}}\n"};
    AtomicFile *file = open_output(directory, BPE_FILE);
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) write_text(file, whole[i]);
    atomic_commit(file);

    file = open_output(directory, "vocab.json");
    write_text(file, vocabulary.text);
    write_text(file, "\n");
    atomic_commit(file);

    file = open_output(directory, "merges.txt");
    write_text(file, "#version: 0.2\n");
    for (int32_t i = 0; i < bpe->pairs.count; i++) {
        write_text(file, written[bpe->merges[i].left]);
        write_text(file, " ");
        write_text(file, written[bpe->merges[i].right]);
        write_text(file, "\n");
    }
    atomic_commit(file);

    json_writer_free(&added);
    json_writer_free(&vocabulary);
    json_writer_free(&merges);
    for (int32_t i = 0; i < bpe->count; i++) free(written[i]);
    free(written);
}
