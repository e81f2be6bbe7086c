// Files that are no plain text, though somebody takes them for it.
#ifndef TEXT_TEXT_FORMAT_H
#define TEXT_TEXT_FORMAT_H

#include "text.h"

#define STANDARD_INPUT "standard input" // the name of what has none

typedef struct {
    const char *name;    // "compressed by gzip"; NULL: plain text
    const char *command; // a command that makes plain text of a file, "zcat %s"; NULL: none does
} TextFormat;

// Of what a file holds, by its first bytes: compressed formats, PDF, UTF-16 and UTF-32 by their
// marks, UTF-16 without one by its NULs, anything else where 4% and more of the first MiB are
// control characters that no text has. A few of these, and bytes that are not UTF-8, are text.
TextFormat text_format(Text text);

// What is wrong with the file `name` of that format, which is none of plain text, and which command
// gives it to `reader`, a command that reads standard input; fresh. Such as "x.gz: is compressed by
// gzip, expected plain text: zcat x.gz | ./tokenize -o DIR -".
char *text_format_advice(TextFormat format, const char *name, const char *reader);

#endif
