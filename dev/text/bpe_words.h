// The words that a byte-level BPE encodes one by one: the consecutive matches of a pattern, which
// together are the text. A byte that is not UTF-8 counts as neither letter, number nor white space.
#ifndef TEXT_BPE_WORDS_H
#define TEXT_BPE_WORDS_H

#include "text.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    // GPT-2 (Radford et al. 2019):
    //   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    BPE_GPT2,
    // The same, with each digit as a separate word; and with each number.
    BPE_GPT2_DIGITS,
    BPE_GPT2_NUMBERS,
    // GPT-4 and Llama 3, which ignore case in 's, 't, 're, 've, 'm, 'll, 'd:
    //   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
    //   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    BPE_GPT4,
    // Qwen 2: the same with \p{N} instead of \p{N}{1,3}
    BPE_QWEN2
} BpePattern;

// Returns the length of the word at the start of a text, which is not empty.
size_t bpe_word(BpePattern pattern, Text text);

// Returns the first position at or after `from` (> 0) where splitting the text does not change its
// words: at ASCII white space (with `space`, and for some patterns, only at ' ') after something
// else, and for these patterns without `space` also after a line end. Returns the size of the text
// if there is none.
size_t bpe_words_cut(BpePattern pattern, Text text, size_t from, bool space);

// Return the bytes of white space at the start of a text, and at its end.
size_t bpe_space_first(Text text);
size_t bpe_space_last(Text text);

// Return whether a text begins, or ends, with a character of a word (\w in regular expressions).
bool bpe_wordly_first(Text text);
bool bpe_wordly_last(Text text);

#endif
