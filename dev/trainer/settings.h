// Finds settings that cannot have their apparent effect, before the first step.
#ifndef TRAINER_SETTINGS_H
#define TRAINER_SETTINGS_H

#include "run.h"
#include "schedule.h"

// Prints a warning for each combination of options that works but is hardly intended: a rate that
// is never reached or far too small or large, options without effect, a vocabulary larger than the
// text. Exits with an error if --patience has no validation split. steps: planned; 0: --minutes
// limits the run.
void settings_check(const Run *run, const Schedule *schedule, int64_t steps);

// Exits with an error if the disk of --output has no room for the checkpoints that the run keeps,
// its best weights and its log. Otherwise returns both sizes in words, newly allocated.
char *settings_check_room(const Run *run, int64_t steps, double evaluations);

#endif
