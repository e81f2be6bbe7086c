// Recipes by name: each is a file of options in scripts/presets/, which --config reads, too, and
// which is inside the programs. --preset names one; new models on data of their own get one by the
// task's rule (TaskType.preset).
#ifndef TRAINER_PRESETS_H
#define TRAINER_PRESETS_H

#include "options.h"
#include "task.h"

// Ends the program where --preset names one for weights that exist, which have their shape.
void preset_refuse(const Options *options, const TaskType *task);

// Takes the options of --preset, or of the one that the rule chooses. Options that the user gave
// stay. Nothing where the task has no presets.
void preset_apply(Options *options, const TaskType *task, const Dataset *dataset);

#endif
