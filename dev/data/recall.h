// Generated sequences that test how much of its context a model can recall. They need no files,
// only a seed. The data set name "recall:KIND" selects them (dataset.h).
//
//   pairs=N    Multi-query associative recall as in Zoology (Arora et al., 2023): N keys, each
//              followed by its value; then the keys again, between random tokens. The target at
//              each repeated key is its value. pairs=A-B: A, 2A, 4A, .. or B pairs per sequence.
//              pairs=N,vocab=V: V tokens (default 8192), half of them keys. Smaller vocabularies
//              are learnt sooner.
//   passkey    Random tokens with one key between two marks. The target at the end, after the
//              question, is the key. passkey=P: the key is at P percent of the sequence.
//   copy       Random tokens, a mark, and the same tokens again, which are the targets.
//   parity     Zeros and ones. Each target is 1 if the number of ones so far is odd.
#ifndef DATA_RECALL_H
#define DATA_RECALL_H

#include "random.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { RECALL_NONE, RECALL_PAIRS, RECALL_PASSKEY, RECALL_COPY, RECALL_PARITY } RecallKind;

typedef struct {
    RecallKind kind;
    int64_t first, last; // pairs per sequence; passkey: percent (first -1: random position)
    int32_t vocabulary;  // pairs only
} Recall;

enum { RECALL_EPOCH = 100000, RECALL_EVALUATION = 1024 }; // sequences

// Returns whether a data set of this name is generated.
bool recall_named(const char *name);

// Parses a name. Exits with an error if it is invalid.
Recall recall_parse(const char *name);

int32_t recall_vocabulary(const Recall *recall);

// Exits with an error if sequences of `length` tokens are too short.
void recall_check_length(const Recall *recall, int64_t length);

// Generates sequence n of a split, which depends only on the seed, the split (0: training) and n:
// inputs and targets (length), with target -1 at positions that are not counted. Returns the number
// of targets.
int64_t recall_sequence(const Recall *recall, uint64_t seed, uint32_t split, uint64_t n,
                        int64_t length, int32_t *inputs, int32_t *targets);

#endif
