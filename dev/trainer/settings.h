// Settings that cannot do what they seem to, seen before the first step.
#ifndef TRAINER_SETTINGS_H
#define TRAINER_SETTINGS_H

#include "run.h"
#include "schedule.h"

// A line for each combination of options that works and is hardly meant: a rate that is never
// reached or far too small or large, options without effect, a vocabulary larger than the text.
// Ends the program where --patience can end nothing. steps: planned; 0: --minutes says when it
// ends.
void settings_check(const Run *run, const Schedule *schedule, int64_t steps);

// Ends the program where the disk of --output has no room for the checkpoints that the run keeps,
// its best weights and its log; else both sizes, in words, fresh.
char *settings_check_room(const Run *run, int64_t steps, double evaluations);

#endif
