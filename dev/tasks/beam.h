// Beam search: finds the most probable translations of many sentences side by side.
//
// Each step considers the 2 * beams best continuations, by log p, of a sentence's live hypotheses,
// best first. A continuation that ends is finished, with score log p / length^alpha (the end
// counts), if it is among the best `beams`; the best `beams` others stay live. A sentence is done
// when at least `beams` hypotheses are finished and the best finished score is at least the best
// live log p / longest^alpha, or after its `longest` tokens. Live hypotheses count only if nothing
// is finished by then. With one beam the search is greedy: it takes the most probable token until
// that is the end. Forbidden sequences are never continuations, but count in the softmax. If the
// end is forced, it is the last of the `longest` tokens and costs nothing.
#ifndef TASKS_BEAM_H
#define TASKS_BEAM_H

#include "generation.h"
#include "memory.h"
#include "model.h"

typedef struct {
    int beams, best; // hypotheses per sentence; how many of them to return, at least 1
    double alpha;
    const TokenList *bad; // (bad_count) forbidden sequences
    size_t bad_count;
    bool forces_end;
    int64_t vocabulary;     // V
    int32_t start, end;     // the decoder's first input; the token that ends a translation
    const int64_t *longest; // (B) most tokens of each translation, including the end; at least 1
} BeamSettings;

typedef struct {
    int32_t *tokens; // (count) with the end, if there is one; newly allocated
    size_t count;
    double score;
} Hypothesis;

// Stores the hypotheses of each sentence on the source side of the batch in best (batch->batch,
// settings->best), best first; if fewer were finished, the rest have no tokens. `logits` is memory
// that successive searches reuse.
void beam_search(const ModelType *type, void *model, const BeamSettings *settings,
                 const Batch *batch, Room *logits, Hypothesis *best);

#endif
