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
    char *string; // JSON_STRING: UTF-8, NUL-terminated (a NUL inside is refused)
    size_t count; // members of an array or object
    Json *items;  // (count) values
    char **keys;  // (count) an object's keys, in the order of the file; a repeated key is refused
};

// Parses exactly one value that fills `size` bytes. `source` names the file in error messages
// (file, byte offset, what was found). Nesting deeper than 64, invalid UTF-8, escapes or numbers
// end the program.
Json *json_parse(const char *text, size_t size, const char *source);
// The same where the text may be anything: NULL if it is no such value.
Json *json_try_parse(const char *text, size_t size);
// All of a file; the other one ends the program where that is no object.
Json *json_read(const char *path);
Json *json_read_object(const char *path);
void json_free(Json *value);

// A member of an object; NULL if there is none.
const Json *json_find(const Json *object, const char *key);

// A member that must be there and of that kind; otherwise the program ends, naming source and key.
const char *json_string(const Json *object, const char *key, const char *source);
int64_t json_integer(const Json *object, const char *key, int64_t min, int64_t max,
                     const char *source);

// A member that may be missing, or of another kind, which is as if it were: "" then, the number
// `otherwise`, false.
const char *json_text(const Json *object, const char *key);
double json_number(const Json *object, const char *key, double otherwise);
bool json_is_true(const Json *object, const char *key);

// A growing text that ends in NUL; json_* append values with the commas that are needed.
typedef struct {
    char *text;
    size_t length, capacity;
    bool comma; // a value precedes the next one
} JsonWriter;

void json_begin(JsonWriter *w, char bracket); // '{' or '['
void json_end(JsonWriter *w, char bracket);   // '}' or ']'
void json_key(JsonWriter *w, const char *key);
void json_write_string(JsonWriter *w, const char *value); // U+FFFD for a byte that is not UTF-8
void json_write_text(JsonWriter *w, const char *value, size_t size); // a string that may hold NULs
void json_write_integer(JsonWriter *w, int64_t value);
void json_write_number(
    JsonWriter *w,
    double value); // shortest text that reads back equal; NaN and Inf become null
void json_write_bool(JsonWriter *w, bool value);
void json_write_value(JsonWriter *w, const Json *value); // all that is in it
void json_writer_free(JsonWriter *w);

// Members of the object that is open: a key and its value, or the bracket that opens it.
void json_open(JsonWriter *w, const char *key, char bracket);
void json_add_string(JsonWriter *w, const char *key, const char *value);
void json_add_text(JsonWriter *w, const char *key, const char *value, size_t size);
void json_add_integer(JsonWriter *w, const char *key, int64_t value);
void json_add_number(JsonWriter *w, const char *key, double value);
void json_add_bool(JsonWriter *w, const char *key, bool value);

#endif
