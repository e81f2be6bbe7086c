#include "options.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include "option_pages.h"
#include "streams.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_SIZE = 32,        // of an option or choice, with its NUL
    HELP_WIDTH = 79,       // columns
    HELP_COLUMN_LIMIT = 30 // latest column where the explanations begin
};

#define DIGITS "0123456789"

// A row and its value. The text is in canonical form, so that equal values have equal texts.
typedef struct {
    const Option *row;
    char *text; // NULL: not set
    bool given; // on the command line or in a file
    bool again; // more than once
    char *was;  // value in the resumed run, if the user changes it; else NULL
} Entry;

struct Options {
    const char *program, *summary;
    char *build; // what --version prints after the version; NULL: nothing
    Entry *entries;
    int count;
    bool operands; // expected
};

// Stored before the added rows, and last in --help.
// clang-format off
static const Option built_in[] = {
    {.letter = 'h', .name = OPT_HELP, .kind = OPTION_FLAG, .group = "Other",
     .help = "print this and exit; --help=man: the manual page"},
    {.name = OPT_VERSION, .kind = OPTION_FLAG, .group = "Other",
     .help = "print the version and exit"},
    {.name = OPT_HELP_ALL, .kind = OPTION_FLAG, .group = OPTION_GROUP_MORE,
     .help = "print all options and exit"},
};
// clang-format on
enum { HELP, PRINT_VERSION, HELP_ALL, BUILT_IN };

__attribute__((format(printf, 1, 2))) static _Noreturn void programming_error(const char *format,
                                                                              ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "options: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

// ---- text and values --------------------------------------------------------
// Copies the next of "a|b|c" to `choice` and advances past it; returns false if none is left.
static bool next_choice(const char **list, char choice[NAME_SIZE]) {
    const size_t length = strcspn(*list, "|");
    if (length == 0) return false;
    if (length >= NAME_SIZE) programming_error("the choices %s are too long", *list);
    memcpy(choice, *list, length);
    choice[length] = '\0';
    *list += length + ((*list)[length] == '|');
    return true;
}

static char *canonical_choice(const char *choices, const char *text) {
    char choice[NAME_SIZE];
    while (next_choice(&choices, choice)) {
        if (strcmp(choice, text) == 0) return copy_string(text);
    }
    return NULL;
}

static char *canonical_integer(const Option *row, const char *text) {
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, DIGITS)]) return NULL;
    errno = 0;
    const long long value = strtoll(text, NULL, 10);
    if (errno == ERANGE || (double)value < row->min || (double)value > row->max) return NULL;
    return format_string("%lld", value);
}

static bool is_decimal(const char *text) {
    text += *text == '-';
    const size_t whole = strspn(text, DIGITS);
    text += whole;
    const size_t fraction = *text == '.' ? strspn(text + 1, DIGITS) : 0;
    if (whole + fraction == 0) return false;
    if (*text == '.') text += 1 + fraction;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '-' || *text == '+') text++;
        if (!*text) return false;
        text += strspn(text, DIGITS);
    }
    return !*text;
}

// Returns the shortest text that reads back as the same number.
static char *canonical_number(const Option *row, const char *text) {
    if (!is_decimal(text)) return NULL;
    const double value = strtod(text, NULL);
    if (!isfinite(value) || value < row->min || value > row->max) return NULL;
    JsonWriter shortest = {0};
    json_write_number(&shortest, value == 0 ? 0 : value); // -0 equals 0
    return shortest.text;
}

// Returns new text in canonical form, or NULL if the option cannot have this value.
static char *canonical_text(const Option *row, const char *text) {
    switch (row->kind) {
    case OPTION_FLAG:
        return canonical_choice("true|false", text);
    case OPTION_INTEGER:
        return canonical_integer(row, text);
    case OPTION_NUMBER:
        return canonical_number(row, text);
    case OPTION_CHOICE:
        return canonical_choice(row->choices, text);
    case OPTION_TEXT:
        break;
    }
    return copy_string(text);
}

// Sets an entry; returns false if its option cannot have this value.
static bool assign(Entry *entry, const char *text) {
    char *canonical = canonical_text(entry->row, text);
    if (!canonical) return false;
    free(entry->text);
    entry->text = canonical;
    return true;
}

// ---- nearest name -----------------------------------------------------------

typedef struct {
    const char *word; // as typed
    char name[NAME_SIZE];
    int distance; // of `name`; while that is empty, names must be nearer
} Nearest;

static Nearest nearest_begin(const char *word) {
    return (Nearest){.word = word, .distance = (int)strnlen(word, NAME_SIZE) / 3 + 2};
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

// The number of insertions, deletions, substitutions and swaps of neighbours that turn a into b:
// the Damerau-Levenshtein distance, with no part edited twice (optimal string alignment). Both are
// shorter than NAME_SIZE.
static int edit_distance(const char *a, const char *b) {
    int cost[NAME_SIZE][NAME_SIZE];
    const int rows = (int)strlen(a), columns = (int)strlen(b);
    for (int j = 0; j <= columns; j++) cost[0][j] = j;
    for (int i = 1; i <= rows; i++) {
        cost[i][0] = i;
        for (int j = 1; j <= columns; j++) {
            const int substitution = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            cost[i][j] = min_int(substitution, 1 + min_int(cost[i - 1][j], cost[i][j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                cost[i][j] = min_int(cost[i][j], 1 + cost[i - 2][j - 2]);
            }
        }
    }
    return cost[rows][columns];
}

// Keeps the candidate if it is nearer than all before. A name cut short ("--temp") or continued
// ("--batch-size") counts as distance 1.
static void nearest_consider(Nearest *nearest, const char *candidate) {
    const size_t length = strlen(nearest->word), other = strlen(candidate);
    if (length >= NAME_SIZE) return;
    const size_t shorter = length < other ? length : other, apart = length + other - 2 * shorter;
    const bool begun = shorter >= 2 && memcmp(candidate, nearest->word, shorter) == 0;
    if (!begun && (int)apart >= nearest->distance) return; // a lower bound of the distance
    const int distance = begun ? 1 : edit_distance(nearest->word, candidate);
    if (distance >= nearest->distance) return;
    nearest->distance = distance;
    snprintf(nearest->name, sizeof nearest->name, "%s", candidate);
}

// ---- the table --------------------------------------------------------------

#define OPTION_TEXT_OF(identifier, text) text,
static const char *const texts[OPT_COUNT] = {"", OPTION_NAMES(OPTION_TEXT_OF)};

const char *options_name(OptionName name) {
    return texts[name];
}

OptionName options_find_name(const char *text, size_t length) {
    for (int name = OPT_NONE + 1; name < OPT_COUNT; name++)
        if (strlen(texts[name]) == length && memcmp(texts[name], text, length) == 0)
            return (OptionName)name;
    return OPT_NONE;
}

static Entry *find_entry(const Options *options, OptionName name) {
    for (int i = 0; i < options->count; i++)
        if (options->entries[i].row->name == name) return &options->entries[i];
    return NULL;
}

// Returns the entry named by the first `length` bytes of `text`, or NULL.
static Entry *find_name(const Options *options, const char *text, size_t length) {
    return find_entry(options, options_find_name(text, length));
}

static Entry *find_letter(const Options *options, char letter) {
    for (int i = 0; i < options->count; i++) {
        if (letter && options->entries[i].row->letter == letter) return &options->entries[i];
    }
    return NULL;
}

static Entry *entry_of(const Options *options, OptionName name) {
    Entry *entry = find_entry(options, name);
    if (!entry) programming_error("there is no option %s", options_name(name));
    return entry;
}

Options *options_create(const char *program, const char *summary) {
    Options *options = allocate(1, sizeof *options, "the options");
    options->program = program;
    options->summary = summary;
    options_add(options, built_in, BUILT_IN);
    return options;
}

void options_set_build(Options *options, char *build) {
    options->build = build;
}

// Returns the default as text, or NULL if not set.
static const char *initial_text(const Option *row) {
    return row->kind == OPTION_FLAG ? "false" : row->initial;
}

void options_add(Options *options, const Option *rows, int count) {
    Entry *entries =
        allocate((size_t)options->count + (size_t)count, sizeof *entries, "the options");
    if (options->count) memcpy(entries, options->entries, (size_t)options->count * sizeof *entries);
    free(options->entries);
    options->entries = entries;
    for (int i = 0; i < count; i++) {
        const Option *row = &rows[i];
        if (row->name == OPT_NONE || strlen(options_name(row->name)) >= NAME_SIZE)
            programming_error("a name is missing or too long: --%s", options_name(row->name));
        if (find_entry(options, row->name) || find_letter(options, row->letter))
            programming_error("two options --%s or -%c", options_name(row->name), row->letter);
        Entry *entry = &options->entries[options->count++];
        *entry = (Entry){.row = row};
        const char *initial = initial_text(row);
        if (initial && !assign(entry, initial))
            programming_error("--%s cannot be %s", options_name(row->name), initial);
    }
}

void options_free(Options *options) {
    for (int i = 0; i < options->count; i++) {
        free(options->entries[i].text);
        free(options->entries[i].was);
    }
    free(options->entries);
    free(options->build);
    free(options);
}

// ---- error lines ------------------------------------------------------------
// Returns what a row expects as new text: "an integer from 1 to 1024", "one of auto|fp32|bf16".
static char *expectation(const Option *row) {
    if (row->kind == OPTION_TEXT) return copy_string("a text");
    if (row->kind == OPTION_FLAG) return copy_string("true or false");
    if (row->kind == OPTION_CHOICE) return format_string("one of %s", row->choices);
    const bool integer = row->kind == OPTION_INTEGER;
    const char *what = integer ? "an integer" : "a number";
    const int digits = integer ? DBL_DECIMAL_DIG : DBL_DIG;
    // Omit a bound that no value can exceed.
    const double unbounded = integer ? 9.2e18 : DBL_MAX;
    const bool low = row->min > -unbounded, high = row->max < unbounded;
    if (low && high)
        return format_string("%s from %.*g to %.*g", what, digits, row->min, digits, row->max);
    if (low) return format_string("%s of at least %.*g", what, digits, row->min);
    if (high) return format_string("%s of at most %.*g", what, digits, row->max);
    return copy_string(what);
}

// Returns "; did you mean cosine?" for a mistyped choice, else "", as new text.
static char *choice_advice(const Option *row, const char *text) {
    Nearest nearest = nearest_begin(text);
    char choice[NAME_SIZE];
    const char *list = row->kind == OPTION_CHOICE ? row->choices : "";
    while (next_choice(&list, choice)) nearest_consider(&nearest, choice);
    return *nearest.name ? format_string("; did you mean %s?", nearest.name) : copy_string("");
}

static _Noreturn void refuse_value(const Option *row, const char *text) {
    fail_usage("--%s %s: expected %s%s", options_name(row->name), text, expectation(row),
               choice_advice(row, text));
}

static _Noreturn void refuse_missing(const Option *row) {
    const char *const expected = row->kind == OPTION_TEXT ? "" : expectation(row);
    fail_usage("--%s needs a value %s%s%s", options_name(row->name), row->value,
               *expected ? ": " : "", expected);
}

// prefix: what precedes the name: "--", "-" or nothing.
static _Noreturn void refuse_name(const Options *options, const char *prefix, const char *name) {
    char *word = copy_string(name);
    word[strcspn(word, "=")] = '\0';
    const Entry *entry = word[0] && !word[1] ? find_letter(options, word[0]) : NULL;
    const char *what = *prefix ? "unknown option" : "unexpected argument";
    if (entry)
        fail_usage("%s %s%s; did you mean -%s (--%s)?", what, prefix, word, word,
                   options_name(entry->row->name));
    Nearest nearest = nearest_begin(word);
    for (int i = 0; i < options->count; i++)
        nearest_consider(&nearest, options_name(options->entries[i].row->name));
    if (*nearest.name) fail_usage("%s %s%s; did you mean --%s?", what, prefix, word, nearest.name);
    if (!*prefix && *word && *word != '-' && find_entry(options, OPT_INPUT))
        fail_usage("%s %s; did you mean --%s %s?", what, word, options_name(OPT_INPUT), word);
    fail_usage("%s %s%s; --help lists the options", what, prefix, word);
}

// Rejects a name in a file of options.
static _Noreturn void refuse_key(const Options *options, const char *path, const char *name) {
    Nearest nearest = nearest_begin(name);
    for (int i = BUILT_IN; i < options->count; i++)
        nearest_consider(&nearest, options_name(options->entries[i].row->name));
    fail("%s: \"%s\" is not an option of this program%s%s%s", path, name,
         *nearest.name ? "; did you mean \"" : "", nearest.name, *nearest.name ? "\"?" : "");
}

const char *options_peek(OptionName option, int argc, char **argv) {
    const char *name = options_name(option);
    const size_t length = strlen(name);
    for (int i = argc - 1; i > 0; i--) {
        if (strncmp(argv[i], "--", 2) != 0 || strncmp(argv[i] + 2, name, length) != 0) continue;
        if (argv[i][2 + length] == '=') return argv[i] + 2 + length + 1;
        if (argv[i][2 + length] == '\0' && i + 1 < argc) return argv[i + 1];
    }
    return NULL;
}

static _Noreturn void refuse_letter(const Options *options, const char *argument, char letter) {
    const char other_case = (char)(islower((unsigned char)letter) ? toupper((unsigned char)letter)
                                                                  : tolower((unsigned char)letter));
    const Entry *other = find_letter(options, other_case);
    if (argument[2] && letter == argument[1]) refuse_name(options, "-", argument + 1); // -widnows
    if (other)
        fail_usage("unknown option -%c; did you mean -%c (--%s)?", letter, other_case,
                   options_name(other->row->name));
    fail_usage("unknown option -%c; --help lists the options", letter);
}

// ---- the command line -------------------------------------------------------

typedef struct {
    int count, next; // number of arguments, index of the next one
    char **arguments;
} Cursor;

static bool is_option(const Options *options, const char *argument) {
    if (argument[0] != '-') return false;
    if (argument[1] == '-') return find_name(options, argument + 2, strcspn(argument + 2, "="));
    return argument[1] && !argument[2] && find_letter(options, argument[1]);
}

// Returns the argument after an option that takes a value. The value may begin with "-" ("-q -1"),
// but if it is itself an option, the value is missing.
static const char *next_value(const Options *options, const Option *row, Cursor *cursor) {
    if (cursor->next >= cursor->count || is_option(options, cursor->arguments[cursor->next]))
        refuse_missing(row);
    return cursor->arguments[cursor->next++];
}

static void print_and_exit(const Options *options, const Option *row) {
    if (row == &built_in[PRINT_VERSION])
        printf("%s %s%s\n", options->program, VERSION, options->build ? options->build : "");
    else
        options_help(options, row == &built_in[HELP_ALL]);
    streams_flush();
    exit(EXIT_SUCCESS);
}

static const Option *row_in_help(const Options *options, int i) {
    return options->entries[(i + BUILT_IN) % options->count].row; // the built-in rows come last
}

// Prints --help=man or another page and exits.
static void print_page_and_exit(const Options *options, const char *format) {
    Option *rows = allocate((size_t)options->count, sizeof *rows, "the options");
    for (int i = 0; i < options->count; i++) rows[i] = *row_in_help(options, i);
    const OptionTable table = {.program = options->program,
                               .summary = options->summary,
                               .operands = options->operands,
                               .rows = rows,
                               .count = options->count};
    if (!option_page_print(&table, format))
        fail_usage("--help=%s: expected one of " OPTION_PAGES, format);
    free(rows);
    streams_flush();
    exit(EXIT_SUCCESS);
}

static void give(const Options *options, Entry *entry, const char *text) {
    const bool adds = entry->given && entry->row->kind == OPTION_TEXT && entry->row->choices;
    char *both = adds ? format_string("%s" OPTION_AGAIN "%s", entry->text, text) : NULL;
    if (!assign(entry, both ? both : text)) refuse_value(entry->row, text);
    free(both);
    entry->again = entry->given;
    entry->given = true;
    if (entry->row >= built_in && entry->row < built_in + BUILT_IN)
        print_and_exit(options, entry->row);
}

// Parses "--name", "--name value" or "--name=value".
static void parse_long(const Options *options, Cursor *cursor) {
    const char *name = cursor->arguments[cursor->next++] + 2;
    const size_t length = strcspn(name, "=");
    const char *value = name[length] ? name + length + 1 : NULL;
    Entry *entry = find_name(options, name, length);
    if (!entry) refuse_name(options, "--", name);
    if (entry->row->kind == OPTION_FLAG) {
        if (value && entry->row == &built_in[HELP]) print_page_and_exit(options, value);
        if (value)
            fail_usage("--%s takes no value, found %s", options_name(entry->row->name), value);
        value = "true";
    }
    give(options, entry, value ? value : next_value(options, entry->row, cursor));
}

// Parses "-b 4", "-b4", "-y", or clustered flags, "-yb4".
static void parse_short(const Options *options, Cursor *cursor) {
    const char *argument = cursor->arguments[cursor->next++];
    // "-eval" would mean "-e val", which is never intended.
    if (argument[2] && find_name(options, argument + 1, strcspn(argument + 1, "=")))
        refuse_name(options, "-", argument + 1);
    for (const char *letter = argument + 1; *letter; letter++) {
        Entry *entry = find_letter(options, *letter);
        if (!entry) refuse_letter(options, argument, *letter);
        if (entry->row->kind == OPTION_FLAG) {
            give(options, entry, "true");
            continue;
        }
        give(options, entry, letter[1] ? letter + 1 : next_value(options, entry->row, cursor));
        break;
    }
}

void options_parse(Options *options, int argc, char **argv, const char ***operands,
                   int *operand_count) {
    options->operands = operands;
    const char **found =
        operands ? allocate((size_t)argc + 1, sizeof *found, "the arguments") : NULL;
    int count = 0;
    bool only_operands = false;
    Cursor cursor = {.count = argc, .next = 1, .arguments = argv};
    while (cursor.next < argc) {
        const char *argument = argv[cursor.next];
        const bool dash = argument[0] == '-' && argument[1] && !only_operands;
        if (dash && argument[1] == '-' && argument[2]) {
            parse_long(options, &cursor);
        } else if (dash && argument[1] != '-') {
            parse_short(options, &cursor);
        } else if (!operands) {
            refuse_name(options, "", argument);
        } else {
            if (dash)
                only_operands = true; // after "--"
            else
                found[count++] = argument;
            cursor.next++;
        }
    }
    if (operands) {
        *operands = found;
        *operand_count = count;
    }
}

// ---- --help -----------------------------------------------------------------
// Returns "  -b, --batch N" as new text.
static char *help_left(const Option *row) {
    char letter[] = "    ";
    if (row->letter) memcpy(letter, (const char[]){'-', row->letter, ','}, 3);
    return format_string("  %s--%s%s%s", letter, options_name(row->name), row->value ? " " : "",
                         row->value ? row->value : "");
}

// Returns explanation, choices and default as new text.
static char *help_right(const Option *row) {
    const bool choice = row->kind == OPTION_CHOICE;
    return format_string("%s%s%s%s%s%s", row->help, choice ? ": " : "", choice ? row->choices : "",
                         row->initial ? " [" : "", row->initial ? row->initial : "",
                         row->initial ? "]" : "");
}

// Prints words from column `at` on, wrapped; new lines begin at column `indent`.
static void print_wrapped(const char *text, int at, int indent) {
    bool first = true; // first word of its line
    while (*(text += strspn(text, " "))) {
        const int length = (int)strcspn(text, " ");
        if (!first && at + 1 + length > HELP_WIDTH) {
            printf("\n");
            at = 0;
            first = true;
        }
        const int gap = first ? (at < indent ? indent - at : 0) : 1;
        printf("%*s%.*s", gap, "", length, text);
        at += gap + length;
        text += length;
        first = false;
    }
    printf("\n");
}

static void print_row(const Option *row, int column) {
    char *left = help_left(row), *right = help_right(row);
    int at = printf("%s", left);
    if (at + 2 > column) {
        printf("\n");
        at = 0;
    }
    print_wrapped(right, at, column);
    free(left);
    free(right);
}

static bool is_more(const Option *row) {
    return strcmp(row->group, OPTION_GROUP_MORE) == 0;
}

// Returns the column where the explanations begin.
static int help_column(const Options *options, bool all) {
    int column = 0;
    for (int i = 0; i < options->count; i++) {
        if (!all && is_more(options->entries[i].row)) continue;
        char *left = help_left(options->entries[i].row);
        const int end = (int)strlen(left) + 2;
        if (end > column && end <= HELP_COLUMN_LIMIT) column = end;
        free(left);
    }
    return column;
}

static void print_group(const Options *options, const char *group, int column) {
    printf("%s:\n", group);
    for (int i = 0; i < options->count; i++) {
        const Option *row = row_in_help(options, i);
        if (strcmp(row->group, group) == 0) print_row(row, column);
    }
}

// Prints how many rows of OPTION_GROUP_MORE the program adds, if any.
static void print_more(const Options *options) {
    int count = 0;
    for (int i = 0; i < options->count - BUILT_IN; i++) count += is_more(row_in_help(options, i));
    if (count > 0) printf("%d more options: --help-all\n", count);
}

void options_help(const Options *options, bool all) {
    printf("usage: %s [options]%s\n", options->program, options->operands ? " [FILE]" : "");
    print_wrapped(options->summary, 0, 0);
    const int column = help_column(options, all);
    // Groups are in the order of their first rows.
    for (int i = 0; i < options->count; i++) {
        const char *group = row_in_help(options, i)->group;
        bool seen = is_more(row_in_help(options, i));
        for (int j = 0; j < i && !seen; j++)
            seen = strcmp(row_in_help(options, j)->group, group) == 0;
        if (!seen) print_group(options, group, column);
    }
    if (all)
        print_group(options, OPTION_GROUP_MORE, column);
    else
        print_more(options);
}

// ---- values -----------------------------------------------------------------

static const char *value_of(const Options *options, OptionName name, OptionKind kind) {
    const Entry *entry = entry_of(options, name);
    if (entry->row->kind != kind) programming_error("--%s is of another kind", options_name(name));
    return entry->text;
}

bool options_flag(const Options *options, OptionName name) {
    return strcmp(value_of(options, name, OPTION_FLAG), "true") == 0;
}

int64_t options_integer(const Options *options, OptionName name) {
    const char *text = value_of(options, name, OPTION_INTEGER);
    return text ? strtoll(text, NULL, 10) : 0;
}

double options_number(const Options *options, OptionName name) {
    const char *text = value_of(options, name, OPTION_NUMBER);
    return text ? strtod(text, NULL) : 0;
}

const char *options_text(const Options *options, OptionName name) {
    const Entry *entry = entry_of(options, name);
    return value_of(options, name, entry->row->kind == OPTION_CHOICE ? OPTION_CHOICE : OPTION_TEXT);
}

int options_choice(const Options *options, OptionName name) {
    const char *text = value_of(options, name, OPTION_CHOICE),
               *list = entry_of(options, name)->row->choices;
    char choice[NAME_SIZE];
    int place = 0;
    while (next_choice(&list, choice) && strcmp(choice, text) != 0) place++;
    return place;
}

bool options_given(const Options *options, OptionName name) {
    return entry_of(options, name)->given;
}

bool options_changed(const Options *options, OptionName name) {
    const Entry *entry = entry_of(options, name);
    const char *initial = initial_text(entry->row);
    if (!initial || !entry->text) return initial != entry->text;
    char *canonical = canonical_text(entry->row, initial);
    const bool changed = strcmp(entry->text, canonical) != 0;
    free(canonical);
    return changed;
}

bool options_given_again(const Options *options, OptionName name) {
    return entry_of(options, name)->again;
}

char *options_quoted(const char *word) {
    static const char plain[] =
        DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_./,:=+-";
    if (*word && !word[strspn(word, plain)]) return copy_string(word);
    char *text = copy_string("'");
    for (const char *c = word; *c; c++) append_format(&text, *c == '\'' ? "'\\'%c" : "%c", *c);
    append_format(&text, "'");
    return text;
}

static bool in_list(const OptionName *list, OptionName name) {
    while (*list != OPT_NONE && *list != name) list++;
    return *list != OPT_NONE;
}

// Appends " --name value" once for each of an entry's values.
static void append_given(char **text, const Entry *entry) {
    const Option *row = entry->row;
    const char *separator = row->kind == OPTION_TEXT && row->choices ? OPTION_AGAIN : "";
    char *values = copy_string(entry->text);
    for (char *rest = values, *value; (value = strsep(&rest, separator));) {
        append_format(text, " --%s", options_name(row->name));
        if (row->kind == OPTION_FLAG) continue;
        char *quoted = options_quoted(value);
        // A separate word that begins with "-" may be taken for an option.
        append_format(text, "%s%s", *value == '-' ? "=" : " ", quoted);
        free(quoted);
    }
    free(values);
}

char *options_given_text(const Options *options, OptionScope scope, const OptionName *except) {
    char *text = copy_string("");
    for (int i = BUILT_IN; i < options->count; i++) {
        const Entry *entry = &options->entries[i];
        if (!entry->given || entry->row->scope != scope || in_list(except, entry->row->name))
            continue;
        append_given(&text, entry);
    }
    return text;
}

// ---- metadata and log -------------------------------------------------------
// Returns the first of a row's names in a checkpoint, as a new string.
static char *metadata_key(const Option *row) {
    const char *keys = row->metadata_key ? row->metadata_key : options_name(row->name);
    return format_string("%.*s", (int)strcspn(keys, "|"), keys);
}

// Returns the value under the first of a row's names that FILE has, or NULL.
static const char *stored_text(const Option *row, const Safetensors *file) {
    const char *keys = row->metadata_key ? row->metadata_key : options_name(row->name),
               *text = NULL;
    char key[NAME_SIZE];
    while (!text && next_choice(&keys, key)) text = safetensors_metadata(file, key);
    return text;
}

bool options_read_metadata(const Options *options, const char *key, const Safetensors *file) {
    for (int i = BUILT_IN; i < options->count; i++) {
        const char *stored = stored_text(options->entries[i].row, file);
        if (stored && stored == safetensors_metadata(file, key)) return true;
    }
    return false;
}

static void set_from(Entry *entry, const char *key, const char *text, const char *source) {
    if (!assign(entry, text)) {
        fail("%s: %s %s: expected %s%s", source, key, text, expectation(entry->row),
             choice_advice(entry->row, text));
    }
}

void options_set(Options *options, OptionName name, const char *text, const char *source) {
    set_from(entry_of(options, name), options_name(name), text, source);
}

// Returns whether the user sets the length of training. The options of that scope count as one.
static bool length_given(const Options *options) {
    for (int i = 0; i < options->count; i++)
        if (options->entries[i].given && options->entries[i].row->scope == OPTION_LENGTH)
            return true;
    return false;
}

void options_to_metadata(const Options *options, OptionScope scope, Metadata **rows, int *count) {
    for (int i = BUILT_IN; i < options->count; i++) {
        const Entry *entry = &options->entries[i];
        const Option *row = entry->row;
        if (row->scope != scope || !entry->text) continue;
        if (row->implied && !options_changed(options, row->name)) continue;
        char *key = metadata_key(row);
        metadata_add(rows, count, key, copy_string(entry->text));
        free(key);
    }
}

// Compares texts, ignoring spaces: lists are stored with spaces, which few users type.
static bool same_text(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == ' ') a++;
        while (*b == ' ') b++;
        if (*a != *b) return false;
        if (!*a) return true;
    }
}

// Takes the value that PATH stores for an option, unless the user sets another one and may do so.
// `source` names the origin in messages.
static void take_stored(Entry *entry, const char *stored, const char *path, const char *source,
                        const char *advice) {
    const Option *row = entry->row;
    Entry theirs = {.row = row};
    if (row->scope == OPTION_HABIT && !assign(&theirs, stored)) {
        if (!entry->given)
            warn("%s: %s %s does not exist here, so --%s %s is used", source,
                 options_name(row->name), stored, options_name(row->name),
                 entry->text ? entry->text : "");
        return;
    }
    set_from(&theirs, options_name(row->name), stored, source);
    const bool demands = entry->given && strcmp(entry->text, "auto") != 0;
    const bool differs = demands && !same_text(entry->text, theirs.text);
    if (row->scope == OPTION_HABIT && entry->given) {
        free(entry->was);
        entry->was = differs ? theirs.text : NULL;
        if (!differs) free(theirs.text);
        return;
    }
    if (differs)
        fail("--%s %s: %s has %s; %s", options_name(row->name), entry->text, path, theirs.text,
             advice);
    free(entry->text);
    entry->text = theirs.text;
}

void options_from_metadata(Options *options, OptionScope scope, const Safetensors *file,
                           const char *advice) {
    if (scope == OPTION_LENGTH && length_given(options)) return;
    char *source = format_string("%s: metadata", file->file.path);
    for (int i = BUILT_IN; i < options->count; i++) {
        Entry *entry = &options->entries[i];
        if (entry->row->scope != scope) continue;
        const char *stored = stored_text(entry->row, file);
        if (!stored && entry->row->implied) stored = initial_text(entry->row);
        if (stored) take_stored(entry, stored, file->file.path, source, advice);
    }
    free(source);
}

char *options_changes(const Options *options) {
    char *text = copy_string("");
    for (int i = BUILT_IN; i < options->count; i++) {
        const Entry *entry = &options->entries[i];
        if (entry->was)
            append_format(&text, "%s--%s %s (was %s)", *text ? ", " : "",
                          options_name(entry->row->name), entry->text, entry->was);
    }
    return text;
}

void options_to_json(const Options *options, JsonWriter *w) {
    for (int i = BUILT_IN; i < options->count; i++) {
        const Option *row = options->entries[i].row;
        json_key(w, options_name(row->name));
        if (!options->entries[i].text)
            json_write_number(w, NAN); // null
        else if (row->kind == OPTION_FLAG)
            json_write_bool(w, options_flag(options, row->name));
        else if (row->kind == OPTION_INTEGER)
            json_write_integer(w, options_integer(options, row->name));
        else if (row->kind == OPTION_NUMBER)
            json_write_number(w, options_number(options, row->name));
        else
            json_write_string(w, options->entries[i].text);
    }
}

// ---- a file of options ------------------------------------------------------
// Returns a JSON value as the text of an option of that kind, or NULL if it has another type.
static char *text_of_json(const Json *value, OptionKind kind) {
    if (value->kind == JSON_BOOL && kind == OPTION_FLAG)
        return copy_string(value->boolean ? "true" : "false");
    if (value->kind == JSON_STRING && (kind == OPTION_TEXT || kind == OPTION_CHOICE))
        return copy_string(value->string);
    if (value->kind != JSON_NUMBER || (kind != OPTION_INTEGER && kind != OPTION_NUMBER))
        return NULL;
    return format_string("%.*g", DBL_DECIMAL_DIG, value->number);
}

// The same; exits with an error if it has another type.
static char *expect_text_of_json(const Json *value, const Option *row, const char *path) {
    char *text = text_of_json(value, row->kind);
    if (!text) fail("%s: \"%s\": expected %s", path, options_name(row->name), expectation(row));
    return text;
}

static void set_from_json(Entry *entry, const Json *value, const char *path) {
    char *text = expect_text_of_json(value, entry->row, path);
    set_from(entry, options_name(entry->row->name), text, path);
    // As on the command line, where a flag cannot be set to false.
    entry->given = entry->row->kind != OPTION_FLAG || strcmp(entry->text, "true") == 0;
    free(text);
}

// Returns the last event of a log that has "options", or NULL if the text is not a log.
static Json *config_of_log(Text log) {
    static const char key[] = "\"options\"";
    Json *config = NULL;
    for (Text line; text_next_line(&log, &line);) {
        if (!memmem(line.data, line.size, key, sizeof key - 1)) continue;
        Json *event = json_try_parse(line.data, line.size);
        if (!event) continue;
        json_free(config);
        config = event;
    }
    return config;
}

// Options that define the start of a run, in addition to its data.
static const OptionName beginning[] = {OPT_INIT, OPT_AVERAGE, OPT_NONE};

// Returns whether to ignore a name in a file: a path of its run, an option of an earlier version
// that changed no number, or, if a run is resumed, an option of its start.
static bool is_passed_over(const Options *options, const char *text) {
    static const OptionName place[] = {OPT_OUTPUT, OPT_RESUME, OPT_CONFIG, OPT_NONE};
    if (strcmp(text, "zero") == 0 || strcmp(text, "ranks-file") == 0) return true;
    const Entry *resume = find_entry(options, OPT_RESUME);
    const OptionName name = options_find_name(text, strlen(text));
    return in_list(place, name) || (resume && resume->given && in_list(beginning, name));
}

const OptionUnsaid options_unsaid[] = {
    {OPT_OPTIMIZER, "adamw"}, {OPT_OFFSETS, "fixed"}, {OPT_PRESET, "published"}, {OPT_NONE, NULL}};

// Sets the options that the log of an earlier version does not have.
static void take_unsaid(Options *options, const Json *stored, const char *path) {
    for (const OptionUnsaid *unsaid = options_unsaid; unsaid->name != OPT_NONE; unsaid++) {
        const char *name = options_name(unsaid->name);
        Entry *entry = find_entry(options, unsaid->name);
        if (entry && !entry->given && !json_find(stored, name))
            set_from(entry, name, unsaid->value, path);
    }
}

void options_take_json(Options *options, Text text, const char *source) {
    Json *whole = config_of_log(text);
    if (!whole) whole = json_parse(text.data, text.size, source);
    const Json *inner = whole->kind == JSON_OBJECT ? json_find(whole, "options") : NULL;
    const Json *config = inner ? inner : whole;
    if (config->kind != JSON_OBJECT) fail("%s: expected an object of options", source);
    const bool length = length_given(options), log = inner && json_find(whole, "event");
    const Entry *init = find_entry(options, OPT_INIT);
    for (size_t i = 0; i < config->count; i++) {
        const char *name = config->keys[i];
        if (is_passed_over(options, name)) continue;
        // A log has what its preset set, and the preset is for a model without weights.
        if (log && init && init->given && options_find_name(name, strlen(name)) == OPT_PRESET)
            continue;
        Entry *entry = find_name(options, name, strlen(name));
        if (!entry || entry < options->entries + BUILT_IN) refuse_key(options, source, name);
        if (config->items[i].kind == JSON_NULL || entry->given ||
            (length && entry->row->scope == OPTION_LENGTH))
            continue;
        set_from_json(entry, &config->items[i], source);
    }
    if (log) take_unsaid(options, inner, source);
    json_free(whole);
}

void options_read_config(Options *options, const char *path) {
    FileMap file = file_map(path);
    options_take_json(options, (Text){(const char *)file.data, file.size}, path);
    file_unmap(&file);
}

void options_from_log_event(Options *options, const Json *stored, const char *path,
                            const char *advice) {
    const bool length = length_given(options);
    for (size_t i = 0; i < stored->count; i++) {
        const Json *value = &stored->items[i];
        const char *name = stored->keys[i];
        Entry *entry = find_name(options, name, strlen(name));
        if (!entry || entry < options->entries + BUILT_IN || value->kind == JSON_NULL) continue;
        const OptionName option = entry->row->name;
        const bool begins = option == OPT_INPUT || in_list(beginning, option);
        if (entry->row->scope == OPTION_RUN && (entry->given || !begins)) continue;
        if (entry->row->scope == OPTION_LENGTH && length) continue;
        char *text = expect_text_of_json(value, entry->row, path);
        take_stored(entry, text, path, path, advice);
        free(text);
    }
    take_unsaid(options, stored, path);
}
