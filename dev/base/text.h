// Plain text: its words and lines, where to cut it, UTF-8.
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

// For tables whose places are the lowest bits.
static inline uint64_t text_hash(Text text) {
    const uint64_t hash = hash_bytes(HASH_START, text.data, text.size);
    return hash ^ hash >> 32;
}

typedef enum { TEXT_END, TEXT_WORD, TEXT_LINE_END } TextItem;

// The next item of a text from byte *at on, which moves after it: a word (between white space), a
// line end (a newline; also the end of a last line that has none), or the end of the text.
TextItem text_next(Text text, size_t *at, Text *word);

// The first line of a text with its newline, which the last one may lack, taken off the text.
Text text_take_line(Text *text);

// Takes the first line off a text likewise; false: none is left that ends in a newline.
bool text_next_line(Text *text, Text *line);

// A line, or a text, without the newline at its end.
Text text_without_newline(Text line);

// A line without its newline as a sentence: without the carriage return at its end, and of no bytes
// where all is white space.
Text text_sentence(Text line);

// What perplexity per word and bits per byte are computed from. A word as the WikiText papers
// count: white-space separated, plus one for the end of each line.
typedef struct {
    int64_t words, lines, bytes;
} TextCounts;

TextCounts text_count(Text text);

// Bytes of a text that are not in another one, which was made of it line by line by leaving
// some out (exact) or writing others for them (about).
size_t text_lost(Text text, Text made);

// Cuts a text 90/5/5 into training, validation and test: at the last line end before each cut,
// where one is near (2.5% of the text), else at a space, else between two characters.
void text_split(Text text, Text parts[3]);

// Bytes of the well-formed UTF-8 character at the start of the text (Unicode 15, table 3-7); 0:
// there is none.
size_t utf8_length(Text text);

// The size of a text without the beginning of a character at its end, which one more byte may
// continue.
size_t utf8_complete(Text text);

// The character that is the first `length` bytes, which utf8_length() gave; and writes one, of 4
// bytes at most, and returns the place after it.
uint32_t utf8_read(const char *text, size_t length);
char *utf8_write(char *out, uint32_t code);

// Offset of the first byte that is not UTF-8; the size of the text if all is.
size_t utf8_valid_prefix(Text text);

#endif
