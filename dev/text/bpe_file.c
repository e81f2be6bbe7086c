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

enum {
    MOST_TOKENS = 1 << 24,
    MOST_HOLES = 1 << 16, // unused numbers
    MOST_AROUND = 64,     // tokens before a text, and after it
    MOST_STEPS = 8,       // of a pre-tokenizer
    LLMC_MAGIC = 20240328,
    LLMC_HEADER = 1024
};

// A tokenizer while its file is read.
typedef struct {
    const char *path;
    const char **names; // (most) the name of a token in the file; NULL: none seen yet
    uint8_t *flags;     // (most)
    int64_t most;       // exclusive bound of token numbers
    Words *written;     // all names
    int32_t *tokens;    // (words_count(written)) their tokens
    Bpe *bpe;
} Reader;

// ---- bytes and characters ---------------------------------------------------
// Appends the bytes that a name in a vocabulary file encodes; returns false if a character encodes
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

// Returns the name of a token in files, NUL-terminated, in new memory.
static char *written_name(const Bpe *bpe, int32_t token) {
    const Text text = bpe->tokens[token];
    const bool verbatim = bpe->flags[token] & BPE_VERBATIM;
    uint16_t characters[256];
    bpe_byte_characters(characters);
    Bytes name = {0};
    for (size_t i = 0; i < text.size; i++) {
        char character[4] = {text.data[i]};
        const char *end = verbatim ? character + 1
                                   : utf8_write(character, characters[(unsigned char)text.data[i]]);
        bytes_append(&name, character, (size_t)(end - character));
    }
    bytes_append(&name, "", 1);
    return name.data;
}

// ---- the vocabulary ---------------------------------------------------------
// count: number of tokens named in all files.
static Reader reader_open(const char *path, size_t count) {
    if (count > MOST_TOKENS) fail("%s: has %zu tokens, more than %d", path, count, MOST_TOKENS);
    const size_t most = count + MOST_HOLES;
    return (Reader){.path = path,
                    .most = (int64_t)most,
                    .names = allocate(most, sizeof(char *), "a vocabulary"),
                    .flags = allocate(most, 1, "a vocabulary"),
                    .written = words_create(),
                    .bpe = bpe_create(path)};
}

static Bpe *reader_close(Reader *r) {
    bpe_finish(r->bpe);
    free(r->names);
    free(r->flags);
    free(r->tokens);
    words_free(r->written);
    return r->bpe;
}

// Returns an integer from 0 to most - 1, or -1 if the value is none.
static int64_t token_number(const Json *value, int64_t most) {
    const double number = value->kind == JSON_NUMBER ? value->number : -1;
    if (!(number >= 0 && number < (double)most) || number != (double)(int64_t)number) return -1;
    return (int64_t)number;
}

static void index_name(Reader *r, int64_t token, const char *name) {
    const size_t count = (size_t)words_count(r->written);
    r->tokens = grow_list(r->tokens, count, sizeof(int32_t), "a vocabulary");
    r->tokens[count] = (int32_t)token;
    words_add(r->written, (Text){name, strlen(name)}, 1);
}

static void read_vocabulary(Reader *r, const Json *vocabulary) {
    for (size_t i = 0; i < vocabulary->count; i++) {
        const char *name = vocabulary->keys[i];
        const int64_t token = token_number(&vocabulary->items[i], r->most);
        if (token < 0)
            fail("%s: vocab: the token \"%s\" has no number from 0 to %lld", r->path, name,
                 (long long)r->most - 1);
        if (!*name) fail("%s: token %lld is empty", r->path, (long long)token);
        if (r->names[token])
            fail("%s: vocab: token %lld has two names, \"%s\" and \"%s\"", r->path,
                 (long long)token, r->names[token], name);
        r->names[token] = name;
        index_name(r, token, name);
    }
}

// Returns the token with that name, or -1.
static int32_t find_written(const Reader *r, Text name) {
    const int32_t number = words_find(r->written, name);
    return number < 0 || !r->tokens ? -1 : r->tokens[number];
}

static void add_token(Reader *r, int64_t token, const char *name, int flags) {
    if (token < 0 || token >= r->most)
        fail("%s: the token \"%s\" has no number from 0 to %lld", r->path, name,
             (long long)r->most - 1);
    if (!*name) fail("%s: token %lld is empty", r->path, (long long)token);
    const int32_t written = find_written(r, (Text){name, strlen(name)});
    if (written >= 0 && written != token)
        fail("%s: the token \"%s\" has two numbers, %d and %lld", r->path, name, written,
             (long long)token);
    if (r->names[token] && strcmp(r->names[token], name) != 0)
        fail("%s: token %lld has two names, \"%s\" and \"%s\"", r->path, (long long)token,
             r->names[token], name);
    if (written < 0) index_name(r, token, name);
    r->names[token] = name;
    if (written < 0) flags |= BPE_OUTSIDE;
    r->flags[token] = (uint8_t)((r->flags[token] & BPE_OUTSIDE) | flags | BPE_ADDED | BPE_VERBATIM);
}

static const struct {
    const char *key;
    int flag;
} added_flags[] = {{"single_word", BPE_SINGLE_WORD},
                   {"lstrip", BPE_LEFT},
                   {"rstrip", BPE_RIGHT},
                   {"normalized", BPE_NORMALIZED},
                   {"special", BPE_SPECIAL}};
enum { ADDED_FLAGS = sizeof(added_flags) / sizeof(*added_flags) };

static void read_added_token(Reader *r, const Json *item, int64_t token) {
    int flags = 0;
    for (int i = 0; i < ADDED_FLAGS; i++)
        if (json_is_true(item, added_flags[i].key)) flags |= added_flags[i].flag;
    add_token(r, token, json_string(item, "content", r->path), flags);
}

// Converts the names of all tokens to bytes.
static void make_tokens(Reader *r) {
    int64_t count = r->most;
    while (count > 0 && !r->names[count - 1]) count--;
    for (int64_t token = 0; token < count; token++) {
        const char *name = r->names[token];
        int flags = r->flags[token];
        Bytes bytes = {0};
        // A name that encodes no bytes does not occur in any text.
        if (name && !(flags & BPE_VERBATIM) && !append_bytes(&bytes, name)) {
            flags |= BPE_VERBATIM;
            bytes.size = 0;
        }
        if (name && (flags & BPE_VERBATIM)) bytes_append(&bytes, name, strlen(name));
        bpe_add_token(r->bpe, (Text){bytes.data, bytes.size}, flags);
        bytes_free(&bytes);
    }
}

// ---- merges -----------------------------------------------------------------

static int32_t merge_part(const Reader *r, size_t number, Text name) {
    const int32_t token = find_written(r, name);
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
    const Text *t = r->bpe->tokens;
    // For added tokens this holds if their names equal their bytes.
    if (t[merged].size != t[a].size + t[b].size ||
        memcmp(t[merged].data, t[a].data, t[a].size) != 0 ||
        memcmp(t[merged].data + t[a].size, t[b].data, t[b].size) != 0)
        fail("%s: merge %zu makes the added token \"%s\", which has other bytes", r->path, number,
             r->names[merged]);
    bytes_free(&both);
    if (pair_map_find(&r->bpe->pairs, a, b) >= 0)
        fail("%s: merge %zu, \"%s %s\", is listed twice", r->path, number, r->names[a],
             r->names[b]);
    bpe_add_merge(r->bpe, a, b, merged);
}

// Reads a merge written as "LEFT RIGHT".
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

// Words of the vocabulary become its tokens directly, without merges.
static void take_whole(Reader *r) {
    Bpe *bpe = r->bpe;
    bpe->whole = words_create();
    bpe->whole_tokens = allocate((size_t)bpe->count, sizeof(int32_t), "a vocabulary");
    for (int32_t i = 0; i < words_count(r->written); i++) {
        const int32_t token = r->tokens[i];
        if (r->flags[token] & BPE_OUTSIDE) continue;
        Bytes bytes = {0};
        const Text text = bpe->tokens[token];
        if (append_bytes(&bytes, r->names[token]) && bytes.data && bytes.size == text.size &&
            memcmp(bytes.data, text.data, text.size) == 0)
            bpe->whole_tokens[words_add(bpe->whole, text, 1)] = token;
        bytes_free(&bytes);
    }
}

// ---- steps of tokenizer.json ------------------------------------------------

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
    return strcmp(json_text(object, "type"), type) == 0;
}

// Collects the steps of a member of tokenizer.json and returns their number: those of a Sequence,
// whose list is called `list`, or the member itself; none if it is null.
static int steps_of(const Json *root, const char *key, const char *list, const char *path,
                    const Json **steps) {
    if (is_null(root, key)) return 0;
    steps[0] = member(root, key, JSON_OBJECT, path);
    if (!has_type(steps[0], "Sequence")) return 1;
    const Json *items = member(steps[0], list, JSON_ARRAY, path);
    if (items->count > MOST_STEPS)
        fail("%s: \"%s\" has %zu steps, more than %d", path, key, items->count, MOST_STEPS);
    for (size_t i = 0; i < items->count; i++) steps[i] = &items->items[i];
    return (int)items->count;
}

// Reads a split by a known pattern in which each match is a word; returns false for any other.
static bool read_split(const Json *step, BpePattern *pattern) {
    static const struct {
        const char *text;
        BpePattern pattern;
    } known[] = {
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         BPE_GPT2},
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         BPE_GPT2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         BPE_GPT4},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         BPE_QWEN2},
    };
    const Json *written = json_find(step, "pattern");
    const char *behavior = json_text(step, "behavior");
    if (strcmp(behavior, json_is_true(step, "invert") ? "Removed" : "Isolated") != 0) return false;
    for (size_t i = 0; written && i < sizeof(known) / sizeof(*known); i++) {
        *pattern = known[i].pattern;
        if (strcmp(json_text(written, "Regex"), known[i].text) == 0) return true;
    }
    return false;
}

// Reads ByteLevel, alone or after a split or Digits; returns false for other steps.
static bool read_words(Bpe *bpe, const Json *const *steps, int count) {
    if (count < 1 || count > 2 || !has_type(steps[count - 1], "ByteLevel")) return false;
    const Json *uses_regex = json_find(steps[count - 1], "use_regex");
    const bool own = !uses_regex || uses_regex->kind != JSON_BOOL || uses_regex->boolean;
    bpe->prefix_space = json_is_true(steps[count - 1], "add_prefix_space");
    if (count == 1) return own;
    if (bpe->prefix_space) return false; // the space would precede each word
    if (has_type(steps[0], "Digits")) {
        bpe->pattern =
            json_is_true(steps[0], "individual_digits") ? BPE_GPT2_DIGITS : BPE_GPT2_NUMBERS;
        return own;
    }
    return has_type(steps[0], "Split") && read_split(steps[0], &bpe->pattern) && !own;
}

static void refuse_others(const Json *root, const Json *model, const char *path) {
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const Json *steps[MOST_STEPS], *dropout = json_find(model, "dropout");
    if (json_find(model, "type") && !has_type(model, "BPE"))
        fail("%s: its model is %s, but only byte-level BPE can be read; make data with a tokenizer "
             "of its own with ./tokenize",
             path, json_text(model, "type"));
    const int count = steps_of(root, "decoder", "decoders", path, steps);
    if (count != 1 || !has_type(steps[0], "ByteLevel"))
        fail(
            "%s: \"decoder\" is not ByteLevel, so it is no byte-level BPE, which alone can be read",
            path);
    if (dropout && dropout->kind == JSON_NUMBER && dropout->number != 0)
        fail("%s: \"dropout\" is %g, which is not supported", path, dropout->number);
    for (int i = 0; i < 2; i++)
        if (*json_text(model, texts[i]))
            fail("%s: \"%s\" is \"%s\", which is not supported", path, texts[i],
                 json_text(model, texts[i]));
}

static void read_steps(Bpe *bpe, const Json *root, const char *path) {
    const Json *steps[MOST_STEPS];
    int count = steps_of(root, "normalizer", "normalizers", path, steps);
    for (int i = 0; i < count; i++)
        if (!has_type(steps[i], "NFC"))
            fail("%s: \"normalizer\" is %s, but only NFC is supported", path,
                 json_text(steps[i], "type"));
    bpe->composes = count > 0;
    count = steps_of(root, "pre_tokenizer", "pretokenizers", path, steps);
    if (!read_words(bpe, steps, count))
        fail("%s: \"pre_tokenizer\" is not supported, expected ByteLevel as in GPT-2, after "
             "Digits, or after the split of GPT-4 and Llama 3, or of Qwen 2",
             path);
}

// Adds tokens outside those already put around a text.
static void put_around(Bpe *bpe, const char *path, const Json *ids, bool after) {
    int32_t **list = after ? &bpe->after : &bpe->before;
    size_t *count = after ? &bpe->after_count : &bpe->before_count;
    if (ids->count + *count > MOST_AROUND)
        fail("%s: \"post_processor\" puts more than %d tokens around a text", path, MOST_AROUND);
    if (!*list) *list = allocate(MOST_AROUND, sizeof(int32_t), "a tokenizer");
    if (!after) memmove(*list + ids->count, *list, *count * sizeof(int32_t));
    for (size_t i = 0; i < ids->count; i++) {
        const int64_t token = token_number(&ids->items[i], bpe->count);
        if (token < 0 || bpe->tokens[token].size == 0)
            fail("%s: \"post_processor\" names a token that is not in the vocabulary", path);
        (*list)[(after ? *count : 0) + i] = (int32_t)token;
    }
    *count += ids->count;
}

static void read_template(Bpe *bpe, const Json *step, const char *path) {
    const Json *parts = member(step, "single", JSON_ARRAY, path),
               *known = member(step, "special_tokens", JSON_OBJECT, path);
    size_t text = 0; // index of the text among the parts
    while (text < parts->count && !json_find(&parts->items[text], "Sequence")) text++;
    if (text == parts->count)
        fail("%s: \"post_processor\": \"single\" has no place for the text", path);
    for (size_t n = 0; n < parts->count; n++) {
        // From the text outwards.
        const size_t i = n < text ? text - 1 - n : n;
        if (i == text) continue;
        const Json *special = json_find(&parts->items[i], "SpecialToken");
        if (!special) fail("%s: \"post_processor\": \"single\" has the text twice", path);
        const Json *token = json_find(known, json_string(special, "id", path));
        if (!token)
            fail("%s: \"post_processor\": \"special_tokens\" lacks \"%s\"", path,
                 json_text(special, "id"));
        put_around(bpe, path, member(token, "ids", JSON_ARRAY, path), i > text);
    }
}

// Reads ["</s>", 2], as in RobertaProcessing and BertProcessing.
static void read_pair(Bpe *bpe, const Json *step, const char *key, const char *path) {
    const Json *pair = member(step, key, JSON_ARRAY, path);
    if (pair->count != 2) fail("%s: \"%s\" is not a token and its number", path, key);
    const Json ids = {.kind = JSON_ARRAY, .count = 1, .items = pair->items + 1};
    put_around(bpe, path, &ids, strcmp(key, "sep") == 0);
}

static void read_post_processor(Bpe *bpe, const Json *root, const char *path) {
    const Json *steps[MOST_STEPS];
    const int count = steps_of(root, "post_processor", "processors", path, steps);
    for (int i = 0; i < count; i++) {
        if (has_type(steps[i], "TemplateProcessing")) {
            read_template(bpe, steps[i], path);
        } else if (has_type(steps[i], "RobertaProcessing") ||
                   has_type(steps[i], "BertProcessing")) {
            read_pair(bpe, steps[i], "cls", path);
            read_pair(bpe, steps[i], "sep", path);
        } else if (!has_type(steps[i], "ByteLevel")) { // which only changes offsets
            fail("%s: \"post_processor\" is %s, which is not supported", path,
                 json_text(steps[i], "type"));
        }
    }
}

// ---- files next to it -------------------------------------------------------

static Json *read_beside(const char *path, const char *name) {
    char *beside = path_beside(path, name);
    Json *root = file_exists(beside) ? json_read_object(beside) : NULL;
    free(beside);
    return root;
}

// Returns the token named by a member like "eos_token": "</s>", or {"content": "</s>", ...}; "" if
// none.
static const char *named_token(const Json *root, const char *key) {
    const Json *value = json_find(root, key);
    if (value && value->kind == JSON_OBJECT) return json_text(value, "content");
    return value ? json_text(root, key) : "";
}

static void read_role(const Bpe *bpe, const Json *root, const char *key, int32_t *token) {
    const int32_t named = bpe_added(bpe, named_token(root, key));
    if (named >= 0) *token = named;
}

static const char *const beside_names[] = {"special_tokens_map.json", "tokenizer_config.json"};

// Finds the tokens that end a text, pad it and mask other tokens.
static void read_roles(Bpe *bpe, Json *const files[2]) {
    for (int i = 0; i < 2; i++) {
        if (!files[i]) continue;
        read_role(bpe, files[i], "eos_token", &bpe->end);
        read_role(bpe, files[i], "pad_token", &bpe->padding);
        read_role(bpe, files[i], "mask_token", &bpe->mask);
    }
}

static void override_prefix(Bpe *bpe, const Json *config) {
    const Json *prefix = config ? json_find(config, "add_prefix_space") : NULL;
    if (!prefix || prefix->kind != JSON_BOOL || prefix->boolean == bpe->prefix_space) return;
    if (bpe->pattern != BPE_GPT2)
        fail("%s: tokenizer_config.json has \"add_prefix_space\": true, which is supported for "
             "GPT-2's words alone",
             bpe->source);
    bpe->prefix_space = prefix->boolean;
}

// ---- tokenizer.json ---------------------------------------------------------
// Returns the members of an object, except those listed (ends in NULL), as JSON without brackets.
static char *members_text(const Json *object, const char *const *except) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    for (size_t i = 0; i < object->count; i++) {
        const char *const *name = except;
        while (*name && strcmp(*name, object->keys[i]) != 0) name++;
        if (*name) continue;
        json_key(&w, object->keys[i]);
        json_write_value(&w, &object->items[i]);
    }
    char *text = copy_string(w.text + 1);
    json_writer_free(&w);
    return text;
}

// Keeps the settings to write them again, with the add_prefix_space in effect.
static void keep_settings(Bpe *bpe, Json *root, const Json *model) {
    static const char *const known[] = {"version", "added_tokens", "model", NULL};
    static const char *const lists[] = {"vocab", "merges", NULL};
    const Json *steps[MOST_STEPS];
    const int count = steps_of(root, "pre_tokenizer", "pretokenizers", bpe->source, steps);
    Json *prefix = count > 0 ? (Json *)json_find(steps[count - 1], "add_prefix_space") : NULL;
    if (prefix) *prefix = (Json){.kind = JSON_BOOL, .boolean = bpe->prefix_space};
    bpe->settings = members_text(root, known);
    bpe->model_settings = members_text(model, lists);
}

// The tokenizers library numbers added tokens after the vocabulary and ignores the numbers in the
// file.
static void check_numbers(const Reader *r, const Json *vocabulary, const Json *added) {
    long long next = (long long)vocabulary->count;
    for (size_t i = 0; added && i < added->count; i++) {
        const char *name = json_string(&added->items[i], "content", r->path);
        const int32_t token = find_written(r, (Text){name, strlen(name)});
        if (!(r->flags[token] & BPE_OUTSIDE)) continue;
        if (token != next)
            warn("%s: the token \"%s\" has the number %d in the file; the tokenizers library "
                 "assigns %lld",
                 r->path, name, token, next);
        if (token != next) return;
        next++;
    }
}

static Bpe *open_tokenizer_json(const char *path) {
    Json *root = json_read_object(path);
    const Json *model = member(root, "model", JSON_OBJECT, path);
    refuse_others(root, model, path);
    const Json *vocabulary = member(model, "vocab", JSON_OBJECT, path);
    const Json *merges = member(model, "merges", JSON_ARRAY, path);
    const Json *added =
        is_null(root, "added_tokens") ? NULL : member(root, "added_tokens", JSON_ARRAY, path);
    Reader r = reader_open(path, vocabulary->count + (added ? added->count : 0));
    read_steps(r.bpe, root, path);
    read_vocabulary(&r, vocabulary);
    for (size_t i = 0; added && i < added->count; i++)
        read_added_token(&r, &added->items[i],
                         json_integer(&added->items[i], "id", 0, r.most - 1, path));
    check_numbers(&r, vocabulary, added);
    make_tokens(&r);
    read_merges(&r, merges);
    if (json_is_true(model, "ignore_merges")) take_whole(&r);
    read_post_processor(r.bpe, root, path);
    Bpe *bpe = reader_close(&r);
    Json *beside[2];
    for (int i = 0; i < 2; i++) beside[i] = read_beside(path, beside_names[i]);
    read_roles(bpe, beside);
    override_prefix(bpe, beside[1]);
    keep_settings(bpe, root, model);
    for (int i = 0; i < 2; i++) json_free(beside[i]);
    json_free(root);
    return bpe;
}

// ---- vocab.json and merges.txt ----------------------------------------------
// Removes lines from *file up to the next merge, which it stores in *line; returns false at the
// end.
static bool next_merge(Text *file, Text *line) {
    while (file->size > 0) {
        *line = text_without_newline(text_take_line(file));
        if (line->size > 0 && line->data[line->size - 1] == '\r') line->size--;
        const bool version = line->size >= 8 && memcmp(line->data, "#version", 8) == 0;
        if (line->size > 0 && !version) return true;
    }
    return false;
}

// Marks a token that a file next to the vocabulary calls special.
static void read_special(Reader *r, const char *name) {
    const int32_t token = find_written(r, (Text){name, strlen(name)});
    if (token >= 0) add_token(r, token, r->names[token], r->flags[token] | BPE_SPECIAL);
}

// added_tokens.json: {"[PAD]": 8000}. "added_tokens_decoder": {"8000": {"content": "[PAD]", ...}}.
static void read_added_files(Reader *r, const Json *added, const Json *decoder) {
    for (size_t i = 0; added && i < added->count; i++)
        add_token(r, token_number(&added->items[i], r->most), added->keys[i], 0);
    for (size_t i = 0; decoder && decoder->kind == JSON_OBJECT && i < decoder->count; i++) {
        char *end;
        const long long token = strtoll(decoder->keys[i], &end, 10);
        read_added_token(r, &decoder->items[i], *end ? -1 : token);
    }
}

static void read_specials(Reader *r, const Json *root) {
    const Json *more = root ? json_find(root, "additional_special_tokens") : NULL;
    for (size_t i = 0; root && i < root->count; i++)
        if (path_ends_in(root->keys[i], "_token"))
            read_special(r, named_token(root, root->keys[i]));
    for (size_t i = 0; more && more->kind == JSON_ARRAY && i < more->count; i++) {
        const Json *item = &more->items[i];
        read_special(r, item->kind == JSON_STRING ? item->string : json_text(item, "content"));
    }
}

// Marks special tokens that no file lists: GPT-2's and, if `all`, those of ./tokenize.
static void assume_specials(Reader *r, bool all) {
    static const char *const names[] = {BPE_END, BPE_PADDING, BPE_MASK};
    for (int i = 0; i < (all ? 3 : 1); i++) {
        const int32_t token = find_written(r, (Text){names[i], strlen(names[i])});
        bool made = token < 0;
        for (int32_t m = 0; !made && m < r->bpe->pairs.count; m++)
            made = r->bpe->merges[m].merged == token;
        if (!made) r->bpe->flags[token] |= BPE_ADDED | BPE_SPECIAL | BPE_VERBATIM;
    }
}

static void read_specials_beside(Reader *r, const Json *added, Json *const beside[2]) {
    const Json *config = beside[1];
    read_added_files(r, added, config ? json_find(config, "added_tokens_decoder") : NULL);
    for (int i = 0; i < 2; i++) read_specials(r, beside[i]);
}

// Reads the token that tokenizer_config.json puts before a text.
static void read_first(Bpe *bpe, const Json *config) {
    if (!config || !json_is_true(config, "add_bos_token")) return;
    const char *name = named_token(config, "bos_token");
    const int32_t token = bpe_added(bpe, *name ? name : BPE_END);
    if (token < 0)
        fail("%s: tokenizer_config.json puts \"%s\" before a text, which is no special token",
             bpe->source, name);
    bpe->before = allocate(1, sizeof(int32_t), "a tokenizer");
    bpe->before[bpe->before_count++] = token;
}

// These files do not store the pattern. It is GPT-2's, but not for this class of tokenizers.
static void refuse_other_pattern(const char *path, const Json *config) {
    const char *class = config ? json_text(config, "tokenizer_class") : "";
    if (strncmp(class, "Qwen2Tokenizer", strlen("Qwen2Tokenizer")) == 0)
        fail("%s: tokenizer_config.json names %s, which splits text into other words than GPT-2: "
             "give its tokenizer.json instead",
             path, class);
}

static Bpe *open_vocab_json(const char *path) {
    char *merges_path = path_beside(path, "merges.txt");
    FileMap merges_file = file_map(merges_path);
    Json *root = json_read_object(path), *added = read_beside(path, "added_tokens.json"),
         *beside[2];
    for (int i = 0; i < 2; i++) beside[i] = read_beside(path, beside_names[i]);
    refuse_other_pattern(path, beside[1]);
    Reader r = reader_open(path, root->count + (added ? added->count : 0));
    read_vocabulary(&r, root);
    read_specials_beside(&r, added, beside);
    make_tokens(&r);
    Text merges = {(const char *)merges_file.data, merges_file.size}, line;
    r.path = merges_path;
    for (size_t number = 0; next_merge(&merges, &line); number++) read_merge_line(&r, number, line);
    assume_specials(&r, !added && !beside[0] && !beside[1]);
    Bpe *bpe = reader_close(&r);
    read_roles(bpe, beside);
    override_prefix(bpe, beside[1]);
    read_first(bpe, beside[1]);
    for (int i = 0; i < 2; i++) json_free(beside[i]);
    json_free(added);
    json_free(root);
    file_unmap(&merges_file);
    free(merges_path);
    return bpe;
}

// ---- gpt2_tokenizer.bin -----------------------------------------------------
// A header of 256 uint32 (magic, version, number of tokens, from version 2 on the token that ends a
// text), then for each token a byte with its length and its bytes.
static Bpe *open_llmc(const char *path) {
    FileMap file = file_map(path);
    uint32_t header[4];
    if (file.size < LLMC_HEADER)
        fail("%s: has %zu bytes, expected a header of %d", path, file.size, LLMC_HEADER);
    memcpy(header, file.data, sizeof(header));
    if (header[0] != LLMC_MAGIC || header[1] < 1 || header[1] > 2)
        fail("%s: is not a tokenizer of llm.c: found magic %u, version %u, expected %d, 1 or 2",
             path, header[0], header[1], LLMC_MAGIC);
    const uint32_t count = header[2], end = header[1] == 1 ? count - 1 : header[3];
    if (count < 1 || count > MOST_TOKENS || end >= count)
        fail("%s: the header has %u tokens, the last of a text being %u", path, count, end);
    Bpe *bpe = bpe_create(path);
    bpe->decodes_only = true;
    size_t at = LLMC_HEADER;
    for (uint32_t i = 0; i < count; i++) {
        const size_t size = at < file.size ? file.data[at] : 0;
        if (size == 0 || size > file.size - at - 1)
            fail("%s: token %u of %u is empty or cut off", path, i, count);
        bpe_add_token(bpe, (Text){(const char *)file.data + at + 1, size},
                      i == end ? BPE_ADDED | BPE_SPECIAL | BPE_VERBATIM : 0);
        at += 1 + size;
    }
    if (at != file.size) fail("%s: has %zu bytes after its last token", path, file.size - at);
    bpe_finish(bpe);
    file_unmap(&file);
    return bpe;
}

// ---- opening and saving -----------------------------------------------------

static const char *const names[] = {BPE_FILE, "vocab.json", BPE_LLMC_FILE};

// Returns the first of the files above in a directory as a new path, or NULL.
static char *find_file(const char *directory) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = path_in(directory, names[i]);
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

Bpe *bpe_open(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        char *file = find_file(path);
        if (!file) fail("%s: has no tokenizer.json, no vocab.json and no gpt2_tokenizer.bin", path);
        Bpe *bpe = bpe_open(file);
        free(file);
        return bpe;
    }
    if (path_ends_in(path, ".bin")) return open_llmc(path);
    return path_ends_in(path, "vocab.json") ? open_vocab_json(path) : open_tokenizer_json(path);
}

// Returns the post-processor that puts a token before each text (read_first).
static char *own_template(const Bpe *bpe) {
    char *name = written_name(bpe, bpe->before[0]);
    JsonWriter w = {0};
    json_write_string(&w, name);
    const char *n = w.text;
    char *text = format_string(
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":%s,\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"SpecialToken\":{\"id\":%s,"
        "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\","
        "\"type_id\":1}}],\"special_tokens\":{%s:{\"id\":%s,\"ids\":[%d],\"tokens\":[%s]}}}",
        n, n, n, n, bpe->before[0], n);
    json_writer_free(&w);
    free(name);
    return text;
}

// Returns the settings of a tokenizer trained here or read from the older files: those of GPT-2.
static char *own_settings(const Bpe *bpe) {
    char *first = bpe->before_count > 0 ? own_template(bpe) : copy_string("null");
    char *text = format_string(
        "\"truncation\":null,\"padding\":null,\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":true},"
        "\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true}",
        bpe->prefix_space ? "true" : "false", first);
    free(first);
    return text;
}

static const char own_model[] =
    "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":"
    "false";

static void write_added(JsonWriter *w, const Bpe *bpe, char *const *written) {
    json_begin(w, '[');
    for (int32_t token = 0; token < bpe->count; token++) {
        if (!(bpe->flags[token] & BPE_ADDED)) continue;
        json_begin(w, '{');
        json_add_integer(w, "id", token);
        json_add_string(w, "content", written[token]);
        for (int i = 0; i < ADDED_FLAGS; i++)
            json_add_bool(w, added_flags[i].key, (bpe->flags[token] & added_flags[i].flag) != 0);
        json_end(w, '}');
    }
    json_end(w, ']');
}

// all: include added tokens that the vocabulary did not have.
static void write_vocabulary(JsonWriter *w, const Bpe *bpe, char *const *written, bool all) {
    json_begin(w, '{');
    for (int32_t token = 0; token < bpe->count; token++) {
        if (bpe->tokens[token].size == 0 || (!all && bpe->flags[token] & BPE_OUTSIDE)) continue;
        json_add_integer(w, written[token], token);
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
    char *path = path_in(directory, name);
    AtomicFile *file = atomic_open(path);
    free(path);
    return file;
}

static void save_tokenizer_json(const Bpe *bpe, const char *directory, char *const *written) {
    JsonWriter added = {0}, vocabulary = {0}, merges = {0};
    write_added(&added, bpe, written);
    write_vocabulary(&vocabulary, bpe, written, false);
    write_merges(&merges, bpe, written);
    char *settings = bpe->settings ? copy_string(bpe->settings) : own_settings(bpe);
    const char *model = bpe->model_settings ? bpe->model_settings : own_model;
    const char *const whole[] = {"{\"version\":\"1.0\",\"added_tokens\":",
                                 added.text,
                                 *settings ? "," : "",
                                 settings,
                                 ",\"model\":{",
                                 model,
                                 *model ? "," : "",
                                 "\"vocab\":",
                                 vocabulary.text,
                                 ",\"merges\":",
                                 merges.text,
                                 "}}\n"};
    AtomicFile *file = open_output(directory, BPE_FILE);
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) write_text(file, whole[i]);
    atomic_commit(file);
    free(settings);
    json_writer_free(&added);
    json_writer_free(&vocabulary);
    json_writer_free(&merges);
}

// These files cannot store patterns, whole words, or tokens around a text.
static void save_vocab_json(const Bpe *bpe, const char *directory, char *const *written) {
    JsonWriter vocabulary = {0};
    write_vocabulary(&vocabulary, bpe, written, true);
    AtomicFile *file = open_output(directory, "vocab.json");
    write_text(file, vocabulary.text);
    write_text(file, "\n");
    atomic_commit(file);
    json_writer_free(&vocabulary);

    file = open_output(directory, "merges.txt");
    write_text(file, "#version: 0.2\n");
    for (int32_t i = 0; i < bpe->pairs.count; i++) {
        write_text(file, written[bpe->merges[i].left]);
        write_text(file, " ");
        write_text(file, written[bpe->merges[i].right]);
        write_text(file, "\n");
    }
    atomic_commit(file);
}

void bpe_save(const Bpe *bpe, const char *directory) {
    char **written = allocate((size_t)bpe->count, sizeof(char *), "a vocabulary");
    for (int32_t i = 0; i < bpe->count; i++) written[i] = written_name(bpe, i);
    save_tokenizer_json(bpe, directory, written);
    if (bpe->pattern == BPE_GPT2 && !bpe->composes && !bpe->whole && !bpe->prefix_space &&
        bpe->before_count + bpe->after_count == 0)
        save_vocab_json(bpe, directory, written);
    for (int32_t i = 0; i < bpe->count; i++) free(written[i]);
    free(written);
}
