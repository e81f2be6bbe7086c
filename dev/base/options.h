// The command line as one table of rows. Parsing, --help, range checks, the config line of the log
// and the metadata of a checkpoint all come from it; a model adds its own rows.
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "json.h"
#include "option_names.h"
#include "safetensors.h"
#include "text.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_NUMBER, OPTION_TEXT, OPTION_CHOICE } OptionKind;

// What a checkpoint has to say about an option.
typedef enum {
    OPTION_RUN,      // not stored: paths, the machine's affairs
    OPTION_TRAINING, // stored with the optimiser's state; a resumed run must agree
    OPTION_LENGTH,   // stored likewise; a resumed run may change it (how long to train)
    OPTION_HABIT,    // stored likewise; a resumed run may change each (rate, batch, evaluation,
                     // saving)
    OPTION_MODEL,    // stored with the weights; whoever loads them must agree
} OptionScope;

typedef struct {
    char letter;     // short option, 0: none
    OptionName name; // long option
    OptionKind kind;
    OptionScope scope;
    const char *value;   // what --help calls the value: "DIR", "N"; NULL for a flag
    const char *initial; // default as text; NULL: not set (always for a flag, which is then false)
    bool implied;        // a checkpoint that says nothing of it has the default
    double min, max;     // range of an integer or number; infinite: no bound
    const char
        *choices; // OPTION_CHOICE: "linear|cosine|constant|wsd"; --help shows them after `help`
    const char
        *metadata_key; // the name in a checkpoint, where it is not `name`; "written|also read"
    const char *group; // heading in --help
    const char *help;  // a few words, so that the row stays one line
} Option;

// The group of rows that --help leaves out, so that it fits a screen; --help-all has them.
#define OPTION_GROUP_MORE "More"

// As the choices of an OPTION_TEXT: it can be given again, and its value is all texts with this
// between them.
#define OPTION_AGAIN "\x1f"

typedef struct Options Options;

// "val-every" of OPT_VAL_EVERY.
const char *options_name(OptionName name);
// The name that `length` bytes of text are; OPT_NONE: there is no such name.
OptionName options_find_name(const char *text, size_t length);

// The rows of several tables, one after the other, each at its default. -h/--help, --help-all and
// --version exist already. `program` and `summary`, one paragraph, head --help. The tables must
// outlive the result. A row whose name, letter or default cannot be is a programming error (abort).
Options *options_create(const char *program, const char *summary);
void options_add(Options *options, const Option *rows, int count);

// Lines that --version prints after the version, each begins with a newline; freed with `options`.
void options_set_build(Options *options, char *build);
void options_free(Options *options);

// Reads a command line: "-b 4", "-b4", "--batch 4", "--batch=4", clustered flags; what is given
// twice counts as given last. There are no operands unless `operands` is not NULL, which then
// receives them (freed by the caller; the strings are argv's); after "--" everything is one. An
// unknown option ends the program (exit 2) naming the nearest one; a value outside its range says
// the range. --help, --help-all, --version and --help=PAGE (option_pages.h) print and exit 0.
void options_parse(Options *options, int argc, char **argv, const char ***operands,
                   int *operand_count);

// Reads options from a JSON file: an object of values by long name as options_to_json() writes
// them, null: not set; or an object that has it as its member "options"; or a log of such objects,
// a line each, of which the last is taken. They count as given, a flag where it is true. What was
// given on the command line stays, and where that says how long to train nothing of the file about
// it is taken. What names a run and not how it was made is passed over: "output", "resume",
// "config"; so are "zero" and "ranks-file", which earlier versions had; where --resume was given
// what it began with, too: "init", "average". Ends the program (exit 1) where a name, kind or value
// cannot be.
void options_read_config(Options *options, const char *path);

// The same from a text, which `source` names.
void options_take_json(Options *options, Text text, const char *source);

// The last value that the command line gives to --NAME, before it is checked and parsed; NULL:
// none.
const char *options_peek(OptionName name, int argc, char **argv);

// Prints the table with defaults, at most 79 columns wide; all: with the group OPTION_GROUP_MORE.
void options_help(const Options *options, bool all);

// Values by name; asking for a name or kind that is not in the table is a programming error
// (abort). A number that is not set is 0.
bool options_flag(const Options *options, OptionName name);
int64_t options_integer(const Options *options, OptionName name);
double options_number(const Options *options, OptionName name);
const char *options_text(const Options *options, OptionName name); // or choice; NULL: not set
int options_choice(const Options *options, OptionName name);       // place of a choice among all
bool options_given(const Options *options, OptionName name);   // on the command line or in a file
bool options_changed(const Options *options, OptionName name); // from its default
bool options_given_again(const Options *options,
                         OptionName name); // more than once on the command line

// Those of a scope that were given, but `except` (a list that ends in OPT_NONE), as a shell takes
// them: " --keep 2 --stats 4", fresh.
char *options_given_text(const Options *options, OptionScope scope, const OptionName *except);

// A word as a shell takes it, fresh.
char *options_quoted(const char *word);

// Sets a value from text with the same checks; `source` ("FILE: metadata") heads the error line,
// exit code 1.
void options_set(Options *options, OptionName name, const char *text, const char *source);

// The values of one scope as metadata rows, appended to *rows (metadata.h).
void options_to_metadata(const Options *options, OptionScope scope, Metadata **rows, int *count);

// Takes over the values of one scope from a checkpoint. An option that the user gave and that
// differs ends the program: "--heads 8: FILE has 4; ADVICE". "auto" demands nothing, and what a
// checkpoint says of the scope OPTION_LENGTH gives way, all of it, where the user says anything of
// that; of OPTION_HABIT each does. A missing key keeps what the option is, as does, with a warning,
// a habit of an earlier version that no longer exists.
void options_from_metadata(Options *options, OptionScope scope, const Safetensors *file,
                           const char *advice);

// Takes over the options in the object `stored` of a log, which PATH names, to begin its run again:
// all but those of the scope OPTION_RUN, of which it takes "input", "init" and "average"; otherwise
// as options_from_metadata() does.
void options_from_log_event(Options *options, const Json *stored, const char *path,
                            const char *advice);

// What the user changes of the scope OPTION_HABIT, fresh: "--lr 0.001 (was 0.0005), --keep 2 (was
// 1)"; "" where nothing.
char *options_changes(const Options *options);

// What options were before logs and states named them: the last row is OPT_NONE. Who
// reads one that lacks them takes these.
typedef struct {
    OptionName name;
    const char *value;
} OptionUnsaid;
extern const OptionUnsaid options_unsaid[];

// Whether what FILE says under `key` is the value of an option.
bool options_read_metadata(const Options *options, const char *key, const Safetensors *file);

// All values as members of the JSON object that is open in w; null: not set.
void options_to_json(const Options *options, JsonWriter *w);

#endif
