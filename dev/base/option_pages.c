#include "option_pages.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// ---- completion of values ---------------------------------------------------
typedef enum { COMPLETES_NOTHING, COMPLETES_CHOICES, COMPLETES_FILES, COMPLETES_DIRS } Completion;

static bool value_is(const Option *row, const char *value) {
    return row->value && strcmp(row->value, value) == 0;
}

static Completion completion_of(const Option *row) {
    if (row->kind == OPTION_CHOICE) return COMPLETES_CHOICES;
    if (row->kind != OPTION_TEXT) return COMPLETES_NOTHING;
    if (value_is(row, "DIR")) return COMPLETES_DIRS;
    const bool path = value_is(row, "FILE") || value_is(row, "PATH") || value_is(row, "WHAT");
    return path ? COMPLETES_FILES : COMPLETES_NOTHING;
}

// Prints "a|b" as "a b".
static void print_choices(const char *choices) {
    for (const char *c = choices; *c; c++) putchar(*c == '|' ? ' ' : *c);
}

// Prints text with a backslash before each character of `special`.
static void print_escaped(const char *text, const char *special) {
    for (; *text; text++) {
        if (strchr(special, *text)) putchar('\\');
        putchar(*text);
    }
}

// ---- man(7) -----------------------------------------------------------------
// Prints text for troff, whose lines must not begin with a dot or an apostrophe.
static void print_roff(const char *text) {
    if (*text == '.' || *text == '\'') printf("\\&");
    for (; *text; text++) {
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
    }
}

static void print_man_row(const Option *row) {
    printf(".TP\n");
    if (row->letter) printf("\\fB\\-%c\\fR, ", row->letter);
    printf("\\fB\\-\\-");
    print_roff(options_name(row->name));
    printf("\\fR");
    if (row->value) printf(" \\fI%s\\fR", row->value);
    printf("\n");
    print_roff(row->help);
    if (row->kind == OPTION_CHOICE) {
        printf(": ");
        for (const char *choice = row->choices; *choice;) {
            const int length = (int)strcspn(choice, "|");
            printf("\\fB");
            for (int i = 0; i < length; i++) printf(choice[i] == '-' ? "\\-" : "%c", choice[i]);
            choice += length + (choice[length] == '|');
            printf("\\fR%s", *choice ? ", " : "");
        }
    }
    if (row->initial) {
        printf(" [");
        print_roff(row->initial);
        printf("]");
    }
    printf("\n");
}

static void print_man_group(const OptionTable *table, const char *group) {
    bool any = false;
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->rows[i].group, group) != 0) continue;
        if (!any) printf(".SS %s\n", group);
        print_man_row(&table->rows[i]);
        any = true;
    }
}

// Prints groups in the order of their first rows, but OPTION_GROUP_MORE last.
static void print_man_groups(const OptionTable *table) {
    for (int i = 0; i < table->count; i++) {
        const char *group = table->rows[i].group;
        int first = 0;
        while (strcmp(table->rows[first].group, group) != 0) first++;
        if (first == i && strcmp(group, OPTION_GROUP_MORE) != 0) print_man_group(table, group);
    }
    print_man_group(table, OPTION_GROUP_MORE);
}

static void print_man(const OptionTable *table) {
    const size_t length = strlen(table->summary);
    const bool period = length > 0 && table->summary[length - 1] == '.';
    printf(".TH ");
    for (const char *c = table->program; *c; c++) putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"fastformer.c %s\" \"User Commands\"\n", VERSION);
    printf(".SH NAME\n%s \\- %c%.*s\n", table->program, tolower((unsigned char)*table->summary),
           (int)length - 1 - period, table->summary + 1);
    printf(".SH SYNOPSIS\n.B %s\n[\\fIoptions\\fR]%s\n", table->program,
           table->operands ? " [\\fIFILE\\fR]" : "");
    printf(".SH DESCRIPTION\n\\fB%s\\fR ", table->program);
    putchar(tolower((unsigned char)*table->summary));
    print_roff(table->summary + 1);
    printf("%s\n.SH OPTIONS\nDefaults are in brackets.\n", period ? "" : ".");
    print_man_groups(table);
    printf(".SH \"EXIT STATUS\"\n"
           ".TP\n0\ndone\n"
           ".TP\n1\nan error in a file, the data or the machine\n"
           ".TP\n2\na command line that cannot be understood\n"
           ".TP\n128 + N\nsignal N asked it to stop, and it saved\n");
}

// ---- shells -----------------------------------------------------------------
// Prints the option as a pattern of `case`: "-i | --input".
static void print_pattern(const Option *row) {
    if (row->letter) printf("-%c | ", row->letter);
    printf("--%s", options_name(row->name));
}

static void print_bash(const OptionTable *table) {
    printf("# bash completion of %s\n_%s() {\n", table->program, table->program);
    printf("    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    # --name=value is three words\n"
           "    [ \"$word\" != = ] || word=\n"
           "    [ \"$option\" != = ] || option=${COMP_WORDS[COMP_CWORD - 2]}\n"
           "    COMPREPLY=()\n"
           "    case $option in\n");
    static const char *const actions[] = {[COMPLETES_NOTHING] = "return",
                                          [COMPLETES_FILES] = "set -- -f",
                                          [COMPLETES_DIRS] = "set -- -d"};
    for (int i = 0; i < table->count; i++) {
        const Option *row = &table->rows[i];
        if (row->kind == OPTION_FLAG) continue;
        printf("    ");
        print_pattern(row);
        printf(") ");
        if (completion_of(row) == COMPLETES_CHOICES) {
            printf("set -- -W '");
            print_choices(row->choices);
            printf("' ;;\n");
        } else {
            printf("%s ;;\n", actions[completion_of(row)]);
        }
    }
    printf("    *) set -- %s-W '", table->operands ? "-f " : "");
    for (int i = 0; i < table->count; i++)
        printf("%s--%s", i > 0 ? " " : "", options_name(table->rows[i].name));
    printf("' ;;\n    esac\n"
           "    [ \"$1\" = -W ] || compopt -o filenames 2>/dev/null\n"
           "    mapfile -t COMPREPLY < <(compgen \"$@\" -- \"$word\")\n"
           "}\ncomplete -F _%s %s\n",
           table->program, table->program);
}

// Prints "[help]" and, for an option with a value, ":VALUE:(a b)".
static void print_zsh_rest(const Option *row) {
    printf("'[");
    for (const char *c = row->help; *c; c++) {
        if (*c == '\'')
            printf("'\\''");
        else
            printf(strchr("[]\\:", *c) ? "\\%c" : "%c", *c);
    }
    printf("]");
    if (row->value) printf(":%s:", row->value);
    const Completion completion = completion_of(row);
    if (completion == COMPLETES_CHOICES) {
        printf("(");
        print_choices(row->choices);
        printf(")");
    } else if (completion != COMPLETES_NOTHING) {
        printf(completion == COMPLETES_DIRS ? "_files -/" : "_files");
    }
    printf("'");
}

static void print_zsh(const OptionTable *table) {
    printf("#compdef %s\n_arguments -s", table->program);
    for (int i = 0; i < table->count; i++) {
        const Option *row = &table->rows[i];
        const char *name = options_name(row->name);
        const bool again = row->kind == OPTION_TEXT && row->choices, value = row->value;
        const char *star = again ? "*" : "";
        if (row->letter)
            printf(" \\\n  '%s(-%c --%s)'{-%c%s,--%s%s}", star, row->letter, name, row->letter,
                   value ? "+" : "", name, value ? "=" : "");
        else
            printf(" \\\n  '%s--%s%s'", star, name, value ? "=" : "");
        print_zsh_rest(row);
    }
    printf("%s\n", table->operands ? " \\\n  '*:FILE:_files'" : "");
}

static void print_fish(const OptionTable *table) {
    printf("# fish completion of %s\n", table->program);
    if (!table->operands) printf("complete -c %s -f\n", table->program);
    for (int i = 0; i < table->count; i++) {
        const Option *row = &table->rows[i];
        printf("complete -c %s -l %s", table->program, options_name(row->name));
        if (row->letter) printf(" -s %c", row->letter);
        if (row->kind != OPTION_FLAG)
            printf(completion_of(row) == COMPLETES_FILES ? " -r -F" : " -x");
        if (completion_of(row) == COMPLETES_DIRS) printf(" -a '(__fish_complete_directories)'");
        if (completion_of(row) == COMPLETES_CHOICES) {
            printf(" -a '");
            print_choices(row->choices);
            printf("'");
        }
        printf(" -d '");
        print_escaped(row->help, "\\'");
        printf("'\n");
    }
}

bool option_page_print(const OptionTable *table, const char *format) {
    static const struct {
        const char *name;
        void (*print)(const OptionTable *);
    } pages[] = {
        {"man", print_man}, {"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(pages[i].name, format) == 0) {
            pages[i].print(table);
            return true;
        }
    return false;
}
