// Masked tokens (Devlin et al. 2019): running text in which 15% of each sequence's tokens are to be
// predicted from all the others. Of these, 80% are replaced by the mask token, 10% by a random one,
// and 10% stay. In training each pass over the data hides others, by seed and the sequence's place
// since the start; in validation and test they are always the same.
#ifndef TASKS_MASKED_H
#define TASKS_MASKED_H

#include "json.h"
#include "real.h"
#include "task.h"

#define MASKED_SHARE 0.15

extern const TaskType task_masked;

// Prints, for each "[MASK]" in a text, the five most probable tokens.
void fill(Run *run);

// The tokens that fill() reads of a text, fresh.
int32_t *fill_encode(const Run *run, const char *text, size_t *count);

// Writes what a row of logits (vocabulary) guesses: [{"token": " the", "probability": 0.5}, ...].
void fill_write_best(const Dataset *dataset, const real *logits, size_t vocabulary, JsonWriter *w);

#endif
