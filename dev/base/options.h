// The command line as one table of rows. Parsing, --help, range checks, the config line of the log
// and the metadata of a checkpoint all use it. A model adds its own rows.
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "json.h"
#include "option_names.h"
#include "safetensors.h"
#include "text.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_NUMBER, OPTION_TEXT, OPTION_CHOICE } OptionKind;

// Whether a checkpoint stores an option, and whether a resumed run may change it.
typedef enum {
    OPTION_RUN,      // not stored: paths, settings of the machine
    OPTION_TRAINING, // stored with the optimiser state; a resumed run must agree
    OPTION_LENGTH,   // stored likewise; may change on resume (length of training)
    OPTION_HABIT,    // stored likewise; may change on resume (rate, batch, evaluation, saving)
    OPTION_MODEL,    // stored with the weights; a run that loads them must agree
} OptionScope;

typedef struct {
    char letter;     // short option, 0: none
    OptionName name; // long option
    OptionKind kind;
    OptionScope scope;
    const char *value;        // name of the value in --help: "DIR", "N"; NULL for a flag
    const char *initial;      // default as text; NULL: not set (always for a flag: false)
    bool implied;             // if missing in a checkpoint, it has the default
    double min, max;          // range of an integer or number; infinite: no bound
    const char *choices;      // OPTION_CHOICE: "linear|cosine"; --help prints them after `help`
    const char *metadata_key; // name in a checkpoint if not `name`: "written|also read"
    const char *group;        // heading in --help
    const char *help;         // a few words, so that the row stays one line
} Option;

// The group of rows that --help omits to fit on a screen. --help-all prints them.
#define OPTION_GROUP_MORE "More"

// As `choices` of an OPTION_TEXT: the option may be repeated, and its value is all texts joined by
// this separator.
#define OPTION_AGAIN "\x1f"

typedef struct Options Options;

// Returns the name as text: "val-every" for OPT_VAL_EVERY.
const char *options_name(OptionName name);
// Returns the name whose text is `text` (`length` bytes), or OPT_NONE.
OptionName options_find_name(const char *text, size_t length);

// options_create() starts a table with -h/--help, --help-all and --version. options_add() appends
// rows, each set to its default. `program` and `summary`, one paragraph, head --help. The rows must
// outlive the result. A row with an invalid name, letter or default is a programming error (abort).
Options *options_create(const char *program, const char *summary);
void options_add(Options *options, const Option *rows, int count);

// Sets lines that --version prints after the version. Each begins with a newline. Takes ownership.
void options_set_build(Options *options, char *build);
void options_free(Options *options);

// Parses a command line: "-b 4", "-b4", "--batch 4", "--batch=4", clustered flags. The last value
// of a repeated option counts. Operands are allowed only if `operands` is not NULL, and are stored
// there (the caller frees the array; the strings are argv's). After "--" everything is an operand.
// Exits with code 2 on an unknown option, naming the nearest one, or on a value out of range,
// naming the range. --help, --help-all, --version and --help=PAGE (option_pages.h) print and exit
// with 0.
void options_parse(Options *options, int argc, char **argv, const char ***operands,
                   int *operand_count);

// Reads options from a JSON file: an object of values by long name as options_to_json() writes them
// (null: not set); an object with such an object as its member "options"; or a log with one such
// object per line, of which the last is used. The options count as given, a flag only if it is
// true. Options given on the command line take precedence. If one of them sets the length of
// training, the file's options about it are ignored. Also ignored are "output", "resume" and
// "config", which name a run and not how it was made; "zero" and "ranks-file" of earlier versions;
// and, if --resume was given, the start of the run: "init" and "average"; and, in a log if --init
// was given, "preset", whose options the log has. Exits with code 1 on an invalid name, kind or
// value.
void options_read_config(Options *options, const char *path);

// The same from a text. `source` names it in messages.
void options_take_json(Options *options, Text text, const char *source);

// Returns the last value given to --NAME on the command line, before it is checked and parsed, or
// NULL.
const char *options_peek(OptionName name, int argc, char **argv);

// Prints the table with defaults, at most 79 columns wide. all: includes OPTION_GROUP_MORE.
void options_help(const Options *options, bool all);

// Return values by name. A name or kind that is not in the table is a programming error (abort). A
// number that is not set is 0.
bool options_flag(const Options *options, OptionName name);
int64_t options_integer(const Options *options, OptionName name);
double options_number(const Options *options, OptionName name);
const char *options_text(const Options *options, OptionName name); // or choice; NULL: not set
int options_choice(const Options *options, OptionName name);       // index of the choice
bool options_given(const Options *options, OptionName name);   // on the command line or in a file
bool options_changed(const Options *options, OptionName name); // not its default
bool options_given_again(const Options *options,
                         OptionName name); // more than once on the command line

// Returns the options of a scope that were given, except those in `except` (ends in OPT_NONE),
// quoted for a shell, as a new string: " --keep 2 --stats 4".
char *options_given_text(const Options *options, OptionScope scope, const OptionName *except);

// Returns a word quoted for a shell, as a new string.
char *options_quoted(const char *word);

// Sets a value from text with the same checks. Exits with code 1 on an error; the message starts
// with `source` ("FILE: metadata").
void options_set(Options *options, OptionName name, const char *text, const char *source);

// Appends the values of one scope to *rows as metadata (metadata.h).
void options_to_metadata(const Options *options, OptionScope scope, Metadata **rows, int *count);

// Takes the values of one scope from a checkpoint. Exits with an error if an option that the user
// set differs: "--heads 8: FILE has 4; ADVICE". "auto" matches any value. If the user sets any
// option of scope OPTION_LENGTH, all values of that scope in the checkpoint are ignored. In scope
// OPTION_HABIT, each option that the user sets overrides the checkpoint's. An option whose key is
// missing keeps its value; so does, with a warning, one of scope OPTION_HABIT whose stored value no
// longer exists.
void options_from_metadata(Options *options, OptionScope scope, const Safetensors *file,
                           const char *advice);

// Takes the options in the object `stored` of the log PATH, to start its run again. Of scope
// OPTION_RUN it takes only "input", "init" and "average". Otherwise like options_from_metadata().
void options_from_log_event(Options *options, const Json *stored, const char *path,
                            const char *advice);

// Returns what the user changes in scope OPTION_HABIT as a new string: "--lr 0.001 (was 0.0005),
// --keep 2 (was 1)", or "" if nothing.
char *options_changes(const Options *options);

// Values of options for logs and states written before they stored these options. The last row is
// OPT_NONE.
typedef struct {
    OptionName name;
    const char *value;
} OptionUnsaid;
extern const OptionUnsaid options_unsaid[];

// Returns whether the metadata of FILE under `key` is the value of an option.
bool options_read_metadata(const Options *options, const char *key, const Safetensors *file);

// Adds all values as members to the open JSON object of w. null: not set.
void options_to_json(const Options *options, JsonWriter *w);

#endif
