#ifndef FUZZ_WRITTEN_OPTIONS_H
#define FUZZ_WRITTEN_OPTIONS_H

#include "json.h"
#include "options.h"

// Writes the options as a log does and parses the JSON. Exits with an error if it is invalid.
static inline void check_written_options(const Options *options) {
    JsonWriter json = {0};
    json_begin(&json, '{');
    options_to_json(options, &json);
    json_end(&json, '}');
    json_free(json_parse(json.text, json.length, "options"));
    json_writer_free(&json);
}

#endif
