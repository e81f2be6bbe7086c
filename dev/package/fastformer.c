// fastformer: all programs in one executable, for packages. The first argument selects the program,
// or the name of the executable: train_gpt2 may be a link to it. PROGRAM_LIST is PROGRAM(name) for
// each program; make renames the main() of each.
#include "checkpoint.h"
#include "error.h"
#include "file.h"
#include "json.h"
#include "memory.h"
#include "options.h"
#include "streams.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN "train_"

typedef int Main(int argc, char **argv);
#define PROGRAM(name) Main main_##name;
PROGRAM_LIST
#undef PROGRAM

typedef struct {
    char *name; // "train_gpt2"
    Main *main;
} Program;

#define PROGRAM(name) {#name, main_##name},
static const Program programs[] = {PROGRAM_LIST};
#undef PROGRAM
enum { PROGRAMS = sizeof programs / sizeof *programs };

// Returns the command of a program: "train" for train_fastformer, "gpt2" for train_gpt2.
static const char *command_of(const Program *program) {
    if (strcmp(program->name, TRAIN "fastformer") == 0) return "train";
    const bool trains = strncmp(program->name, TRAIN, strlen(TRAIN)) == 0;
    return program->name + (trains ? strlen(TRAIN) : 0);
}

static const Program *find_program(const char *name) {
    for (int i = 0; i < PROGRAMS; i++)
        if (strcmp(programs[i].name, name) == 0) return &programs[i];
    return NULL;
}

static const Program *find_command(const char *command) {
    for (int i = 0; i < PROGRAMS; i++)
        if (strcmp(command_of(&programs[i]), command) == 0) return &programs[i];
    return NULL;
}

// ---- eval and generate ------------------------------------------------------
// Returns our name of a Hugging Face model from the config.json next to its weights, allocated.
static char *model_of_config(const char *weights) {
    char *path = path_beside(weights, "config.json");
    if (!file_exists(path))
        fail("%s: names no model, and %s, which would, is missing", weights, path);
    Json *config = json_read(path);
    const char *type = json_string(config, "model_type", path);
    char *model = copy_string(strcmp(type, "marian") == 0  ? "translate"
                              : strcmp(type, "qwen3") == 0 ? "llama"
                                                           : type);
    json_free(config);
    free(path);
    return model;
}

// Returns the program that trains the model of a run, a Hugging Face directory or a weights file.
static const Program *program_of_run(const char *run) {
    Safetensors *weights = checkpoint_open_weights(run);
    const char *ours = safetensors_metadata(weights, "model");
    char *model = ours ? copy_string(ours) : model_of_config(weights->file.path),
         *name = format_string(TRAIN "%s", model);
    const Program *program = find_program(name);
    if (!program) fail("%s: holds a model of type %s, which no program here trains", run, model);
    free(name);
    free(model);
    safetensors_close(weights);
    return program;
}

// Runs `program` with the arguments -e RUN, `action` and the rest of the command line.
static int run_on(const Program *program, int argc, char **argv, char *const *action) {
    char **arguments = allocate((size_t)argc + 4, sizeof *arguments, "the arguments");
    int count = 0;
    arguments[count++] = program->name;
    arguments[count++] = (char[]){"-e"};
    arguments[count++] = argv[2];
    for (; *action; action++) arguments[count++] = *action;
    for (int i = 3; i < argc; i++) arguments[count++] = argv[i];
    return program->main(count, arguments);
}

static int evaluate_run(int argc, char **argv) {
    char *const action[] = {(char[]){"--eval"}, (char[]){"test"}, NULL}; // the last --eval counts
    return run_on(program_of_run(argv[2]), argc, argv, action);
}

// Returns whether the command line says what to do with the run.
static bool names_action(int argc, char **argv) {
    return options_peek(OPT_PROMPT, argc, argv) || options_peek(OPT_PROMPT_FILE, argc, argv) ||
           options_peek(OPT_SHOW_ATTENTION, argc, argv);
}

static int generate_from(int argc, char **argv) {
    char *const writes[] = {(char[]){"--prompt"}, (char[]){""}, NULL};
    char *const translates[] = {(char[]){"--translate"}, NULL}, *const nothing[] = {NULL};
    const Program *program = program_of_run(argv[2]);
    if (strcmp(program->name, TRAIN "bert") == 0)
        fail_usage(
            "generate: %s is a BERT, which writes no text; fastformer bert -e %s --fill TEXT "
            "guesses masked tokens",
            argv[2], argv[2]);
    const bool translator = strcmp(program->name, TRAIN "translate") == 0;
    return run_on(program, argc, argv,
                  names_action(argc, argv) ? nothing
                  : translator             ? translates
                                           : writes);
}

// ---- about itself -----------------------------------------------------------
static void print_commands(const char *before, const char *between) {
    for (int i = 0; i < PROGRAMS; i++)
        printf("%s%s", i > 0 ? between : before, command_of(&programs[i]));
    printf("%seval%sgenerate", between, between);
}

static void print_help(void) {
    printf("usage: fastformer COMMAND [options]\n"
           "Trains small language models with linear-time attention.\nCommands:\n");
    for (int i = 0; i < PROGRAMS; i++)
        printf("  %-15s the program %s\n", command_of(&programs[i]), programs[i].name);
    printf("  %-15s perplexity of a run on its test split, or --eval WHAT\n", "eval RUN");
    printf("  %-15s text by a run, after --prompt TEXT; translations\n", "generate RUN");
    printf("fastformer COMMAND --help lists the options of a command.\n");
}

static void print_man(void) {
    printf(".TH FASTFORMER 1 \"\" \"fastformer.c %s\" \"User Commands\"\n"
           ".SH NAME\nfastformer \\- trains small language models with linear-time attention\n"
           ".SH SYNOPSIS\n.B fastformer\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n"
           ".SH DESCRIPTION\nA command is a program, whose manual page has its options.\n",
           VERSION);
    for (int i = 0; i < PROGRAMS; i++)
        printf(".TP\n\\fB%s\\fR\n.BR %s (1)\n", command_of(&programs[i]), programs[i].name);
    printf(".TP\n\\fBeval\\fR \\fIRUN\\fR\n"
           "perplexity of a run on its test split, or on what \\fB\\-\\-eval\\fR names\n"
           ".TP\n\\fBgenerate\\fR \\fIRUN\\fR\n"
           "text by a run, after that of \\fB\\-\\-prompt\\fR; translations of standard input\n");
}

static void print_bash(void) {
    printf("# bash completion of fastformer\n_fastformer() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} program\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W '");
    print_commands("", " ");
    printf("' -- \"$word\")\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < PROGRAMS; i++)
        printf("    %s) program=%s ;;\n", command_of(&programs[i]), programs[i].name);
    printf("    *) compopt -o filenames 2>/dev/null\n"
           "       mapfile -t COMPREPLY < <(compgen -d -- \"$word\")\n       return ;;\n    esac\n"
           "    declare -F \"_$program\" >/dev/null || eval \"$(fastformer \"${COMP_WORDS[1]}\" "
           "--help=bash)\"\n"
           "    \"_$program\"\n}\ncomplete -F _fastformer fastformer\n");
}

static void print_zsh(void) {
    printf("#compdef fastformer\n_arguments '1:COMMAND:(");
    print_commands("", " ");
    printf(")' '*:RUN:_files'\n");
}

static void print_fish(void) {
    printf("# fish completion of fastformer\n"
           "complete -c fastformer -n __fish_use_subcommand -x -a '");
    print_commands("", " ");
    printf("'\n");
}

// Prints the answer to --help, --version and the like. Returns whether `text` is one of these.
static bool answer(const char *text) {
    static const struct {
        const char *name;
        void (*print)(void);
    } answers[] = {{"--help", print_help},    {"-h", print_help},
                   {"--help=man", print_man}, {"--help=bash", print_bash},
                   {"--help=zsh", print_zsh}, {"--help=fish", print_fish}};
    if (strcmp(text, "--version") == 0) {
        printf("fastformer %s\n", VERSION);
        return true;
    }
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (strcmp(answers[i].name, text) == 0) {
            answers[i].print();
            return true;
        }
    return false;
}

int main(int argc, char **argv) {
    const Program *called = argc > 0 ? find_program(path_name(argv[0])) : NULL;
    if (called) return called->main(argc, argv);
    streams_open();
    const char *command = argc > 1 ? argv[1] : "--help";
    if (answer(command)) {
        streams_flush();
        return EXIT_SUCCESS;
    }
    const bool evaluates = strcmp(command, "eval") == 0,
               generates = strcmp(command, "generate") == 0;
    if (evaluates || generates) {
        if (argc < 3 || argv[2][0] == '-')
            fail_usage("%s: expected the directory of a run: fastformer %s RUN", command, command);
        return evaluates ? evaluate_run(argc, argv) : generate_from(argc, argv);
    }
    const Program *program = find_command(command);
    if (!program) program = find_program(command);
    if (!program) fail_usage("unknown command %s; fastformer --help lists them", command);
    argv[1] = program->name;
    return program->main(argc - 1, argv + 1);
}
