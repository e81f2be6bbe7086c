// Files of byte-level BPE. They are Hugging Face's: `tokenizer.json` of the tokenizers library, or
// the older pair of `vocab.json` and `merges.txt`; and llm.c's `gpt2_tokenizer.bin`, which decodes
// only.
//
// What our encoding would not do as the tokenizers library does it (another pre-tokenization or a
// normaliser, a prefix or suffix of words, special tokens that take white space with them,
// dropout), holes and repetitions in a vocabulary, and merges of what is not made by an earlier
// merge end the program. Tokens that a post-processor would put around a text are left out.
#ifndef TEXT_BPE_FILE_H
#define TEXT_BPE_FILE_H

#include "bpe.h"

#define BPE_FILE "tokenizer.json"
#define BPE_LLMC_FILE "gpt2_tokenizer.bin"

// The files of a directory that hold a tokenizer: the first one there of those above; false: none
// is there.
bool bpe_exists(const char *directory);

// Whether one of a tokenizer's files has that name.
bool bpe_has_file(const char *name);

// Opens a file by its name, or the files of a directory. `vocab.json` opens merges.txt beside it as
// well.
Bpe *bpe_open(const char *path);

// Writes tokenizer.json, vocab.json and merges.txt into a directory.
void bpe_save(const Bpe *bpe, const char *directory);

#endif
