#include "share.h"

#include "error.h"
#include "file.h"
#include "hash.h"
#include "json.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

#define PROGRAM "/proc/self/exe"

enum { SAMPLE = 1024 }; // tokens per sampled place of a shard

// Returns a hash of this program's file, as text.
static char *program_id(void) {
    FileMap program = file_map(PROGRAM);
    const uint64_t hash = hash_bytes(HASH_START, program.data, program.size);
    file_unmap(&program);
    return format_string("%016llx", (unsigned long long)hash);
}

// Returns a line "--NAME VALUE" for each option.
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

// Returns a hash of the tokens at the beginning, middle and end of a shard.
static uint64_t sample_shard(const Shard *shard) {
    int32_t tokens[SAMPLE];
    const int64_t count = shard->count < SAMPLE ? shard->count : SAMPLE;
    uint64_t hash = HASH_START;
    for (int place = 0; place < 3; place++) {
        shard_copy(shard, (shard->count - count) * place / 2, count, tokens);
        hash = hash_bytes(hash, tokens, (size_t)count * sizeof(*tokens));
    }
    return hash;
}

static char *describe_data(const Dataset *dataset) {
    char *text = format_string("a vocabulary of %d\n", dataset->vocabulary);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const Split *split = &dataset->splits[s];
        append_format(&text, "%lld tokens of %s in %d shards\n", (long long)split->tokens,
                      split->name, split->shard_count);
        for (int i = 0; i < split->shard_count; i++)
            append_format(&text, "shard %d of %s with %lld tokens, id %016llx\n", i, split->name,
                          (long long)split->shards[i].count,
                          (unsigned long long)sample_shard(&split->shards[i]));
    }
    return text;
}

// Each rank found the checksum and padding of some shards; all ranks learn all of them, as numbers
// that a double holds.
static void share_findings(Ranks *ranks, const Dataset *dataset) {
    for (int s = 0; s < SPLIT_COUNT; s++)
        for (int i = 0; i < dataset->splits[s].shard_count; i++) {
            Shard *shard = &dataset->splits[s].shards[i];
            double found[] = {(double)(shard->checksum >> 32), (double)(uint32_t)shard->checksum,
                              (double)shard->paddings};
            ranks_sum(ranks, found, 3);
            shard->checksum = (uint64_t)found[0] << 32 | (uint64_t)found[1];
            shard->paddings = (int64_t)found[2];
        }
}

void share_check_data(Ranks *ranks, const Dataset *dataset) {
    if (ranks_size(ranks) > 1) {
        char *text = describe_data(dataset);
        ranks_compare(ranks, text, dataset->name);
        free(text);
    }
    dataset_check(dataset, ranks_rank(ranks), ranks_size(ranks));
    ranks_vote(ranks, 0); // no rank continues before all have checked
    share_findings(ranks, dataset);
    dataset_check_targets(dataset);
}

char *share_text(Ranks *ranks, const char *text) {
    size_t size = text ? strlen(text) + 1 : 0;
    ranks_broadcast(ranks, &size, sizeof(size));
    if (size == 0) return NULL;
    char *shared = allocate(size, 1, "a text");
    if (text) memcpy(shared, text, size);
    ranks_broadcast(ranks, shared, size);
    return shared;
}

// Opens the file that rank 0 opened.
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
