// Generated sequences that test what a model can recall of its context: no data, only a seed. A
// data set of the name "recall:KIND" is made of them (dataset.h).
//
//   pairs=N    Multi-query associative recall as Zoology defines it (Arora et al., 2023): N keys,
//              each with a value after it; then the keys again, between random tokens. The target
//              after each of these is its value. pairs=A-B: A, 2A, 4A, .. or B in each sequence.
//              pairs=N,vocab=V: of V tokens (8192), half of them keys. Fewer are learnt sooner.
//   passkey    Random tokens, with one key between two marks. The target at the end, after the
//              question, is the key. passkey=P: it is P percent of the way to the end.
//   copy       Random tokens, a mark, and the same tokens again, which are the targets.
//   parity     Zeros and ones. Each target says whether the number of ones so far is odd.
#ifndef DATA_RECALL_H
#define DATA_RECALL_H

#include "random.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { RECALL_NONE, RECALL_PAIRS, RECALL_PASSKEY, RECALL_COPY, RECALL_PARITY } RecallKind;

typedef struct {
    RecallKind kind;
    int64_t first, last; // pairs of a sequence; passkey: percent, first -1: any
    int32_t vocabulary;  // of pairs
} Recall;

enum { RECALL_EPOCH = 100000, RECALL_EVALUATION = 1024 }; // sequences

// Whether a data set of this name is generated.
bool recall_named(const char *name);

// What the name asks for; anything else ends the program.
Recall recall_parse(const char *name);

int32_t recall_vocabulary(const Recall *recall);

// Ends the program where sequences of `length` tokens have no room for it.
void recall_check_length(const Recall *recall, int64_t length);

// Sequence n of a split, a function of the seed, the split (0: training) and n: inputs and targets
// (length), -1 where nothing is asked. Returns the number of targets.
int64_t recall_sequence(const Recall *recall, uint64_t seed, uint32_t split, uint64_t n,
                        int64_t length, int32_t *inputs, int32_t *targets);

#endif
