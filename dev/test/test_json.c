#include "json.h"
#include "memory.h"
#include "test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static Json *parse(const char *text) {
    return json_parse(text, strlen(text), "t");
}

static void parses(void *text) {
    json_free(parse(text));
}

// ---- accepted input ---------------------------------------------------------

static void test_structure(void) {
    Json *root =
        parse(" {\"a\": [1, -2.5e1, true, false, null, []], \"b\":{\"c\":\"x\"},\t\"\":{}}\r\n");
    CHECK(root->kind == JSON_OBJECT && root->count == 3);
    CHECK(json_find(root, "a") == &root->items[0] && json_find(root, "b") == &root->items[1]);
    CHECK(json_find(root, "") == &root->items[2] && json_find(root, "c") == NULL);
    const Json *a = &root->items[0], *b = &root->items[1], *empty = &root->items[2];
    CHECK(a->kind == JSON_ARRAY && a->count == 6 && json_find(a, "a") == NULL);
    CHECK(a->items[0].kind == JSON_NUMBER && a->items[0].number == 1 && a->items[1].number == -25);
    CHECK(a->items[2].kind == JSON_BOOL && a->items[2].boolean);
    CHECK(a->items[3].kind == JSON_BOOL && !a->items[3].boolean);
    CHECK(a->items[4].kind == JSON_NULL && a->items[5].kind == JSON_ARRAY &&
          a->items[5].count == 0);
    CHECK(empty->kind == JSON_OBJECT && empty->count == 0);
    CHECK_TEXT(json_string(b, "c", "t"), "x");
    CHECK_TEXT(root->keys[1], "b");
    json_free(root);
    json_free(NULL);
}

static void test_numbers(void) {
    static const struct {
        const char *text;
        double value;
    } numbers[] = {{"0", 0},
                   {"-0", 0},
                   {"10", 10},
                   {"0.5", 0.5},
                   {"1E2", 100},
                   {"1e+2", 100},
                   {"12.5e-1", 1.25},
                   {"1e-400", 0},
                   {"1.7976931348623157e308", DBL_MAX},
                   {"9007199254740993", 9007199254740992.0}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        Json *value = parse(numbers[i].text);
        CHECK(value->kind == JSON_NUMBER && value->number == numbers[i].value);
        json_free(value);
    }
}

static void test_strings(void) {
    static const char *const strings[][2] = {
        {"\"\"", ""},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\"A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"",
         "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f"},
        {"\"\\u0001\\uffff\\u07ff\\u0800\"", "\x01\xef\xbf\xbf\xdf\xbf\xe0\xa0\x80"},
        {"\"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\"",
         "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"},
    };
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
        Json *value = parse(strings[i][0]);
        CHECK_TEXT(value->string, strings[i][1]);
        json_free(value);
    }
}

static char *nested(size_t depth) {
    char *text = allocate(2 * depth + 1, 1, "a test");
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    return text;
}

static void test_depth(void) {
    char *allowed = nested(64), *beyond = nested(65), *far_beyond = nested(1000000);
    json_free(parse(allowed));
    CHECK_FAILS(parses, beyond, 1, "t: byte 64: nested deeper than 64");
    CHECK_FAILS(parses, far_beyond, 1, "nested deeper than 64");
    free(allowed);
    free(beyond);
    free(far_beyond);
}

// Must not take quadratic time: 200,000 keys would need 2e10 comparisons.
static void test_many_keys(void) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    for (int i = 0; i < 200000; i++) {
        char key[32];
        snprintf(key, sizeof(key), "key %d", i);
        json_add_integer(&w, key, i);
    }
    json_end(&w, '}');
    Json *root = json_parse(w.text, w.length, "t");
    CHECK(root->count == 200000 && root->items[199999].number == 199999);
    json_free(root);
    json_writer_free(&w);
}

// ---- rejected input ---------------------------------------------------------

static void test_refuses(void) {
    static const char *const texts[][2] = {
        {"", "t: byte 0: found the end, expected a value"},
        {"  ", "t: byte 2: found the end, expected a value"},
        {"{} x", "t: byte 3: found 'x', expected the end"},
        {"1 2", "t: byte 2: found '2', expected the end"},
        {"[1,]", "byte 3: found ']', expected a value"},
        {"[1 2]", "byte 3: found '2', expected ',' or ']'"},
        {"[", "byte 1: found the end, expected a value"},
        {"[1", "byte 2: found the end, expected ',' or ']'"},
        {"{\"a\":1,}", "byte 7: found '}', expected a string"},
        {"{\"a\" 1}", "byte 5: found '1', expected ':'"},
        {"{a:1}", "byte 1: found 'a', expected a string"},
        {"{\"a\":1]", "byte 6: found ']', expected ',' or '}'"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "byte 18: the object that ends here has the key \"a\" twice"},
        {"{\"a\":1,\"\\u0061\":3}", "has the key \"a\" twice"},
        {"tru", "byte 3: found the end, expected true"},
        {"nulL", "byte 3: found 'L', expected null"},
        {"NaN", "byte 0: found 'N', expected a value"},
        {"-Infinity", "byte 1: found 'I', expected a digit"},
        {"\xef\xbb\xbf{}", "byte 0: found byte 0xef, expected a value"},
        {"'a'", "byte 0: found ''', expected a value"},
        {"01", "byte 1: found '1', expected the end"},
        {"+1", "byte 0: found '+', expected a value"},
        {".5", "byte 0: found '.', expected a value"},
        {"1.", "byte 2: found the end, expected a digit"},
        {"1e", "byte 2: found the end, expected a digit"},
        {"1e+", "byte 3: found the end, expected a digit"},
        {"-", "byte 1: found the end, expected a digit"},
        {"0x10", "byte 1: found 'x', expected the end"},
        {"1e999", "byte 0: the number is too large"},
        {"\"abc", "byte 4: found the end"},
        {"\"a\nb\"", "byte 2: found byte 0x0a"},
        {"\"\\x\"", "byte 2: found 'x', expected one of"},
        {"\"\\", "byte 2: found the end, expected one of"},
        {"\"\\u12g4\"", "byte 5: found 'g', expected four hexadecimal digits"},
        {"\"\\u0000\"", "byte 1: found \\u0000"},
        {"\"\\udc00\"", "byte 1: found \\udc00 without"},
        {"\"\\ud800\"", "byte 7: found '\"', expected \\u and the second half"},
        {"\"\\ud800\\u0041\"", "byte 7: found \\u0041, expected \\udc00 to \\udfff"},
        {"\"\x80\"", "byte 1: found byte 0x80, expected UTF-8"},         // not a first byte
        {"\"\xc3\"", "byte 1: found byte 0xc3, expected UTF-8"},         // cut short by the quote
        {"\"\xe2\x82", "byte 1: found byte 0xe2, expected UTF-8"},       // cut short by the end
        {"\"\xc0\x80\"", "byte 1: found byte 0xc0, expected UTF-8"},     // overlong
        {"\"\xe0\x9f\xbf\"", "byte 1: found byte 0xe0, expected UTF-8"}, // overlong
        {"\"\xf0\x8f\xbf\xbf\"", "byte 1: found byte 0xf0, expected UTF-8"}, // overlong
        {"\"\xed\xa0\x80\"", "byte 1: found byte 0xed, expected UTF-8"},     // surrogate
        {"\"\xf4\x90\x80\x80\"", "byte 1: found byte 0xf4, expected UTF-8"}, // beyond U+10FFFF
        {"\"\xf5\x80\x80\x80\"", "byte 1: found byte 0xf5, expected UTF-8"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        CHECK_FAILS(parses, (void *)texts[i][0], 1, texts[i][1]);
}

static void parses_nul(void *argument) {
    json_parse(argument, 4, "t");
}

static void test_nul_bytes(void) {
    CHECK_FAILS(parses_nul, "\"a\0\"", 1, "byte 2: found byte 0x00");
}

// Parses a copy that fills its memory block exactly, so that a sanitizer detects reads beyond it.
static void parses_prefix(void *argument) {
    const char *text = argument;
    char *exact = malloc(strlen(text));
    if (!exact) return;
    memcpy(exact, text, strlen(text));
    json_free(json_parse(exact, strlen(text), "t"));
    free(exact);
}

static void test_every_prefix(void) {
    const char *text = "{\"k\\n\\ud83d\\ude00\xe2\x82\xac\":[-1.5e+3,true,null,\"\\u00e9\"]}";
    char error[512];
    for (size_t length = 0; length < strlen(text); length++) {
        char *prefix = copy_string(text);
        prefix[length] = '\0';
        CHECK(test_child(parses_prefix, prefix, error, sizeof(error)) == 1);
        free(prefix);
    }
}

// ---- access -----------------------------------------------------------------

typedef struct {
    const char *text;
    int64_t min, max;
} Request;

static void reads_integer(void *argument) {
    const Request *request = argument;
    Json *root = parse(request->text);
    json_integer(root, "n", request->min, request->max, "f");
}

static void reads_string(void *text) {
    json_string(parse(text), "s", "f");
}

static void test_access(void) {
    Json *root = parse("{\"n\": -9007199254740992, \"zero\": 0.0, \"e\": 1e3, \"s\": \"text\"}");
    CHECK(json_integer(root, "n", INT64_MIN, INT64_MAX, "f") == -9007199254740992);
    CHECK(json_integer(root, "zero", 0, 0, "f") == 0 &&
          json_integer(root, "e", 0, 1000, "f") == 1000);
    CHECK_TEXT(json_string(root, "s", "f"), "text");
    json_free(root);
    CHECK_FAILS(reads_integer, (&(Request){"{}", 0, 9}), 1,
                "f: \"n\" is missing, expected a number");
    CHECK_FAILS(reads_integer, (&(Request){"[]", 0, 9}), 1,
                "f: found an array, expected an object with \"n\"");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":\"1\"}", 0, 9}), 1,
                "f: \"n\": found a string, expected a number");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":10}", 0, 9}), 1,
                "f: \"n\": found 10, expected an integer from 0 to 9");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":-1}", 0, 9}), 1, "found -1");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":0.5}", 0, 9}), 1, "found 0.5");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":1e300}", 0, INT64_MAX}), 1,
                "expected an integer");
    CHECK_FAILS(reads_integer, (&(Request){"{\"n\":9007199254740994}", 0, INT64_MAX}), 1,
                "expected an integer");
    CHECK_FAILS(reads_string, "{\"s\":null}", 1, "f: \"s\": found null, expected a string");
}

// ---- writer -----------------------------------------------------------------

static void test_writer(void) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_open(&w, "a", '[');
    json_write_integer(&w, INT64_MIN);
    json_write_bool(&w, true);
    json_write_bool(&w, false);
    json_begin(&w, '{');
    json_end(&w, '}');
    json_begin(&w, '[');
    json_end(&w, ']');
    json_write_number(&w, NAN);
    json_write_number(&w, -INFINITY);
    json_end(&w, ']');
    json_key(&w, "q\"");
    json_write_string(&w, "\\\"\b\f\n\r\t\x01\x1f/\xc3\xa9");
    json_add_string(&w, "bad", "a\x80\xffz\xe2\x82");
    json_end(&w, '}');
    CHECK_TEXT(w.text, "{\"a\":[-9223372036854775808,true,false,{},[],null,null],"
                       "\"q\\\"\":\"\\\\\\\"\\b\\f\\n\\r\\t\\u0001\\u001f/\xc3\xa9\","
                       "\"bad\":\"a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\"}");
    CHECK(w.length == strlen(w.text));
    json_free(json_parse(w.text, w.length, "t"));
    json_writer_free(&w);
    CHECK(w.text == NULL && w.length == 0);
}

static void check_number(double value, const char *expected) {
    JsonWriter w = {0};
    json_write_number(&w, value);
    if (expected) CHECK_TEXT(w.text, expected);
    Json *back = json_parse(w.text, w.length, "t");
    CHECK(back->number == value);
    json_free(back);
    json_writer_free(&w);
}

static void test_write_number(void) {
    check_number(0, "0");
    check_number(-3, "-3");
    check_number(100, "100");
    check_number(32000, "32000");
    check_number(0.1, "0.1");
    check_number(5e-4, "0.0005");
    check_number(1e-5, "1e-05");
    check_number(1234.5, "1234.5");
    check_number(9007199254740992.0, "9007199254740992");
    check_number(1e20, "1e+20");
    check_number(1.0 / 3, "0.3333333333333333");
    check_number(0.1 + 0.2, "0.30000000000000004");
    check_number(DBL_TRUE_MIN, "5e-324");
    check_number(DBL_MAX, "1.7976931348623157e+308");
    uint64_t bits = 1;
    for (int i = 0; i < 5000; i++) { // every kind of double
        double value;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&value, &bits, sizeof(value));
        if (isfinite(value)) check_number(value, NULL);
    }
}

static void test_round_trip_of_all_characters(void) {
    for (int c = 1; c < 0x110000; c += c < 0x3000 ? 1 : 977) {
        if (c >= 0xd800 && c < 0xe000) continue;
        char escaped[32];
        if (c < 0x10000)
            snprintf(escaped, sizeof(escaped), "\"\\u%04x\"", (unsigned)c);
        else
            snprintf(escaped, sizeof(escaped), "\"\\u%04x\\u%04X\"",
                     0xd800u + ((unsigned)(c - 0x10000) >> 10),
                     0xdc00u + ((unsigned)(c - 0x10000) & 0x3ff));
        Json *value = parse(escaped);
        JsonWriter w = {0};
        json_write_string(&w, value->string);
        Json *back = json_parse(w.text, w.length, "t");
        CHECK_TEXT(back->string, value->string);
        json_free(value);
        json_free(back);
        json_writer_free(&w);
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"structure", test_structure},
        {"numbers", test_numbers},
        {"strings", test_strings},
        {"depth", test_depth},
        {"many keys", test_many_keys},
        {"refuses", test_refuses},
        {"NUL bytes", test_nul_bytes},
        {"every prefix", test_every_prefix},
        {"access", test_access},
        {"writer", test_writer},
        {"write number", test_write_number},
        {"round trip of all characters", test_round_trip_of_all_characters},
    };
    return test_main(argc, argv, "json", cases, sizeof(cases) / sizeof(*cases));
}
