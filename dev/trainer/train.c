#include "train.h"
#include "run.h"

#include "checkpoint.h"
#include "error.h"
#include "huggingface.h"
#include "memory.h"
#include "page_model.h"
#include "presets.h"
#include "restart.h"
#include "run_data.h"
#include "run_lock.h"
#include "share.h"
#include "stop.h"
#include "streams.h"
#include "threads.h"
#include "verify.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Returns what the user wants instead of training; NULL: training.
static const Action *find_action(const Options *options, const TaskType *task) {
    const Action *found = NULL;
    for (int i = 0; i < task->action_count; i++) {
        const Action *action = &task->actions[i];
        if (!options_given(options, action->option)) continue;
        if (found)
            fail_usage("--%s and --%s exclude each other", options_name(found->option),
                       options_name(action->option));
        found = action;
    }
    return found;
}

// A user who gives the options of an action but forgets the action does not want to train.
static void check_action_options(const Options *options, const TaskType *task,
                                 const Action *action) {
    for (int i = 0; i < task->action_count; i++) {
        const Action *other = &task->actions[i];
        if (action && action->own == other->own) continue;
        for (const OptionName *name = other->own; *name != OPT_NONE; name++)
            if (options_changed(options, *name))
                fail_usage("--%s: is for --%s", options_name(*name), options_name(other->option));
    }
}

// A user who gives -e and writing options does not want to train on for hours either.
static void check_meant_options(const Options *options, const TaskType *task) {
    for (int i = 0; options_text(options, OPT_INIT) && i < task->action_count; i++) {
        const OptionName *name = task->actions[i].meant;
        if (!name || options_integer(options, OPT_SAMPLE_EVERY) > 0) continue;
        for (; *name != OPT_NONE; name++)
            if (options_given(options, *name))
                fail_usage("--%s with -e: add --%s TEXT to write, or drop it to train",
                           options_name(*name), options_name(task->actions[i].option));
    }
}

static void check_start(const Options *options, const ModelType *type, const Action *action) {
    const bool evaluates = options_text(options, OPT_EVAL),
               reports = evaluates && !options_text(options, OPT_PAGE);
    if (action && evaluates)
        fail_usage("--%s and --eval exclude each other", options_name(action->option));
    const char *split = evaluates ? options_text(options, OPT_EVAL) : "val";
    if (options_text(options, OPT_PAGE) && (action || strcmp(split, "val") != 0))
        fail_usage(
            "--page: goes with --init, and with --eval val, which measures what the rounding "
            "of its weights costs");
    if (options_flag(options, OPT_EVAL_POSITIONS) && !reports)
        fail_usage("--eval-positions: is for --eval");
    if (options_flag(options, OPT_EVAL_POSITIONS) && !type->token_losses)
        fail_usage("--eval-positions: is for language models, by ./train_fastformer or the like");
    if (options_flag(options, OPT_JSON) && !action && !reports)
        fail_usage("--json: is for --eval, --prompt and the like; training logs to log.jsonl");
    if (options_number(options, OPT_MINUTES) > 0 && options_integer(options, OPT_STEPS) > 0)
        fail_usage("--minutes and --steps exclude each other: choose one");
    const bool resumes = options_flag(options, OPT_RESUME),
               trains = !action && !evaluates && !options_text(options, OPT_PAGE);
    // A resumed run may repeat the option it began with.
    if (options_integer(options, OPT_AVERAGE) > 0 && !options_text(options, OPT_INIT) &&
        !(resumes && trains))
        fail_usage("--average: needs -e RUN, whose checkpoints are averaged");
    if (options_text(options, OPT_INIT)) preset_refuse(options, type->task);
    if (!resumes) return;
    if (!options_text(options, OPT_OUTPUT))
        fail_usage("--resume: needs --output DIR, the run to resume");
    if (options_text(options, OPT_INIT))
        fail_usage("-y and -e exclude each other: a resumed run has its own weights");
}

// Returns what --resume uses if there is no checkpoint: the log of a run that saved none, as a
// newly allocated path; NULL: nothing. A directory in which no run began may be mistyped.
static char *find_unsaved_run(const Options *options) {
    const char *output = options_text(options, OPT_OUTPUT);
    if (!options_flag(options, OPT_RESUME)) return NULL;
    char *latest = checkpoint_path(output, 0), *log = latest ? NULL : restart_find_log(output);
    const bool named = options_text(options, OPT_INPUT) || options_text(options, OPT_CONFIG);
    if (!latest && !log && !(named && run_lock_exists(output)))
        fail("%s: holds no run to resume; check --output, or drop --resume (-y) for a new run",
             output);
    free(latest);
    return log;
}

// Creates and locks --output; no other run changes it from here on.
static int lock_output(const Options *options) {
    directory_create(options_text(options, OPT_OUTPUT));
    return run_lock(options_text(options, OPT_OUTPUT));
}

// Joins the other processes, of which rank 0 has the terminal. This comes before the options are
// read, as rank 0 has to report errors in them.
static Ranks *join_ranks(int argc, char **argv) {
    const char *limit = options_peek(OPT_TIMEOUT, argc, argv);
    const double timeout = limit ? strtod(limit, NULL) : 0;
    const bool valid = timeout > 0 && timeout <= 1e9; // otherwise it is refused later
    Ranks *ranks = ranks_open(valid ? timeout : 600);
    if (ranks_rank(ranks) > 0) streams_silence();
    threads_use(ranks_cores(ranks));
    return ranks;
}

// Finds what to begin with: the run in --output, the weights of --init, or nothing.
static Checkpoint find_checkpoint(const Options *options, bool trains, const char *unsaved) {
    const char *output = options_text(options, OPT_OUTPUT), *init = options_text(options, OPT_INIT);
    const bool resumes = options_flag(options, OPT_RESUME);
    Checkpoint found = {0};
    if (resumes && checkpoint_open_latest(output, &found)) return found;
    if (resumes && !trains) fail("%s: has no checkpoint yet", output);
    if (trains && output) checkpoint_refuse_used(output, resumes && unsaved);
    if (resumes && !unsaved) warn("%s: no checkpoint to resume, starting a new run", output);
    if (init) found.weights = checkpoint_open_weights(init);
    return found;
}

// Returns the longest sequence that the weights support; 0: any, as there are none yet.
static int64_t known_positions(const Safetensors *weights) {
    return weights ? safetensors_integer(weights, "n_positions", 1, 1 << 28) : 0;
}

// Extends weights to longer sequences if the user asks for it: weights to train, and weights that
// have not learned their positions.
static void extend_positions(const Options *options, const ModelType *type, Safetensors *weights,
                             bool trains) {
    const OptionName option = type->task->length;
    const int64_t wanted = options_given(options, option) ? options_integer(options, option) : 0;
    const long long positions = known_positions(weights);
    const bool learned =
        type->position_embedding && safetensors_find(weights, type->position_embedding);
    if (wanted <= positions || (learned && !trains)) return;
    if (options_integer(options, OPT_AVERAGE) > 0)
        fail("--%s %lld: the model has %lld positions, and --average makes no more; train with "
             "the mean first, then on from that run",
             options_name(option), (long long)wanted, positions);
    checkpoint_extend_positions(weights, type, wanted);
    if (!trains) return; // only the result is printed then
    char *line = format_string("%s: its %lld positions %s to %lld", weights->file.path, positions,
                               learned ? "are interpolated" : "are extended", (long long)wanted);
    log_table(line, NULL, 0);
    free(line);
}

// Adds options that a state from a version without them lacks.
static void add_unsaid(Safetensors *state) {
    for (const OptionUnsaid *unsaid = options_unsaid; unsaid->name != OPT_NONE; unsaid++)
        if (!safetensors_metadata(state, options_name(unsaid->name)))
            metadata_set(&state->metadata, &state->metadata_count, options_name(unsaid->name),
                         copy_string(unsaid->value));
}

// Takes the model's options from a checkpoint, and those of training if a run is resumed.
static void adopt_options(Options *options, const ModelType *type, const Checkpoint *checkpoint,
                          bool trains) {
    checkpoint_check_type(checkpoint->weights, type);
    if (!checkpoint->state) extend_positions(options, type, checkpoint->weights, trains);
    options_from_metadata(options, OPTION_MODEL, checkpoint->weights,
                          "drop the option or train a new model");
    type->facts(options, checkpoint->weights->file.path);
    if (!checkpoint->state) return;
    checkpoint_check_type(checkpoint->state, type);
    add_unsaid(checkpoint->state);
    options_from_metadata(options, OPTION_TRAINING, checkpoint->state,
                          "drop the option, or start a new run from these weights with -e");
    options_from_metadata(options, OPTION_LENGTH, checkpoint->state, NULL);
    // Otherwise the resumed run would read other text, and remove checkpoints it was told to keep.
    options_from_metadata(options, OPTION_HABIT, checkpoint->state, NULL);
}

// Exits with an error if a token of the data is not that of the weights. Imported weights may lack
// it.
static void check_token(const Safetensors *weights, const char *key, const Dataset *dataset,
                        int32_t token) {
    if (safetensors_metadata(weights, key) &&
        safetensors_integer(weights, key, -1, INT32_MAX) != token)
        fail("%s: its %s is %s, that of %s is %d; give the data it was trained on with --input",
             weights->file.path, key, safetensors_metadata(weights, key), dataset->name, token);
}

// Returns the setup of a model for the batches of the task; without a task it only decodes.
static ModelSetup model_setup(const Run *run, bool training) {
    const TaskPlan *plan = run->task ? run->type->task->plan(run->task) : NULL;
    const Safetensors *weights = run->weights;
    const Dataset *dataset = run->dataset;
    ModelSetup setup = {.type = run->type,
                        .options = run->options,
                        .batch = plan ? plan->batch : 0,
                        .length = plan ? plan->length : 0,
                        .rows = plan ? plan->rows : 0,
                        .positions = plan ? plan->length : 0,
                        .vocabulary = dataset->vocabulary,
                        .padding_token = dataset->padding,
                        .end_token = dataset->end,
                        .training = training};
    if (!weights) return setup;
    setup.positions = known_positions(weights);
    setup.vocabulary = safetensors_integer(weights, "vocab_size", 1, INT32_MAX);
    check_token(weights, "padding_token", dataset, dataset->padding);
    if (dataset->paired)
        check_token(weights, "end_token", dataset, dataset->end); // otherwise it may differ
    return setup;
}

// Returns the split that --eval names; --eval must be given.
static SplitName evaluated_split(const Options *options) {
    return strcmp(options_text(options, OPT_EVAL), "val") == 0 ? SPLIT_VAL : SPLIT_TEST;
}

// Returns the text that --eval names, which then is the test split; NULL: it names a split, or is
// not given.
static const char *evaluated_text(const Options *options) {
    const char *what = options_text(options, OPT_EVAL);
    const bool split = what && (strcmp(what, "val") == 0 || strcmp(what, "test") == 0);
    return split ? NULL : what;
}

static void check_text(const char *text, const Ranks *ranks, const TaskType *task) {
    if (text && !task->learns_embedded)
        fail_usage("--eval %s: expected val or test; a text is for language models", text);
    if (text && strcmp(text, "-") == 0 && ranks_size(ranks) > 1)
        fail_usage("--eval -: is the work of one process; name a file");
}

static TaskSetup task_setup(const Run *run, bool evaluates, bool trains) {
    TaskSetup setup = {.options = run->options,
                       .dataset = run->dataset,
                       .positions = known_positions(run->weights),
                       .resumed = run->state != NULL,
                       .training = trains};
    if (trains) {
        setup.uses[SPLIT_TRAIN] = setup.uses[SPLIT_VAL] = true;
        setup.uses[SPLIT_TEST] = !options_flag(run->options, OPT_NO_TEST);
    } else if (evaluates) {
        setup.uses[evaluated_split(run->options)] = true;
        setup.uses[SPLIT_VAL] |= options_integer(run->options, OPT_STATS) > 0; // --stats needs it
    }
    return setup;
}

// Creates and locks the first of runs/MODEL-1, runs/MODEL-2, ... that does not exist.
static int choose_output(Options *options, const char *model) {
    char *path = format_string("runs/%s-1", model);
    for (int i = 2; !directory_create_new(path); i++) {
        free(path);
        path = format_string("runs/%s-%d", model, i);
    }
    options_set(options, OPT_OUTPUT, path, "--output");
    const int lock = run_lock(path);
    free(path);
    return lock;
}

// A file may claim a large model and hold little: this is checked before memory for the model is
// allocated.
static void check_size(const Safetensors *weights, const ModelType *type, const ModelSetup *setup) {
    ParameterTable table = {0};
    type->add_parameters(setup, &table);
    checkpoint_check_tensors(weights, type, &table);
    parameter_table_free(&table);
}

static void evaluate_only(Run *run) {
    const char *name = options_text(run->options, OPT_EVAL);
    const SplitName split = evaluated_split(run->options);
    if (run->dataset->splits[split].tokens == 0)
        fail("%s: has no %s split", run->dataset->name, name);
    if (evaluated_text(run->options)) name = "text";
    Log *log = options_flag(run->options, OPT_JSON) ? log_open_json() : log_open(NULL, -1, 0);
    Evaluation result;
    PositionLosses positions = {0};
    if (options_flag(run->options, OPT_EVAL_POSITIONS)) run->positions = &positions;
    const bool ended =
        evaluate(run, split, options_integer(run->options, OPT_VAL_BATCHES), &result);
    if (run->positions) positions_sum(&positions, run->ranks);
    run->positions = NULL;
    if (ended && ranks_rank(run->ranks) == 0) {
        log_evaluation(log, -1, name, &result, false);
        if (options_flag(run->options, OPT_EVAL_POSITIONS)) positions_report(&positions, log);
        measure(run, log, -1);
    }
    log_close(log);
}

// Writes the page of --init's weights, with the log next to them. With --eval val, measures the
// effect of rounding.
static void page_only(Run *run) {
    char *directory = path_directory(run->weights->file.path);
    const char *split = options_text(run->options, OPT_EVAL);
    Evaluation result = {.loss = NAN};
    if (split && strcmp(split, "val") == 0)
        evaluate(run, SPLIT_VAL, options_integer(run->options, OPT_VAL_BATCHES), &result);
    PageModel model = page_model_create(run, directory, result.loss);
    if (ranks_rank(run->ranks) == 0 && !stop_requested())
        run_page_write(options_text(run->options, OPT_PAGE), directory, &model, NULL, 0);
    page_model_free(&model);
    free(directory);
}

// Printed before memory is allocated, so that the size is known even if the run is killed.
static void say_size(const char *model, size_t parameters, size_t bytes) {
    char count[32], *memory = format_bytes(bytes);
    char *text = format_string("%s, %s parameters, %s of memory", model,
                               format_count((double)parameters, count), memory);
    log_row("model", text);
    free(text);
    free(memory);
}

// Returns 128 + the signal that stopped this process or another rank, as shells report a killed
// program; 0: none.
static int exit_code(Ranks *ranks) {
    const int signal = ranks_vote(ranks, stop_requested());
    return signal ? 128 + signal : 0;
}

// One call of the program: what it does, and what it opened for that.
typedef struct {
    Run run;
    const Action *action; // what the user wants instead of training; NULL: training
    bool trains;          // neither an action nor --eval or --page
    bool reads_text;      // it needs no data but the tokenizer
    const char *text;     // that --eval names, used as the test split; NULL: a split, or no --eval
    char *unsaved;        // the log of a run that saved no checkpoint and starts over; NULL: none
    int lock;             // descriptor of --output's lock; -1: none
} Job;

// Opens the initial weights and the state, and takes their options.
static void open_checkpoint(Job *job) {
    Run *run = &job->run;
    Options *options = run->options;
    const bool leads = ranks_rank(run->ranks) == 0;
    char *found = leads ? find_unsaved_run(options) : NULL;
    job->unsaved = share_text(run->ranks, job->trains ? found : NULL);
    free(found);
    if (job->unsaved) restart_options(job->unsaved, options, run->type);
    job->lock =
        leads && job->trains && options_text(options, OPT_OUTPUT) ? lock_output(options) : -1;
    Checkpoint checkpoint = {0};
    if (leads) checkpoint = find_checkpoint(options, job->trains, job->unsaved);
    checkpoint = share_checkpoint(run->ranks, &checkpoint);
    if (!job->trains && !checkpoint.weights)
        fail_usage("--%s: needs weights: -e PATH",
                   options_name(job->action                       ? job->action->option
                                : options_text(options, OPT_PAGE) ? OPT_PAGE
                                                                  : OPT_EVAL));
    if (checkpoint.weights) huggingface_import(checkpoint.weights, run->type);
    if (checkpoint.weights) adopt_options(options, run->type, &checkpoint, job->trains);
    run->weights = checkpoint.weights;
    run->state = checkpoint.state;
}

// Opens the data, and creates the task that makes batches of them.
static void open_task(Job *job) {
    Run *run = &job->run;
    Options *options = run->options;
    const bool leads = ranks_rank(run->ranks) == 0;
    run->dataset = run_data_open(options, run->weights, job->reads_text);
    if (job->text) run_data_take_text(run->dataset, SPLIT_TEST, job->text);
    share_check_data(run->ranks, run->dataset);
    if (job->trains && leads && run->state)
        run_data_check_unchanged(options, run->state, run->dataset);
    // Only rank 0, which renames the log later. The others have the same data.
    if (job->unsaved && leads)
        restart_check_data(job->unsaved, options_text(options, OPT_OUTPUT), run->dataset);
    if (job->unsaved && leads)
        warn("%s: no checkpoint to resume; the run begins again with the options and data of %s",
             options_text(options, OPT_OUTPUT), job->unsaved);
    if (job->trains && !run->weights && !job->unsaved)
        preset_apply(options, run->type->task, run->dataset);
    if (job->trains) run_data_tell(options, run->dataset);
    const bool evaluates = !job->action && options_text(options, OPT_EVAL);
    const TaskSetup setup = task_setup(run, evaluates, job->trains);
    if (job->trains || evaluates || (job->action && job->action->batches))
        run->task = run->type->task->create(&setup);
}

// Loads the parameters: those of the weights, a mean of checkpoints, or drawn from the seed.
static void load_parameters(Run *run) {
    const ModelType *type = run->type;
    const int64_t average = options_integer(run->options, OPT_AVERAGE);
    if (run->weights && average > 0 && !run->state) {
        checkpoint_load_average(run->weights, average, run);
    } else if (run->weights) {
        checkpoint_load_weights(run->weights, run);
    } else {
        const ParameterTable *table = type->parameters(run->model);
        real *values = allocate(table->total, sizeof(real), "parameters");
        parameter_initialise(table, (uint64_t)options_integer(run->options, OPT_SEED), values);
        type->write(run->model, MODEL_VALUES, values);
        free(values);
    }
    share_values(run);
}

static void open_model(Job *job) {
    Run *run = &job->run;
    run->setup = model_setup(run, job->trains);
    run->setup.profile = options_flag(run->options, OPT_PROFILE) ? profile_create() : NULL;
    run->setup.ranks = run->ranks;
    if (job->trains) run->setup.say_size = say_size;
    if (!job->action) measure_check(run);
    if (run->weights) check_size(run->weights, run->type, &run->setup);
    run->model = run->type->create(&run->setup);
    load_parameters(run);
}

static int train(Job *job) {
    Run *run = &job->run;
    if (ranks_rank(run->ranks) == 0) {
        if (job->lock < 0) job->lock = choose_output(run->options, run->type->name);
        const char *output = options_text(run->options, OPT_OUTPUT);
        // The directory of a resumed run may be a copy with files instead of links, so it is not
        // checked.
        if (!run->state) huggingface_check_output(run, output);
        if (!run->state) run_data_check_output(run->dataset, output);
        run_data_save_tokenizer(run->dataset, output);
    }
    return train_loop(run);
}

static void close_job(Job *job) {
    Run *run = &job->run;
    run->type->destroy(run->model);
    if (run->task) run->type->task->destroy(run->task);
    profile_free(run->setup.profile);
    dataset_close(run->dataset);
    safetensors_close(run->weights);
    safetensors_close(run->state);
    if (job->lock >= 0) close(job->lock);
    free(job->unsaved);
}

int train_run(const char *program, Options *options, Ranks *ranks, const ModelType *type) {
    const Action *action = find_action(options, type->task);
    const bool page = options_text(options, OPT_PAGE);
    Job job = {.run = {.type = type, .program = program, .options = options, .ranks = ranks},
               .action = action,
               .trains = !action && !options_text(options, OPT_EVAL) && !page,
               .text = action ? NULL : evaluated_text(options)};
    job.reads_text = action || job.text || (page && !options_text(options, OPT_EVAL));
    check_start(options, type, action);
    check_text(job.text, ranks, type->task);
    check_action_options(options, type->task, action);
    if (job.trains && !options_text(options, OPT_CONFIG)) check_meant_options(options, type->task);
    if (action && ranks_size(ranks) > 1)
        fail_usage("--%s: is the work of one process; call the program without mpirun",
                   options_name(action->option));
    open_checkpoint(&job);
    open_task(&job);
    open_model(&job);
    int code;
    if (job.trains) {
        code = train(&job);
    } else {
        if (action)
            action->run(&job.run);
        else if (page)
            page_only(&job.run);
        else
            evaluate_only(&job.run);
        code = exit_code(ranks);
    }
    close_job(&job);
    return ranks_rank(ranks) == 0 ? code : 0; // one is enough for a launcher to report
}

// CPU and GPU have separate programs, which users of other trainers do not expect.
static void refuse_gpu(int argc, char **argv, const ModelType *type) {
    const size_t length = strlen(type->program);
    const bool on_gpu = length > 2 && strcmp(type->program + length - 2, "cu") == 0;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--gpu") == 0)
            fail_usage(on_gpu ? "--gpu: %1$s always trains on a GPU; drop the option"
                              : "--gpu: %1$s trains on the CPU; %1$scu (make %1$scu) does on a GPU",
                       type->program);
}

int train_main(int argc, char **argv, const ModelType *type) {
    threads_wait_briefly(argv);
    streams_open();
    Ranks *ranks = join_ranks(argc, argv);
    Options *options = trainer_options_create(type);
    refuse_gpu(argc, argv, type);
    options_parse(options, argc, argv, NULL, NULL);
    if (options_text(options, OPT_CONFIG))
        options_read_config(options, options_text(options, OPT_CONFIG));
    if (options_text(options, OPT_VERIFY)) {
        const int code = ranks_rank(ranks) == 0 ? verify(options_text(options, OPT_VERIFY)) : 0;
        options_free(options);
        ranks_close(ranks);
        return code;
    }
    ranks_set_timeout(ranks, options_number(options, OPT_TIMEOUT));
    share_start(ranks, options);
    stop_install();
    const int code = train_run(argv[0], options, ranks, type);
    options_free(options);
    ranks_close(ranks);
    return code;
}
