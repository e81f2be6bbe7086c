// Pairs of sentences, a line each of two texts: what a translator learns from.
#ifndef TEXT_PAIRS_H
#define TEXT_PAIRS_H

#include "bytes.h"
#include "text.h"
#include <stdint.h>

typedef struct {
    const char *name; // of its file
    Text text;        // one sentence per line (text_sentence)
} PairSide;

typedef struct {
    Bytes text;          // source, end, target, end of each pair
    TextCounts counts;   // of the sentences in it, each with a newline
    int64_t pairs;       // in it
    int64_t left_out;    // whose source or target is empty, and
    int64_t first_empty; // number of the line of the first of these
} Pairs;

// Line i of one text and line i of the other are a pair; `end` (no line holds it) follows each of
// them in the place of the newline. Ends the program, naming the line, where one text has a line
// more or a line holds the end; and where no pair is left.
Pairs pairs_join(PairSide source, PairSide target, const char *end);

#endif
