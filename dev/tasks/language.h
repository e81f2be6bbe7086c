// Next-token prediction on running text: the task of a causal language model.
#ifndef TASKS_LANGUAGE_H
#define TASKS_LANGUAGE_H

#include "task.h"

extern const TaskType task_language;

// Writes --samples texts of --sample-tokens tokens that continue a prompt: --prompt's ("-":
// standard input, interactive on a terminal) or --prompt-file's. A single text is printed as it is
// generated. Standard error shows why a text ended early, and the seed, which is random unless
// --seed is given.
void generate(Run *run);

// Writes a text without a prompt, after a training step, with the run's seed.
void generate_sample(const Run *run, int64_t step);

// Returns a text of --sample-tokens tokens without a prompt, newly allocated; NULL if the data have
// no tokenizer or no token that precedes a text. `number` selects one of these texts.
char *sample_text(const Run *run, uint32_t number);

#endif
