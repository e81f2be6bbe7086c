// Tokenized text: the shards of a directory, checked, or the corpus embedded in the program.
//
// DIR holds train_*.bin, val_*.bin, test_*.bin (shard.h), meta.json and the tokenizer. Without a
// meta.json (shards made by llm.c's scripts, also named tiny_shakespeare_train.bin and the like)
// the vocabulary is the one of GPT-2, or of Llama 3 where the shards say so, and gpt2_tokenizer.bin
// or tokenizer.json decodes, if it exists. data/README.md describes it all.
#ifndef DATASET_H
#define DATASET_H

#include "recall.h"
#include "shard.h"
#include "tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *name; // of split_name()
    Shard *shards;
    int shard_count;
    int64_t *first; // (shard_count + 1) tokens before each shard
    int64_t tokens; // in all shards; of generated sequences, their number
    // Counted in the text by the tokenizer program; 0: unknown. A word as the WikiText papers
    // count: white-space separated, plus one for the end of each line.
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
    int32_t mask;         // token that hides another one; -1: none
    int32_t end;          // precedes a text's first token when it is evaluated; -1: none
    Recall recall;        // its sequences are generated, there are no splits; or RECALL_NONE
    bool paired; // a split is source, end, target, end of one pair of sentences after the other
} Dataset;

// Opens DIR (NULL: the embedded corpus, with a BPE of 1,024 tokens trained on it) and checks
// headers, sizes and meta.json. Tokens are checked against the vocabulary where they are read. A
// missing val or test split is empty, and so is one of a single token without an `end` before it
// (with a warning); a missing train split ends the program. A name
// "recall:KIND" is no directory: its sequences are generated (recall.h).
Dataset *dataset_open(const char *directory);

// Checks all tokens now, so that no run ends hours later at one of them, and finds checksums and
// padding of shards: of every shard whose number, counted over all splits, is `part` modulo
// `parts`. Ends the program if meta.json has another checksum.
void dataset_check(const Dataset *dataset, int part, int parts);
void dataset_close(Dataset *dataset);

// Without splits: what the tokens of a tokenizer mean, which it takes over.
Dataset *dataset_of_tokenizer(const char *name, Tokenizer *tokenizer);

// How many tokens of a split are padding, which dataset_check() finds.
int64_t split_paddings(const Split *split);

// The checksums of a split's shards, in hexadecimal, with a blank between them, fresh.
char *split_checksums(const Split *split);

// Ends the program where there is no tokenizer, so that no text can be `used`: "read", "written".
void dataset_need_tokenizer(const Dataset *dataset, const char *used);

// Puts a text in the place of a split, as ./tokenize would make it. What the tokenizer puts before
// a text replaces `end` where there is none. Ends the program where there is no tokenizer, and
// where the text (`name`) has no token.
void dataset_take_text(Dataset *dataset, SplitName split, const char *name, Text text);

// The split whose shard a file of that name is; -1: none. One of the words, joined by '_', before
// ".bin" names it; the last one where there are several.
int dataset_split_of(const char *file_name);

// Tokens start .. start+count-1 of a split to out (count), across shards; and token i, 0 <= i <
// tokens.
void split_copy(const Split *split, int64_t start, int64_t count, int32_t *out);
int32_t split_token(const Split *split, int64_t i);

// Training walks each epoch in a shuffled order of sequences.
//
//   moving   All shards are one text, whose end its beginning follows. Sequence j of ceil(tokens /
//   T)
//            covers tokens o + j*T .. o + j*T+T, where the offset o is another one each epoch:
//            every token is a target, the last sequence's up to T-1 tokens that are the first one's
//            too.
//   fixed    Sequence j of a shard covers tokens j*T .. j*T+T, its last one being the next
//   sequence's
//            first input; the tail that does not fill a sequence is left out.
//
// A split without a single sequence ends the program.
typedef struct Loader Loader;
Loader *loader_create(const Split *split, int64_t length, uint64_t seed, bool moving);
void loader_free(Loader *loader);
int64_t loader_sequences(const Loader *loader); // in an epoch
int64_t loader_left_out(const Loader *loader);  // tokens that are in no sequence of any epoch

// The n-th sequence since the start of training (epoch n / sequences), so that the loader's whole
// place is n. inputs, targets (T).
void loader_sequence(Loader *loader, int64_t n, int32_t *inputs, int32_t *targets);

// Evaluation walks a split in order, every token a target once: block j predicts tokens j*T ..
// j*T+T-1 from tokens j*T-1 .. j*T+T-2, `end` standing before token 0 (without one, token 0 is not
// counted: input token 0, target -1). inputs, targets (T). Returns the length of block j: T, less
// for the last one, 0 beyond it; what is left of the rows is input 0, target -1.
int64_t split_block(const Split *split, int64_t length, int64_t j, int32_t end, int32_t *inputs,
                    int32_t *targets);

#endif
