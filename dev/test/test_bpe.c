// Byte-level BPE. What the tokenizers library of Hugging Face makes of a small text with everything
// in it stands in dev/test/bpe; check_bpe.py made it, and compares larger texts.
#include "bpe.h"
#include "bpe_file.h"
#include "bytes.h"
#include "file.h"
#include "gpt2_words.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

#define EXPECTED "dev/test/bpe"

static Text text_of(const char *string) {
    return (Text){string, strlen(string)};
}

static Text text_in(const FileMap *file) {
    return (Text){(const char *)file->data, file->size};
}

// ---- words ------------------------------------------------------------------

static void check_words(const char *string, const char *expected) {
    Bytes words = {0};
    for (Text rest = text_of(string); rest.size > 0;) {
        const size_t size = gpt2_word(rest);
        bytes_append(&words, "|", words.size > 0);
        bytes_append(&words, rest.data, size);
        rest = (Text){rest.data + size, rest.size - size};
    }
    bytes_append(&words, "", 1);
    CHECK_TEXT(words.data, expected);
    bytes_free(&words);
}

static void test_words(void) {
    check_words("a b  c", "a| b| | c");
    check_words("it's we'll they've I'm he'd 'tis l'a",
                "it|'s| we|'ll| they|'ve| I|'m| he|'d| '|tis| l|'|a");
    check_words("IT'S 'sa '' x", "IT|'|S| '|sa| ''| x");
    check_words("x=12;\n\n  y\t", "x|=|12|;|\n\n | y|\t");
    check_words("a \n", "a| \n");
    check_words(" ", " ");
    check_words("\u00e9t\u00e9 \u4e2d\u6587\u3000\u3002 \u0663\u00bd",
                "\u00e9t\u00e9| \u4e2d\u6587|\u3000|\u3002| \u0663\u00bd");
    check_words("a\u00a0\u00a0b\x1c", "a|\u00a0|\u00a0|b|\x1c");
    check_words("a\xff\xc3 \x80x", "a|\xff\xc3| \x80|x");
}

// Words before and behind a cut are those of the whole.
static void test_cut(void) {
    const Text text = text_of("abc def.\n\n ghi\u00e9 jkl");
    CHECK(gpt2_cut(text, 1) == 3);
    CHECK(gpt2_cut(text, 4) == 8);
    CHECK(gpt2_cut(text, 9) ==
          text.size); // the space behind the e with its accent is none that it knows
    CHECK(gpt2_cut(text_of("abc"), 2) == 3);
}

// ---- against the library ----------------------------------------------------

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
    CHECK(bpe->count == 600 && bpe_special(bpe, BPE_END) == 0 && bpe_special(bpe, BPE_MASK) == -1);
    check_tokens(bpe, text_in(&marked), EXPECTED "/tokens.txt");
    bpe_free(bpe);
    file_unmap(&marked);
}

static void check_equal(const Bpe *a, const Bpe *b) {
    CHECK(a->count == b->count && a->pairs.count == b->pairs.count &&
          a->special_count == b->special_count);
    int32_t token = 0, merge = 0; // the first ones that differ
    while (token < a->count && token < b->count && a->tokens[token].size == b->tokens[token].size &&
           memcmp(a->tokens[token].data, b->tokens[token].data, a->tokens[token].size) == 0)
        token++;
    while (merge < a->pairs.count && merge < b->pairs.count &&
           memcmp(&a->merges[merge], &b->merges[merge], sizeof(BpeMerge)) == 0)
        merge++;
    CHECK(token == a->count && merge == a->pairs.count);
    for (int32_t i = 0; i < a->special_count && i < b->special_count; i++)
        CHECK(a->specials[i] == b->specials[i]);
}

static void test_training(void) {
    FileMap file = file_map(EXPECTED "/text.txt");
    const Text text = text_in(&file);
    const size_t half = gpt2_cut(text, text.size / 2);
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

// Merges a word by the definition, in time that grows with the square of its length.
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
    for (int kinds = 1; kinds <= 26; kinds++) { // few letters make many overlapping pairs
        for (int i = 0; i < LONGEST; i++)
            word[i] = (char)('a' + random_below(&random, (uint64_t)kinds));
        const size_t size = 1 + random_below(&random, LONGEST);
        const size_t count = bpe_encode(bpe, (Text){word, size}, &tokens);
        CHECK(count == merge_slowly(bpe, (Text){word, size}, expected));
        CHECK(memcmp(tokens, expected, count * sizeof(*tokens)) == 0);
        free(tokens);
    }
    // One word of 20 MB: the square of that would take days.
    for (int i = 0; i < LARGE; i++) word[i] = (char)('a' + random_below(&random, 26));
    check_round_trip(bpe, (Text){word, LARGE});
    bpe_free(bpe);
    // Training on it, too.
    bpe = bpe_train(&(Text){word, LARGE / 10}, 1, 1000, (const char *[]){BPE_END}, 1);
    CHECK(bpe->count == 1000);
    bpe_free(bpe);
    memset(word, 'a', LARGE);
    bpe = bpe_train(&(Text){word, LARGE / 10}, 1, 1000, (const char *[]){BPE_END}, 1);
    check_round_trip(bpe, (Text){word, LARGE / 10});
    bpe_free(bpe);
    free(word);
}

// Merges are left out as often as they should; what is encoded decodes, and in the same way each
// time.
static void test_dropout(void) {
    enum { COPIES = 10000 };
    FileMap file = file_map(EXPECTED "/marked.txt");
    Bpe *bpe = bpe_open(EXPECTED);
    Bytes text = {0};
    for (int i = 0; i < 100; i++) bytes_append(&text, file.data, file.size);
    const Text whole = {text.data, text.size};
    int32_t *plain, *none, *some, *again, *other;
    size_t size;
    const size_t least = bpe_encode(bpe, whole, &plain);
    CHECK(bpe_encode_dropout(bpe, whole, (BpeDropout){0, 1}, &none) == least);
    CHECK(memcmp(plain, none, least * sizeof(*plain)) == 0);
    const size_t count = bpe_encode_dropout(bpe, whole, (BpeDropout){0.1, 1}, &some);
    CHECK(count > least && bpe_encode_dropout(bpe, whole, (BpeDropout){0.1, 1}, &again) == count);
    CHECK(memcmp(some, again, count * sizeof(*some)) == 0);
    const size_t different = bpe_encode_dropout(bpe, whole, (BpeDropout){0.1, 2}, &other);
    CHECK(different != count || memcmp(some, other, count * sizeof(*some)) != 0);
    char *decoded = bpe_decode(bpe, some, count, &size);
    CHECK(size == text.size && memcmp(decoded, text.data, size) == 0);
    int32_t *const encoded[] = {plain, none, some, again, other};
    for (size_t i = 0; i < sizeof(encoded) / sizeof(*encoded); i++) free(encoded[i]);
    free(decoded);
    bytes_free(&text);
    for (int i = 0; i < COPIES; i++)
        bytes_append(&text, "th\n", 3); // the first merge that there is
    const size_t tokens =
        bpe_encode_dropout(bpe, (Text){text.data, text.size}, (BpeDropout){0.3, 1}, &some);
    CHECK_CLOSE((double)(tokens - 2 * COPIES) / COPIES, 0.3, 0.05);
    free(some);
    bytes_free(&text);
    bpe_free(bpe);
    file_unmap(&file);
}

// A text that threads share has the tokens of its parts.
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
    CHECK(bpe_special(bpe, BPE_PADDING) == 0 && bpe_special(bpe, BPE_END) == 1 &&
          bpe_special(bpe, BPE_MASK) == 2);
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
    CHECK(bpe->count == 3 && bpe_special(bpe, BPE_END) == 2);
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
    CHECK_FAILS(open_file, path, 1, "has 1 bytes behind its last token");
    file.data[0]++;
    test_file("gpt2_tokenizer.bin", file.data, file.size);
    CHECK_FAILS(open_file, path, 1, "is no tokenizer of llm.c");
    file.data[0]--;
    file.data[12] = 9;
    test_file("gpt2_tokenizer.bin", file.data, file.size);
    CHECK_FAILS(open_file, path, 1, "the header says 3 tokens");
    bytes_free(&file);
    free(path);
}

// A text with the first occurrence of one string put in the place of another, fresh memory.
static char *replaced(Text text, const char *from, const char *to) {
    const char *place = memmem(text.data, text.size, from, strlen(from));
    if (!place) test_fail(__FILE__, __LINE__, "there is no %s", from);
    if (!place) return strndup(text.data, text.size);
    const int before = (int)(place - text.data);
    return format_string("%.*s%s%.*s", before, text.data, to,
                         (int)(text.size - (size_t)before - strlen(from)), place + strlen(from));
}

static void test_broken_files(void) {
    static const char *const cases[][3] = {
        {"\"model\":", "\"modell\":", "expected \"model\" to be an object"},
        {"\"BPE\"", "\"WordPiece\"", "its model is not \"BPE\""},
        {"\"vocab\":{", "\"vocab\":[],\"v\":{", "expected \"vocab\" to be an object"},
        {"\"merges\":[", "\"merges\":7,\"m\":[", "expected \"merges\" to be an array"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "has a \"normalizer\""},
        {"\"ByteLevel\"", "\"Whitespace\"", "\"pre_tokenizer\" is not GPT-2's"},
        {"\"use_regex\":true", "\"use_regex\":false", "\"pre_tokenizer\" is not GPT-2's"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "\"add_prefix_space\": true"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"",
         "\"decoder\" is not"},
        {"\"dropout\":null", "\"dropout\":0.1", "\"dropout\" is 0.1"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true", "\"ignore_merges\": true"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
         "\"end_of_word_suffix\" is \"</w>\""},
        {"\"lstrip\":false", "\"lstrip\":true", "<|endoftext|> has \"lstrip\": true"},
        {"\"id\":0", "\"id\":1", "token 1 stands there twice"},
        {"\"id\":0", "\"id\":1000000", "\"id\": found 1000000"},
        {"\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "token 0 stands there twice"},
        {"\"A\":33,", "\"A\":34,", "token 34 stands there twice, as \"A\" and as \"B\""},
        {"\"A\":33,", "\"A\":33.5,", "the token \"A\" has no number"},
        {"\"A\":33,", "\"A\":-1,", "the token \"A\" has no number"},
        {"\"A\":33,", "\"A\":\"33\",", "the token \"A\" has no number"},
        {"\"A\":33,", "", "has a hole: no token has the number 33"},
        {"\"A\":33,", "\"\":33,", "token 33 is empty"},
        {"\"A\":33,", "\"\\u4e2d\":33,", "stands for no byte"},
        {"\"A\":33,", "\"AA\":33,", "no token for byte 0x41"},
        {"\"merges\":[", "\"merges\":[\"re\",", "merge 0: found \"re\", expected two tokens"},
        {"\"merges\":[", "\"merges\":[\"r \",", "expected two tokens"},
        {"\"merges\":[", "\"merges\":[[\"r\"],", "merge 0: expected"},
        {"\"merges\":[", "\"merges\":[5,", "merge 0: expected"},
        {"\"merges\":[", "\"merges\":[\"r \\u4e2d\",", "is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[\"Z Q\",", "\"ZQ\" is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[\"ok en\",", "out of order: no merge before it makes \"ok\""},
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
    CHECK_FAILS(open_file, path, 1, "no token for byte 0x00");
    test_file("vocab.json", "[]", 2);
    CHECK_FAILS(open_file, path, 1, "is not a JSON object");
    free(path);
    CHECK_FAILS(open_file, (void *)"/proc/self/task", 1, "has no tokenizer.json");
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"GPT-2's words", test_words},
        {"where a text can be cut", test_cut},
        {"tokens of the library", test_encoding},
        {"training as the library's", test_training},
        {"all bytes", test_bytes},
        {"long words", test_long_words},
        {"dropout", test_dropout},
        {"large text", test_large_text},
        {"saving and opening", test_saving},
        {"llm.c's file", test_llmc},
        {"broken files", test_broken_files},
    };
    return test_main(argc, argv, "bpe", cases, sizeof(cases) / sizeof(*cases));
}
