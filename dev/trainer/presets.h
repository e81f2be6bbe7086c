// Recipes by name. Each is a file of options in scripts/presets/, which --config can read and which
// is embedded in the programs. --preset names one; new models on users' own data get one by the
// task's rule (TaskType.preset).
#ifndef TRAINER_PRESETS_H
#define TRAINER_PRESETS_H

#include "options.h"
#include "task.h"

// Exits with an error if --preset names a recipe for existing weights, whose shape is fixed.
void preset_refuse(const Options *options, const TaskType *task);

// Applies the options of --preset, or of the recipe that the rule chooses. Options that the user
// gave are kept. Does nothing if the task has no presets.
void preset_apply(Options *options, const TaskType *task, const Dataset *dataset);

#endif
