// Tokenized text: the checked shards of a directory, or the corpus embedded in the program.
//
// DIR holds train_*.bin, val_*.bin, test_*.bin (shard.h), meta.json and the tokenizer. Without a
// meta.json (shards made by llm.c's scripts, with names such as tiny_shakespeare_train.bin) the
// vocabulary is that of GPT-2, or of Llama 3 if the shards have its magic number, and
// gpt2_tokenizer.bin or tokenizer.json is the tokenizer, if it exists. data/README.md describes the
// format.
#ifndef DATASET_H
#define DATASET_H

#include "recall.h"
#include "shard.h"
#include "tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *name; // split_name()
    Shard *shards;
    int shard_count;
    int64_t *first; // (shard_count + 1) tokens before each shard
    int64_t tokens; // in all shards; generated data: number of sequences
    // Counted in the text by ./tokenize; 0: unknown. Words are counted as in the WikiText papers:
    // separated by white space, plus one per line end.
    int64_t words, lines, bytes;
} Split;

typedef enum { SPLIT_TRAIN, SPLIT_VAL, SPLIT_TEST, SPLIT_COUNT } SplitName;

const char *split_name(int split); // "train", "val", "test"

typedef struct {
    char *name;    // the directory, or "embedded"
    bool embedded; // the corpus inside the program
    Split splits[SPLIT_COUNT];
    Tokenizer *tokenizer; // NULL: none in the directory
    int32_t vocabulary;   // V
    int32_t padding;      // padding token; -1: none
    int32_t mask;         // mask token; -1: none
    int32_t end;          // context of a text's first token in evaluation; -1: none
    Recall recall;        // generated sequences, without shards; RECALL_NONE: shards
    bool paired;          // a split is a list of sentence pairs: source, end, target, end
} Dataset;

// Opens DIR (NULL: the embedded corpus, with a BPE of 1,024 tokens trained on it) and checks
// headers, sizes and meta.json. Tokens are checked against the vocabulary when they are read. A
// missing val or test split is empty, and so is one of a single token if there is no `end` token
// (with a warning). Exits with an error if the train split is missing. The name "recall:KIND"
// stands for generated sequences (recall.h).
Dataset *dataset_open(const char *directory);

// Checks all tokens now, so that a bad one does not end a run hours later, and computes each
// shard's checksum and padding count. Covers every shard whose number, counted over all splits, is
// `part` modulo `parts`. Exits with an error if a checksum differs from that in meta.json.
void dataset_check(const Dataset *dataset, int part, int parts);

// Exits with an error if all tokens of a split are padding, so that none is a target. After
// dataset_check() of all parts.
void dataset_check_targets(const Dataset *dataset);
void dataset_close(Dataset *dataset);

// Returns a data set without splits that has the special tokens of `tokenizer`, which it then owns.
Dataset *dataset_of_tokenizer(const char *name, Tokenizer *tokenizer);

// Returns the number of padding tokens of a split, which dataset_check() counts.
int64_t split_paddings(const Split *split);

// Returns the checksums of a split's shards in hexadecimal, separated by spaces, allocated.
char *split_checksums(const Split *split);

// Exits with an error if there is no tokenizer, so that no text can be `used` ("read", "written").
void dataset_need_tokenizer(const Dataset *dataset, const char *used);

// Replaces a split by a text, encoded as ./tokenize would. A data set without an `end` takes the
// last token that the tokenizer puts before a text. Exits with an error if there is no tokenizer,
// or if the text (`name`) has no token to predict.
void dataset_take_text(Dataset *dataset, SplitName split, const char *name, Text text);

// Returns the split that a shard's file name belongs to; -1: none. The words before ".bin" are
// separated by '_', and the last one that is a split's name counts.
int dataset_split_of(const char *file_name);

// Copies tokens start .. start+count-1 of a split to out (count), across shards. split_token()
// returns token i, 0 <= i < tokens.
void split_copy(const Split *split, int64_t start, int64_t count, int32_t *out);
int32_t split_token(const Split *split, int64_t i);

// Training visits the sequences of each epoch in a shuffled order.
//
//   moving   All shards form one circular text. Sequence j of ceil(tokens / T) covers tokens
//            o + j*T .. o + j*T+T with a new offset o in each epoch. Every token is a target; up to
//            T-1 targets of the last sequence are also targets of the first one.
//   fixed    Sequence j of a shard covers tokens j*T .. j*T+T; its last token is the first input of
//            the next sequence. The tail that does not fill a sequence is left out.
//
// Exits with an error if the split has no sequence.
typedef struct Loader Loader;
Loader *loader_create(const Split *split, int64_t length, uint64_t seed, bool moving);
void loader_free(Loader *loader);
int64_t loader_sequences(const Loader *loader); // per epoch
int64_t loader_left_out(const Loader *loader);  // tokens that are in no sequence of any epoch

// Reads the n-th sequence since the start of training (epoch n / sequences) to inputs and targets
// (T). n is the whole state of the loader.
void loader_sequence(Loader *loader, int64_t n, int32_t *inputs, int32_t *targets);

// Evaluation reads a split in order, and every token is a target once: block j predicts tokens j*T
// .. j*T+T-1 from tokens j*T-1 .. j*T+T-2, with `end` before token 0 (without it token 0 is not
// counted: input token 0, target -1). inputs, targets (T). Returns the length of block j: T, less
// for the last block, 0 after it. The rest of the rows is filled with input 0, target -1.
int64_t split_block(const Split *split, int64_t length, int64_t j, int32_t end, int32_t *inputs,
                    int32_t *targets);

#endif
