#include "train.h"

#include "checkpoint.h"
#include "error.h"
#include "huggingface.h"
#include "memory.h"
#include "stop.h"
#include "streams.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What the user asked for instead of training; NULL: nothing of the kind.
static const Action *find_action(const Options *options, const TaskType *task) {
    for (int i = 0; i < task->action_count; i++)
        if (options_given(options, task->actions[i].option)) return &task->actions[i];
    return NULL;
}

// The weights to begin with: a path (fresh) or NULL, and the file beside them that a resumed run needs.
static char *find_weights(const Options *options, bool trains, char **state) {
    const char *output = options_text(options, "output"), *init = options_text(options, "init");
    const bool resumes = options_flag(options, "resume");
    char *weights = NULL;
    *state = NULL;
    if (resumes && !output) fail_usage("--resume: needs --output DIR, the run to go on with");
    if (resumes && init)
        fail_usage("--resume and --init exclude each other: a resumed run has its own weights");
    if (!output) return init ? copy_string(init) : NULL;
    const int64_t step = checkpoint_latest(output, &weights, state);
    if (step >= 0 && !resumes) {
        if (!trains) { // nothing is written
            free(weights);
            free(*state);
            *state = NULL;
            return init ? copy_string(init) : NULL;
        }
        fail("%s: holds a run at step %lld; go on with --resume or choose another --output", output,
             (long long)step);
    }
    if (resumes && step < 0) warn("%s: no checkpoint to resume, starting a new run", output);
    return weights ? weights : init ? copy_string(init) : NULL;
}

// Takes over what a checkpoint says of the model, and of the training where a run is resumed.
static void adopt_options(Options *options, const ModelType *type, const Safetensors *weights,
                          const char *state) {
    checkpoint_check_type(weights, type);
    options_from_metadata(options, OPTION_MODEL, weights, "drop the option or train a new model");
    if (!state) return;
    Safetensors *file = safetensors_open(state);
    checkpoint_check_type(file, type);
    const int64_t step = checkpoint_integer(weights, "step", 0, INT64_MAX);
    if (checkpoint_integer(file, "step", 0, INT64_MAX) != step)
        fail("%s: is not of step %lld, as %s is", state, (long long)step, weights->file.path);
    options_from_metadata(options, OPTION_TRAINING, file,
                          "drop the option, or start a new run from these weights with --init");
    options_from_metadata(options, OPTION_LENGTH, file, NULL);
    safetensors_close(file);
}

// The longest sequence that the weights take; 0: any, there are none yet.
static int64_t known_positions(const Safetensors *weights) {
    return weights ? checkpoint_integer(weights, "n_positions", 1, 1 << 28) : 0;
}

// Of a model for the batches of `plan`; NULL: it only decodes.
static ModelSetup model_setup(const Run *run, const TaskPlan *plan, const Safetensors *weights,
                              bool training) {
    const Dataset *dataset = run->dataset;
    ModelSetup setup = {.options = run->options,
                        .batch = plan ? plan->batch : 0,
                        .length = plan ? plan->length : 0,
                        .positions = plan ? plan->length : 0,
                        .vocabulary = dataset->vocabulary,
                        .padding_token = dataset->padding,
                        .training = training};
    if (!weights) return setup;
    setup.positions = known_positions(weights);
    setup.vocabulary = checkpoint_integer(weights, "vocab_size", 1, INT32_MAX);
    if (setup.vocabulary != dataset->vocabulary)
        fail("%s: its vocabulary has %lld tokens, that of %s has %d; give the data it was trained on with "
             "--input",
             weights->file.path, (long long)setup.vocabulary, dataset->name, dataset->vocabulary);
    return setup;
}

// The first of runs/MODEL-1, runs/MODEL-2, ... that is not there.
static void choose_output(Options *options, const char *model) {
    if (options_text(options, "output")) return;
    char *path = NULL;
    for (int i = 1; !path || file_exists(path); i++) {
        free(path);
        path = format_string("runs/%s-%d", model, i);
    }
    options_set(options, "output", path, "--output");
    free(path);
}

static void evaluate_only(Run *run) {
    const char *name = options_text(run->options, "eval");
    const SplitName split = strcmp(name, "val") == 0 ? SPLIT_VAL : SPLIT_TEST;
    if (run->dataset->splits[split].tokens == 0) fail("%s: has no %s split", run->dataset->name, name);
    Evaluation result;
    if (!evaluate(run, split, options_integer(run->options, "val-batches"), &result)) return;
    Log *log = log_open(NULL, -1);
    log_evaluation(log, -1, name, &result, false);
    measure(run, log, -1);
    log_close(log);
}

// 128 + the signal that asked to stop, as a shell has it of a program that one ended.
static int exit_code(void) {
    return stop_requested() ? 128 + stop_requested() : 0;
}

int train_main(int argc, char **argv, const ModelType *type) {
    const TaskType *task_type = type->task;
    streams_open();
    Options *options = trainer_options_create(type);
    options_parse(options, argc, argv, NULL, NULL);
    const Action *action = find_action(options, task_type);
    const bool evaluates = !action && options_text(options, "eval"), trains = !action && !evaluates;
    stop_install();
    char *state;
    char *path = find_weights(options, trains, &state);
    if (!trains && !path) fail_usage("--%s: needs weights, --init FILE", action ? action->option : "eval");
    Safetensors *weights = path ? safetensors_open(path) : NULL;
    if (weights) huggingface_import(weights, type);
    if (weights) adopt_options(options, type, weights, state);

    Profile *profile = options_flag(options, "profile") ? profile_create() : NULL;
    Run run = {.type = type, .options = options, .dataset = dataset_open(options_text(options, "input"))};
    const TaskSetup task_setup = {options, run.dataset, known_positions(weights), trains};
    if (!action || action->batches) run.task = task_type->create(&task_setup);
    run.setup = model_setup(&run, run.task ? task_type->plan(run.task) : NULL, weights, trains);
    run.setup.profile = profile;
    if (!action) measure_check(&run);
    run.model = type->create(&run.setup);
    if (weights) {
        checkpoint_load_weights(weights, &run);
        safetensors_close(weights);
    } else {
        const ParameterTable *table = type->parameters(run.model);
        real *values = allocate(table->total, sizeof(real), "parameters");
        parameter_initialise(table, (uint64_t)options_integer(options, "seed"), values);
        type->write(run.model, MODEL_VALUES, values);
        free(values);
    }
    int code = 0;
    if (action) {
        action->run(&run);
        code = exit_code();
    } else if (evaluates) {
        evaluate_only(&run);
        code = exit_code();
    } else {
        choose_output(options, type->name);
        huggingface_check_output(type, run.model, options_text(options, "output"));
        code = train_loop(&run);
    }
    type->destroy(run.model);
    if (run.task) task_type->destroy(run.task);
    profile_free(profile);
    dataset_close(run.dataset);
    options_free(options);
    free(path);
    free(state);
    return code;
}
