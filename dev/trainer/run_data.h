// The data of a run: --input's, or those that a checkpoint names. Its metadata hold where the data
// were (`data`: an absolute path, or "embedded"), the kind of tokenizer, an id of its vocabulary,
// and the special tokens; the tokenizer's files are next to it.
#ifndef TRAINER_RUN_DATA_H
#define TRAINER_RUN_DATA_H

#include "dataset.h"
#include "metadata.h"
#include "options.h"
#include "safetensors.h"

// weights: what the run begins with; NULL: nothing. Without --input they say which data to open;
// who only reads and writes text needs no more than the tokenizer. Ends the program where data or
// tokenizer are not there, or the tokenizer is another one than the weights were trained with.
Dataset *run_data_open(const Options *options, const Safetensors *weights, bool only_text);

// What to do where data have another tokenizer than the weights: how to make data with theirs,
// fresh.
char *run_data_advice(const Safetensors *weights, const Dataset *dataset);

// Puts the text of a file, or of standard input ("-"), in the place of a split. Ends the program
// where there is no such file.
void run_data_take_text(Dataset *dataset, SplitName split, const char *path);

// Sets --input to the data of a run that did not name them, as its log says them.
void run_data_tell(Options *options, const Dataset *dataset);

// Ends the program if the weights were trained with another tokenizer of as many tokens.
void run_data_check_tokenizer(const Safetensors *weights, const Dataset *dataset);

// Tokens of each split and of the vocabulary, in words, fresh: with the name in short, for a
// person; exactly.
char *run_data_in_short(const Dataset *dataset);
char *run_data_sizes(const Dataset *dataset);

// Adds what a checkpoint says of the data.
void run_data_describe(const Dataset *dataset, Metadata **rows, int *count);

// Adds what a state says of the shards, for run_data_check_unchanged().
void run_data_describe_shards(const Dataset *dataset, Metadata **rows, int *count);

// Compares the data with those of a state. Where they have changed the program ends, unless --input
// names them: then a warning says what has changed. The checksums of shards must be known.
void run_data_check_unchanged(const Options *options, const Safetensors *state,
                              const Dataset *dataset);

// A name for the validation split, by its checksums, fresh: losses on another one do not compare.
char *run_data_validation_id(const Dataset *dataset);

// Puts the tokenizer next to the checkpoints.
void run_data_save_tokenizer(const Dataset *dataset, const char *directory);

#endif
