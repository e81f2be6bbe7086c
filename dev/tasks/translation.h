// Translation: pairs of sentences, of which the second is predicted, one token after the other,
// from the first and from the tokens before. The model reads the source with its end; the decoder
// begins with the padding token and predicts the target with its end.
//
// A batch holds pairs of like length, padded to the longest, at most --batch-tokens positions on a
// side. Each epoch deals pairs of one length again among the batches of that length, and shuffles
// the batches, by seed and epoch alone. Evaluation takes them in one order for all runs, which is
// not that of lengths. A pair with a sentence longer than --max-length is left out.
#ifndef TASKS_TRANSLATION_H
#define TASKS_TRANSLATION_H

#include "beam.h"
#include "task.h"
#include "text.h"

extern const TaskType task_translation;

// Translates standard input line by line to standard output: --beam, --nbest, --alpha, --longest.
// An empty line stays one. From a terminal each line is answered at once; else lines of like length
// are translated together.
void translate_lines(Run *run);

// Translates one sentence likewise: its best translation, and the tokens that the model read of it,
// both fresh; both none where it is empty.
Hypothesis translate_text(const Run *run, Text text, TokenList *source);

// --show-attention TEXT: translates it, and prints what the decoder drew on for each token that it
// wrote (attention_view_print).
void show_translation_attention(Run *run);

#endif
