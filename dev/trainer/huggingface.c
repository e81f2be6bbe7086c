#include "huggingface.h"

#include "error.h"
#include "file.h"
#include "memory.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- members of config.json that must have one value ------------------------

static void write_member(JsonWriter *w, const ConfigMember *member) {
    json_key(w, member->key);
    if (member->value.kind == JSON_STRING)
        json_write_string(w, member->value.string);
    else if (member->value.kind == JSON_NUMBER)
        json_write_number(w, member->value.number);
    else
        json_write_bool(w, member->value.boolean);
}

static bool same_value(const Json *a, const Json *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == JSON_STRING) return strcmp(a->string, b->string) == 0;
    return a->kind == JSON_NUMBER ? a->number == b->number : a->boolean == b->boolean;
}

void huggingface_check_members(const Json *config, const ConfigMember *members, size_t count,
                               const char *source) {
    for (size_t i = 0; i < count; i++) {
        const Json *found = json_find(config, members[i].key);
        if (!found || same_value(found, &members[i].value)) continue;
        JsonWriter expected = {0};
        write_member(&expected, &members[i]);
        fail("%s: has another \"%s\" than this program computes: expected %s", source,
             members[i].key, expected.text);
    }
}

void huggingface_write_members(JsonWriter *w, const ConfigMember *members, size_t count) {
    for (size_t i = 0; i < count; i++) write_member(w, &members[i]);
}

// ---- import -----------------------------------------------------------------
// The path of config.json beside a file.
static char *config_beside(const char *path) {
    return format_string("%.*sconfig.json", (int)(path_name(path) - path), path);
}

static void read_config(Safetensors *file, const ModelType *type) {
    char *path = config_beside(file->file.path);
    if (!file_exists(path))
        fail("%s: its metadata names no model, and there is no %s to say what it is",
             file->file.path, path);
    FileMap map = file_map(path);
    Json *config = json_parse((const char *)map.data, map.size, path);
    if (config->kind != JSON_OBJECT) fail("%s: is not a JSON object", path);
    const char *model = json_string(config, "model_type", path);
    if (strcmp(model, type->exchange->model_type) != 0)
        fail("%s: \"model_type\" is %s, this program trains %s", path, model,
             type->exchange->model_type);
    metadata_free(file->metadata, file->metadata_count);
    file->metadata = NULL;
    file->metadata_count = 0;
    metadata_add(&file->metadata, &file->metadata_count, "model", copy_string(type->name));
    metadata_add(&file->metadata, &file->metadata_count, HUGGINGFACE_ORIGIN, copy_string("1"));
    type->exchange->read_config(config, path, &file->metadata, &file->metadata_count);
    // Their classes put nothing before a text, unless they say so.
    if (!safetensors_metadata(file, "end_token"))
        metadata_add(&file->metadata, &file->metadata_count, "end_token", copy_string("-1"));
    json_free(config);
    file_unmap(&map);
    free(path);
}

static bool equal(const Tensor *a, const Tensor *b) {
    return a->type == b->type && a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0 &&
           memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

// Gives the tensors our names, leaving out those that are no weight; returns theirs, which are
// fresh strings.
static char **rename_tensors(Safetensors *file, const Exchange *exchange) {
    const int count = file->tensor_count;
    char **theirs = allocate((size_t)count, sizeof(char *), "names");
    file->tensor_count = 0;
    for (int i = 0; i < count; i++) {
        Tensor tensor = file->tensors[i];
        char *name = exchange->tensor_name(tensor.name);
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

// Of tensors of one name, which must be equal, keeps the first. Ends the program where they are
// not.
static void drop_repeated(Safetensors *file, char **theirs) {
    const Tensor *first = NULL; // of those of one name
    bool *repeated = allocate((size_t)file->tensor_count, sizeof(bool), "names");
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = file->by_name[i];
        const ptrdiff_t at = tensor - file->tensors;
        repeated[at] = first && strcmp(first->name, tensor->name) == 0;
        if (repeated[at] && !equal(first, tensor))
            fail("%s: tensor %s stands there twice, as %s with other values; the model has one",
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
// The text of config.json; NULL: they have no such class.
static char *config_text(const ModelType *type, const void *model) {
    JsonWriter w = {0};
    if (!type->exchange) return NULL;
    json_begin(&w, '{');
    json_key(&w, "model_type");
    json_write_string(&w, type->exchange->model_type);
    if (!type->exchange->write_config(model, &w)) {
        json_writer_free(&w);
        return NULL;
    }
    json_end(&w, '}');
    return w.text;
}

static char *path_in(const char *directory, const char *name) {
    return format_string("%s/%s", directory, name);
}

// Whether a path is a link as huggingface_export makes them: to a file beside it.
static bool is_own_link(const char *path) {
    char target[64];
    const ssize_t length = readlink(path, target, sizeof(target));
    return length > 0 && (size_t)length < sizeof(target) && !memchr(target, '/', (size_t)length);
}

void huggingface_check_output(const ModelType *type, const void *model, const char *directory) {
    char *text = config_text(type, model);
    const char *code = text ? type->exchange->code_name : NULL;
    char *paths[] = {path_in(directory, HUGGINGFACE_WEIGHTS), path_in(directory, "config.json"),
                     code ? path_in(directory, code) : NULL};
    struct stat status;
    for (int i = 0; text && !is_own_link(paths[0]) && i < 3; i++)
        if (paths[i] && lstat(paths[i], &status) == 0)
            fail("%s: is no run's and would be replaced; choose another --output", paths[i]);
    for (int i = 0; i < 3; i++) free(paths[i]);
    free(text);
}

// Lets the link at `path` point to `target`. There is a link there at every moment.
static void replace_link(const char *path, const char *target) {
    char *temporary = format_string("%s.tmp", path);
    unlink(temporary); // a killed run may have left one
    // A file system without links is no reason to end a run.
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0) {
        warn("%s: cannot be linked to %s: %s", path, target, strerror(errno));
        unlink(temporary);
    }
    free(temporary);
}

static void write_file(const char *directory, const char *name, Text text) {
    char *path = path_in(directory, name);
    AtomicFile *file = atomic_open(path);
    atomic_write(file, text.data, (size_t)text.size);
    atomic_commit(file);
    free(path);
}

void huggingface_export(const ModelType *type, const void *model, const char *directory,
                        const char *weights) {
    char *text = config_text(type, model);
    if (!text) return;
    char *link = path_in(directory, HUGGINGFACE_WEIGHTS), *line = format_string("%s\n", text);
    replace_link(link, weights); // first: by it a later run knows that the others are ours
    write_file(directory, "config.json", (Text){line, strlen(line)});
    if (type->exchange->code_name)
        write_file(directory, type->exchange->code_name, type->exchange->code());
    free(link);
    free(line);
    free(text);
}

void huggingface_read_sizes(const Json *config, const ConfigSize *sizes, size_t count,
                            const char *source, Metadata **rows, int *row_count) {
    for (size_t i = 0; i < count; i++) {
        const long long size = json_integer(config, sizes[i].theirs, 1, sizes[i].max, source);
        metadata_add(rows, row_count, sizes[i].ours, format_string("%lld", size));
    }
}

void huggingface_write_sizes(JsonWriter *w, const char *architecture, const ConfigSize *sizes,
                             const size_t *values, size_t count) {
    json_key(w, "architectures");
    json_begin(w, '[');
    json_write_string(w, architecture);
    json_end(w, ']');
    for (size_t i = 0; i < count; i++) {
        json_key(w, sizes[i].theirs);
        json_write_integer(w, (int64_t)values[i]);
    }
}

void huggingface_write_number(JsonWriter *w, const char *const *names, size_t count,
                              double number) {
    for (size_t i = 0; i < count; i++) {
        json_key(w, names[i]);
        json_write_number(w, number);
    }
}
