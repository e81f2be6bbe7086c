// Exchange with Hugging Face transformers, where a model is a directory with config.json and
// model.safetensors. What is particular to a model is its Exchange (model.h).
#ifndef TRAINER_HUGGINGFACE_H
#define TRAINER_HUGGINGFACE_H

#include "model.h"
#include "run.h"
#include "safetensors.h"

#define HUGGINGFACE_WEIGHTS "model.safetensors"
#define HUGGINGFACE_INDEX "model" SAFETENSORS_INDEX // of a model in several files
#define HUGGINGFACE_ORIGIN "transformers" // metadata of weights that huggingface_import made ours

// Makes a file of theirs one of ours: the config.json next to it has the metadata, tensors take
// our names, and what is no weight is gone. A file whose metadata names a model, which is ours,
// stays as it is.
void huggingface_import(Safetensors *file, const ModelType *type);

// Ends the program where huggingface_export would replace a model in DIR that a run did not write.
void huggingface_check_output(const Run *run, const char *directory);

// Makes DIR one of their models: config.json, generation_config.json and tokenizer_config.json, a
// link model.safetensors to the file `weights` in DIR, and the class itself where transformers does
// not have it. Does nothing where they have no such class.
void huggingface_export(const Run *run, const char *directory, const char *weights);

// Whether they have a class for this model, by whose names huggingface_export() writes it.
bool huggingface_has_class(const Run *run);

// Whether a file of that name may be one that it writes.
bool huggingface_has_file(const ModelType *type, const char *name);

// What a config.json may choose and a model computes in one way: a string, a number or a boolean.
typedef struct {
    const char *key;
    Json value;
} ConfigMember;

// A size that config.json and our metadata hold, each under its name.
typedef struct {
    const char *theirs, *ours;
    int64_t max;
} ConfigSize;

// Both, of a model.
typedef struct {
    const ConfigSize *sizes;
    size_t size_count;
    const ConfigMember *members;
    size_t member_count;
} ConfigShape;
#define CONFIG_SHAPE(sizes, members)                                                               \
    { sizes, sizeof(sizes) / sizeof(*(sizes)), members, sizeof(members) / sizeof(*(members)) }

// The sizes in config.json, which `source` names, become metadata. Ends the program where a member
// has another value than the model computes; a missing one is right.
void huggingface_read_shape(const Json *config, const ConfigShape *shape, const char *source,
                            Metadata **rows, int *row_count);

// Writes the class, the sizes, whose values (size_count) are given, and the members into the
// config.json that is open in w; and one number under several names (NAN: null).
void huggingface_write_shape(JsonWriter *w, const char *architecture, const ConfigShape *shape,
                             const size_t *values);
void huggingface_write_number(JsonWriter *w, const char *const *names, size_t count, double number);

#endif
