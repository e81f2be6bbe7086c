// How text grows as tokens arrive, and how a reader continues beyond the last position.
#include "growing_text.h"
#include "memory.h"
#include "reader.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

// ---- growing text -----------------------------------------------------------

static GrowingText create(const char *stop) {
    Text *stops = allocate(1, sizeof(Text), "a stop");
    *stops = (Text){stop, strlen(stop)};
    return (GrowingText){
        .tokenizer = tokenizer_open(TOKENIZER_BYTE, NULL), .stops = stops, .stop_count = 1};
}

static void destroy(GrowingText *g) {
    free((Text *)g->stops);
    tokenizer_free((Tokenizer *)g->tokenizer);
    growing_text_free(g);
}

static void add(GrowingText *g, const char *text) {
    for (; *text; text++) growing_text_add(g, &(int32_t){(unsigned char)*text}, 1);
}

static void check_shown(const GrowingText *g, const char *expected) {
    char *shown = format_string("%.*s", (int)g->end, g->text.data);
    CHECK_TEXT(shown, expected);
    free(shown);
}

static void test_characters(void) {
    GrowingText g = create("");
    add(&g, "n\xc3");
    check_shown(&g, "n");
    add(&g, "\xa9\xf0\x9f\x98");
    check_shown(&g, "n\u00e9");
    add(&g, "\x80");
    check_shown(&g, "n\u00e9\U0001f600");
    add(&g, "\xff\x80z\xe2\x82"); // invalid UTF-8, which nothing can complete, is kept
    check_shown(&g, "n\u00e9\U0001f600\xff\x80z");
    growing_text_finish(&g);
    check_shown(&g, "n\u00e9\U0001f600\xff\x80z");
    destroy(&g);
}

static void test_stop(void) {
    GrowingText g = create("<end>");
    add(&g, "a<end>b"); // a prompt
    growing_text_begin(&g);
    g.stopped = false;
    add(&g, "c<e");
    check_shown(&g, "a<end>bc");
    add(&g, "x<en");
    check_shown(&g, "a<end>bc<ex");
    CHECK(!g.stopped);
    add(&g, "d>");
    CHECK(g.stopped);
    growing_text_finish(&g);
    check_shown(&g, "a<end>bc<ex");
    destroy(&g);

    g = create("<end>");
    add(&g, "a<e");
    check_shown(&g, "a");
    growing_text_finish(&g);
    check_shown(&g, "a<e");
    destroy(&g);

    g = create("b");
    growing_text_add(&g, (const int32_t[]){'a', 'b', 'c'}, 3); // all at once
    CHECK(g.stopped);
    check_shown(&g, "a");
    destroy(&g);
}

// The first of several stops ends the text; a possible beginning of one is not shown.
static void test_stops(void) {
    const Text stops[] = {{"xyz", 3}, {"bc", 2}, {"abcd", 4}};
    GrowingText g = {
        .tokenizer = tokenizer_open(TOKENIZER_BYTE, NULL), .stops = stops, .stop_count = 3};
    add(&g, "1ab");
    check_shown(&g, "1");
    growing_text_add(&g, (const int32_t[]){'c', 'd', 'x'}, 3);
    CHECK(g.stopped);
    check_shown(&g, "1");
    tokenizer_free((Tokenizer *)g.tokenizer);
    growing_text_free(&g);
}

static void test_complete(void) {
    static const struct {
        const char *text;
        size_t complete;
    } cases[] = {{"", 0},
                 {"a", 1},
                 {"\xc3", 0},
                 {"\xc3\xa9", 2},
                 {"a\xe2\x82", 1},
                 {"a\xe2\x82\xac", 4},
                 {"\xf0\x9f\x98", 0},
                 {"\xf0\x9f\x98\x80", 4},
                 {"\xc1", 1},
                 {"\xf5", 1},
                 {"\x80\x80", 2},
                 {"\x80\x80\x80\x80", 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        CHECK(utf8_complete((Text){cases[i].text, strlen(cases[i].text)}) == cases[i].complete);
}

// ---- reading beyond the last position ---------------------------------------

enum { STREAMS = 2, POSITIONS = 6, TOKENS = 14 };

// A decoder that records the tokens it reads and their positions.
typedef struct {
    int32_t tokens[TOKENS];
    int64_t places[TOKENS], next;
    int count;
} Notes;

static Notes *notes; // of the last decoder created

static void *fake_create(void *model, int streams) {
    (void)model;
    CHECK(streams == STREAMS);
    notes = allocate(1, sizeof(Notes), "notes");
    return notes;
}

static void fake_decode(void *decoder, const int32_t *tokens, real *logits) {
    Notes *n = decoder;
    (void)logits;
    CHECK(tokens[1] == tokens[0] + 100);
    n->tokens[n->count] = tokens[0];
    n->places[n->count++] = n->next++;
}

static void fake_place(void *decoder, int64_t position) {
    ((Notes *)decoder)->next = position;
}

// Reads tokens 0, 1, ... and returns how many could be read.
static int read_beyond(ReaderBeyond beyond) {
    static const ModelType type = {.decoder_create = fake_create,
                                   .decode = fake_decode,
                                   .decoder_place = fake_place,
                                   .decoder_destroy = free};
    const Run run = {.type = &type, .setup = {.positions = POSITIONS}};
    Reader *reader = reader_create(&run, STREAMS, beyond);
    int count = 0;
    while (count < TOKENS && !reader_full(reader)) {
        CHECK(reader_room(reader) >= 0);
        reader_read(reader, (const int32_t[]){count, 100 + count}, NULL);
        count++;
    }
    Notes *last = notes;
    notes = allocate(1, sizeof(Notes), "notes");
    *notes = *last;
    reader_free(reader);
    return count;
}

static void check_notes(int count, const int32_t *tokens, const int64_t *places) {
    CHECK(notes->count == count);
    for (int i = 0; i < count; i++)
        CHECK(notes->tokens[i] == tokens[i] && notes->places[i] == places[i]);
    free(notes);
}

static void test_beyond(void) {
    CHECK(read_beyond(READER_STOP) == POSITIONS);
    check_notes(6, (const int32_t[]){0, 1, 2, 3, 4, 5}, (const int64_t[]){0, 1, 2, 3, 4, 5});
    // The last half is read again after 6, 9 and 12 tokens.
    CHECK(read_beyond(READER_SLIDE) == TOKENS);
    check_notes(5, (const int32_t[]){9, 10, 11, 12, 13}, (const int64_t[]){0, 1, 2, 3, 4});
    static const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    CHECK(read_beyond(READER_REPEAT) == TOKENS);
    check_notes(TOKENS, all, (const int64_t[]){0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4});
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"characters", test_characters}, {"stop", test_stop},     {"several stops", test_stops},
        {"complete", test_complete},     {"beyond", test_beyond},
    };
    return test_main(argc, argv, "generate", cases, sizeof cases / sizeof *cases);
}
