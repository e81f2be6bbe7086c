// What is made of the table of options besides --help: the manual page of a program, and what
// shells need to complete its command line. They are printed by the program itself (--help=man,
// --help=bash, --help=zsh, --help=fish), so that they cannot differ from what it understands.
#ifndef BASE_OPTION_PAGES_H
#define BASE_OPTION_PAGES_H

#include "options.h"

#define OPTION_PAGES "man|bash|zsh|fish"

typedef struct {
    const char *program, *summary;
    bool operands;      // takes files
    const Option *rows; // (count) in the order of --help
    int count;
} OptionTable;

// Prints one of OPTION_PAGES to standard output; false: `format` is none of them.
bool option_page_print(const OptionTable *table, const char *format);

#endif
