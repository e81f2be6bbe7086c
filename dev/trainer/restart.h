// A run that saved no checkpoint (killed before its first save, a full disk, removed files) starts
// over with the options in its log. The log of the earlier attempt is kept as DIR/log.jsonl.before
// until the new one has reached the same step.
#ifndef TRAINER_RESTART_H
#define TRAINER_RESTART_H

#include "dataset.h"
#include "model.h"
#include "options.h"

// Returns the path, newly allocated, of the log in DIR, or of that of the earlier attempt, whose
// "start" event describes the run; NULL if there is none.
char *restart_find_log(const char *directory);

// Takes data, initial weights and options from that event (options_from_log_event). Exits with an
// error if the log is of another type of model.
void restart_options(const char *log, Options *options, const ModelType *type);

// Exits with an error unless the data have the sizes and the validation id in the log, and the
// tokenizer that the best weights in DIR were trained with.
void restart_check_data(const char *log, const char *directory, const Dataset *dataset);

// Renames the log in DIR to log.jsonl.before, unless one that got as far is there already.
void restart_keep_log(const char *directory);

// Removes the kept log if it got no further than `step`.
void restart_forget_log(const char *directory, int64_t step);

#endif
