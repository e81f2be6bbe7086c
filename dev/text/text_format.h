// Detects files that are not plain text but are passed as such.
#ifndef TEXT_TEXT_FORMAT_H
#define TEXT_TEXT_FORMAT_H

#include "text.h"

#define STANDARD_INPUT "standard input" // the name of input without a file name

typedef struct {
    const char *name;    // "compressed by gzip"; NULL: plain text
    const char *command; // a command that converts a file to plain text, "zcat %s"; NULL: none
} TextFormat;

// Returns the format of a file's contents: compressed formats, PDF, UTF-16 and UTF-32 by their
// first bytes, UTF-16 without a mark by its NULs, and "binary" if at least 4% of the first MiB are
// control characters that text does not have. A few of these, and bytes that are not UTF-8, still
// count as text.
TextFormat text_format(Text text);

// Returns an error message for the file `name`, whose format is not plain text, with a command that
// pipes it to `reader`, a command that reads standard input. A new string such as "x.gz: is
// compressed by gzip, expected plain text: zcat x.gz | ./tokenize -o DIR -".
char *text_format_advice(TextFormat format, const char *name, const char *reader);

#endif
