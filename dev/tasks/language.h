// Next-token prediction on running text: the task of a causal language model.
#ifndef TASKS_LANGUAGE_H
#define TASKS_LANGUAGE_H

#include "task.h"

extern const TaskType task_language;

// Continues `prompt` by --sample-tokens tokens and prints the text as it comes. number: which sample of the
// run it is.
void generate(const Run *run, const char *prompt, uint32_t number);

// A text of --sample-tokens tokens that begins anew, fresh; NULL: the data have no tokenizer, or nothing that
// stands before a text. number: as above.
char *sample_text(const Run *run, uint32_t number);

#endif
