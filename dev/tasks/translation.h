// Translation: the model predicts the second sentence of each pair, one token after the other, from
// the first sentence and from the tokens before. It reads the source with its end token; the
// decoder begins with the padding token and predicts the target with its end token.
//
// A batch holds pairs of similar length, padded to the longest, with at most --batch-tokens
// positions on each side. Each epoch redistributes pairs of one length among the batches of that
// length and shuffles the batches, by seed and epoch alone. Evaluation uses one order for all runs,
// which is not sorted by length. A pair with a sentence longer than --max-length is left out.
#ifndef TASKS_TRANSLATION_H
#define TASKS_TRANSLATION_H

#include "beam.h"
#include "task.h"
#include "text.h"

extern const TaskType task_translation;

// Translates standard input line by line to standard output: --beam, --nbest, --alpha, --longest.
// An empty line stays empty. On a terminal each line is translated at once; otherwise lines of
// similar length are translated together.
void translate_lines(Run *run);

// Translates one sentence in the same way. Returns its best translation, and in `source` the tokens
// that the model read; both are newly allocated, and empty if the sentence is empty.
Hypothesis translate_text(const Run *run, Text text, TokenList *source);

// --show-attention TEXT: translates TEXT, and prints what the decoder draws on for each token that
// it writes (attention_view_print).
void show_translation_attention(Run *run);

#endif
