// Beam search: the most probable translations that a model decodes, of many sentences side by side.
//
// In each step the 2 * beams best continuations of a sentence's live hypotheses by their log p are
// considered, best first. One that ends is finished, with score log p / length^alpha (its end
// counted), if it is among the best `beams`; the best `beams` others live on. A sentence is done
// when `beams` or more are finished and the best finished score is at least the best live log p /
// longest^alpha, or after its `longest` tokens; only if nothing is finished then, live ones count.
// With one beam the search is greedy: the most probable token, until it is the end. Sequences that
// are never written are no continuations, and count in the softmax. Where an end is forced, it is
// the last of the `longest` tokens and costs nothing.
#ifndef TASKS_BEAM_H
#define TASKS_BEAM_H

#include "generation.h"
#include "memory.h"
#include "model.h"

typedef struct {
    int beams, best; // hypotheses per sentence; how many of them are returned, at least 1
    double alpha;
    const TokenList *bad; // (bad_count) sequences that are never written
    size_t bad_count;
    bool forces_end;
    int64_t vocabulary;     // V
    int32_t start, end;     // token that the decoder reads first; that ends a translation
    const int64_t *longest; // (B) tokens of each translation at most, 1 or more, the end counted
} BeamSettings;

typedef struct {
    int32_t *tokens; // (count) with the end where there is one; fresh
    size_t count;
    double score;
} Hypothesis;

// best (batch->batch, settings->best): those of each sentence on the source side of the batch, the
// best first, without tokens where fewer were finished. `logits`: memory for one search after the
// other.
void beam_search(const ModelType *type, void *model, const BeamSettings *settings,
                 const Batch *batch, Room *logits, Hypothesis *best);

#endif
