#include "huggingface.h"

#include "error.h"
#include "file.h"
#include "memory.h"
#include "tokenizer.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- members of config.json that must have one value ------------------------

static void write_member(JsonWriter *w, const ConfigMember *member) {
    json_key(w, member->key);
    json_write_value(w, &member->value);
}

static bool same_value(const Json *a, const Json *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == JSON_STRING) return strcmp(a->string, b->string) == 0;
    return a->kind == JSON_NUMBER ? a->number == b->number : a->boolean == b->boolean;
}

static void check_member(const Json *config, const ConfigMember *member, const char *source) {
    const Json *found = json_find(config, member->key);
    if (!found || same_value(found, &member->value)) return;
    JsonWriter expected = {0};
    write_member(&expected, member);
    fail("%s: has another \"%s\" than this program computes: expected %s", source, member->key,
         expected.text);
}

// ---- import -----------------------------------------------------------------
static void read_config(Safetensors *file, const ModelType *type) {
    char *path = path_beside(file->file.path, "config.json");
    if (!file_exists(path))
        fail("%s: its metadata names no model, and %s, which would, is missing", file->file.path,
             path);
    Json *config = json_read_object(path);
    const char *model = json_string(config, "model_type", path);
    const char *other = type->exchange->other_type;
    if (strcmp(model, type->exchange->model_type) != 0 && !(other && strcmp(model, other) == 0))
        fail("%s: \"model_type\" is %s, this program trains %s%s%s", path, model,
             type->exchange->model_type, other ? " and " : "", other ? other : "");
    metadata_free(file->metadata, file->metadata_count);
    file->metadata = NULL;
    file->metadata_count = 0;
    metadata_add(&file->metadata, &file->metadata_count, "model", copy_string(type->name));
    metadata_add(&file->metadata, &file->metadata_count, HUGGINGFACE_ORIGIN, copy_string("1"));
    type->exchange->read_config(config, path, &file->metadata, &file->metadata_count);
    // Transformers classes put no token before a text unless their config says so.
    if (!safetensors_metadata(file, "end_token"))
        metadata_add(&file->metadata, &file->metadata_count, "end_token", copy_string("-1"));
    json_free(config);
    free(path);
}

static bool equal(const Tensor *a, const Tensor *b) {
    return a->type == b->type && a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0 &&
           memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

// Renames the tensors to our names and drops those that are not weights. Returns the original
// names, newly allocated.
static char **rename_tensors(Safetensors *file, const Exchange *exchange) {
    const int count = file->tensor_count;
    char **theirs = allocate((size_t)count, sizeof(char *), "names");
    file->tensor_count = 0;
    for (int i = 0; i < count; i++) {
        Tensor tensor = file->tensors[i];
        char *name = exchange->tensor_name(tensor.name, file);
        if (!name) {
            free(tensor.name);
            continue;
        }
        theirs[file->tensor_count] = tensor.name;
        tensor.name = name;
        file->tensors[file->tensor_count++] = tensor;
    }
    safetensors_index(file);
    return theirs;
}

// Keeps the first of several tensors of one name. Exits with an error if they are not equal.
static void drop_repeated(Safetensors *file, char **theirs) {
    const Tensor *first = NULL; // of the present name
    bool *repeated = allocate((size_t)file->tensor_count, sizeof(bool), "names");
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = file->by_name[i];
        const ptrdiff_t at = tensor - file->tensors;
        repeated[at] = first && strcmp(first->name, tensor->name) == 0;
        if (repeated[at] && !equal(first, tensor))
            fail("%s: tensor %s is stored twice, as %s with other values; the model has one",
                 file->file.path, tensor->name, theirs[at]);
        if (!repeated[at]) first = tensor;
    }
    int kept = 0;
    for (int i = 0; i < file->tensor_count; i++) {
        free(theirs[i]);
        if (repeated[i])
            free(file->tensors[i].name);
        else
            file->tensors[kept++] = file->tensors[i];
    }
    file->tensor_count = kept;
    safetensors_index(file);
    free(repeated);
    free(theirs);
}

void huggingface_import(Safetensors *file, const ModelType *type) {
    if (!type->exchange || safetensors_metadata(file, "model")) return;
    read_config(file, type);
    drop_repeated(file, rename_tensors(file, type->exchange));
}

// ---- export -----------------------------------------------------------------
static void write_token(JsonWriter *w, const char *key, int32_t token) {
    huggingface_write_number(w, &key, 1, token >= 0 ? token : NAN); // null: no such token
}

// Returns whether the end token ends a text. With words or bytes it ends a line, after which the
// text continues.
static bool ends_text(const Dataset *dataset) {
    return dataset->end >= 0 &&
           (!dataset->tokenizer || tokenizer_is_special(dataset->tokenizer, dataset->end));
}

// Writes the special tokens to config.json and generation_config.json. A text begins with the token
// that ends the text before it, a translation with padding.
static void write_tokens(const Run *run, JsonWriter *w) {
    const bool translates = run->type->translator_create != NULL;
    const int32_t padding = run->setup.padding_token, end = run->setup.end_token;
    write_token(w, "bos_token_id", !translates && ends_text(run->dataset) ? end : -1);
    write_token(w, "eos_token_id", translates || ends_text(run->dataset) ? end : -1);
    write_token(w, "pad_token_id", padding);
    if (translates) write_token(w, "decoder_start_token_id", padding);
    if (translates) write_token(w, "forced_eos_token_id", -1);
}

// Returns the text of config.json, or NULL if there is no class for the model.
static char *config_text(const Run *run) {
    JsonWriter w = {0};
    const Exchange *exchange = run->type->exchange;
    if (!exchange) return NULL;
    json_begin(&w, '{');
    json_add_string(&w, "model_type",
                    exchange->is_other && exchange->is_other(run->model) ? exchange->other_type
                                                                         : exchange->model_type);
    if (!exchange->write_config(run->model, &w)) {
        json_writer_free(&w);
        return NULL;
    }
    write_tokens(run, &w);
    json_end(&w, '}');
    return w.text;
}

// Returns the text of generation_config.json, without which transformers' generate() stops after 20
// tokens; NULL if the model writes no text.
static char *generation_text(const Run *run) {
    if (!run->type->translator_create && !run->type->decoder_create) return NULL;
    JsonWriter w = {0};
    json_begin(&w, '{');
    write_tokens(run, &w);
    json_add_integer(&w, "max_length", run->setup.positions);
    json_end(&w, '}');
    return w.text;
}

static void write_name(const Tokenizer *tokenizer, JsonWriter *w, const char *key, int32_t token) {
    if (token < 0 || !tokenizer_is_special(tokenizer, token)) return;
    size_t size;
    char *name = tokenizer_decode(tokenizer, &token, 1, &size);
    json_add_string(w, key, name);
    free(name);
}

// Returns the text of tokenizer_config.json, which says how to read tokenizer.json; NULL if there
// is none.
static char *tokenizer_text(const Run *run) {
    const Dataset *dataset = run->dataset;
    const Tokenizer *tokenizer = dataset->tokenizer;
    if (tokenizer_kind(tokenizer) != TOKENIZER_BPE) return NULL;
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    json_add_integer(&w, "model_max_length", run->setup.positions);
    json_add_bool(&w, "clean_up_tokenization_spaces", false);
    json_open(&w, "model_input_names", '[');
    json_write_string(&w, "input_ids");
    json_write_string(&w, "attention_mask");
    json_end(&w, ']');
    if (!run->type->translator_create) write_name(tokenizer, &w, "bos_token", dataset->end);
    write_name(tokenizer, &w, "eos_token", dataset->end);
    write_name(tokenizer, &w, "pad_token", dataset->padding);
    write_name(tokenizer, &w, "mask_token", dataset->mask);
    json_end(&w, '}');
    return w.text;
}

bool huggingface_has_class(const Run *run) {
    char *text = config_text(run);
    free(text);
    return text != NULL;
}

// Returns whether a path is a link as made by huggingface_export: to a file in its own directory.
static bool is_own_link(const char *path) {
    char target[64];
    const ssize_t length = readlink(path, target, sizeof(target));
    return length > 0 && (size_t)length < sizeof(target) && !memchr(target, '/', (size_t)length);
}

// The files that huggingface_export writes.
enum { FILES = 5 };
static void files_of(const ModelType *type, const char *names[FILES]) {
    const char *const all[FILES] = {HUGGINGFACE_WEIGHTS, "config.json", "generation_config.json",
                                    "tokenizer_config.json", type->exchange->code_name};
    memcpy(names, all, sizeof(all));
}

bool huggingface_has_file(const ModelType *type, const char *name) {
    const char *names[FILES];
    if (!type->exchange) return false;
    files_of(type, names);
    for (int i = 0; i < FILES; i++)
        if (names[i] && strcmp(names[i], name) == 0) return true;
    return false;
}

void huggingface_check_output(const Run *run, const char *directory) {
    if (!huggingface_has_class(run)) return;
    const char *names[FILES];
    files_of(run->type, names);
    struct stat status;
    bool ours = false;
    for (int i = 0; i < FILES && !ours; i++) {
        char *path = names[i] ? path_in(directory, names[i]) : NULL;
        ours = i == 0 && path && is_own_link(path);
        if (path && !ours && lstat(path, &status) == 0)
            fail("%s: is no run's and would be replaced; choose another --output", path);
        free(path);
    }
}

// Points the link at `path` to `target`. The link exists at every moment.
static void replace_link(const char *path, const char *target) {
    char *temporary = format_string("%s.tmp", path);
    unlink(temporary); // a killed run may have left one
    // A file system without links is not a reason to end a run.
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0) {
        warn("%s: cannot be linked to %s: %s", path, target, strerror(errno));
        unlink(temporary);
    } else {
        file_sync_name(path); // before config.json: the link marks it as a run's
    }
    free(temporary);
}

static void write_file(const char *directory, const char *name, Text text) {
    char *path = path_in(directory, name);
    atomic_save(path, text.data, text.size);
    free(path);
}

// Writes `json` as one line and frees it; does nothing if it is NULL.
static void write_json(const char *directory, const char *name, char *json) {
    if (!json) return;
    char *line = format_string("%s\n", json);
    write_file(directory, name, (Text){line, strlen(line)});
    free(line);
    free(json);
}

void huggingface_export(const Run *run, const char *directory, const char *weights) {
    char *config = config_text(run);
    if (!config) return;
    char *link = path_in(directory, HUGGINGFACE_WEIGHTS);
    replace_link(link, weights); // first: the link tells a later run that the other files are ours
    free(link);
    write_json(directory, "config.json", config);
    write_json(directory, "generation_config.json", generation_text(run));
    write_json(directory, "tokenizer_config.json", tokenizer_text(run));
    const Exchange *exchange = run->type->exchange;
    if (exchange->code_name) write_file(directory, exchange->code_name, exchange->code());
}

void huggingface_read_shape(const Json *config, const ConfigShape *shape, const char *source,
                            Metadata **rows, int *row_count) {
    for (size_t i = 0; i < shape->size_count; i++) {
        const ConfigSize *size = &shape->sizes[i];
        const long long value = json_integer(config, size->theirs, 1, size->max, source);
        metadata_add(rows, row_count, size->ours, format_string("%lld", value));
    }
    for (size_t i = 0; i < shape->member_count; i++)
        check_member(config, &shape->members[i], source);
}

void huggingface_write_shape(JsonWriter *w, const char *architecture, const ConfigShape *shape,
                             const size_t *values) {
    json_open(w, "architectures", '[');
    json_write_string(w, architecture);
    json_end(w, ']');
    for (size_t i = 0; i < shape->size_count; i++)
        json_add_integer(w, shape->sizes[i].theirs, (int64_t)values[i]);
    for (size_t i = 0; i < shape->member_count; i++) write_member(w, &shape->members[i]);
}

void huggingface_write_number(JsonWriter *w, const char *const *names, size_t count,
                              double number) {
    for (size_t i = 0; i < count; i++) json_add_number(w, names[i], number);
}
