// Byte-level BPE. dev/test/bpe has the output of Hugging Face's tokenizers library for a small text
// with all cases; check_bpe.py made it and compares larger texts.
#include "bpe.h"
#include "bpe_file.h"
#include "bytes.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPECTED "dev/test/bpe"

static Text text_of(const char *string) {
    return (Text){string, strlen(string)};
}

static Text text_in(const FileMap *file) {
    return (Text){(const char *)file->data, file->size};
}

// ---- words ------------------------------------------------------------------

static void check_words(BpePattern pattern, const char *string, const char *expected) {
    Bytes words = {0};
    for (Text rest = text_of(string); rest.size > 0;) {
        const size_t size = bpe_word(pattern, rest);
        bytes_append(&words, "|", words.size > 0);
        bytes_append(&words, rest.data, size);
        rest = (Text){rest.data + size, rest.size - size};
    }
    bytes_append(&words, "", 1);
    CHECK_TEXT(words.data, expected);
    bytes_free(&words);
}

static void test_words(void) {
    check_words(BPE_GPT2, "a b  c", "a| b| | c");
    check_words(BPE_GPT2, "it's we'll they've I'm he'd 'tis l'a",
                "it|'s| we|'ll| they|'ve| I|'m| he|'d| '|tis| l|'|a");
    check_words(BPE_GPT2, "IT'S 'sa '' x", "IT|'|S| '|sa| ''| x");
    check_words(BPE_GPT2, "x=12;\n\n  y\t", "x|=|12|;|\n\n | y|\t");
    check_words(BPE_GPT2, "a \n", "a| \n");
    check_words(BPE_GPT2, " ", " ");
    check_words(BPE_GPT2, "\u00e9t\u00e9 \u4e2d\u6587\u3000\u3002 \u0663\u00bd",
                "\u00e9t\u00e9| \u4e2d\u6587|\u3000|\u3002| \u0663\u00bd");
    check_words(BPE_GPT2, "a\u00a0\u00a0b\x1c", "a|\u00a0|\u00a0|b|\x1c");
    check_words(BPE_GPT2, "a\xff\xc3 \x80x", "a|\xff\xc3| \x80|x");
}

static void test_other_words(void) {
    check_words(BPE_GPT4, "it'S WE'Ll x'\u017fa", "it|'S| WE|'Ll| x|'\u017f|a");
    check_words(BPE_GPT4, "12345 x\n\n  y.\n\nz", "123|45| x|\n\n| | y|.\n\n|z");
    check_words(BPE_GPT4, "\t\ta (b \n", "\t|\ta| (|b| \n");
    check_words(BPE_QWEN2, "a123\u0663  ", "a|1|2|3|\u0663|  ");
    check_words(BPE_GPT2_DIGITS, "a12  34 's", "a|1|2|  |3|4| '|s");
    check_words(BPE_GPT2_NUMBERS, "a12  34 b", "a|12|  |34| b");
}

// The words before and after a cut are those of the whole text.
static void test_cut(void) {
    const Text text = text_of("abc def.\n\n ghi\u00e9 jkl");
    CHECK(bpe_words_cut(BPE_GPT2, text, 1, false) == 3);
    CHECK(bpe_words_cut(BPE_GPT2, text, 4, false) == 8);
    CHECK(bpe_words_cut(BPE_GPT2, text, 9, false) == text.size - 4);
    CHECK(bpe_words_cut(BPE_GPT2, text_of("\u4e2d\u3000\n\u3002\n"), 1, false) == 10);
    CHECK(bpe_words_cut(BPE_GPT2, text_of("\xe3\x80 \x80\x80 x"), 1, false) == 2);
    CHECK(bpe_words_cut(BPE_GPT2, text_of("abc"), 2, false) == 3);
    CHECK(bpe_words_cut(BPE_GPT2, text, 4, true) == text.size - 4);
    CHECK(bpe_words_cut(BPE_GPT4, text_of("a.\nb c"), 1, true) == 4);
    CHECK(bpe_words_cut(BPE_GPT4, text_of("a.\n\u3000\n\u4e2d"), 1, false) == 7);
}

// ---- comparison with the library --------------------------------------------

static void check_tokens(const Bpe *bpe, Text text, const char *path) {
    FileMap file = file_map(path);
    int32_t *tokens;
    const size_t count = bpe_encode(bpe, text, &tokens);
    char *at = (char *)file.data, *end;
    size_t i = 0;
    for (long token = strtol(at, &end, 10); end != at; token = strtol(at, &end, 10), i++) {
        if (i >= count || tokens[i] != token) {
            test_fail(__FILE__, __LINE__, "token %zu is %d, expected %ld", i,
                      i < count ? tokens[i] : -1, token);
            break;
        }
        at = end;
    }
    CHECK(i == count);
    size_t size;
    char *decoded = bpe_decode(bpe, tokens, count, &size);
    CHECK(size == text.size && memcmp(decoded, text.data, size) == 0);
    free(decoded);
    free(tokens);
    file_unmap(&file);
}

static void test_encoding(void) {
    FileMap marked = file_map(EXPECTED "/marked.txt");
    Bpe *bpe = bpe_open(EXPECTED "/tokenizer.json");
    CHECK(bpe->count == 600 && bpe_added(bpe, BPE_END) == 0 && bpe_added(bpe, BPE_MASK) == -1);
    check_tokens(bpe, text_in(&marked), EXPECTED "/tokens.txt");
    bpe_free(bpe);
    file_unmap(&marked);
}

static void check_equal(const Bpe *a, const Bpe *b) {
    CHECK(a->count == b->count && a->pairs.count == b->pairs.count);
    int32_t token = 0, merge = 0; // the first difference
    while (token < a->count && token < b->count && a->tokens[token].size == b->tokens[token].size &&
           memcmp(a->tokens[token].data, b->tokens[token].data, a->tokens[token].size) == 0)
        token++;
    while (merge < a->pairs.count && merge < b->pairs.count &&
           memcmp(&a->merges[merge], &b->merges[merge], sizeof(BpeMerge)) == 0)
        merge++;
    CHECK(token == a->count && merge == a->pairs.count);
    CHECK(a->count == b->count && memcmp(a->flags, b->flags, (size_t)a->count) == 0);
}

static void test_training(void) {
    FileMap file = file_map(EXPECTED "/text.txt");
    const Text text = text_in(&file);
    const size_t half = bpe_words_cut(BPE_GPT2, text, text.size / 2, false);
    const Text parts[] = {{text.data + half, text.size - half}, {text.data, half}};
    Bpe *theirs = bpe_open(EXPECTED "/tokenizer.json");
    Bpe *ours = bpe_train(&text, 1, 600, (const char *[]){BPE_END}, 1);
    check_equal(theirs, ours);
    Bpe *swapped = bpe_train(parts, 2, 600, (const char *[]){BPE_END}, 1);
    check_equal(theirs, swapped);
    bpe_free(theirs);
    bpe_free(ours);
    bpe_free(swapped);
    file_unmap(&file);
}

// ---- any bytes, any length --------------------------------------------------

static void check_round_trip(const Bpe *bpe, Text text) {
    int32_t *tokens;
    size_t size;
    const size_t count = bpe_encode(bpe, text, &tokens);
    char *decoded = bpe_decode(bpe, tokens, count, &size);
    CHECK(size == text.size && memcmp(decoded, text.data, size) == 0);
    CHECK(count <= text.size);
    free(decoded);
    free(tokens);
}

static void test_bytes(void) {
    Bpe *bpe = bpe_open(EXPECTED);
    char bytes[100000];
    for (int i = 0; i < 256; i++) bytes[i] = (char)i;
    check_round_trip(bpe, (Text){bytes, 256});
    for (int i = 0; i < 256; i++) check_round_trip(bpe, (Text){bytes + i, 1});
    check_round_trip(bpe, (Text){bytes, 0});
    Random random = random_stream(1, RANDOM_TEST, 0, 0);
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)random_below(&random, 256);
    check_round_trip(bpe, (Text){bytes, sizeof(bytes)});
    bpe_free(bpe);
}

// Merges a word by the definition, in quadratic time.
static size_t merge_slowly(const Bpe *bpe, Text word, int32_t *out) {
    size_t count = word.size;
    for (size_t i = 0; i < count; i++) out[i] = bpe->byte_tokens[(unsigned char)word.data[i]];
    for (;;) {
        int32_t best = INT32_MAX;
        size_t place = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const int32_t merge = pair_map_find(&bpe->pairs, out[i], out[i + 1]);
            if (merge < 0 || merge >= best) continue;
            best = merge;
            place = i;
        }
        if (best == INT32_MAX) return count;
        out[place] = bpe->merges[best].merged;
        memmove(out + place + 1, out + place + 2, (count - place - 2) * sizeof(*out));
        count--;
    }
}

static void test_long_words(void) {
    enum { LONGEST = 3000, LARGE = 20000000 };
    Bpe *bpe = bpe_open(EXPECTED);
    char *word = allocate(LARGE, 1, "a word");
    int32_t expected[LONGEST], *tokens;
    Random random = random_stream(2, RANDOM_TEST, 0, 0);
    for (int kinds = 1; kinds <= 26; kinds++) { // few letters give many overlapping pairs
        for (int i = 0; i < LONGEST; i++)
            word[i] = (char)('a' + random_below(&random, (uint64_t)kinds));
        const size_t size = 1 + random_below(&random, LONGEST);
        const size_t count = bpe_encode(bpe, (Text){word, size}, &tokens);
        CHECK(count == merge_slowly(bpe, (Text){word, size}, expected));
        CHECK(memcmp(tokens, expected, count * sizeof(*tokens)) == 0);
        free(tokens);
    }
    // One word of 20 MB: quadratic time would take days.
    for (int i = 0; i < LARGE; i++) word[i] = (char)('a' + random_below(&random, 26));
    check_round_trip(bpe, (Text){word, LARGE});
    bpe_free(bpe);
    // The same for training.
    bpe = bpe_train(&(Text){word, LARGE / 10}, 1, 1000, (const char *[]){BPE_END}, 1);
    CHECK(bpe->count == 1000);
    bpe_free(bpe);
    memset(word, 'a', LARGE);
    bpe = bpe_train(&(Text){word, LARGE / 10}, 1, 1000, (const char *[]){BPE_END}, 1);
    check_round_trip(bpe, (Text){word, LARGE / 10});
    bpe_free(bpe);
    free(word);
}

// A text that is split over threads has the tokens of its parts.
static void test_large_text(void) {
    enum { COPIES = 100 };
    FileMap file = file_map(EXPECTED "/marked.txt");
    Bpe *bpe = bpe_open(EXPECTED);
    Bytes text = {0};
    for (int i = 0; i < COPIES; i++) bytes_append(&text, file.data, file.size);
    int32_t *one, *all;
    const size_t count = bpe_encode(bpe, text_in(&file), &one);
    CHECK(bpe_encode(bpe, (Text){text.data, text.size}, &all) == COPIES * count);
    for (int i = 0; i < COPIES; i++)
        CHECK(memcmp(all + (size_t)i * count, one, count * sizeof(*one)) == 0);
    free(one);
    free(all);
    bytes_free(&text);
    bpe_free(bpe);
    file_unmap(&file);
}

// ---- files ------------------------------------------------------------------

static void test_saving(void) {
    const char *const reserved[] = {BPE_PADDING, BPE_END, BPE_MASK};
    FileMap file = file_map(EXPECTED "/marked.txt");
    const Text text = text_in(&file);
    Bpe *bpe = bpe_train(&text, 1, 700, reserved, 3);
    CHECK(bpe_added(bpe, BPE_PADDING) == 0 && bpe_added(bpe, BPE_END) == 1 &&
          bpe_added(bpe, BPE_MASK) == 2);
    bpe_save(bpe, test_directory());
    Bpe *again = bpe_open(test_directory());
    check_equal(bpe, again);
    bpe_free(again);
    char *vocabulary = format_string("%s/vocab.json", test_directory());
    again = bpe_open(vocabulary);
    check_equal(bpe, again);
    bpe_free(again);
    bpe_free(bpe);
    free(vocabulary);
    file_unmap(&file);
}

static void open_file(void *path) {
    bpe_free(bpe_open(path));
}

static void encode_with(void *path) {
    Bpe *bpe = bpe_open(path);
    int32_t *tokens;
    bpe_encode(bpe, text_of("a"), &tokens);
}

static void test_llmc(void) {
    uint32_t header[256] = {20240328, 2, 3, 2};
    Bytes file = {0};
    bytes_append(&file, header, sizeof(header));
    bytes_append(&file, "\1a\2bc\15<|endoftext|>", 19);
    char *path = copy_string(test_file("gpt2_tokenizer.bin", file.data, file.size));
    Bpe *bpe = bpe_open(test_directory());
    CHECK(bpe->count == 3 && bpe_added(bpe, BPE_END) == 2);
    size_t size;
    char *text = bpe_decode(bpe, (const int32_t[]){1, 0, 1}, 3, &size);
    CHECK_TEXT(text, "bcabc");
    free(text);
    bpe_free(bpe);
    CHECK_FAILS(encode_with, path, 1, "holds no merges");
    test_file("gpt2_tokenizer.bin", file.data, file.size - 1);
    CHECK_FAILS(open_file, path, 1, "token 2 of 3 is empty or cut off");
    test_file("gpt2_tokenizer.bin", file.data, 1000);
    CHECK_FAILS(open_file, path, 1, "has 1000 bytes");
    bytes_append(&file, "x", 1);
    test_file("gpt2_tokenizer.bin", file.data, file.size);
    CHECK_FAILS(open_file, path, 1, "has 1 bytes after its last token");
    file.data[0]++;
    test_file("gpt2_tokenizer.bin", file.data, file.size);
    CHECK_FAILS(open_file, path, 1, "is not a tokenizer of llm.c");
    file.data[0]--;
    file.data[12] = 9;
    test_file("gpt2_tokenizer.bin", file.data, file.size);
    CHECK_FAILS(open_file, path, 1, "the header has 3 tokens");
    bytes_free(&file);
    free(path);
}

// Returns the text with the first occurrence of one string replaced by another, as a new string.
static char *replaced(Text text, const char *from, const char *to) {
    const char *place = memmem(text.data, text.size, from, strlen(from));
    if (!place) test_fail(__FILE__, __LINE__, "there is no %s", from);
    if (!place) return strndup(text.data, text.size);
    const int before = (int)(place - text.data);
    return format_string("%.*s%s%.*s", before, text.data, to,
                         (int)(text.size - (size_t)before - strlen(from)), place + strlen(from));
}

// ---- tokenizers other than GPT-2's ------------------------------------------

static void check_form(const Json *form, Text base) {
    char *text = strndup(base.data, base.size);
    const Json *replace = json_find(form, "replace"), *expected = json_find(form, "ids");
    const char *name = json_string(form, "name", EXPECTED), *given = json_string(form, "text", "");
    for (size_t i = 0; i < replace->count; i++) {
        const Json *pair = replace->items[i].items;
        char *next = replaced(text_of(text), pair[0].string, pair[1].string);
        free(text);
        text = next;
    }
    Bpe *bpe = bpe_open(test_file("tokenizer.json", text, strlen(text)));
    for (int saved = 0; saved < 2; saved++) {
        int32_t *tokens;
        const size_t count = bpe_encode(bpe, text_of(given), &tokens), n = bpe->before_count;
        size_t same = 0;
        for (; same < expected->count; same++) {
            const size_t i = same - n;
            const int32_t token = same < n                       ? bpe->before[same]
                                  : i < count                    ? tokens[i]
                                  : i - count < bpe->after_count ? bpe->after[i - count]
                                                                 : -1;
            if (token != (int32_t)expected->items[same].number) break;
        }
        if (same < expected->count || n + count + bpe->after_count != expected->count)
            test_fail(__FILE__, __LINE__, "%s: %zu of %zu tokens, token %zu is another", name,
                      n + count + bpe->after_count, expected->count, same);
        free(tokens);
        bpe_save(bpe, test_directory());
        bpe_free(bpe);
        bpe = bpe_open(test_directory());
    }
    bpe_free(bpe);
    free(text);
}

static void test_forms(void) {
    FileMap base = file_map(EXPECTED "/tokenizer.json"), file = file_map(EXPECTED "/forms.json");
    Json *forms = json_parse((const char *)file.data, file.size, EXPECTED "/forms.json");
    for (size_t i = 0; i < forms->count; i++) check_form(&forms->items[i], text_in(&base));
    json_free(forms);
    file_unmap(&base);
    file_unmap(&file);
}

// Opens dev/test/bpe/tokenizer.json with one string replaced by another.
static Bpe *open_replaced(const char *from, const char *to) {
    FileMap file = file_map(EXPECTED "/tokenizer.json");
    char *text = replaced(text_in(&file), from, to);
    Bpe *bpe = bpe_open(test_file("tokenizer.json", text, strlen(text)));
    free(text);
    file_unmap(&file);
    return bpe;
}

static void encode_missing(void *bpe) {
    int32_t *tokens;
    bpe_encode(bpe, text_of("xAy"), &tokens);
}

// A byte without a token ends the program if the text contains it.
static void test_missing_byte(void) {
    Bpe *bpe = open_replaced("\"A\":33,", "");
    int32_t *tokens = NULL;
    CHECK(bpe->count == 600 && bpe_encode(bpe, text_of("xy"), &tokens) > 0);
    free(tokens);
    CHECK_FAILS(encode_missing, bpe, 1, "has no token for byte 0x41, which the text has");
    bpe_free(bpe);
}

// 20,000 added tokens are found as fast as one.
static void test_many_added(void) {
    enum { MANY = 20000, COPIES = 200000 };
    Bpe *bpe = bpe_train(&(Text){"", 0}, 1, 300, (const char *[]){BPE_END}, 1);
    Bpe *many = bpe_create("many");
    for (int32_t i = 0; i < bpe->count; i++) bpe_add_token(many, bpe->tokens[i], bpe->flags[i]);
    for (int i = 0; i < MANY; i++) {
        char *name = format_string("<extra_%d>", i);
        bpe_add_token(many, text_of(name), BPE_ADDED);
        free(name);
    }
    bpe_finish(many);
    Bytes text = {0};
    for (int i = 0; i < COPIES; i++) bytes_append(&text, "<extra_19999><b>", 16);
    int32_t *tokens;
    CHECK(bpe_encode(many, (Text){text.data, text.size}, &tokens) == 4 * COPIES);
    CHECK(tokens[0] == many->count - 1);
    free(tokens);
    bytes_free(&text);
    bpe_free(many);
    bpe_free(bpe);
}

// A cut reads only the text near it, and is not inside an added token that continues after that.
static void test_far_cut(void) {
    enum { HALF = 1 << 22, FROM = 1 << 20 };
    Bpe *bpe = bpe_train(&(Text){"", 0}, 1, 300, (const char *[]){"<a b c>"}, 1);
    char *text = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED) abort();
    memset(text, 'x', HALF);
    text[FROM + 9] = ' ';
    mprotect(text + HALF, HALF, PROT_NONE);
    CHECK(bpe_cut(bpe, (Text){text, 2 * HALF}, FROM) == FROM + 9);
    mprotect(text + HALF, HALF, PROT_READ | PROT_WRITE);
    text[FROM + 9] = 'x';
    for (size_t i = 0; i < 6; i++) // where one look may end
        memcpy(text + FROM + (1 << 16 << i) - (i + 1), "<a b c>", 7);
    memcpy(text + HALF, "x y", 3);
    CHECK(bpe_cut(bpe, (Text){text, 2 * HALF}, FROM) == HALF + 1);
    munmap(text, 2 * HALF);
    bpe_free(bpe);
}

// Files next to a tokenizer define the meaning of its tokens.
static void test_files_beside(void) {
    Bpe *bpe = open_replaced("\"A\":33,", "\"</s>\":33,");
    CHECK(bpe->end == 0 && bpe_added(bpe, "</s>") == -1 && !bpe->prefix_space);
    bpe_save(bpe, test_directory());
    bpe_free(bpe);
    const char *config = "{\"add_prefix_space\":true,\"eos_token\":{\"content\":\"</s>\"}}";
    test_file("tokenizer_config.json", config, strlen(config));
    bpe = bpe_open(test_directory());
    CHECK(bpe->end == 0 && bpe->prefix_space); // no added token has that name
    bpe_free(bpe);
    char *path = format_string("%s/vocab.json", test_directory());
    bpe = bpe_open(path);
    CHECK(bpe->end == 33 && bpe->prefix_space && bpe_added(bpe, BPE_END) == 0);
    bpe_free(bpe);
    config = "{\"added_tokens_decoder\":{\"601\":{\"content\":\" x\",\"rstrip\":true}},"
             "\"add_bos_token\":true,\"bos_token\":\"</s>\",\"pad_token\":\"[P]\"}";
    test_file("tokenizer_config.json", config, strlen(config));
    test_file("added_tokens.json", "{\"[P]\":600}", 11);
    test_file("special_tokens_map.json", "{\"additional_special_tokens\":[\"!!\"]}", 36);
    bpe = bpe_open(path);
    CHECK(bpe->count == 602 && bpe->padding == 600 && bpe->before_count == 1);
    CHECK(bpe->before[0] == 33 && bpe->flags[600] & BPE_SPECIAL && bpe->flags[601] & BPE_RIGHT);
    bpe_save(bpe, test_directory());
    bpe_free(bpe);
    bpe = bpe_open(test_directory());
    CHECK(bpe->before_count == 1 && bpe->before[0] == 33 && bpe->flags[600] & BPE_OUTSIDE);
    bpe_free(bpe);
    const char *const names[] = {"tokenizer_config.json", "added_tokens.json",
                                 "special_tokens_map.json"};
    for (int i = 0; i < 3; i++) test_file(names[i], "{}", 2);
    // If no file marks a token as special, only GPT-2's own is.
    bpe = bpe_open(path);
    CHECK(bpe_added(bpe, "</s>") == -1 && bpe_added(bpe, BPE_END) == 0);
    bpe_free(bpe);
    test_file("added_tokens.json", "{\"[P]\":7000000}", 15);
    CHECK_FAILS(open_file, path, 1, "the token \"[P]\" has no number from 0 to");
    test_file("added_tokens.json", "{\"[P]\":5}", 9);
    CHECK_FAILS(open_file, path, 1, "token 5 has two names");
    config = "{\"tokenizer_class\":\"Qwen2TokenizerFast\"}";
    test_file("tokenizer_config.json", config, strlen(config));
    CHECK_FAILS(open_file, path, 1, "give its tokenizer.json instead");
    free(path);
}

static void test_broken_files(void) {
    static const char *const cases[][3] = {
        {"\"model\":", "\"modell\":", "expected \"model\" to be an object"},
        {"\"BPE\"", "\"WordPiece\"", "its model is WordPiece, but only byte-level BPE"},
        {"\"vocab\":{", "\"vocab\":[],\"v\":{", "expected \"vocab\" to be an object"},
        {"\"merges\":[", "\"merges\":7,\"m\":[", "expected \"merges\" to be an array"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", "\"normalizer\" is NFKC"},
        {"\"normalizer\":null", "\"normalizer\":[]", "expected \"normalizer\" to be an object"},
        {"\"ByteLevel\"", "\"Whitespace\"", "\"pre_tokenizer\" is not supported"},
        {"\"use_regex\":true", "\"use_regex\":false", "\"pre_tokenizer\" is not supported"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"",
         "\"decoder\" is not"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"X\"}",
         "\"post_processor\" is X, which"},
        {"\"post_processor\":null",
         "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",1],\"cls\":[\"y\",600]}",
         "\"post_processor\" names a token that is not"},
        {"\"post_processor\":null",
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}",
         "has no place for the text"},
        {"\"dropout\":null", "\"dropout\":0.1", "\"dropout\" is 0.1"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
         "\"end_of_word_suffix\" is \"</w>\""},
        {"\"id\":0", "\"id\":1", "the token \"<|endoftext|>\" has two numbers, 0 and 1"},
        {"\"id\":0", "\"id\":1000000", "\"id\": found 1000000"},
        {"\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "token 0 is empty"},
        {"\"content\":\"<|endoftext|>\"", "\"content\":\"x\"", "token \"x\" has two numbers"},
        {"\"A\":33,", "\"A\":34,", "token 34 has two names, \"A\" and \"B\""},
        {"\"A\":33,", "\"A\":33.5,", "the token \"A\" has no number"},
        {"\"A\":33,", "\"A\":-1,", "the token \"A\" has no number"},
        {"\"A\":33,", "\"A\":70000,", "the token \"A\" has no number"},
        {"\"A\":33,", "\"A\":\"33\",", "the token \"A\" has no number"},
        {"\"A\":33,", "\"\":33,", "token 33 is empty"},
        {"\"merges\":[", "\"merges\":[\"re\",", "merge 0: found \"re\", expected two tokens"},
        {"\"merges\":[", "\"merges\":[\"r \",", "expected two tokens"},
        {"\"merges\":[", "\"merges\":[[\"r\"],", "merge 0: expected"},
        {"\"merges\":[", "\"merges\":[5,", "merge 0: expected"},
        {"\"merges\":[", "\"merges\":[\"r \\u4e2d\",", "is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[\"Z Q\",", "\"ZQ\" is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[\"ok en\",", "is listed twice"},
    };
    FileMap file = file_map(EXPECTED "/tokenizer.json");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *text = replaced(text_in(&file), cases[i][0], cases[i][1]);
        char *path = copy_string(test_file("tokenizer.json", text, strlen(text)));
        CHECK_FAILS(open_file, path, 1, cases[i][2]);
        free(text);
        free(path);
    }
    char *path = copy_string(test_file("tokenizer.json", file.data, file.size / 2));
    CHECK_FAILS(open_file, path, 1, "found the end");
    free(path);
    file_unmap(&file);
    path = copy_string(test_file("vocab.json", "{\"a\": 0}", 8));
    CHECK_FAILS(open_file, path, 1, "merges.txt: cannot open");
    test_file("merges.txt", "#version: 0.2\na\n", 16);
    CHECK_FAILS(open_file, path, 1, "merges.txt: merge 0: found \"a\"");
    test_file("merges.txt", "", 0);
    bpe_free(bpe_open(path));
    test_file("vocab.json", "[]", 2);
    CHECK_FAILS(open_file, path, 1, "is not a JSON object");
    free(path);
    CHECK_FAILS(open_file, (void *)"/proc/self/task", 1, "has no tokenizer.json");
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"GPT-2's words", test_words},
        {"words of other patterns", test_other_words},
        {"where a text can be cut", test_cut},
        {"tokens of the library", test_encoding},
        {"training as the library's", test_training},
        {"all bytes", test_bytes},
        {"long words", test_long_words},
        {"large text", test_large_text},
        {"saving and opening", test_saving},
        {"llm.c's file", test_llmc},
        {"other tokenizers", test_forms},
        {"a byte without a token", test_missing_byte},
        {"many added tokens", test_many_added},
        {"cuts of a long text", test_far_cut},
        {"files next to a tokenizer", test_files_beside},
        {"broken files", test_broken_files},
    };
    return test_main(argc, argv, "bpe", cases, sizeof(cases) / sizeof(*cases));
}
