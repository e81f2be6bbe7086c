// Input: JSON.
#include "harness.h"
#include "json.h"

void fuzz_start(void) {}

// Checks that json_find() finds every member of every object.
static void walk(const Json *value) {
    for (size_t i = 0; i < value->count; i++) {
        if (value->kind == JSON_OBJECT && !json_find(value, value->keys[i])) __builtin_trap();
        walk(&value->items[i]);
    }
}

void fuzz_one(const uint8_t *data, size_t size) {
    Json *value = json_parse((const char *)data, size, "input");
    walk(value);
    json_free(value);
}
