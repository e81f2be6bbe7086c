// Plain text: its words and lines, where to split it, UTF-8.
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include "hash.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *data;
    size_t size;
} Text;

// A hash for tables that are indexed by its lowest bits.
static inline uint64_t text_hash(Text text) {
    const uint64_t hash = hash_bytes(HASH_START, text.data, text.size);
    return hash ^ hash >> 32;
}

typedef enum { TEXT_END, TEXT_WORD, TEXT_LINE_END } TextItem;

// Returns the next item of a text from byte *at on and advances *at past it: a word (delimited by
// white space), a line end (a newline, or the end of a last line without one), or the end of the
// text.
TextItem text_next(Text text, size_t *at, Text *word);

// Removes the first line from a text and returns it with its newline, which the last line may lack.
Text text_take_line(Text *text);

// The same; returns false if the line does not end in a newline.
bool text_next_line(Text *text, Text *line);

// Returns a line, or a text, without the newline at its end.
Text text_without_newline(Text line);

// Returns a line without newline as a sentence: without a trailing carriage return, and empty if it
// is all white space.
Text text_sentence(Text line);

// Counts for perplexity per word and bits per byte. Words are counted as in the WikiText papers:
// separated by white space, plus one for the end of each line.
typedef struct {
    int64_t words, lines, bytes;
} TextCounts;

TextCounts text_count(Text text);

// Returns how many bytes of a text are missing in `made`, which was made from it line by line by
// leaving some out (exact) or replacing some (approximate).
size_t text_lost(Text text, Text made);

// Splits a text 90/5/5 into training, validation and test: at the last line end before each split
// point if one is near (2.5% of the text), else at a space, else between two characters.
void text_split(Text text, Text parts[3]);

// Returns the length of the well-formed UTF-8 character at the start of the text (Unicode 15, table
// 3-7), or 0 if there is none.
size_t utf8_length(Text text);

// Returns the size of a text without an incomplete character at its end.
size_t utf8_complete(Text text);

// utf8_read() decodes the character in the first `length` bytes, with `length` from utf8_length().
// utf8_write() writes a character of at most 4 bytes and returns its end.
uint32_t utf8_read(const char *text, size_t length);
char *utf8_write(char *out, uint32_t code);

// Returns the offset of the first byte that is not UTF-8, or the size of the text if all is UTF-8.
size_t utf8_valid_prefix(Text text);

#endif
