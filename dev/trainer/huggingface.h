// Exchange with Hugging Face transformers, in which a model is a directory with config.json and
// model.safetensors. What differs between models is in their Exchange (model.h).
#ifndef TRAINER_HUGGINGFACE_H
#define TRAINER_HUGGINGFACE_H

#include "model.h"
#include "run.h"
#include "safetensors.h"

#define HUGGINGFACE_WEIGHTS "model.safetensors"
#define HUGGINGFACE_INDEX "model" SAFETENSORS_INDEX // of a model in several files
#define HUGGINGFACE_ORIGIN "transformers"           // metadata key of the weights that we converted

// Converts a transformers file to ours: takes the metadata from the config.json next to it, renames
// the tensors, and drops those that are not weights. A file whose metadata name a model is ours and
// is not changed.
void huggingface_import(Safetensors *file, const ModelType *type);

// Exits with an error if huggingface_export would replace a model in DIR that no run wrote.
void huggingface_check_output(const Run *run, const char *directory);

// Makes DIR a transformers model: config.json, generation_config.json and tokenizer_config.json, a
// link model.safetensors to the file `weights` in DIR, and the class itself if transformers lacks
// it. Does nothing if there is no such class.
void huggingface_export(const Run *run, const char *directory, const char *weights);

// Returns whether there is a transformers class for this model, whose names huggingface_export()
// uses.
bool huggingface_has_class(const Run *run);

// Returns whether huggingface_export() may write a file of that name.
bool huggingface_has_file(const ModelType *type, const char *name);

// A member of config.json for which a model supports only one value: a string, a number or a
// boolean.
typedef struct {
    const char *key;
    Json value;
} ConfigMember;

// A size that config.json and our metadata hold, each under its own name.
typedef struct {
    const char *theirs, *ours;
    int64_t max;
} ConfigSize;

// The sizes and members of a model.
typedef struct {
    const ConfigSize *sizes;
    size_t size_count;
    const ConfigMember *members;
    size_t member_count;
} ConfigShape;
#define CONFIG_SHAPE(sizes, members)                                                               \
    { sizes, sizeof(sizes) / sizeof(*(sizes)), members, sizeof(members) / sizeof(*(members)) }

// Converts the sizes in config.json to metadata; `source` names the file in errors. Exits with an
// error if a member has a value that the model does not compute; a missing member is accepted.
void huggingface_read_shape(const Json *config, const ConfigShape *shape, const char *source,
                            Metadata **rows, int *row_count);

// Writes the class, the sizes with their values (size_count), and the members to the config.json
// that is open in w. The second function writes one number under several names (NAN: null).
void huggingface_write_shape(JsonWriter *w, const char *architecture, const ConfigShape *shape,
                             const size_t *values);
void huggingface_write_number(JsonWriter *w, const char *const *names, size_t count, double number);

#endif
