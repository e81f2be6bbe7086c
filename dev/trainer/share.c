#include "share.h"

#include "error.h"
#include "file.h"
#include "hash.h"
#include "json.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

#define PROGRAM "/proc/self/exe"

// A hash of this program's file, as text.
static char *program_id(void) {
    FileMap program = file_map(PROGRAM);
    const uint64_t hash = hash_bytes(HASH_START, program.data, program.size);
    file_unmap(&program);
    return format_string("%016llx", (unsigned long long)hash);
}

// "NAME VALUE", a line each.
static char *list_options(const Options *options) {
    JsonWriter writer = {0};
    json_begin(&writer, '{');
    options_to_json(options, &writer);
    json_end(&writer, '}');
    Json *object = json_parse(writer.text, writer.length, "options");
    char *text = copy_string("");
    for (size_t i = 0; i < object->count; i++) {
        const Json *value = &object->items[i];
        append_format(&text, "--%s ", object->keys[i]);
        if (value->kind == JSON_NUMBER)
            append_format(&text, "%.17g\n", value->number);
        else if (value->kind == JSON_STRING)
            append_format(&text, "%s\n", value->string);
        else
            append_format(&text, "%s\n",
                          value->kind == JSON_NULL ? "not given"
                          : value->boolean         ? "yes"
                                                   : "no");
    }
    json_free(object);
    json_writer_free(&writer);
    return text;
}

void share_start(Ranks *ranks, const Options *options) {
    if (ranks_size(ranks) == 1) return;
    char *program = program_id(), *given = list_options(options);
    ranks_compare(ranks, program, "all processes must be the same program");
    ranks_compare(ranks, given, "all processes must have the same options");
    free(given);
    free(program);
}

void share_check_data(Ranks *ranks, const Dataset *dataset) {
    if (ranks_size(ranks) == 1) return;
    char *text = format_string("a vocabulary of %d\n", dataset->vocabulary);
    for (int i = 0; i < SPLIT_COUNT; i++)
        append_format(&text, "%lld tokens of %s in %d shards\n", (long long)dataset->splits[i].tokens,
                      split_name(i), dataset->splits[i].shard_count);
    ranks_compare(ranks, text, dataset->name);
    free(text);
}

// Rank 0's text, fresh; NULL: it has none.
static char *share_text(Ranks *ranks, const char *text) {
    size_t size = text ? strlen(text) + 1 : 0;
    ranks_broadcast(ranks, &size, sizeof(size));
    if (size == 0) return NULL;
    char *shared = allocate(size, 1, "a path");
    if (text) memcpy(shared, text, size);
    ranks_broadcast(ranks, shared, size);
    return shared;
}

// A file as rank 0 opened it.
static Safetensors *share_file(Ranks *ranks, Safetensors *file) {
    char *path = share_text(ranks, file ? file->file.path : NULL);
    if (ranks_rank(ranks) > 0) file = path ? safetensors_open(path) : NULL;
    free(path);
    return file;
}

Checkpoint share_checkpoint(Ranks *ranks, const Checkpoint *found) {
    Checkpoint shared = *found;
    shared.weights = share_file(ranks, found->weights);
    shared.state = share_file(ranks, found->state);
    ranks_vote(ranks, 0); // rank 0 may remove these files from here on
    return shared;
}

void share_values(const Run *run) {
    if (ranks_size(run->ranks) == 1) return;
    const size_t total = run->type->parameters(run->model)->total;
    real *values = allocate(total, sizeof(real), "parameters");
    if (ranks_rank(run->ranks) == 0) run->type->read(run->model, MODEL_VALUES, values);
    ranks_broadcast(run->ranks, values, total * sizeof(real));
    run->type->write(run->model, MODEL_VALUES, values);
    free(values);
}
