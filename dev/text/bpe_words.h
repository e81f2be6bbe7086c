// The words that a byte-level BPE encodes one by one. They are what a pattern finds one after the
// other; all words together are the text. A byte that is not UTF-8 counts as neither letter, number
// nor white space.
#ifndef TEXT_BPE_WORDS_H
#define TEXT_BPE_WORDS_H

#include "text.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    // GPT-2 (Radford et al. 2019):
    //   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    BPE_GPT2,
    // The same between digits, each of which is a word; and between numbers.
    BPE_GPT2_DIGITS,
    BPE_GPT2_NUMBERS,
    // GPT-4 and Llama 3, where case does not count in 's, 't, 're, 've, 'm, 'll, 'd:
    //   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
    //   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    BPE_GPT4,
    // Qwen 2: the same with \p{N}
    BPE_QWEN2
} BpePattern;

// Length of the word at the start of a text, which is not empty.
size_t bpe_word(BpePattern pattern, Text text);

// The first place at or after `from`, 0 < from, where the words before and after are the same
// whether the text is cut there or not: white space (with `space`, and for some patterns, ' '
// alone) after something else. The size of the text if there is none.
size_t bpe_words_cut(BpePattern pattern, Text text, size_t from, bool space);

// Bytes of white space at the start of a text, and at its end.
size_t bpe_space_first(Text text);
size_t bpe_space_last(Text text);

// Whether a text begins, or ends, with a character of a word (\w of regular expressions).
bool bpe_wordly_first(Text text);
bool bpe_wordly_last(Text text);

#endif
