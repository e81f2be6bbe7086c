// The manual page and shell completions of a program, made from its table of options. The program
// prints them itself (--help=man, --help=bash, --help=zsh, --help=fish), so that they always match
// the options it accepts.
#ifndef BASE_OPTION_PAGES_H
#define BASE_OPTION_PAGES_H

#include "options.h"

#define OPTION_PAGES "man|bash|zsh|fish"

typedef struct {
    const char *program, *summary;
    bool operands;      // accepts files
    const Option *rows; // (count) in the order of --help
    int count;
} OptionTable;

// Prints one of OPTION_PAGES to standard output; returns false if `format` is none of them.
bool option_page_print(const OptionTable *table, const char *format);

#endif
