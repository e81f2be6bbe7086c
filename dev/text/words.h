// A vocabulary of words, which white space separates.
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include "text.h"
#include <stddef.h>
#include <stdint.h>

#define WORD_END "<eos>"     // stands for the end of a line
#define WORD_UNKNOWN "<unk>" // replaces a word that the vocabulary does not have

typedef struct Words Words;

// A vocabulary that grows word by word; the texts of its words must outlive it.
Words *words_create(void);
int32_t words_add(Words *words, Text word,
                  int64_t occurrences); // counts them; returns the word's number

// The words of some texts in the order in which they first occur, WORD_END after the first line:
// AWD-LSTM's vocabulary (Merity et al. 2018), 33,278 types on WikiText-2. WORD_UNKNOWN is added
// where no text has it. With a limit > 0, no more than that many: the most frequent ones. The texts
// must outlive the result.
Words *words_of_texts(const Text *texts, int count, int64_t limit);

// The lines of a vocabulary file, which must outlive the result. Ends the program where one is
// empty or occurs twice.
Words *words_of_lines(Text file, const char *path);

void words_free(Words *words);
void words_save(const Words *words, const char *path);

int32_t words_count(const Words *words);
Text words_text(const Words *words, int32_t number);
int64_t words_occurrences(const Words *words, int32_t number);
int32_t words_find(const Words *words, Text word); // number of a word; -1: not there

#endif
