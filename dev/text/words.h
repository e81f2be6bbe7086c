// A vocabulary of words separated by white space.
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include "text.h"
#include <stddef.h>
#include <stdint.h>

#define WORD_END "<eos>"     // the end of a line
#define WORD_UNKNOWN "<unk>" // replaces a word that is not in the vocabulary

typedef struct Words Words;

// A vocabulary that grows word by word. The texts of its words must outlive it.
Words *words_create(void);
int32_t words_add(Words *words, Text word,
                  int64_t occurrences); // adds to the word's count; returns its number

// Returns the words of texts in the order of their first occurrence, WORD_END after the first line:
// AWD-LSTM's vocabulary (Merity et al. 2018), 33,278 types on WikiText-2. Adds WORD_UNKNOWN if no
// text has it. A limit > 0 keeps only the most frequent ones. The texts must outlive the result.
Words *words_of_texts(const Text *texts, int count, int64_t limit);

// Reads the lines of a vocabulary file, which must outlive the result. Exits with an error if one
// is empty or occurs twice.
Words *words_of_lines(Text file, const char *path);

void words_free(Words *words);
void words_save(const Words *words, const char *path);

int32_t words_count(const Words *words);
Text words_text(const Words *words, int32_t number);
int64_t words_occurrences(const Words *words, int32_t number);
int32_t words_find(const Words *words, Text word); // number of a word; -1: not found

#endif
