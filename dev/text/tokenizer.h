// Converts text to tokens and back.
//
//   byte   256 values; token = byte
//   word   white-space separated words and <eos> at the end of each line, as the WikiText papers
//          count them
//   spm    SentencePiece: encoding and decoding equal those of spm_encode and spm_decode
//   bpe    byte-level BPE (bpe.h): decoding restores any bytes
//
// A directory of shards contains the tokenizer: `tokenizer.model` (spm, SentencePiece's own
// format), `tokenizer.vocab` (word: one word per line, whose number is the token) or the files of
// bpe_file.h (bpe).
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

// Settings for making a tokenizer.
typedef struct {
    TokenizerKind kind;
    int64_t vocabulary; // maximum number of tokens; 0: the default, 32,000 (spm), 512 to 8,192
                        // by the size of the text (bpe), all (word)
    const char *model;  // copy this file instead of making one from the texts; NULL: make one
    bool normalise;     // spm: NFKC and collapsed white space, as spm_train does by default
    bool padding, mask; // bpe: reserve [PAD] as token 0, and [MASK]
} TokenizerSettings;

// Makes the tokenizer's files in a directory and opens it. spm and bpe are trained on texts[0];
// word takes the words of all texts.
Tokenizer *tokenizer_create(const TokenizerSettings *settings, const char *directory,
                            const Text *texts, int count);

// Returns the kind of the tokenizer in a directory, by its files, or TOKENIZER_NONE.
TokenizerKind tokenizer_find(const char *directory);

// Returns whether a tokenizer file has that name.
bool tokenizer_has_file(const char *name);

// Returns whether a directory has the files of a tokenizer of that kind. Always true for
// TOKENIZER_BYTE, which has no files.
bool tokenizer_exists(TokenizerKind kind, const char *directory);

// Returns the argument of tokenize's --model that uses the tokenizer in a directory again, as a new
// string. NULL if there is none, or for TOKENIZER_BYTE, which needs no file.
char *tokenizer_model(TokenizerKind kind, const char *directory);

// Opens the tokenizer of a directory. `kind` is the one in meta.json. TOKENIZER_BYTE needs no
// directory (NULL).
Tokenizer *tokenizer_open(TokenizerKind kind, const char *directory);

// Trains a byte-level BPE on a text. It has no token that ends a text; a newline does.
Tokenizer *tokenizer_train_bpe(Text text, int64_t vocabulary);
void tokenizer_free(Tokenizer *tokenizer);

// Writes the tokenizer's files into a directory.
void tokenizer_save(const Tokenizer *tokenizer, const char *directory);

TokenizerKind tokenizer_kind_from_name(const char *name,
                                       const char *source); // exits with an error if it is unknown
const char *tokenizer_kind_name(TokenizerKind kind);
TokenizerKind tokenizer_kind(const Tokenizer *tokenizer); // NULL: TOKENIZER_NONE

int32_t tokenizer_vocabulary(const Tokenizer *tokenizer); // V
// Returns the token that ends a line (<eos>, </s>, a newline) or a text (bpe: <|endoftext|>, or a
// newline if there is none).
int32_t tokenizer_end(const Tokenizer *tokenizer);
int32_t tokenizer_padding(const Tokenizer *tokenizer); // -1: none
int32_t tokenizer_mask(const Tokenizer *tokenizer);    // -1: none

// Encodes a text into *tokens (new memory); returns their number. A newline becomes the end token
// (word, spm). With `lines`, the text is a corpus, and a last line without a newline also gets the
// end token. Without, it is a prompt and nothing is added. bpe finds special tokens in the text.
size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t size, int lines,
                        int32_t **tokens);

// Returns the first position at or after `from` (> 0) where a text can be split and each part
// encoded by itself, so that memory for encoding need not grow with the text. Returns its size if
// there is none.
size_t tokenizer_cut(const Tokenizer *tokenizer, Text text, size_t from);

// Return the tokens that the tokenizer's file puts before a text, or after it (*count): "<s>". Only
// bpe has any. tokenizer_encode() omits them.
const int32_t *tokenizer_before(const Tokenizer *tokenizer, size_t *count);
const int32_t *tokenizer_after(const Tokenizer *tokenizer, size_t *count);

// Return whether a number below V is unused (bpe: there may be holes), and whether a token is not
// text but a mark such as the end of a text (bpe).
bool tokenizer_is_unused(const Tokenizer *tokenizer, int32_t token);
bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t token);

// Returns the text of tokens, NUL-terminated (new memory), and its length in *size. The end token
// becomes a newline (word, spm). Exits with an error on a token out of range.
char *tokenizer_decode(const Tokenizer *tokenizer, const int32_t *tokens, size_t count,
                       size_t *size);

// Returns whether the text decoded from this token may change when another one follows (spm: a
// byte, which alone decodes to U+FFFD). All other decoded text stays the same when tokens are
// appended.
bool tokenizer_is_partial(const Tokenizer *tokenizer, int32_t token);

#endif
