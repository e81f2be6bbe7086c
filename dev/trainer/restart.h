// A run that saved no checkpoint (killed before its first save, a full disk, removed files) begins
// again as its log says. The log of the attempt before is kept as DIR/log.jsonl.before until this
// one has got as far.
#ifndef TRAINER_RESTART_H
#define TRAINER_RESTART_H

#include "dataset.h"
#include "model.h"
#include "options.h"

// The log in DIR, or of the attempt before, whose "start" event says what the run was; a fresh
// path. NULL: there is none.
char *restart_find_log(const char *directory);

// Takes over data, weights to begin with and options from that event (options_from_log_event). Ends
// the program where the log is of another type of model.
void restart_options(const char *log, Options *options, const ModelType *type);

// Ends the program unless the data have the sizes that the log says, and the tokenizer that the
// best weights in DIR were trained with.
void restart_check_data(const char *log, const char *directory, const Dataset *dataset);

// Keeps the log in DIR under the other name, unless a longer one has it.
void restart_keep_log(const char *directory);

// Removes the log kept, if it got no further than `step`.
void restart_forget_log(const char *directory, int64_t step);

#endif
