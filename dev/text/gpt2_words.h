// GPT-2's words (Radford et al. 2019), which a byte-level BPE encodes one by one. They are what the
// pattern
//
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// finds one after the other; all words together are the text. A byte that is no UTF-8 counts as
// neither letter, number nor white space.
#ifndef TEXT_GPT2_WORDS_H
#define TEXT_GPT2_WORDS_H

#include "text.h"
#include <stddef.h>

// Length of the word at the start of a text, which is not empty.
size_t gpt2_word(Text text);

// The first place at or after `from`, 0 < from, where the words before and behind are the same
// whether the text is cut there or not: white space behind something else. The size of the text if
// there is none.
size_t gpt2_cut(Text text, size_t from);

#endif
