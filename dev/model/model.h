// The interface between the training loop and any model on any device.
#ifndef MODEL_H
#define MODEL_H

#include "json.h"
#include "metadata.h"
#include "options.h"
#include "parameter.h"
#include "profile.h"
#include "ranks.h"
#include "real.h"
#include "statistics.h"
#include "task.h"
#include "text.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct ModelType ModelType;

// The arguments of create().
typedef struct {
    const ModelType *type;
    const Options *options; // including the model's own
    int64_t batch, length;  // largest B and T of all batches; 0: only decoding
    int64_t rows;           // largest number of positions of a batch if less than B T; else 0
    int64_t positions;      // rows of the position embedding, at least `length`
    int64_t vocabulary;     // V
    int32_t padding_token;  // its embedding takes no gradient from the lookup; -1: none
    int32_t end_token;      // ends a text or a sentence; -1: none
    bool training;          // false: no gradients, no optimiser
    bool float32;           // products in float32 regardless of --precision
    Profile *profile;       // train() adds its laps; NULL: disabled
    Ranks *ranks;           // the processes that train the model; NULL: only this one
    // Called by create() with the memory it is about to allocate; NULL: not needed.
    void (*say_size)(const char *model, size_t parameters, size_t bytes);
} ModelSetup;

typedef struct {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; // for clipping
    int64_t step;          // 1 for the first update
    bool adam;             // weight decay is added to the gradient, as in Adam with an L2 penalty
} UpdateSettings;

typedef enum { MODEL_VALUES, MODEL_GRADIENTS, MODEL_FIRST_MOMENT, MODEL_SECOND_MOMENT } ModelArray;

// The device that a model runs on.
typedef struct {
    char processor[128], library[128]; // "AMD EPYC ...", "oneDNN 3.2"
    const char *precision;             // "float32", "bfloat16"
    int threads;
    bool on_gpu;       // the process waits for a GPU and may use little CPU time
    double peak_flops; // measured with a large GEMM in this precision, FLOP/s
} DeviceInfo;

// Conversion to and from a model class of Hugging Face transformers (huggingface.h).
typedef struct {
    const char *model_type; // in config.json: "gpt2"
    // Another class that the model may correspond to, and whether it does; or NULL.
    const char *other_type;
    bool (*is_other)(const void *model);
    // The source of the class if transformers has none: a file next to config.json; or NULL.
    const char *code_name;
    Text (*code)(void);
    // Checks config.json (`source` is its name) and adds the corresponding metadata rows.
    void (*read_config)(const Json *config, const char *source, Metadata **rows, int *count);
    // Returns our name of one of their tensors, allocated; NULL: not a weight. Tensors that map to
    // the same name must be equal. The file already has our metadata.
    char *(*tensor_name)(const char *theirs, const Safetensors *file);
    // Adds members to the config.json that is open in w. Returns false if no class fits this model.
    bool (*write_config)(const void *model, JsonWriter *w);
} Exchange;

// Values of a model's options that other modules need.
typedef struct {
    int64_t channels, heads; // C, H
    double dropout;          // a probability
} ModelFacts;

struct ModelType {
    const char *name;      // "fastformer"
    const char *program;   // "train_fastformer"
    const TaskType *task;  // the task that it learns (task.h)
    const Option *options; // rows the model adds
    int option_count;
    OptionName lower[2];                       // lower for a smaller model: channels, layers
    const struct TransformerType *transformer; // its plan and sequence of blocks

    const char *position_embedding; // name of the parameter (positions, C); NULL: none
    // Updates metadata that depend on the number of positions, other than n_positions, when this
    // number increases; NULL: none.
    void (*extend)(Safetensors *file, int64_t positions);
    // Exits with an error if the channels do not divide into heads. file: the source of the
    // options, for this message; NULL: the command line.
    ModelFacts (*facts)(const Options *options, const char *file);
    // Adds the parameters of the model that create() would make. A checkpoint is checked against
    // them before memory of its size is allocated.
    void (*add_parameters)(const ModelSetup *setup, ParameterTable *table);
    // Returns the libraries and instruction sets of the build as lines for --version
    // (options_set_build), allocated. `processes`: the library of ranks.h, or NULL.
    char *(*build)(const char *processes);
    // Exits with an error if the options contradict each other (heads that do not divide channels).
    void *(*create)(const ModelSetup *setup);
    void (*destroy)(void *model);
    void (*device)(const void *model, DeviceInfo *info);
    // Adds rows, in addition to the options, that describe the model (resolved windows), for the
    // start message and the metadata; NULL: none.
    void (*describe)(const void *model, Metadata **rows, int *count);
    char *(*memory)(const void *model); // description of its memory use, allocated; NULL: unknown
    // FLOP of matrix products, forward and backward. targets: per token; only targets have logits.
    double (*flops_per_token)(const void *model, int64_t length, double targets);

    // Returns the bytes that decoding stores for a text of `tokens` tokens; NULL: cannot decode.
    double (*state_bytes)(const void *model, int64_t tokens);

    const ParameterTable *(*parameters)(const void *model);
    void (*read)(const void *model, ModelArray which, real *out); // (total) copies out
    void (*write)(void *model, ModelArray which, const real *in); // (total) copies in
    // Returns the model's own array (total), padded to whole cache lines. The entry or its result
    // is NULL if the array is not entirely in host memory; use read() then.
    const real *(*view)(const void *model, ModelArray which);

    // forward() returns the sum of -log p over counted targets, without dropout. train() does the
    // same with dropout and adds `scale` times the gradient of that sum to the gradients.
    double (*forward)(void *model, const Batch *batch);
    // Returns how many targets of the last forward() were the most probable token, if its batch
    // had counts_correct.
    int64_t (*correct)(const void *model);
    // Returns -log p of each target of the last forward(), (B T), 0 if not counted; NULL: not kept.
    const real *(*token_losses)(const void *model);
    double (*train)(void *model, const Batch *batch, double scale);
    // Returns the loss of the last train() without label smoothing; NULL: no smoothing.
    double (*unsmoothed)(const void *model);
    // Computes all logits (B, T, V), without dropout.
    void (*logits)(void *model, const Batch *batch, real *logits);
    // A forward pass that measures the places in statistics.h; NULL: not supported.
    void (*statistics)(void *model, const Batch *batch, Statistics *s);
    // Sums the gradients over all ranks, after the last train() of each (Batch.last).
    void (*reduce)(void *model);
    double (*gradient_norm)(const void *model);                  // of the summed gradients
    void (*update)(void *model, const UpdateSettings *settings); // clears the gradients
    void (*clear_gradients)(void *model);

    // Decodes one token at a time for `streams` parallel texts, which start at position 0. decode()
    // takes one token per stream and writes the logits (streams, V) of the next; logits NULL: not
    // needed.
    void *(*decoder_create)(void *model, int streams);
    void (*decode)(void *decoder, const int32_t *tokens, real *logits);
    // Sets the position of the next token of each text, for texts longer than the number of
    // positions.
    void (*decoder_place)(void *decoder, int64_t position);
    void (*decoder_destroy)(void *decoder);

    // translator_create() returns a decoder for the source sentences of a batch, with `beams`
    // adjacent streams per sentence and texts of at most `positions` tokens. translator_select()
    // reorders its streams: stream i continues stream from[i]. The `beams` streams of a sentence
    // stay adjacent and sentences keep their order; a sentence without a selected stream is
    // dropped. Only one can exist at a time, because it uses the model's memory.
    void *(*translator_create)(void *model, const Batch *batch, int beams, int64_t positions);
    void (*translator_select)(void *decoder, const size_t *from, size_t count);

    const Exchange *exchange; // NULL: transformers has no equivalent class
};

// Returns an array (total) in host memory: the model's own, or *copy, which the caller frees.
const real *model_view(const ModelType *type, const void *model, ModelArray which, real **copy);

// Returns the checksum of an array's bits (checksum.h), to check that two runs computed the same.
uint64_t model_checksum(const ModelType *type, const void *model, ModelArray which);

#endif
