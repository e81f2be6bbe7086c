// The data of a run: those of --input, or those that a checkpoint names. The checkpoint's metadata
// hold the path of the data (`data`: an absolute path, or "embedded"), the kind of tokenizer, an id
// of its vocabulary, and the special tokens. The tokenizer's files are next to it.
#ifndef TRAINER_RUN_DATA_H
#define TRAINER_RUN_DATA_H

#include "dataset.h"
#include "metadata.h"
#include "options.h"
#include "safetensors.h"

// weights: the run's initial weights; NULL: none. Without --input they name the data to open.
// only_text: the run only reads and writes text, so the tokenizer suffices. Exits with an error if
// the data or the tokenizer are missing, or if the weights were trained with another tokenizer.
Dataset *run_data_open(const Options *options, const Safetensors *weights, bool only_text);

// Returns advice for data whose tokenizer is not that of the weights, newly allocated: how to make
// data with the tokenizer of the weights.
char *run_data_advice(const Safetensors *weights, const Dataset *dataset);

// Replaces a split by the text of a file, or of standard input ("-"). Exits with an error if there
// is no such file.
void run_data_take_text(Dataset *dataset, SplitName split, const char *path);

// Sets --input, if it was not given, to the name of the data, which the log then records.
void run_data_tell(Options *options, const Dataset *dataset);

// Exits with an error if the weights were trained with another tokenizer.
void run_data_check_tokenizer(const Safetensors *weights, const Dataset *dataset);

// Return the tokens of each split and the size of the vocabulary in words, newly allocated: rounded
// and with the name of the data, for a person; exactly.
char *run_data_in_short(const Dataset *dataset);
char *run_data_sizes(const Dataset *dataset);

// Adds the metadata of a checkpoint that describe the data.
void run_data_describe(const Dataset *dataset, Metadata **rows, int *count);

// Adds the metadata of a state that describe the shards, for run_data_check_unchanged().
void run_data_describe_shards(const Dataset *dataset, Metadata **rows, int *count);

// Compares the data with those of a state. If they have changed, exits with an error, unless
// --input names them: then prints a warning. The checksums of the shards must be known.
void run_data_check_unchanged(const Options *options, const Safetensors *state,
                              const Dataset *dataset);

// Returns an id of the validation split, from its checksums, newly allocated: losses on different
// splits are not comparable.
char *run_data_validation_id(const Dataset *dataset);

// Exits with an error if run_data_save_tokenizer would replace the tokenizer of another data set.
void run_data_check_output(const Dataset *dataset, const char *directory);

// Saves the tokenizer next to the checkpoints.
void run_data_save_tokenizer(const Dataset *dataset, const char *directory);

#endif
