// Masked tokens (Devlin et al. 2019): the model predicts 15% of the tokens of each sequence of
// running text from all the others. Of these, 80% are replaced by the mask token, 10% by a random
// token, and 10% are kept. In training, each pass over the data hides different tokens, chosen by
// the seed and the number of sequences since the start; validation and test always hide the same
// ones.
#ifndef TASKS_MASKED_H
#define TASKS_MASKED_H

#include "json.h"
#include "real.h"
#include "task.h"

#define MASKED_SHARE 0.15

extern const TaskType task_masked;

// Prints the five most probable tokens for each "[MASK]" in a text.
void fill(Run *run);

// Returns the tokens that fill() reads from a text, newly allocated.
int32_t *fill_encode(const Run *run, const char *text, size_t *count);

// Writes the best guesses of a row of logits (vocabulary): [{"token": " the", "probability": 0.5},
// ...].
void fill_write_best(const Dataset *dataset, const real *logits, size_t vocabulary, JsonWriter *w);

#endif
