// Files of byte-level BPE. They are Hugging Face's: `tokenizer.json` of the tokenizers library, or
// the older pair `vocab.json` and `merges.txt`; and llm.c's `gpt2_tokenizer.bin`, which can only
// decode.
//
// Of tokenizer.json these are read: words as in bpe_words.h (ByteLevel, alone or after Digits or a
// split by a known pattern), normalizer NFC, ignore_merges, added tokens with all their flags, and
// the tokens that a post-processor puts around a text. The rest of the file is kept as it is.
// Another model (WordPiece), pre-tokenizer or normalizer, a prefix or suffix of words, and dropout
// are errors. `vocab.json` and `merges.txt` do not mark special tokens, but added_tokens.json,
// special_tokens_map.json and tokenizer_config.json next to them do. Of tokens that none of these
// marks, only "<|endoftext|>" is special, and, if none of these files exists, [PAD] and [MASK],
// which ./tokenize writes. Their words are GPT-2's, so a tokenizer_config.json that names
// Qwen2Tokenizer is an error. "add_prefix_space" in tokenizer_config.json applies to either kind of
// file.
#ifndef TEXT_BPE_FILE_H
#define TEXT_BPE_FILE_H

#include "bpe.h"

#define BPE_FILE "tokenizer.json"
#define BPE_LLMC_FILE "gpt2_tokenizer.bin"

// Returns whether a directory has one of the tokenizer files above.
bool bpe_exists(const char *directory);

// Returns whether a tokenizer file has that name.
bool bpe_has_file(const char *name);

// Opens a file by its name, or the first of the files above in a directory. `vocab.json` also opens
// merges.txt next to it.
Bpe *bpe_open(const char *path);

// Writes tokenizer.json into a directory, and vocab.json and merges.txt if they can represent the
// tokenizer.
void bpe_save(const Bpe *bpe, const char *directory);

#endif
