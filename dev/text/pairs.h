// Pairs of sentences from the lines of two texts: training data of translation models.
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
    int64_t pairs;       // number of pairs in it
    int64_t left_out;    // pairs left out because source or target is empty
    int64_t first_empty; // line number of the first of these
} Pairs;

// Pairs line i of one text with line i of the other. `end`, which no line may contain, replaces the
// newline after each. Exits with an error, naming the line, if one text has more lines or a line
// contains `end`. Also exits with an error if no pair is left.
Pairs pairs_join(PairSide source, PairSide target, const char *end);

#endif
