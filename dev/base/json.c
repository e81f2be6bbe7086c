#include "json.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 };
#define EXACT_INTEGER 9007199254740992.0 // 2^53: a double holds every integer up to it

// Returns how many bytes at s can be copied at once: a run of ASCII characters that need no escape,
// else the single character at s. 0: not well-formed UTF-8.
static size_t run_length(const char *s, size_t left) {
    size_t plain = 0;
    while (plain < left && s[plain] >= 0x20 && s[plain] < 0x7f && s[plain] != '"' &&
           s[plain] != '\\')
        plain++;
    return plain > 0 ? plain : utf8_length((Text){s, left});
}

// ---- parser -----------------------------------------------------------------

typedef struct {
    const char *text, *source;
    size_t size, at;
    int depth;
    char *error; // the first error, allocated; `size` becomes its offset
} Parser;

// Returns the next byte, or -1 at the end.
static int peek(const Parser *p) {
    return p->at < p->size ? (unsigned char)p->text[p->at] : -1;
}

// Stores the first error and truncates the text there, so that every loop over it ends.
static void refuse(Parser *p, char *error) {
    if (p->error)
        free(error);
    else
        p->error = error;
    p->size = p->at;
}

static void expected(Parser *p, const char *what) {
    const int c = peek(p);
    if (c < 0)
        refuse(p,
               format_string("%s: byte %zu: found the end, expected %s", p->source, p->at, what));
    else if (c < 0x20 || c > 0x7e)
        refuse(p, format_string("%s: byte %zu: found byte 0x%02x, expected %s", p->source, p->at,
                                (unsigned)c, what));
    else
        refuse(p,
               format_string("%s: byte %zu: found '%c', expected %s", p->source, p->at, c, what));
}

static void skip_space(Parser *p) {
    for (int c = peek(p); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(p)) p->at++;
}

// Consumes the next byte if it is c.
static bool accept(Parser *p, char c) {
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

// Parses four hexadecimal digits. Returns 0, which callers reject anyway, if they are missing.
static uint32_t parse_hex4(Parser *p) {
    uint32_t code = 0;
    for (int i = 0; i < 4; i++) {
        const int c = peek(p);
        if (c >= '0' && c <= '9') {
            code = code << 4 | (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            code = code << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        } else {
            expected(p, "four hexadecimal digits");
            return 0;
        }
        p->at++;
    }
    return code;
}

// Parses what follows "\u": one code point, from two escapes if it is a surrogate pair. Returns 0
// on an error.
static uint32_t parse_unicode_escape(Parser *p) {
    const size_t start = p->at - 2;
    const uint32_t code = parse_hex4(p);
    if (code == 0) {
        refuse(p, format_string("%s: byte %zu: found \\u0000, which no text here may hold",
                                p->source, start));
        return 0;
    }
    if (code >= 0xdc00 && code <= 0xdfff) {
        refuse(p, format_string("%s: byte %zu: found \\u%04x without the first half of its pair",
                                p->source, start, code));
        return 0;
    }
    if (code < 0xd800 || code > 0xdbff) return code;
    if (!accept(p, '\\') || !accept(p, 'u')) {
        expected(p, "\\u and the second half of a surrogate pair");
        return 0;
    }
    const uint32_t low = parse_hex4(p);
    if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    refuse(p, format_string("%s: byte %zu: found \\u%04x, expected \\udc00 to \\udfff", p->source,
                            p->at - 6, low));
    return 0;
}

// Parses what follows a backslash. Returns the end of the character written to `out`.
static char *parse_escape(Parser *p, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const int c = peek(p);
    const char *name = c > 0 ? strchr(names, c) : NULL;
    if (!name && c != 'u') {
        expected(p, "one of \"\\/bfnrtu after a backslash");
        return out;
    }
    p->at++;
    if (!name) return utf8_write(out, parse_unicode_escape(p));
    *out = values[name - names];
    return out + 1;
}

// Returns the number of bytes from after the opening quote to the closing one. This bounds the size
// of the string, as every escape is longer than its character.
static size_t string_bound(const Parser *p) {
    size_t end = p->at;
    while (end < p->size && p->text[end] != '"') end += p->text[end] == '\\' ? 2 : 1;
    return end - p->at;
}

static char *parse_string(Parser *p) {
    if (!accept(p, '"')) expected(p, "a string");
    char *string = allocate(string_bound(p) + 1, 1, "a JSON string"), *out = string;
    while (!p->error && !accept(p, '"')) {
        if (accept(p, '\\')) {
            out = parse_escape(p, out);
            continue;
        }
        const size_t length = run_length(p->text + p->at, p->size - p->at);
        if (peek(p) < 0x20)
            expected(p, "a string's next character or '\"'");
        else if (length == 0)
            expected(p, "UTF-8");
        if (p->error) break;
        memcpy(out, p->text + p->at, length);
        out += length;
        p->at += length;
    }
    return string;
}

static void parse_digits(Parser *p) {
    if (peek(p) < '0' || peek(p) > '9') expected(p, "a digit");
    while (peek(p) >= '0' && peek(p) <= '9') p->at++;
}

static double parse_number(Parser *p) {
    const size_t start = p->at;
    accept(p, '-');
    if (!accept(p, '0')) parse_digits(p); // no digit may follow a leading 0
    if (accept(p, '.')) parse_digits(p);
    if (accept(p, 'e') || accept(p, 'E')) {
        if (!accept(p, '-')) accept(p, '+');
        parse_digits(p);
    }
    const size_t length = p->at - start;
    char *copy = allocate(length + 1, 1, "a JSON number"); // strtod needs the NUL
    memcpy(copy, p->text + start, length);
    const double number = strtod(copy, NULL);
    free(copy);
    if (!isfinite(number))
        refuse(p, format_string("%s: byte %zu: the number is too large for a double", p->source,
                                start));
    return number;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void refuse_repeated_keys(Parser *p, const Json *object) {
    if (object->count < 2 || p->error) return;
    char **sorted = allocate(object->count, sizeof(char *), "JSON keys");
    memcpy(sorted, object->keys, object->count * sizeof(char *));
    qsort(sorted, object->count, sizeof(char *), compare_keys);
    for (size_t i = 1; i < object->count && !p->error; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            refuse(p,
                   format_string("%s: byte %zu: the object that ends here has the key \"%s\" twice",
                                 p->source, p->at - 1, sorted[i]));
    free(sorted);
}

// Makes room for one more member.
static void grow(Json *value) {
    value->items = grow_list(value->items, value->count, sizeof(Json), "JSON values");
    if (value->kind == JSON_OBJECT)
        value->keys = grow_list(value->keys, value->count, sizeof(char *), "JSON keys");
}

static Json parse_value(Parser *p);

// Parses the members of an array or object, from after its opening bracket to after its closing
// one.
static Json parse_members(Parser *p, JsonKind kind) {
    const char close = kind == JSON_OBJECT ? '}' : ']';
    Json value = {.kind = kind};
    if (++p->depth > DEPTH_MAX) {
        refuse(p, format_string("%s: byte %zu: nested deeper than %d", p->source, p->at - 1,
                                DEPTH_MAX));
        return value;
    }
    skip_space(p);
    if (!accept(p, close)) {
        do {
            grow(&value);
            skip_space(p);
            if (kind == JSON_OBJECT) {
                value.keys[value.count] = parse_string(p);
                skip_space(p);
                if (!accept(p, ':')) expected(p, "':'");
            }
            value.items[value.count] = parse_value(p);
            value.count++;
            skip_space(p);
        } while (accept(p, ','));
        if (!accept(p, close)) expected(p, kind == JSON_OBJECT ? "',' or '}'" : "',' or ']'");
    }
    p->depth--;
    if (kind == JSON_OBJECT) refuse_repeated_keys(p, &value);
    return value;
}

static Json parse_word(Parser *p, const char *word, Json value) {
    for (const char *c = word; *c && !p->error; c++)
        if (!accept(p, *c)) expected(p, word);
    return value;
}

static Json parse_value(Parser *p) {
    skip_space(p);
    const int c = peek(p);
    if (c == '{' || c == '[') {
        p->at++;
        return parse_members(p, c == '{' ? JSON_OBJECT : JSON_ARRAY);
    }
    if (c == '"') return (Json){.kind = JSON_STRING, .string = parse_string(p)};
    if (c == 't') return parse_word(p, "true", (Json){.kind = JSON_BOOL, .boolean = true});
    if (c == 'f') return parse_word(p, "false", (Json){.kind = JSON_BOOL});
    if (c == 'n') return parse_word(p, "null", (Json){.kind = JSON_NULL});
    if (c == '-' || (c >= '0' && c <= '9'))
        return (Json){.kind = JSON_NUMBER, .number = parse_number(p)};
    expected(p, "a value");
    return (Json){.kind = JSON_NULL};
}

static Json *parse_text(Parser *p) {
    Json *root = allocate(1, sizeof(Json), "a JSON value");
    *root = parse_value(p);
    skip_space(p);
    if (p->at < p->size) expected(p, "the end");
    return root;
}

Json *json_parse(const char *text, size_t size, const char *source) {
    Parser p = {.text = text, .source = source, .size = size};
    Json *root = parse_text(&p);
    if (p.error) fail("%s", p.error);
    return root;
}

Json *json_try_parse(const char *text, size_t size) {
    Parser p = {.text = text, .source = "", .size = size};
    Json *root = parse_text(&p);
    if (!p.error) return root;
    json_free(root);
    free(p.error);
    return NULL;
}

Json *json_read(const char *path) {
    FileMap file = file_map(path);
    Json *root = json_parse((const char *)file.data, file.size, path);
    file_unmap(&file);
    return root;
}

Json *json_read_object(const char *path) {
    Json *root = json_read(path);
    if (root->kind != JSON_OBJECT) fail("%s: is not a JSON object", path);
    return root;
}

static void free_members(Json *value) {
    for (size_t i = 0; i < value->count; i++) {
        free_members(&value->items[i]);
        if (value->keys) free(value->keys[i]);
    }
    free(value->items);
    free(value->keys);
    free(value->string);
}

void json_free(Json *value) {
    if (!value) return;
    free_members(value);
    free(value);
}

// ---- access -----------------------------------------------------------------

const Json *json_find(const Json *object, const char *key) {
    if (object->kind != JSON_OBJECT) return NULL;
    for (size_t i = 0; i < object->count; i++)
        if (strcmp(object->keys[i], key) == 0) return &object->items[i];
    return NULL;
}

// Returns a required member of that kind; exits with an error if it is missing or of another kind.
static const Json *require(const Json *object, const char *key, JsonKind kind, const char *source) {
    static const char *const names[] = {"null",     "true or false", "a number",
                                        "a string", "an array",      "an object"};
    if (object->kind != JSON_OBJECT)
        fail("%s: found %s, expected an object with \"%s\"", source, names[object->kind], key);
    const Json *value = json_find(object, key);
    if (!value) fail("%s: \"%s\" is missing, expected %s", source, key, names[kind]);
    if (value->kind != kind)
        fail("%s: \"%s\": found %s, expected %s", source, key, names[value->kind], names[kind]);
    return value;
}

const char *json_string(const Json *object, const char *key, const char *source) {
    return require(object, key, JSON_STRING, source)->string;
}

int64_t json_integer(const Json *object, const char *key, int64_t min, int64_t max,
                     const char *source) {
    const double number = require(object, key, JSON_NUMBER, source)->number;
    if (number != floor(number) || fabs(number) > EXACT_INTEGER || (int64_t)number < min ||
        (int64_t)number > max)
        fail("%s: \"%s\": found %.17g, expected an integer from %lld to %lld", source, key, number,
             (long long)min, (long long)max);
    return (int64_t)number;
}

const char *json_text(const Json *object, const char *key) {
    const Json *value = json_find(object, key);
    return value && value->kind == JSON_STRING ? value->string : "";
}

double json_number(const Json *object, const char *key, double otherwise) {
    const Json *value = json_find(object, key);
    return value && value->kind == JSON_NUMBER ? value->number : otherwise;
}

bool json_is_true(const Json *object, const char *key) {
    const Json *value = json_find(object, key);
    return value && value->kind == JSON_BOOL && value->boolean;
}

// ---- writer -----------------------------------------------------------------

static void append(JsonWriter *w, const char *text, size_t size) {
    if (size >= w->capacity - w->length) {
        w->capacity = 2 * (w->capacity + size) + 256;
        w->text = realloc(w->text, w->capacity);
        if (!w->text) fail("no memory for %zu bytes of JSON", w->capacity);
    }
    memcpy(w->text + w->length, text, size);
    w->length += size;
    w->text[w->length] = '\0';
}

// Appends a value, after a comma if needed.
static void append_value(JsonWriter *w, const char *text) {
    if (w->comma) append(w, ",", 1);
    append(w, text, strlen(text));
    w->comma = true;
}

void json_begin(JsonWriter *w, char bracket) {
    append_value(w, bracket == '{' ? "{" : "[");
    w->comma = false;
}

void json_end(JsonWriter *w, char bracket) {
    append(w, &bracket, 1);
    w->comma = true;
}

void json_key(JsonWriter *w, const char *key) {
    json_write_string(w, key);
    append(w, ":", 1);
    w->comma = false;
}

static void append_escaped(JsonWriter *w, char c) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    const char *value = c ? strchr(values, c) : NULL;
    char text[8];
    if (value)
        snprintf(text, sizeof(text), "\\%c", names[value - values]);
    else
        snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
    append(w, text, strlen(text));
}

void json_write_string(JsonWriter *w, const char *value) {
    json_write_text(w, value, strlen(value));
}

void json_write_text(JsonWriter *w, const char *value, size_t size) {
    size_t left = size;
    append_value(w, "\"");
    while (left > 0) {
        const size_t length = run_length(value, left);
        if (length == 0)
            append(w, "\xef\xbf\xbd",
                   3); // U+FFFD for invalid UTF-8: a path, a token cut in half
        else if ((unsigned char)*value < 0x20 || *value == '"' || *value == '\\')
            append_escaped(w, *value);
        else
            append(w, value, length);
        value += length == 0 ? 1 : length;
        left -= length == 0 ? 1 : length;
    }
    append(w, "\"", 1);
}

void json_write_integer(JsonWriter *w, int64_t value) {
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    append_value(w, text);
}

void json_write_number(JsonWriter *w, double value) {
    char text[64];
    if (!isfinite(value)) {
        append_value(w, "null");
        return;
    }
    if (value == floor(value) && fabs(value) <= EXACT_INTEGER) {
        snprintf(text, sizeof(text), "%.0f", value); // 100, not 1e+02
    } else {
        int digits = 1; // 17 are always enough
        do snprintf(text, sizeof(text), "%.*g", digits, value);
        while (strtod(text, NULL) != value && digits++ < 17);
    }
    append_value(w, text);
}

void json_write_bool(JsonWriter *w, bool value) {
    append_value(w, value ? "true" : "false");
}

void json_write_value(JsonWriter *w, const Json *value) {
    const char bracket = value->kind == JSON_OBJECT ? '{' : '[';
    switch (value->kind) {
    case JSON_NULL:
        append_value(w, "null");
        return;
    case JSON_BOOL:
        json_write_bool(w, value->boolean);
        return;
    case JSON_NUMBER:
        json_write_number(w, value->number);
        return;
    case JSON_STRING:
        json_write_string(w, value->string);
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        json_begin(w, bracket);
        for (size_t i = 0; i < value->count; i++) {
            if (value->kind == JSON_OBJECT) json_key(w, value->keys[i]);
            json_write_value(w, &value->items[i]);
        }
        json_end(w, bracket == '{' ? '}' : ']');
    }
}

void json_open(JsonWriter *w, const char *key, char bracket) {
    json_key(w, key);
    json_begin(w, bracket);
}

void json_add_string(JsonWriter *w, const char *key, const char *value) {
    json_add_text(w, key, value, strlen(value));
}

void json_add_text(JsonWriter *w, const char *key, const char *value, size_t size) {
    json_key(w, key);
    json_write_text(w, value, size);
}

void json_add_integer(JsonWriter *w, const char *key, int64_t value) {
    json_key(w, key);
    json_write_integer(w, value);
}

void json_add_number(JsonWriter *w, const char *key, double value) {
    json_key(w, key);
    json_write_number(w, value);
}

void json_add_bool(JsonWriter *w, const char *key, bool value) {
    json_key(w, key);
    json_write_bool(w, value);
}

void json_writer_free(JsonWriter *w) {
    free(w->text);
    *w = (JsonWriter){0};
}
