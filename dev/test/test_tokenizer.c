#include "bytes.h"
#include "file.h"
#include "memory.h"
#include "process.h"
#include "random.h"
#include "sentencepiece.h"
#include "test.h"
#include "text.h"
#include "tokenizer.h"
#include "words.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static Text text_of(const char *string) {
    return (Text){string, strlen(string)};
}

// ---- text -------------------------------------------------------------------

static void test_text_items(void) {
    const Text text = text_of("  a bc\t\r\n\nd ");
    const TextItem expected[] = {TEXT_WORD, TEXT_WORD,     TEXT_LINE_END, TEXT_LINE_END,
                                 TEXT_WORD, TEXT_LINE_END, TEXT_END,      TEXT_END};
    const size_t sizes[] = {1, 2, 0, 0, 1, 0, 0, 0};
    size_t at = 0;
    for (int i = 0; i < 8; i++) {
        Text word = {NULL, 0};
        CHECK(text_next(text, &at, &word) == expected[i]);
        CHECK(word.size == sizes[i]);
    }
}

static void check_counts(const char *string, int64_t words, int64_t lines) {
    const TextCounts counts = text_count(text_of(string));
    CHECK(counts.words == words);
    CHECK(counts.lines == lines);
    CHECK(counts.bytes == (int64_t)strlen(string));
}

static void test_text_counts(void) {
    check_counts("", 0, 0);
    check_counts("\n", 1, 1);
    check_counts("a", 2, 1);
    check_counts("a\n", 2, 1);
    check_counts("a b\n\n c", 6, 3);
    check_counts("a\n ", 3, 2);
}

static void check_split(const char *string, const char *train, const char *validation,
                        const char *test) {
    const char *const expected[] = {train, validation, test};
    Text parts[3];
    text_split(text_of(string), parts);
    for (int i = 0; i < 3; i++) {
        char *part = strndup(parts[i].data, parts[i].size);
        CHECK_TEXT(part, expected[i]);
        free(part);
    }
}

static void test_text_split(void) {
    check_split("", "", "", "");
    check_split("abc", "abc", "", "");
    check_split("0123456789012345678901234567890123456789", "012345678901234567890123456789012345",
                "67", "89");
    // 40 bytes: the cuts are at 36 and 38, and one byte is 2.5%.
    check_split("01234567890123456789012345678901234\n6 89",
                "01234567890123456789012345678901234\n", "6 ", "89");
    check_split("0123456789012345678901234567890123\n5678\n",
                "0123456789012345678901234567890123\n5", "67", "8\n");
    // No cut inside a character.
    check_split("01234567890123456789012345678901234\u00e97 9",
                "01234567890123456789012345678901234", "\u00e97", " 9");
    check_split("0123456789012345678901234\u20ac9", "0123456789012345678901234", "\u20ac", "9");
    check_split("012345678901234567890123456789012\U0001f6007 9",
                "012345678901234567890123456789012", "\U0001f6007", " 9");
}

static void test_utf8(void) {
    CHECK(utf8_length(text_of("a")) == 1);
    CHECK(utf8_length(text_of("\u00e9")) == 2);
    CHECK(utf8_length(text_of("\u2581")) == 3);
    CHECK(utf8_length(text_of("\U0001f600")) == 4);
    const char *const bad[] = {"",
                               "\x80",
                               "\xc0\xaf",
                               "\xe0\x80\xaf",
                               "\xed\xa0\x80",
                               "\xf4\x90\x80\x80",
                               "\xf8\x88\x80\x80\x80",
                               "\xe2\x96",
                               "\xff"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(utf8_length(text_of(bad[i])) == 0);
    CHECK(utf8_valid_prefix(text_of("a\u00e9\xff z")) == 3);
    CHECK(utf8_valid_prefix(text_of("a\u00e9")) == 3);
}

// ---- child processes --------------------------------------------------------

static void test_process(void) {
    Bytes large = {0};
    for (int i = 0; i < 1 << 18; i++) bytes_append(&large, "0123456789abcde\n", 16); // 4 MiB
    const Text input = {large.data, large.size};

    // More than pipes hold, in both directions.
    ProcessResult result = process_run((const char *const[]){"cat", NULL}, input);
    CHECK(result.start_error == 0 && result.exit_code == 0);
    CHECK(result.output.size == input.size &&
          memcmp(result.output.data, input.data, input.size) == 0);
    process_result_free(&result);

    // A child that does not read.
    result = process_run((const char *const[]){"true", NULL}, input);
    CHECK(result.start_error == 0 && result.exit_code == 0 && result.output.size == 0);
    process_result_free(&result);

    // Much output on stderr, of which the end is kept; the exit code; a signal.
    const char *const shout[] = {"sh", "-c", "cat 1>&2; echo last 1>&2; exit 3", NULL};
    result = process_run(shout, input);
    CHECK(result.exit_code == 3 && result.errors.size > 5 && result.errors.size <= 4096);
    CHECK(memcmp(result.errors.data + result.errors.size - 5, "last\n", 5) == 0);
    process_result_free(&result);
    result = process_run((const char *const[]){"sh", "-c", "kill -9 $$", NULL}, text_of(""));
    CHECK(result.exit_code == 128 + 9);
    process_result_free(&result);

    result = process_run((const char *const[]){"no-such-program", NULL}, input);
    CHECK(result.start_error == ENOENT);
    process_result_free(&result);
    bytes_free(&large);
}

static void run_sleeper(const char *file) {
    char *script = format_string("echo $$ >%s.tmp; mv %s.tmp %s; exec sleep 100", file, file, file);
    ProcessResult result =
        process_run((const char *const[]){"sh", "-c", script, NULL}, text_of(""));
    process_result_free(&result);
    free(script);
}

// Returns whether a process is running; a zombie has no command line.
static bool runs(long process) {
    char *path = format_string("/proc/%ld/cmdline", process), byte;
    const int fd = open(path, O_RDONLY);
    const bool there = fd >= 0 && read(fd, &byte, 1) == 1;
    if (fd >= 0) close(fd);
    free(path);
    return there;
}

// A child stops writing when the program that waits for it is killed.
static void test_process_killed(void) {
    char *file = format_string("%s/process", test_directory());
    const pid_t parent = fork();
    if (parent == 0) {
        run_sleeper(file);
        _exit(0);
    }
    for (int i = 0; i < 1000 && !file_exists(file); i++) usleep(10000);
    FileMap map = file_map(file);
    const long process = strtol((const char *)map.data, NULL, 10);
    for (int i = 0; i < 1000 && !runs(process); i++) usleep(10000); // exec takes a moment
    CHECK(process > 0 && runs(process));
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    for (int i = 0; i < 1000 && runs(process); i++) usleep(10000);
    CHECK(!runs(process));
    file_unmap(&map);
    free(file);
}

// ---- byte -------------------------------------------------------------------

static void test_byte(void) {
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_BYTE, NULL);
    const char text[] = "a\0\xff\n\xc3";
    int32_t *tokens;
    const size_t count = tokenizer_encode(tokenizer, text, 5, 1, &tokens);
    CHECK(count == 5 && tokens[0] == 'a' && tokens[1] == 0 && tokens[2] == 255 &&
          tokens[4] == 0xc3);
    size_t size;
    char *decoded = tokenizer_decode(tokenizer, tokens, count, &size);
    CHECK(size == 5 && memcmp(decoded, text, 5) == 0 && decoded[5] == '\0');
    CHECK(tokenizer_vocabulary(tokenizer) == 256);
    CHECK(tokenizer_end(tokenizer) == '\n' && tokenizer_padding(tokenizer) == -1);
    CHECK(!tokenizer_is_partial(tokenizer, 0xc3));            // a byte token is never partial
    CHECK(tokenizer_cut(tokenizer, (Text){text, 5}, 1) == 1); // without a newline
    free(tokens);
    free(decoded);
    CHECK(tokenizer_encode(tokenizer, "", 0, 1, &tokens) == 0);
    free(tokens);
    tokenizer_free(tokenizer);
}

static void decode_256(void *unused) {
    (void)unused;
    size_t size;
    free(tokenizer_decode(tokenizer_open(TOKENIZER_BYTE, NULL), (const int32_t[]){256}, 1, &size));
}

static void decode_negative(void *unused) {
    (void)unused;
    size_t size;
    free(tokenizer_decode(tokenizer_open(TOKENIZER_BYTE, NULL), (const int32_t[]){-1}, 1, &size));
}

static void name_unknown(void *unused) {
    (void)unused;
    tokenizer_kind_from_name("unigram", "meta.json");
}

static void test_refusals(void) {
    CHECK_FAILS(decode_256, NULL, 1, "token 256 cannot be decoded: the vocabulary has 256");
    CHECK_FAILS(decode_negative, NULL, 1, "token -1 cannot be decoded");
    CHECK_FAILS(name_unknown, NULL, 1, "meta.json: unknown tokenizer \"unigram\"");
    CHECK_TEXT(tokenizer_kind_name(tokenizer_kind_from_name("word", "")), "word");
}

// ---- word -------------------------------------------------------------------

static char *joined_words(const Words *words) {
    Bytes all = {0};
    for (int32_t i = 0; i < words_count(words); i++) {
        bytes_append(&all, words_text(words, i).data, words_text(words, i).size);
        bytes_append(&all, " ", 1);
    }
    bytes_append(&all, "", 1);
    return all.data;
}

static void check_words(int64_t limit, const char *expected) {
    const Text texts[] = {text_of("the cat \n the dog\n"), text_of("the dog sat")};
    Words *words = words_of_texts(texts, 2, limit);
    char *all = joined_words(words);
    CHECK_TEXT(all, expected);
    free(all);
    words_free(words);
}

static void test_vocabulary(void) {
    check_words(0, "the cat <eos> dog sat <unk> ");
    check_words(6, "the cat <eos> dog sat <unk> ");
    check_words(5, "the cat <eos> dog <unk> "); // the earlier of two equally frequent ones
    check_words(4, "the <eos> dog <unk> ");
    check_words(2, "<eos> <unk> ");
}

// Enough words for the table to grow several times.
static void test_large_vocabulary(void) {
    enum { COUNT = 20000 };
    Bytes text = {0};
    char word[16];
    for (int i = 0; i < COUNT; i++) {
        const int length = snprintf(word, sizeof(word), "w%d ", i);
        bytes_append(&text, word, (size_t)length);
    }
    Words *words = words_of_texts(&(Text){text.data, text.size}, 1, 0);
    CHECK(words_count(words) == COUNT + 2);
    bool found = true;
    for (int i = 0; i < COUNT; i++) {
        snprintf(word, sizeof(word), "w%d", i);
        found = found && words_find(words, text_of(word)) == i;
    }
    CHECK(found);
    CHECK(words_find(words, text_of("w20000")) == -1);
    words_free(words);
    bytes_free(&text);
}

static void check_encoding(const Tokenizer *tokenizer, const char *text, int lines,
                           const char *expected, const char *decoded_expected) {
    int32_t *tokens;
    Bytes shown = {0};
    const size_t count = tokenizer_encode(tokenizer, text, strlen(text), lines, &tokens);
    for (size_t i = 0; i < count; i++) {
        char *number = format_string("%d ", tokens[i]);
        bytes_append(&shown, number, strlen(number));
        free(number);
    }
    bytes_append(&shown, "", 1);
    CHECK_TEXT(shown.data, expected);
    size_t size;
    char *decoded = tokenizer_decode(tokenizer, tokens, count, &size);
    CHECK_TEXT(decoded, decoded_expected);
    CHECK(size == strlen(decoded_expected));
    bytes_free(&shown);
    free(tokens);
    free(decoded);
}

static void test_word(void) {
    const Text text = text_of(" the cat <unk> \n\nthe dog");
    tokenizer_free(
        tokenizer_create(&(TokenizerSettings){.kind = TOKENIZER_WORD}, test_directory(), &text, 1));
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_WORD, test_directory());
    CHECK(tokenizer_vocabulary(tokenizer) == 5);
    CHECK(tokenizer_end(tokenizer) == 3 && tokenizer_padding(tokenizer) == -1);
    check_encoding(tokenizer, text.data, 1, "0 1 2 3 3 0 4 3 ", "the cat <unk>\n\nthe dog\n");
    check_encoding(tokenizer, text.data, 0, "0 1 2 3 3 0 4 ", "the cat <unk>\n\nthe dog");
    check_encoding(tokenizer, "the mouse\n", 0, "0 2 3 ", "the <unk>\n");
    check_encoding(tokenizer, "", 1, "", "");
    tokenizer_free(tokenizer);
}

static void open_words(void *text) {
    test_file("tokenizer.vocab", text, strlen(text));
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_WORD, test_directory());
    int32_t *tokens;
    tokenizer_encode(tokenizer, "new", 3, 0, &tokens);
}

static void test_hostile_vocabulary(void) {
    CHECK_FAILS(open_words, "", 1, "has no line <eos>");
    CHECK_FAILS(open_words, "a\n\n<eos>\n", 1, "tokenizer.vocab: line 2: found an empty line");
    CHECK_FAILS(open_words, "a\n<eos>\na\n", 1, "line 3: the word \"a\" is listed twice");
    CHECK_FAILS(open_words, "a\n<eos>", 1, "has neither the word \"new\" nor <unk>");
}

// ---- spm: a hand-made model -------------------------------------------------

static void put_varint(Bytes *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_append(out, &(char){(char)(value | 0x80)}, 1);
    bytes_append(out, &(char){(char)value}, 1);
}

static void put_number(Bytes *out, uint64_t field, uint64_t value) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

static void put_bytes(Bytes *out, uint64_t field, const void *data, size_t size) {
    put_varint(out, field << 3 | 2);
    put_varint(out, size);
    bytes_append(out, data, size);
}

static void put_message(Bytes *out, uint64_t field, Bytes *message) {
    put_bytes(out, field, message->data, message->size);
    bytes_free(message);
}

static void put_piece(Bytes *out, const char *text, int kind) {
    Bytes piece = {0};
    put_bytes(&piece, 1, text, strlen(text));
    put_varint(&piece, 2 << 3 | 5); // the score, a float
    bytes_append(&piece, "\0\0\0\0", 4);
    if (kind != 1) put_number(&piece, 3, (uint64_t)kind);
    put_message(out, 1, &piece);
}

enum {
    A_PADDING,
    AN_END,
    THE,
    SPACE_ALONE,
    CAT,
    S,
    SPACED_CAT,
    UNKNOWN,
    WIKI_UNKNOWN,
    BYTE_C3,
    BYTE_A9,
    BYTE_0A
};

static Bytes small_model(bool dummy_prefix, bool remove_spaces) {
    Bytes model = {0}, trainer = {0}, normalizer = {0};
    put_piece(&model, "<pad>", 3);
    put_piece(&model, "</s>", 3);
    put_piece(&model, "\u2581the", 1);
    put_piece(&model, "\u2581", 1);
    put_piece(&model, "cat", 1);
    put_piece(&model, "s", 1);
    put_piece(&model, "\u2581\u2581cat\u2581", 1);
    put_piece(&model, "<unknown>", 2);
    put_piece(&model, "<unk>", 4);
    put_piece(&model, "<0xC3>", 6);
    put_piece(&model, "<0xA9>", 6);
    put_piece(&model, "<0x0A>", 6);
    put_bytes(&trainer, 44, "?", 1);
    put_message(&model, 2, &trainer);
    put_number(&normalizer, 3, dummy_prefix);
    put_number(&normalizer, 4, remove_spaces);
    put_message(&model, 3, &normalizer);
    return model;
}

static Tokenizer *open_small_model(bool dummy_prefix, bool remove_spaces) {
    Bytes model = small_model(dummy_prefix, remove_spaces);
    test_file("tokenizer.model", model.data, model.size);
    bytes_free(&model);
    return tokenizer_open(TOKENIZER_SPM, test_directory());
}

#define CHECK_DECODES(tokenizer, expected, ...)                                                    \
    do {                                                                                           \
        const int32_t tokens[] = {__VA_ARGS__};                                                    \
        size_t size;                                                                               \
        char *decoded =                                                                            \
            tokenizer_decode(tokenizer, tokens, sizeof(tokens) / sizeof(*tokens), &size);          \
        CHECK_TEXT(decoded, expected);                                                             \
        CHECK(size == strlen(expected));                                                           \
        free(decoded);                                                                             \
    } while (0)

static void test_small_model(void) {
    Tokenizer *t = open_small_model(true, true);
    CHECK(tokenizer_vocabulary(t) == 12 && tokenizer_end(t) == AN_END &&
          tokenizer_padding(t) == A_PADDING);
    CHECK(tokenizer_is_partial(t, BYTE_C3) && !tokenizer_is_partial(t, CAT));
    CHECK_DECODES(t, "the the cats", THE, THE, SPACE_ALONE, CAT, S);
    CHECK_DECODES(t, "the\n\nthe\n", THE, AN_END, AN_END, A_PADDING, SPACE_ALONE, THE, AN_END);
    CHECK_DECODES(t, " cat  the", SPACED_CAT, THE); // one mark is the prefix
    CHECK_DECODES(t, "? the<unk>", UNKNOWN, THE, WIKI_UNKNOWN);
    CHECK_DECODES(t, "\u00e9\n the", BYTE_C3, BYTE_A9, BYTE_0A, THE);
    CHECK_DECODES(t, "\ufffd\ufffds\u00e9", BYTE_C3, BYTE_C3, S, BYTE_C3, BYTE_A9);
    CHECK_DECODES(t, "\ufffd\n\ufffdcat", BYTE_C3, AN_END, BYTE_A9, CAT);
    tokenizer_free(t);

    t = open_small_model(true, false); // only one leading space is the prefix
    CHECK_DECODES(t, " the\nthe", SPACE_ALONE, THE, AN_END, THE);
    tokenizer_free(t);
    t = open_small_model(false, false); // none is the prefix
    CHECK_DECODES(t, " the\n the", THE, AN_END, THE);
    tokenizer_free(t);
}

// The text of a growing list of tokens remains its prefix, except after a token that may be part of
// a character.
static void test_growth(void) {
    Tokenizer *t = open_small_model(true, true);
    Random random = random_stream(2, RANDOM_TEST, 0, 0);
    for (int round = 0; round < 300; round++) {
        int32_t tokens[20];
        size_t whole_size, size;
        for (int i = 0; i < 20; i++) tokens[i] = (int32_t)random_below(&random, 12);
        char *whole = tokenizer_decode(t, tokens, 20, &whole_size);
        for (size_t count = 0; count < 20; count++) {
            if (count > 0 && tokenizer_is_partial(t, tokens[count - 1])) continue;
            char *text = tokenizer_decode(t, tokens, count, &size);
            CHECK(size <= whole_size && memcmp(text, whole, size) == 0);
            free(text);
        }
        free(whole);
    }
    tokenizer_free(t);
}

static void open_model(void *bytes) {
    const Bytes *model = bytes;
    test_file("tokenizer.model", model->size > 0 ? model->data : "", model->size);
    tokenizer_free(tokenizer_open(TOKENIZER_SPM, test_directory()));
}

// Each prefix of a model is a model with fewer fields or is rejected, and so is each model with a
// changed byte.
static void test_hostile_models(void) {
    Bytes model = small_model(true, true);
    Random random = random_stream(1, RANDOM_TEST, 0, 0);
    int opened = 0, refused = 0, other = 0;
    for (size_t i = 0; i < 2 * model.size; i++) {
        char errors[1024];
        Bytes changed = {0};
        bytes_append(&changed, model.data, i < model.size ? i : model.size);
        if (i >= model.size) changed.data[i - model.size] = (char)random_u32(&random);
        const int code = test_child(open_model, &changed, errors, sizeof(errors));
        const bool line = strncmp(errors, "error: ", 7) == 0 &&
                          strchr(errors, '\n') == errors + strlen(errors) - 1;
        opened += code == 0;
        refused += code == 1 && line && strstr(errors, "tokenizer.model: ") != NULL;
        other += code != 0 && (code != 1 || !line);
        bytes_free(&changed);
    }
    CHECK(other == 0);
    CHECK(opened > 10 && refused > 100);

    bytes_free(&model);
    put_piece(&model, "a", 1);
    CHECK_FAILS(open_model, &model, 1, "has no end-of-sentence piece");
    put_piece(&model, "<0xG0>", 6);
    CHECK_FAILS(open_model, &model, 1, "is not a SentencePiece model");
    bytes_free(&model);
    model = small_model(true, true);
    Bytes denormalizer = {0};
    put_bytes(&denormalizer, 2, "rules", 5);
    put_message(&model, 5, &denormalizer);
    CHECK_FAILS(open_model, &model, 1, "denormalizer_spec");
    bytes_free(&model);
    const char *const spec = "\x0a\x05hello\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    model = (Bytes){(void *)spec, strlen(spec), 0};
    CHECK_FAILS(open_model, &model, 1, "is not a SentencePiece model");
}

// ---- spm: programs that misbehave -------------------------------------------
// Writes a shell script to the first directory in PATH.
static void install(const char *name, const char *body) {
    char *script = format_string("#!/bin/sh\n%s\n", body);
    chmod(test_file(name, script, strlen(script)), 0755);
    free(script);
    char *path = format_string("%s:/usr/bin:/bin", test_directory());
    setenv("PATH", path, 1);
    free(path);
}

static void train_cats(void *script) {
    install("spm_train", script);
    const Text text = text_of("the cat");
    tokenizer_create(&(TokenizerSettings){.kind = TOKENIZER_SPM}, test_directory(), &text, 1);
}

static void test_bad_programs(void) {
    CHECK_FAILS(train_cats, "echo 'x.cc(1) [ok()] Internal: y.cc(2) [a == b] too bad' 1>&2; exit 4",
                1, "spm_train failed (exit code 4): too bad");
    CHECK_FAILS(train_cats, "exit 4", 1, "spm_train failed (exit code 4): without a reason");
    CHECK_FAILS(train_cats, "kill -11 $$", 1, "spm_train was ended by signal 11");
}

// ---- spm: the actual programs -----------------------------------------------

static bool have_programs(void) {
    ProcessResult result =
        process_run((const char *const[]){"spm_train", "--version", NULL}, text_of(""));
    const bool there = result.start_error == 0;
    process_result_free(&result);
    if (!there) printf("skipped: SentencePiece's programs are not installed\n");
    return there;
}

static const char small_text[] =
    "The castle was built in 1204 , and was not the first castle in the valley .\n"
    "\n"
    "The <unk> of the castle was the king 's brother @-@ in @-@ law \u2013 and a builder of walls "
    ".\n"
    " The walls of the castle , built of stone , are the highest walls in the valley of stone .\n";

static Text *decode_by_program(const char *model, Text ids) {
    char *flag = format_string("--model=%s", model);
    ProcessResult result = process_run(
        (const char *const[]){"spm_decode", flag, "--input_format=id", "--minloglevel=1", NULL},
        ids);
    Text *text = allocate(1, sizeof(*text), "a text");
    CHECK(result.start_error == 0 && result.exit_code == 0);
    *text = (Text){result.output.data, result.output.size};
    bytes_free(&result.errors);
    free(flag);
    return text;
}

// Compares decoding with spm_decode, line by line.
static void check_decoding(const Tokenizer *tokenizer, const char *model, const int32_t *tokens,
                           size_t count) {
    Bytes ids = {0};
    char number[16];
    for (size_t i = 0; i < count; i++) {
        const bool end = tokens[i] == tokenizer_end(tokenizer),
                   follows = i > 0 && ids.data[ids.size - 1] != '\n';
        const int length =
            snprintf(number, sizeof(number), end ? "\n" : "%s%d", follows ? " " : "", tokens[i]);
        bytes_append(&ids, number, (size_t)length);
    }
    Text *expected = decode_by_program(model, (Text){ids.data, ids.size});
    size_t size;
    char *decoded = tokenizer_decode(tokenizer, tokens, count, &size);
    CHECK(size == expected->size);
    size_t same = 0;
    while (same < size && same < expected->size && decoded[same] == expected->data[same]) same++;
    if (same < size)
        test_fail(__FILE__, __LINE__, "decoded text differs from spm_decode's at byte %zu", same);
    free((void *)expected->data);
    free(expected);
    free(decoded);
    bytes_free(&ids);
}

static void test_spm(void) {
    if (!have_programs()) return;
    const Text text = {small_text, strlen(small_text)};
    tokenizer_free(
        tokenizer_create(&(TokenizerSettings){.kind = TOKENIZER_SPM}, test_directory(), &text, 1));
    Tokenizer *tokenizer = tokenizer_open(TOKENIZER_SPM, test_directory());
    CHECK(tokenizer_padding(tokenizer) == 0 && tokenizer_end(tokenizer) == 1);
    CHECK(tokenizer_vocabulary(tokenizer) > 300 && tokenizer_vocabulary(tokenizer) < 32000);

    int32_t *tokens;
    size_t size, count = tokenizer_encode(tokenizer, small_text, text.size, 1, &tokens);
    char *decoded = tokenizer_decode(tokenizer, tokens, count, &size);
    CHECK(tokens[count - 1] == 1);
    CHECK(strncmp(decoded, small_text, 76) == 0);
    char *model = format_string("%s/tokenizer.model", test_directory());
    check_decoding(tokenizer, model, tokens, count);
    free(model);
    free(decoded);
    free(tokens);

    // <unk> is one token. A prompt gets no end token; a corpus gets one even if its last line has
    // no newline.
    check_encoding(tokenizer, "", 0, "", "");
    count = tokenizer_encode(tokenizer, "\n<unk>", 6, 0, &tokens);
    CHECK(count == 3 && tokens[0] == 1 && tokens[2] == 3);
    free(tokens);
    count = tokenizer_encode(tokenizer, "\n<unk>", 6, 1, &tokens);
    CHECK(count == 4 && tokens[0] == 1 && tokens[2] == 3 && tokens[3] == 1);
    free(tokens);
    // Unknown characters are restored from their bytes.
    count = tokenizer_encode(tokenizer, "the \u732b", 7, 0, &tokens);
    decoded = tokenizer_decode(tokenizer, tokens, count, &size);
    CHECK_TEXT(decoded, "the \u732b");
    free(decoded);
    free(tokens);
    tokenizer_free(tokenizer);
}

// Random tokens, with models that treat spaces and unknown pieces in all ways.
static void test_spm_random(void) {
    if (!have_programs()) return;
    const char *const flags[][3] = {
        {"--byte_fallback=true", "--remove_extra_whitespaces=true", "--add_dummy_prefix=true"},
        {"--byte_fallback=true", "--remove_extra_whitespaces=false", "--add_dummy_prefix=true"},
        {"--unk_surface=<?>", "--remove_extra_whitespaces=true", "--add_dummy_prefix=false"},
        {"--byte_fallback=true", "--remove_extra_whitespaces=false", "--add_dummy_prefix=false"},
        {"--treat_whitespace_as_suffix=true", "--user_defined_symbols=<unk>,\u2581\u2581x",
         "--unk_piece=<none>"},
    };
    const Text text = {small_text, strlen(small_text)};
    char *prefix = format_string("--model_prefix=%s/tokenizer", test_directory());
    char *model = format_string("%s/tokenizer.model", test_directory());
    for (size_t f = 0; f < sizeof(flags) / sizeof(*flags); f++) {
        const char *const arguments[] = {"spm_train",
                                         "--input=/dev/stdin",
                                         "--minloglevel=1",
                                         prefix,
                                         "--model_type=bpe",
                                         "--vocab_size=340",
                                         "--hard_vocab_limit=false",
                                         "--pad_id=3",
                                         flags[f][0],
                                         flags[f][1],
                                         flags[f][2],
                                         NULL};
        ProcessResult result = process_run(arguments, text);
        CHECK(result.exit_code == 0);
        process_result_free(&result);
        Tokenizer *tokenizer = tokenizer_open(TOKENIZER_SPM, test_directory());
        CHECK(tokenizer_end(tokenizer) == 2 && tokenizer_padding(tokenizer) == 3);

        Random random = random_stream(f, RANDOM_TEST, 0, 0);
        int32_t tokens[20000];
        const uint64_t vocabulary = (uint64_t)tokenizer_vocabulary(tokenizer);
        for (int i = 0; i < 20000; i++) {
            // Many line ends, and many of the special tokens at the start.
            const bool special = random_below(&random, 4) == 0;
            tokens[i] = (int32_t)random_below(&random, special ? 8 : vocabulary);
        }
        tokens[19999] = tokenizer_end(tokenizer);
        check_decoding(tokenizer, model, tokens, 20000);
        tokenizer_free(tokenizer);
    }
    free(prefix);
    free(model);
}

// ---- spm: our encoding equals spm_encode's ----------------------------------

// Compares a token with the next number that spm_encode wrote, or with the end of its line.
static bool is_next(const char **at, int32_t token, int32_t end) {
    char *after = (char *)*at;
    const bool newline = *after == '\n',
               same = newline ? token == end : strtol(*at, &after, 10) == token;
    *at = newline ? after + 1 : after + (*after == ' ');
    return same;
}

// Compares both encodings of a text that ends with a newline.
static void compare_encodings(const Tokenizer *tokenizer, Text text, const char *what) {
    int32_t *ours;
    const size_t count = tokenizer_encode(tokenizer, text.data, text.size, 1, &ours);
    char *model = format_string("--model=%s/tokenizer.model", test_directory());
    ProcessResult theirs = process_run(
        (const char *const[]){"spm_encode", model, "--output_format=id", "--minloglevel=1", NULL},
        text);
    CHECK(theirs.start_error == 0 && theirs.exit_code == 0);
    bytes_append(&theirs.output, "", 1);
    const char *at = theirs.output.data;
    size_t same = 0;
    while (same < count && *at && is_next(&at, ours[same], tokenizer_end(tokenizer))) same++;
    if (same < count || *at)
        test_fail(__FILE__, __LINE__, "%s: %zu tokens, other ones than spm_encode's from %zu on",
                  what, count, same);
    process_result_free(&theirs);
    free(model);
    free(ours);
}

// Words of the small text and difficult cases: runs of spaces, characters that NFKC rewrites or
// joins, characters without a piece, invalid UTF-8, and names of pieces.
static Bytes difficult_text(uint64_t seed) {
    static const char *const parts[] = {
        "the",        "castle",        " ",        "  ",     "\n",           "\t",
        "\u2581",     "\u00e9",        "e\u0301",  "\ufb01", "\u732b",       "\u3000",
        "\u00a0",     "\xff",          "\xe2\x96", "<unk>",  "</s>",         "<0x41>",
        "\u2581x",    "\u2163",        "ｆｕｌｌ", "1204",   "\u1100\u1161", "\u200b",
        "\U0001f600", "a\u0327\u0301", "\r",       "x"};
    Random random = random_stream(seed, RANDOM_TEST, 1, 0);
    Bytes text = {0};
    for (int i = 0; i < 3000; i++) {
        const char *part = parts[random_below(&random, sizeof(parts) / sizeof(*parts))];
        bytes_append(&text, part, strlen(part));
        const uint64_t from = random_below(&random, strlen(small_text) - 12);
        if (i % 2) bytes_append(&text, small_text + from, random_below(&random, 12));
    }
    bytes_append(&text, "\n", 1);
    return text;
}

static void test_spm_encoding(void) {
    if (!have_programs()) return;
    static const char *const flags[][4] = {
        {"--model_type=bpe", "--byte_fallback=true", "--normalization_rule_name=identity",
         "--remove_extra_whitespaces=false"},
        {"--model_type=bpe", "--byte_fallback=true", "--normalization_rule_name=nmt_nfkc",
         "--user_defined_symbols=<unk>,\u2581x"},
        {"--model_type=bpe", "--byte_fallback=false", "--add_dummy_prefix=false",
         "--normalization_rule_name=nmt_nfkc_cf"},
        {"--model_type=unigram", "--byte_fallback=true", "--normalization_rule_name=nmt_nfkc",
         "--user_defined_symbols=<unk>,\u2581x,castle"},
        {"--model_type=unigram", "--byte_fallback=false", "--normalization_rule_name=nfkc",
         "--remove_extra_whitespaces=false"},
        {"--model_type=unigram", "--byte_fallback=true", "--remove_extra_whitespaces=false",
         "--user_defined_symbols=\u2581\u2581,et"},
        {"--model_type=unigram", "--byte_fallback=true", "--treat_whitespace_as_suffix=true",
         "--normalization_rule_name=identity"}};
    const Text text = {small_text, strlen(small_text)};
    char *prefix = format_string("--model_prefix=%s/tokenizer", test_directory());
    for (size_t f = 0; f < sizeof(flags) / sizeof(*flags); f++) {
        const char *const arguments[] = {"spm_train",          "--input=/dev/stdin",
                                         "--minloglevel=1",    prefix,
                                         "--vocab_size=360",   "--hard_vocab_limit=false",
                                         "--unk_piece=<none>", flags[f][0],
                                         flags[f][1],          flags[f][2],
                                         flags[f][3],          NULL};
        ProcessResult result = process_run(arguments, text);
        CHECK(result.exit_code == 0);
        process_result_free(&result);
        Tokenizer *tokenizer = tokenizer_open(TOKENIZER_SPM, test_directory());
        compare_encodings(tokenizer, text, flags[f][0]);
        compare_encodings(tokenizer, (Text){" \n\n  a", 7}, flags[f][2]);
        for (uint64_t seed = 0; seed < 3; seed++) {
            Bytes difficult = difficult_text(seed);
            compare_encodings(tokenizer, (Text){difficult.data, difficult.size}, flags[f][2]);
            bytes_free(&difficult);
        }
        tokenizer_free(tokenizer);
    }
    free(prefix);
}

// ---- WikiText-2 -------------------------------------------------------------
// Maps the text files from $WIKITEXT2_DIR or next to the project, if they exist.
static bool wikitext(FileMap files[3]) {
    const char *const names[] = {"train", "valid", "test"}, *directory = getenv("WIKITEXT2_DIR");
    if (!directory) directory = "../shared/data/wikitext-2";
    for (int i = 0; i < 3; i++) {
        char *path = format_string("%s/%s.txt", directory, names[i]);
        if (!file_exists(path)) {
            printf("skipped: there is no %s\n", path);
            free(path);
            return false;
        }
        files[i] = file_map(path);
        free(path);
    }
    return true;
}

static void test_wikitext_words(void) {
    FileMap files[3];
    Text texts[3];
    if (!wikitext(files)) return;
    for (int i = 0; i < 3; i++) texts[i] = (Text){(const char *)files[i].data, files[i].size};
    Words *words = words_of_texts(texts, 3, 0);
    CHECK(words_count(words) == 33278);
    CHECK(text_count(texts[0]).words == 2088628);
    CHECK(text_count(texts[1]).words == 217646);
    CHECK(text_count(texts[2]).words == 245569);
    words_free(words);
    for (int i = 0; i < 3; i++) file_unmap(&files[i]);
}

static void test_wikitext_spm(void) {
    FileMap files[3];
    if (!have_programs() || !wikitext(files)) return;
    const Text train = {(const char *)files[0].data, files[0].size};
    Tokenizer *tokenizer =
        tokenizer_create(&(TokenizerSettings){.kind = TOKENIZER_SPM, .normalise = true},
                         test_directory(), &train, 1);
    CHECK(tokenizer_vocabulary(tokenizer) == 32000);
    int32_t *tokens;
    const size_t count =
        tokenizer_encode(tokenizer, (const char *)files[2].data, files[2].size, 1, &tokens);
    CHECK(count == 268152);
    char *model = format_string("%s/tokenizer.model", test_directory());
    check_decoding(tokenizer, model, tokens, count);
    compare_encodings(tokenizer, (Text){(const char *)files[2].data, files[2].size}, "WikiText-2");
    free(model);
    free(tokens);
    tokenizer_free(tokenizer);
    for (int i = 0; i < 3; i++) file_unmap(&files[i]);
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"words and lines of a text", test_text_items},
        {"counts of a text", test_text_counts},
        {"cutting a text", test_text_split},
        {"UTF-8", test_utf8},
        {"child processes", test_process},
        {"child of a killed program", test_process_killed},
        {"byte", test_byte},
        {"refusals", test_refusals},
        {"vocabulary of words", test_vocabulary},
        {"large vocabulary of words", test_large_vocabulary},
        {"word", test_word},
        {"hostile vocabularies", test_hostile_vocabulary},
        {"spm: decoding", test_small_model},
        {"spm: growing text", test_growth},
        {"spm: hostile models", test_hostile_models},
        {"spm: bad programs", test_bad_programs},
        {"spm: our encoding", test_spm_encoding},
        {"spm: encoding", test_spm},
        {"spm: random tokens against spm_decode", test_spm_random},
        {"WikiText-2: word types", test_wikitext_words},
        {"WikiText-2: spm", test_wikitext_spm},
    };
    return test_main(argc, argv, "tokenizer", cases, sizeof(cases) / sizeof(*cases));
}
