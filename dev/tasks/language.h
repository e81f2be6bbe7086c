// Next-token prediction on running text: the task of a causal language model.
#ifndef TASKS_LANGUAGE_H
#define TASKS_LANGUAGE_H

#include "task.h"

extern const TaskType task_language;

// Writes --samples texts of --sample-tokens tokens after a prompt: --prompt's ("-": standard
// input, where one types on if it is a terminal) or --prompt-file's. One text is printed as it
// comes. Standard error says why a text ended early, and the seed: another one each time unless
// --seed is given.
void generate(Run *run);

// A text from nothing, after a step of training, with the run's seed.
void generate_sample(const Run *run, int64_t step);

// A text of --sample-tokens tokens from nothing, fresh; NULL: the data have no tokenizer, or no
// token that precedes a text. number: which of such texts it is.
char *sample_text(const Run *run, uint32_t number);

#endif
