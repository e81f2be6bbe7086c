// Files of byte-level BPE. They are Hugging Face's: `tokenizer.json` of the tokenizers library, or
// the older pair of `vocab.json` and `merges.txt`; and llm.c's `gpt2_tokenizer.bin`, which decodes
// only.
//
// Of tokenizer.json these are read: words as bpe_words.h has them (ByteLevel; after Digits or a
// split by a known pattern), normalizer NFC, ignore_merges, added tokens with all their flags, the
// tokens that a post-processor puts around a text. The rest of the file is kept as it is. Another
// model (WordPiece), pre-tokenizer or normalizer, a prefix or suffix of words, and dropout end the
// program. `vocab.json` and `merges.txt` do not say which tokens are special, but
// added_tokens.json, special_tokens_map.json and tokenizer_config.json next to them do: of tokens
// that none of them names only "<|endoftext|>", and if none of them exists [PAD] and [MASK], which
// ./tokenize writes. tokenizer_config.json's "add_prefix_space" holds for either kind of file.
#ifndef TEXT_BPE_FILE_H
#define TEXT_BPE_FILE_H

#include "bpe.h"

#define BPE_FILE "tokenizer.json"
#define BPE_LLMC_FILE "gpt2_tokenizer.bin"

// The files of a directory that hold a tokenizer: the first existing one of those above; false:
// none exists.
bool bpe_exists(const char *directory);

// Whether one of a tokenizer's files has that name.
bool bpe_has_file(const char *name);

// Opens a file by its name, or the files of a directory. `vocab.json` opens merges.txt next to it
// as well.
Bpe *bpe_open(const char *path);

// Writes tokenizer.json, vocab.json and merges.txt into a directory.
void bpe_save(const Bpe *bpe, const char *directory);

#endif
