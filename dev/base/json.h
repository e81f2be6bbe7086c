// JSON (RFC 8259): a parser for small untrusted files and a writer for logs and headers.
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonKind;

typedef struct Json Json;
struct Json {
    JsonKind kind;
    bool boolean;
    double number;
    char *string; // JSON_STRING: UTF-8, NUL-terminated (a NUL inside is rejected)
    size_t count; // members of an array or object
    Json *items;  // (count) values
    char **keys;  // (count) an object's keys, in the order of the file; duplicates are rejected
};

// Parses exactly one value that fills `size` bytes. `source` names the file in error messages
// (file, byte offset, what was found). Exits with an error on invalid syntax, UTF-8, escapes or
// numbers, and on nesting deeper than 64.
Json *json_parse(const char *text, size_t size, const char *source);
// The same for arbitrary text; returns NULL if it is not a valid value.
Json *json_try_parse(const char *text, size_t size);
// Parses a whole file. json_read_object() exits with an error if it is not an object.
Json *json_read(const char *path);
Json *json_read_object(const char *path);
void json_free(Json *value);

// Returns a member of an object, or NULL.
const Json *json_find(const Json *object, const char *key);

// Returns a required member of that kind. Otherwise exits with an error that names source and key.
const char *json_string(const Json *object, const char *key, const char *source);
int64_t json_integer(const Json *object, const char *key, int64_t min, int64_t max,
                     const char *source);

// Returns an optional member. If it is missing or of another kind, returns "", `otherwise` or
// false.
const char *json_text(const Json *object, const char *key);
double json_number(const Json *object, const char *key, double otherwise);
bool json_is_true(const Json *object, const char *key);

// A growing NUL-terminated text. The functions below append values with the commas between them.
typedef struct {
    char *text;
    size_t length, capacity;
    bool comma; // the next value needs a comma before it
} JsonWriter;

void json_begin(JsonWriter *w, char bracket); // '{' or '['
void json_end(JsonWriter *w, char bracket);   // '}' or ']'
void json_key(JsonWriter *w, const char *key);
void json_write_string(JsonWriter *w, const char *value);            // U+FFFD for invalid UTF-8
void json_write_text(JsonWriter *w, const char *value, size_t size); // may contain NULs
void json_write_integer(JsonWriter *w, int64_t value);
void json_write_number(JsonWriter *w,
                       double value); // shortest exact text; NaN, Inf become null
void json_write_bool(JsonWriter *w, bool value);
void json_write_value(JsonWriter *w, const Json *value); // with all its members
void json_writer_free(JsonWriter *w);

// Append a member to the open object: a key and its value, or its opening bracket.
void json_open(JsonWriter *w, const char *key, char bracket);
void json_add_string(JsonWriter *w, const char *key, const char *value);
void json_add_text(JsonWriter *w, const char *key, const char *value, size_t size);
void json_add_integer(JsonWriter *w, const char *key, int64_t value);
void json_add_number(JsonWriter *w, const char *key, double value);
void json_add_bool(JsonWriter *w, const char *key, bool value);

#endif
