#include "presets.h"

#include "embed.h"
#include "error.h"
#include <string.h>

EMBED(preset_tiny, "scripts/presets/tiny.json");
EMBED(preset_small, "scripts/presets/small.json");
EMBED(preset_hybrid, "scripts/presets/hybrid.json");
EMBED(preset_long, "scripts/presets/long.json");

typedef struct {
    const char *name;
    Text text;
} Preset;

// The published recipe is the defaults, so it needs no file.
static void take(Options *options, const char *name) {
    const Preset presets[] = {{"tiny", EMBEDDED(preset_tiny)},
                              {"small", EMBEDDED(preset_small)},
                              {"hybrid", EMBEDDED(preset_hybrid)},
                              {"long", EMBEDDED(preset_long)}};
    for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++)
        if (strcmp(presets[i].name, name) == 0)
            options_take_json(options, presets[i].text, "--preset");
}

void preset_refuse(const Options *options, const TaskType *task) {
    const char *name = task->preset ? options_text(options, OPT_PRESET) : "auto";
    if (strcmp(name, "auto") != 0 && strcmp(name, "published") != 0)
        fail_usage("--preset %s: is for new models, not for the weights of -e", name);
}

void preset_apply(Options *options, const TaskType *task, const Dataset *dataset) {
    if (!task->preset) return;
    const bool automatic = strcmp(options_text(options, OPT_PRESET), "auto") == 0;
    if (automatic && options_text(options, OPT_CONFIG)) return; // which sets everything
    if (automatic) options_set(options, OPT_PRESET, task->preset(dataset), "--preset");
    take(options, options_text(options, OPT_PRESET));
}
