// How the training loop reaches a model, whichever it is and wherever it runs.
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

// What create() needs to know in addition to the options.
typedef struct {
    const ModelType *type;
    const Options *options; // the model's own rows among them
    int64_t batch, length;  // largest B and T of a batch to come; 0: only decoding
    int64_t rows;           // most positions of a batch, where that is less than B T; else 0
    int64_t positions;      // rows of the position embedding, at least `length`
    int64_t vocabulary;     // V
    int32_t padding_token;  // its embedding takes no gradient from the lookup; -1: none
    int32_t end_token;      // that ends a text or a sentence; -1: none
    bool training;          // false: no gradients, no optimiser
    bool float32;           // products in float32, whatever --precision says
    Profile *profile;       // train() books its laps here; NULL: disabled
    Ranks *ranks;           // who trains it together; NULL: this process alone
    // Told by create() what memory it is about to take; NULL: not needed.
    void (*say_size)(const char *model, size_t parameters, size_t bytes);
} ModelSetup;

typedef struct {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; // clipping
    int64_t step;          // 1 for the first update
    bool adam;             // weight decay is a part of the gradient, as in Adam with an L2 penalty
} UpdateSettings;

typedef enum { MODEL_VALUES, MODEL_GRADIENTS, MODEL_FIRST_MOMENT, MODEL_SECOND_MOMENT } ModelArray;

// What it runs on.
typedef struct {
    char processor[128], library[128]; // "AMD EPYC ...", "oneDNN 3.2"
    const char *precision;             // "float32", "bfloat16"
    int threads;
    bool on_gpu;       // which the process waits for, whoever has the processor
    double peak_flops; // measured on a large GEMM in that precision, FLOP/s
} DeviceInfo;

// The same model as a class of Hugging Face transformers (huggingface.h).
typedef struct {
    const char *model_type; // in config.json: "gpt2"
    // Another class that the model may be, and whether it is; NULL.
    const char *other_type;
    bool (*is_other)(const void *model);
    // The class itself, where transformers has none: a file next to config.json; NULL.
    const char *code_name;
    Text (*code)(void);
    // Checks config.json, which `source` names, and adds what our metadata would say.
    void (*read_config)(const Json *config, const char *source, Metadata **rows, int *count);
    // Our name of one of their tensors, fresh; NULL: it is no weight. Tensors of one name must be
    // equal. The file's metadata are ours already.
    char *(*tensor_name)(const char *theirs, const Safetensors *file);
    // Adds members to the config.json that is open in w; false: there is no such class for this
    // model.
    bool (*write_config)(const void *model, JsonWriter *w);
} Exchange;

// What others than the model itself need to know of its options.
typedef struct {
    int64_t channels, heads; // C, H
    double dropout;          // a probability
} ModelFacts;

struct ModelType {
    const char *name;      // "fastformer"
    const char *program;   // "train_fastformer"
    const TaskType *task;  // what it learns (task.h)
    const Option *options; // rows the model adds
    int option_count;
    OptionName lower[2];                       // those that make it smaller: channels, layers
    const struct TransformerType *transformer; // its plan and its way through blocks

    const char
        *position_embedding; // name of the parameter (positions, C) that is looked up; NULL: none
    // Whose metadata say more of positions than n_positions: rewrites them where these become more;
    // NULL.
    void (*extend)(Safetensors *file, int64_t positions);
    // Ends the program where the channels do not divide into heads; file: where the options are
    // from, for that message, NULL: the command line.
    ModelFacts (*facts)(const Options *options, const char *file);
    // Adds the parameters of the model that create() would make: what a checkpoint is checked
    // against before anything of its size is allocated.
    void (*add_parameters)(const ModelSetup *setup, ParameterTable *table);
    // Libraries and instructions that it was built with, as lines of --version
    // (options_set_build), fresh; `processes` names the library of ranks.h, or is NULL.
    char *(*build)(const char *processes);
    // Both end the program where the options contradict each other (heads that do not divide
    // channels).
    void *(*create)(const ModelSetup *setup);
    void (*destroy)(void *model);
    void (*device)(const void *model, DeviceInfo *info);
    // Rows, next to the options, that describe what was built (resolved windows): shown at the
    // start, and metadata; NULL: nothing.
    void (*describe)(const void *model, Metadata **rows, int *count);
    char *(*memory)(const void *model); // what it takes, in words (fresh); NULL: it does not say
    // Of matrix products, forward and backward; targets: per token, as only they have logits.
    double (*flops_per_token)(const void *model, int64_t length, double targets);

    // Bytes that decoding keeps of a text of so many tokens; NULL: it does not decode.
    double (*state_bytes)(const void *model, int64_t tokens);

    const ParameterTable *(*parameters)(const void *model);
    void (*read)(const void *model, ModelArray which, real *out); // (total) copies out
    void (*write)(void *model, ModelArray which, const real *in); // (total) copies in
    // (total) where the model keeps them, in whole cache lines; NULL, or the entry is: not all of
    // them are in this memory, so they are read().
    const real *(*view)(const void *model, ModelArray which);

    // Sum over counted targets of -log p. forward() drops nothing out; train() does, and adds
    // `scale` times the gradient of that sum to the gradients.
    double (*forward)(void *model, const Batch *batch);
    // Targets of the last forward() that were the most probable token, where its batch asked for
    // that.
    int64_t (*correct)(const void *model);
    // (B T) -log p of each target of the last forward(), 0 where none is counted; NULL: the model
    // does not keep them.
    const real *(*token_losses)(const void *model);
    double (*train)(void *model, const Batch *batch, double scale);
    // What the last train() would have returned without label smoothing; NULL: the model does not
    // smooth.
    double (*unsmoothed)(const void *model);
    // (B, T, V) all at once, nothing dropped out
    void (*logits)(void *model, const Batch *batch, real *logits);
    // A forward pass that measures what statistics.h lists; NULL: the model cannot.
    void (*statistics)(void *model, const Batch *batch, Statistics *s);
    // Sums the gradients over all ranks, those of each after its last train() (Batch.last).
    void (*reduce)(void *model);
    double (*gradient_norm)(const void *model);                  // of the sums
    void (*update)(void *model, const UpdateSettings *settings); // clears the gradients
    void (*clear_gradients)(void *model);

    // Decoding one token at a time for `streams` texts side by side, all at position 0 after
    // create. decode() takes one token per stream and writes the logits (streams, V) of the next;
    // logits NULL: not needed.
    void *(*decoder_create)(void *model, int streams);
    void (*decode)(void *decoder, const int32_t *tokens, real *logits);
    // The next token of each text has this position, the later ones follow; for texts longer than
    // the number of positions.
    void (*decoder_place)(void *decoder, int64_t position);
    void (*decoder_destroy)(void *decoder);

    // Translating: a decoder for the sentences on the source side of a batch, `beams` streams for
    // each, side by side, whose texts have at most `positions` tokens. Its streams can be selected
    // again: stream i continues where stream from[i] is, `beams` of one sentence next to each other
    // and sentences in the order they had; those of which no stream is taken are dropped. One at a
    // time: its memory is the model's.
    void *(*translator_create)(void *model, const Batch *batch, int beams, int64_t positions);
    void (*translator_select)(void *decoder, const size_t *from, size_t count);

    const Exchange *exchange; // NULL: transformers has no such class
};

// An array (total) in this memory: the model's own, or a copy, *copy, which is to be freed.
const real *model_view(const ModelType *type, const void *model, ModelArray which, real **copy);

// Of its bits (checksum.h): whether two machines, or a step and its repetition, computed the same.
uint64_t model_checksum(const ModelType *type, const void *model, ModelArray which);

#endif
