// Text to tokens and back.
//
//   byte   256 values; token = byte
//   word   white-space separated words and <eos> at the end of each line, as the WikiText papers
//          count them
//   spm    SentencePiece: encoding and decoding equal those of spm_encode and spm_decode
//   bpe    byte-level BPE (bpe.h): any bytes come back as they were
//
// A directory of shards holds the tokenizer: `tokenizer.model` (spm, SentencePiece's own format),
// `tokenizer.vocab` (word: one word per line, its number is the token) or the files of bpe_file.h
// (bpe).
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TOKENIZER_NONE,
    TOKENIZER_BYTE,
    TOKENIZER_WORD,
    TOKENIZER_SPM,
    TOKENIZER_BPE
} TokenizerKind;
typedef struct Tokenizer Tokenizer;

// How a tokenizer is made.
typedef struct {
    TokenizerKind kind;
    int64_t vocabulary; // the most tokens there may be; 0: the default, 32,000 (spm), 512 to
                        // 8,192 by the size of the text (bpe), all (word)
    const char *model;  // a copy of this file instead of one that is made of the texts; NULL: made
    bool normalise;     // spm: NFKC, and white space collapsed, as spm_train does by default
    bool padding, mask; // bpe: reserve [PAD], which is token 0, and [MASK]
} TokenizerSettings;

// Makes the tokenizer's files in a directory, and opens it. spm, bpe: trained on texts[0]; word:
// the words of all texts.
Tokenizer *tokenizer_create(const TokenizerSettings *settings, const char *directory,
                            const Text *texts, int count);

// The kind of the tokenizer in a directory, by its files; TOKENIZER_NONE: there is none.
TokenizerKind tokenizer_find(const char *directory);

// Whether a tokenizer's file has that name.
bool tokenizer_has_file(const char *name);

// Whether a directory holds the files of a tokenizer of that kind. TOKENIZER_BYTE has none: always.
bool tokenizer_exists(TokenizerKind kind, const char *directory);

// What --model of tokenize takes to use the tokenizer in a directory again, a fresh path; NULL:
// there is none, or it is that of bytes, which needs no file.
char *tokenizer_model(TokenizerKind kind, const char *directory);

// Opens the tokenizer of a directory; `kind` is what meta.json names. TOKENIZER_BYTE needs no
// directory (NULL).
Tokenizer *tokenizer_open(TokenizerKind kind, const char *directory);

// A byte-level BPE trained on a text. No token ends a text in it: that is a newline.
Tokenizer *tokenizer_train_bpe(Text text, int64_t vocabulary);
void tokenizer_free(Tokenizer *tokenizer);

// Writes its files into a directory.
void tokenizer_save(const Tokenizer *tokenizer, const char *directory);

TokenizerKind tokenizer_kind_from_name(const char *name,
                                       const char *source); // ends the program on an unknown one
const char *tokenizer_kind_name(TokenizerKind kind);
TokenizerKind tokenizer_kind(const Tokenizer *tokenizer); // NULL: TOKENIZER_NONE

int32_t tokenizer_vocabulary(const Tokenizer *tokenizer); // V
// Token that ends a line (<eos>, </s>, a newline) or a text (bpe: <|endoftext|>, without it a
// newline).
int32_t tokenizer_end(const Tokenizer *tokenizer);
int32_t tokenizer_padding(const Tokenizer *tokenizer); // -1: none
int32_t tokenizer_mask(const Tokenizer *tokenizer);    // -1: none

// Tokens of a text, in *tokens (fresh memory); returns their number. A newline becomes the end
// token (word, spm). With `lines`, the text is a corpus, and the end token follows a last line
// without a newline as well. Without, it is a prompt and nothing is added. bpe: special tokens in
// the text are found.
size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t size, int lines,
                        int32_t **tokens);

// The first place at or after `from`, 0 < from, where a text can be cut and each part encoded by
// itself: the memory of encoding need not grow with the text. Its size if there is none.
size_t tokenizer_cut(const Tokenizer *tokenizer, Text text, size_t from);

// Tokens that the tokenizer's file puts before a text, or after it (*count): "<s>". Only bpe has
// any; tokenizer_encode() leaves them out.
const int32_t *tokenizer_before(const Tokenizer *tokenizer, size_t *count);
const int32_t *tokenizer_after(const Tokenizer *tokenizer, size_t *count);

// Whether a number below V is no token's (bpe: there may be holes); whether a token is none of a
// text, but says something of it: where it ends, say (bpe).
bool tokenizer_is_unused(const Tokenizer *tokenizer, int32_t token);
bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t token);

// Text of tokens, NUL-terminated (fresh memory), its length in *size; the end token becomes a
// newline (word, spm). Tokens out of range end the program.
char *tokenizer_decode(const Tokenizer *tokenizer, const int32_t *tokens, size_t count,
                       size_t *size);

// Whether the text of tokens that end in this one may end in another way when one more follows
// (spm: a byte, which alone is U+FFFD). All other text of a list of tokens stays as it is when the
// list grows.
bool tokenizer_is_partial(const Tokenizer *tokenizer, int32_t token);

#endif
